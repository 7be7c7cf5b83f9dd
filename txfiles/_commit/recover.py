"""Recovery: decides by the table at the head of `protocol`, and does it with the steps of `protocol`.

REQUIRES everywhere: the lock. Crash-safe and idempotent: killed at any step, the next run ends in the same state.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from txfiles._commit import inventory, log_recovery, spare
from txfiles._commit.durable import second_round, sync_directories, sync_private
from txfiles._commit.evidence import Evidence
from txfiles._commit.logfile import LogFile
from txfiles._commit.protocol import abandon, apply, begin_undo, finish_undo, retire, settle, taint
from txfiles._format import layout, paths
from txfiles._format.journal import NO_BOOT_ID
from txfiles.errors import ConflictError, RecoveryConflictError, RecoveryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from txfiles._commit.home import Home
    from txfiles._commit.inventory import Inventory, Pending
    from txfiles._disk.allowance import GivenUp
    from txfiles._format.journal import Journal, Operation
    from txfiles._format.layout import State
    from txfiles.errors import Outcome

OnConflict = Literal["raise", "keep-theirs", "roll-forward", "roll-back"]

_JOURNALS = (b".intent", b".committed", b".aborting", b".prepared")
_STATES = ("intent", "committed", "aborting", "prepared")
_log = logging.getLogger("txfiles")


@dataclass(frozen=True, slots=True)
class RecoveredTransaction:
    """A transaction that recovery ended: its id and the paths that it names, sorted."""

    transaction_id: str
    paths: list[str]


@dataclass(slots=True)
class RecoveryReport:
    """What a recovery found and did.

    `rolled_forward` and `rolled_back` are transactions, `waiting` those that were prepared and wait for a decision;
    `removed` are names of the private directory that nothing needed, `unknown` names of txfiles that were left alone
    because they are not what they should be. `foreign` are files that somebody else put there; they do no harm.
    `kept` are files that were committed through the log, and are left as somebody else has changed them since.
    `given_up` is what the place did not give, see docs/limits.md.
    `outcome` is that of the transaction that was asked for, on object storage.
    """

    rolled_forward: list[RecoveredTransaction] = field(default_factory=list)
    rolled_back: list[RecoveredTransaction] = field(default_factory=list)
    waiting: list[RecoveredTransaction] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    given_up: list[GivenUp] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Nothing had to be done, and nothing is waiting or unknown."""
        return not (self.rolled_forward or self.rolled_back or self.waiting or self.removed or self.unknown)


def recover_locked(home: Home, *, on_conflict: OnConflict = "raise", durable: bool = True) -> RecoveryReport:
    """Bring the root to rest. Raises `RecoveryError` and its kinds; `OSError` where the disk does not answer."""
    report = RecoveryReport()
    try:
        _bring_to_rest(home, on_conflict, report, durable=durable)
    except OSError as error:
        if not spare.give(home, error):
            raise
        _bring_to_rest(home, on_conflict, report, durable=durable)
    finally:
        report.given_up += home.allowance.given_up
        _tell(home, report)
    return report


def _bring_to_rest(home: Home, on_conflict: OnConflict, report: RecoveryReport, *, durable: bool) -> None:
    names = home.names()
    if any(durable or _is_durable(home, name) for name in layout.unsettled(names)):
        sync_private(home)  # what is acted on from here on is what is durable
    found = inventory.take(home, names)
    check_format(home, found)
    if found.pending:
        home.require_no_sandbox()
    for pending in found.pending:
        with _explaining(home, pending):
            _recover_one(home, pending, found, on_conflict, report)
    _recover_log(home, on_conflict, report)
    _remove_loose(home, found, report)
    report.unknown += [paths.decode(name) for name in found.unknown]
    report.foreign += [paths.decode(name) for name in found.foreign]


def _recover_log(home: Home, on_conflict: OnConflict, report: RecoveryReport) -> None:
    """Behind the journals: beside records there is none, but one that came back from the dead."""
    home.close_log()
    home.log = file = LogFile.open(home)
    if file is None or file.phase() == "applied":
        return
    found = log_recovery.recover(home, file, on_conflict)
    home.ended.update(journal.tid for journal in found.committed)
    for into, journals in ((report.rolled_forward, found.forward), (report.rolled_back, found.back)):
        into += [RecoveredTransaction(journal.tid, journal.paths) for journal in journals]
    if found.theirs:
        kept = [paths.decode(path) for path in found.theirs]
        report.kept += kept
        fields = {"root": paths.decode(home.root), "paths": kept[: paths.FEW], "count": len(kept)}
        _log.warning(
            "%s: changed by somebody else since the commit, and kept: %s",
            fields["root"],
            paths.some([*map(repr, kept)]),
            extra=fields,
        )


