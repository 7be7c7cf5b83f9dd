"""`txfiles status|verify|recover|decide|checkpoint`: what a crash left, and the end of it; the log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from txfiles._calls.settings import is_far
from txfiles._cli.answer import DECISION, DONE, FAILED, NO_ROOT, Answer
from txfiles._format.paths import some
from txfiles.prepared import commit_prepared, rollback_prepared
from txfiles.recovery import ObjectStatus, recover, status, verify
from txfiles.store import FileStore

if TYPE_CHECKING:
    import argparse

    from txfiles.recovery import StoreStatus


_OUTCOMES = {"before": "not committed, and it will not be", "after": "committed"}


def run_status(options: argparse.Namespace) -> Answer:
    """What is pending in DIR."""
    found = status(options.dir)
    if not found.is_root:
        return _no_root(options, {"clean": found.clean, **asdict(found)})
    lines = []
    if found.head is not None:
        lines.append(
            f"last commit  number {found.head.sequence}, {len(found.head.paths)} paths ({found.head.transaction_id})"
        )
    if isinstance(found, ObjectStatus):
        lines.append(f"files        {found.files}, in {found.packs} packs")
        lines.append(f"garbage      {found.condemned} objects wait to be deleted: txfiles gc")
        lines += [f"tag          {name}" for name in found.tags]
    for pending in found.pending:
        lines.append(f"{pending.state:<12} {pending.transaction_id}: {pending.error or some(pending.paths)}")
    lines += _log_lines(found)
    if found.debris:
        lines.append(f"left over    {some(found.debris)}")
    lines += [f"unknown      {name}" for name in found.unknown]
    lines += [f"foreign      {name} (harmless)" for name in found.foreign]
    if any(pending.state == "prepared" for pending in found.pending):
        lines.append("waits for whoever prepared it: txfiles decide")
    elif not found.clean:
        lines.append("needs recovery (or a writer is at work now): txfiles recover")
    else:
        lines.append("clean")
    return Answer(DONE if found.clean else DECISION, {"clean": found.clean, **asdict(found)}, lines)


def _log_lines(found: StoreStatus) -> list[str]:
    if (log := found.log) is None:
        return []
    if log.error is not None:
        return [f"damaged      {log.error}"]
    lines = [f"log          {_commits(len(log.unsettled))} since the last checkpoint"]
    return [*lines, f"to restore   {some(log.restored)} (from the log)"] if log.restored else lines


def _commits(number: int) -> str:
    return "1 commit" if number == 1 else f"{number} commits"


def run_recover(options: argparse.Namespace) -> Answer:
    """Finish or undo what a crash left."""
    if not (now := status(options.dir)).is_root:
        return _no_root(options, {"clean": now.clean, "is_root": False})
    if options.dry_run:
        code, found, lines = run_status(options)
        return Answer(code, {"dry_run": True, **found}, ["would recover:" if code else "nothing to recover", *lines])
    if options.id is not None and not is_far(options.dir):
        options.parser.error("--id is for roots on object storage")
    how = {"timeout": options.timeout, "links": options.out, "accept": options.accept}
    report = recover(options.dir, options.id, on_conflict=options.decision, **how)
    lines = [] if report.outcome is None else [f"{options.id}: {_OUTCOMES[report.outcome]}"]
    for word, transactions in (
        ("finished", report.rolled_forward),
        ("undid", report.rolled_back),
        ("waiting", report.waiting),
    ):
        lines += [f"{word:<9} {done.transaction_id}: {some(done.paths)}" for done in transactions]
    if report.removed:
        lines.append(f"removed   {some(report.removed)}")
    lines += [f"unknown   {name} (left alone)" for name in report.unknown]
    lines += [f"foreign   {name} (harmless)" for name in report.foreign]
    lines += [f"kept      {name} (changed by somebody else since)" for name in report.kept]
    lines += [f"given up  {lost.what}: {lost.path}" for lost in report.given_up]
    if report.clean and report.outcome is None:
        lines.append("clean, nothing to recover")
    found = {"clean": report.clean, **asdict(report), "is_root": True}
    return Answer(DECISION if report.waiting else DONE, found, lines)


def run_decide(options: argparse.Namespace) -> Answer:
    """The second phase of a prepared transaction."""
    how = {"timeout": options.timeout, "links": options.out, "accept": options.accept}
    if options.commit:
        commit_prepared(options.dir, options.id, on_conflict=options.decision, **how)
    else:
        rollback_prepared(options.dir, options.id, **how)
    done = "committed" if options.commit else "rolled back"
    return Answer(DONE, {"transaction_id": options.id, "decision": done}, [f"{done} {options.id}"])


def run_verify(options: argparse.Namespace) -> Answer:
    """Read the private directory and every journal in it; change nothing."""
    if not status(options.dir).is_root:
        return _no_root(options, {"sound": True, "is_root": False})
    found, pending = verify(options.dir, links=options.out), []
    if not found.damaged:
        now = status(options.dir)
        pending = [f"{one.state} {one.transaction_id}: {some(one.paths)}" for one in now.pending]
        pending += [f"left over: {some(now.debris)}"] if now.debris else []
        pending += [f"to restore from the log: {some(now.log.restored)}"] if now.log and now.log.restored else []
    lines = [f"damaged: {text}" for text in found.damaged]
    lines += [f"conflict: {text}" for text in found.conflicts]
    lines += [f"pending: {text}" for text in pending]
    what = "recovery needs a decision" if found.conflicts else "recovery is pending"
    lines.append("not sound" if found.damaged else f"sound, {what}" if pending else "sound")
    code = FAILED if found.damaged else DECISION if pending or found.conflicts else DONE
    return Answer(code, {"sound": found.sound, **asdict(found), "pending": pending, "is_root": True}, lines)


def run_checkpoint(options: argparse.Namespace) -> Answer:
    """Empty the log, and with `--remove-log` do without it."""
    if not (before := status(options.dir)).is_root:
        return _no_root(options, {"commits": 0, "log": False, "is_root": False})
    store = FileStore(options.dir, timeout=options.timeout, links=options.out, accept=options.accept)
    (store.remove_log if options.remove_log else store.checkpoint)()
    commits = 0 if before.log is None else len(before.log.unsettled)
    is_left = before.log is not None and not options.remove_log
    found = {"commits": commits, "log": is_left, "is_root": True}
    if before.log is None:
        return Answer(DONE, found, ["no log, nothing to do"])
    what = "every file is durable where it is"
    return Answer(DONE, found, [f"{_commits(commits)} settled, {what}" + ("" if is_left else "; the log is removed")])


def _no_root(options: argparse.Namespace, found: dict[str, Any]) -> Answer:
    """What is no root is neither sound nor damaged: the path may be mistyped."""
    return Answer(NO_ROOT, found, [f"not a txfiles root: {options.dir} (or no transaction was ever begun in it)"])
