"""`txfiles sync`: the files of a directory made equal to those of another one, in one transaction."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from txfiles._calls.settings import is_far
from txfiles._cli.answer import DONE, Answer, number_of
from txfiles._cli.output import err, printable
from txfiles._cli.progress import Progress, size_text
from txfiles._sync import engine
from txfiles._sync.excludes import Excludes
from txfiles._sync.folder import Folder
from txfiles._sync.overlap import require_apart
from txfiles._sync.plan import Plan, Wishes
from txfiles._sync.remote import Remote
from txfiles._sync.sides import Listing
from txfiles._sync.target import TransactionTarget
from txfiles.errors import RecoveryError
from txfiles.recovery import status
from txfiles.store import FileStore
from txfiles.transaction import FileTransaction

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> Answer:
    """List the source, compare under the target's lock, stage the difference and commit it."""
    started = time.perf_counter()
    excludes = Excludes(options.exclude)
    if options.times and (is_far(options.src) or is_far(options.dir)):
        options.parser.error("object storage keeps no modification times: --times is for directories")
    with ExitStack() as stack:
        source = _source(options, excludes, stack)
        _require_settled(options.src)
        listing = source.list()
        _require_apart(source, listing, options.dir)
        if is_far(options.dir):
            tx = FileTransaction(options.dir, timeout=options.timeout, create=options.create and not options.dry_run)
            stack.enter_context(tx)
            plan, there = _sync(
                options, source, listing, Remote(tx._staging, excludes), None if options.dry_run else tx
            )
        elif options.dry_run:
            plan, there = _look_only(options, source, listing, excludes)
        else:
            tx = FileTransaction(
                options.dir,
                durability=options.durability,
                timeout=options.timeout,
                create=options.create,
                accept=options.accept,
            )
            with tx, Folder(options.dir, excludes, follow=False) as place:
                plan, there = _sync(options, source, listing, place, tx)
    for name in () if options.quiet or options.json else plan.skipped:
        err(f"txfiles: skipped {printable(name)}: it is not a regular file")
    return _answer(options, plan, listing, there, time.perf_counter() - started)


def _source(options: argparse.Namespace, excludes: Excludes, stack: ExitStack) -> Folder | Remote:
    if not is_far(options.src):
        return stack.enter_context(Folder(options.src, excludes, follow=not options.links))
    snapshot = stack.enter_context(FileStore(options.src, timeout=options.timeout).snapshot())
    return Remote(snapshot._far_view, excludes)


def _require_apart(source: Folder | Remote, listing: Listing, target: str, there: Listing | None = None) -> None:
    if isinstance(source, Folder) and not is_far(target):
        require_apart(source, listing, target, *(() if there is None else (there,)))


def _look_only(
    options: argparse.Namespace, source: Folder | Remote, listing: Listing, excludes: Excludes
) -> tuple[Plan, Listing]:
    """Without the lock, and nothing is made: so what a crash left in the target would make the answer wrong."""
    if options.create and not Path(options.dir).exists():
        return _sync(options, source, listing, None, None)
    _require_settled(options.dir)
    with Folder(options.dir, excludes, follow=False) as place:
        return _sync(options, source, listing, place, None)


def _sync(
    options: argparse.Namespace,
    source: Folder | Remote,
    listing: Listing,
    place: Folder | Remote | None,
    tx: FileTransaction | None,
) -> tuple[Plan, Listing]:
    wishes = Wishes(options.delete, options.perms, options.times, options.checksum)
    there = Listing({}, set())
    if place is not None:
        there = place.list() if options.delete else place.look(listing.entries)
        _require_apart(source, listing, options.dir, there)
    with Progress(hidden=options.json or options.quiet) as progress:
        plan = engine.find(source, listing, place or source, there, wishes, progress)
        if tx is not None:
            engine.stage(source, listing, plan, TransactionTarget(tx), wishes, progress)
    source.require_unchanged(listing)
    _require_settled(options.src)
    return plan, there


def _require_settled(path: str) -> None:
    """A directory that is a root itself is in a committed state (if its private directory may be seen)."""
    if is_far(path):
        return
    with suppress(PermissionError):
        if any(pending.state != "prepared" for pending in status(path).pending):
            message = f"a transaction of {path!r} has not ended: wait for its writer, or recover it"
            raise RecoveryError(message, path=path)


def _answer(options: argparse.Namespace, plan: Plan, listing: Listing, there: Listing, seconds: float) -> Answer:
    ours = listing.entries
    written, made = sorted(plan.write + plan.links), plan.make
    deleted, removed = (sorted(name for name in names if name not in ours) for names in (plan.delete, plan.remove))
    unchanged = sum(entry.kind in ("file", "link") for entry in ours.values()) - len(written)
    total = engine.size_of(listing, plan.write)
    lines: list[str] = []
    if options.verbose:
        lines += [f"+ {name}" for name in sorted([*written, *(f"{name}/" for name in made)])]
        lines += [f"- {name}" for name in sorted([*deleted, *(f"{name}/" for name in removed)])]
    if not options.quiet:
        lines.append(
            f"{number_of(len(written))} {'to write' if options.dry_run else 'written'} ({size_text(total)}),"
            f" {len(deleted)} {'to delete' if options.dry_run else 'deleted'}, {unchanged} unchanged, {seconds:.1f} s"
        )
    found = {
        "written": written,
        "deleted": deleted,
        "made": made,
        "removed": removed,
        "skipped": plan.skipped,
        "unchanged": unchanged,
        "bytes": total,
        "seconds": seconds,
    }
    return Answer(DONE, found | ({"dry_run": True} if options.dry_run else {}), lines)