@contextmanager
def _explaining(home: Home, pending: Pending) -> Iterator[None]:
    """Let an error of what we may not do say who may: another member of the group has closed a directory, perhaps."""
    try:
        yield
    except PermissionError as error:
        with suppress(OSError):
            owner = home.fs.stat(home.private_fd, layout.journal(pending.tid, pending.state)).st_uid
            who = f"that user {owner}, who died in it, or the superuser can recover"
            error.strerror = f"{error.strerror}: a part of transaction {pending.tid} {who}"
        raise


def _is_durable(home: Home, name: bytes) -> bool:
    return layout.parse(name).kind in _STATES and not inventory.is_process(home, name)


def ensure_format(home: Home) -> None:
    """Write `format` where it is missing or was torn at birth. REQUIRES: recovered."""
    if home.format_is_ours():
        return
    head = inventory.read_head(home)
    if head is not None and head.durable:
        raise home.refuse_without_format()
    home.write_format()


def check_format(home: Home, found: Inventory) -> None:
    needed = any(p.journal is not None and p.journal.durability == "full" for p in found.pending)
    text = home.format()
    if not text and (needed or (found.head is not None and found.head.durable)):
        raise home.refuse_without_format()
    if text != layout.FORMAT_WITH_LOG and layout.LOG in found.names:
        raise home.refuse_without_format()


def _recover_one(
    home: Home, pending: Pending, found: Inventory, on_conflict: OnConflict, report: RecoveryReport
) -> None:
    if pending.journal is not None:
        home.use_up(pending.journal.seq)
    journal = judge(home, pending, found)
    if journal is None:
        _drop(home, pending, report)
        return
    _require_untainted(home, pending, journal)
    done = RecoveredTransaction(journal.tid, journal.paths)
    if pending.state == "prepared":
        report.waiting.append(done)
        return
    home.require_followed(journal)
    evidence = Evidence(home, journal, same_tree=pending.same_tree, written=pending.written)
    for earlier in pending.also:
        home.remove(layout.journal(journal.tid, earlier))  # both names of one rename (A1)
    state = pending.state
    if state == "intent" and not evidence.proves_commit():
        if on_conflict == "raise" and (astray := evidence.lost_astray()):
            raise conflict(astray)
        abandon(home, journal, same_tree=pending.same_tree)
        report.rolled_back.append(done)
        return
    if state != "aborting":
        try:
            skip, force = decide(home, evidence, on_conflict)
        except RecoveryError:
            if on_conflict != "roll-back":
                raise  # an undo does not need the token that is lost
        else:
            if not (skip or force) or on_conflict != "roll-back":
                _roll_forward(home, evidence, state, skip, force)
                report.rolled_forward.append(done)
                return
    _roll_back(home, evidence, state, on_conflict)
    report.rolled_back.append(done)


def judge(home: Home, pending: Pending, found: Inventory) -> Journal | None:
    """The journal to act on; `None` when there is none and its remains can go. Raises `JournalCorruptError`."""
    if pending.journal is None:
        if pending.state == "intent" or pending.process:
            return None
        assert pending.error is not None
        raise pending.error
    head, journal = found.head, pending.journal
    if head is not None and (head.tid == journal.tid or journal.seq <= head.seq):
        return None
    if journal.over and not _is_tainted(home, journal):
        return None
    if journal.durability == "process" and journal.boot != home.fs.boot_id() and not _is_whole(home, pending, journal):
        return None  # nothing of it was ever synced: after a power loss damage is no surprise
    return journal


def _is_whole(home: Home, pending: Pending, journal: Journal) -> bool:
    if not home.follows(journal):
        return True  # for all that may be seen
    evidence = Evidence(home, journal, same_tree=pending.same_tree)
    try:
        return not (evidence.conflicts_undo() if pending.state == "aborting" else evidence.conflicts_forward())
    except RecoveryError:
        return False


def _drop(home: Home, pending: Pending, report: RecoveryReport) -> None:
    names = [layout.journal(pending.tid, state) for state in (*pending.also, pending.state)]
    for name in names:
        home.remove(name)
    if not pending.process:
        sync_private(home)  # it must not come back and find its tokens gone
    report.removed += [paths.decode(name) for name in names]


def _require_untainted(home: Home, pending: Pending, journal: Journal) -> None:
    if _is_tainted(home, journal):
        shown = paths.decode(home.root)
        message = (
            f"a sync failed in {shown!r} since the machine was started, so what can be read now may not be on disk; "
            f"transaction {journal.tid} can be recovered after a restart"
        )
        raise RecoveryError(message, path=shown, paths=tuple(journal.paths))


def _is_tainted(home: Home, journal: Journal) -> bool:
    return journal.tainted_in == (home.fs.boot_id() or NO_BOOT_ID)


def decide(home: Home, evidence: Evidence, on_conflict: OnConflict) -> tuple[frozenset[int], frozenset[int]]:
    """Which conflicting operations to give up, and which to force. Raises `RecoveryConflictError` when not told."""
    conflicts = evidence.conflicts_forward()
    if conflicts and on_conflict == "raise":
        raise conflict(conflicts)
    if on_conflict != "roll-forward":
        return frozenset(op.number for op in conflicts), frozenset()
    # What others put into a directory that was to go is not the transaction's to remove: the directory stays.
    stays = [op for op in conflicts if op.kind == "rmdir"]
    wanted = [op for op in conflicts if op.kind != "rmdir"]
    if in_the_way := [op for op in wanted if not evidence.can_force(op)]:
        raise conflict(in_the_way, "what is there has to be moved away by hand before this can be rolled forward")
    return frozenset(op.number for op in stays), frozenset(op.number for op in wanted)


def _roll_forward(home: Home, evidence: Evidence, state: State, skip: frozenset[int], force: frozenset[int]) -> None:
    journal = evidence.journal
    if state == "intent":
        names = (layout.journal(journal.tid, "intent"), layout.journal(journal.tid, "committed"))
        home.fs.rename(home.private_fd, names[0], home.private_fd, names[1])
    # A directory may have been made anew since, by others or by a recovery that was killed: it has to be there to stay.
    above = {path for path in paths.above(op.path for op in journal.ops) if not home.tree.is_above_root(path)}
    _sync(home, journal, lambda: sync_directories(home, above))
    try:
        apply(home, journal, skip, force, evidence=evidence)
    except ConflictError as error:  # somebody came between the look and the deed
        raise RecoveryConflictError(str(error), paths=error.paths) from error
    _sync(home, journal, lambda: second_round(home, journal, [False]))
    settle(home, journal)


def _roll_back(home: Home, evidence: Evidence, state: State, on_conflict: OnConflict) -> None:
    conflicts = evidence.conflicts_undo()
    if conflicts and on_conflict == "raise":
        raise conflict(conflicts)
    if state != "aborting":
        begin_undo(home, evidence.journal, state)
    force = frozenset(op.number for op in conflicts if on_conflict == "roll-back" and evidence.can_come_back(op))
    skip = frozenset(op.number for op in conflicts) - force
    try:
        finish_undo(home, evidence.journal, skip, force, same_tree=evidence.same_tree)
        retire(home, evidence.journal, "aborting")
    except OSError:
        taint(home, evidence.journal, "aborting")
        raise


def _sync(home: Home, journal: Journal, make_durable: Callable[[], None]) -> None:
    if journal.durability != "full":
        return
    try:
        make_durable()
    except OSError:
        taint(home, journal, "committed")
        raise


def conflict(conflicts: list[Operation], what: str = "decide with on_conflict") -> RecoveryConflictError:
    changed = tuple(sorted({paths.decode(op.name) for op in conflicts}))
    shown = paths.some([*map(repr, changed)])
    message = f"changed by somebody else since the crash: {shown}; nothing was touched, {what}"
    return RecoveryConflictError(message, paths=changed)


def _remove_loose(home: Home, found: Inventory, report: RecoveryReport) -> None:
    """Remove tokens and old files of transactions that are over. Those that a journal still needs stay."""
    if not found.loose:
        return
    there = set(home.names())
    live = {layout.parse(name).tid for name in there if name.endswith(_JOURNALS)}
    left = {tid: there.intersection(names) for tid, names in found.loose.items() if tid not in live}
    if not any(left.values()):  # they went with their transactions
        return
    head = inventory.read_head(home)
    for names in left.values():
        for name in sorted(names):
            gone = not inventory.stays(home, name, head) and home.discard(name)
            (report.removed if gone else report.unknown).append(paths.decode(name))


def _tell(home: Home, report: RecoveryReport) -> None:
    """Log each transaction that was ended, as text and as the fields root, transaction_id, decision, paths and count.

    The paths are the first few: the report has them all, and a line of a log is read by people.
    """
    root = paths.decode(home.root)
    for word, transactions in (("forward", report.rolled_forward), ("back", report.rolled_back)):
        for done in transactions:
            shown = paths.some([*map(repr, done.paths)])  # so that any name can be written to any log
            fields = {
                "root": root,
                "transaction_id": done.transaction_id,
                "decision": f"roll-{word}",
                "paths": done.paths[: paths.FEW],
                "count": len(done.paths),
            }
            _log.warning("%s: rolled %s transaction %s: %s", root, word, done.transaction_id, shown, extra=fields)
