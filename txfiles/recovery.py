"""`recover` and `status`: what a service calls when it starts, and what an operator looks at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txfiles._calls.settings import HasRoot, check_links, check_settings, is_far, root_of
from txfiles._commit import inventory
from txfiles._commit.evidence import Evidence
from txfiles._commit.home import Home, locate
from txfiles._commit.log_look import read_log
from txfiles._commit.log_recovery import outlook
from txfiles._commit.recover import (
    OnConflict,
    RecoveredTransaction,
    RecoveryReport,
    check_format,
    conflict,
    recover_locked,
)
from txfiles._commit.restore import conflict as log_conflict
from txfiles._disk import system
from txfiles._disk.allowance import Allowance
from txfiles._disk.interrupts import AllHeldBack, HeldBack
from txfiles._disk.lock import here
from txfiles._format import layout, paths
from txfiles._format.log import place
from txfiles.errors import JournalCorruptError, JournalVersionError, RecoveryError

if TYPE_CHECKING:
    from collections.abc import Collection

    from txfiles._calls.settings import Links
    from txfiles._disk.allowance import Accept
    from txfiles._format.paths import AnyPath
    from txfiles.objects.engine import Facts

__all__ = [
    "LogStatus",
    "ObjectStatus",
    "PendingTransaction",
    "RecoveredTransaction",
    "RecoveryReport",
    "StoreStatus",
    "recover",
    "status",
]

_DECISIONS = ("raise", "keep-theirs", "roll-forward", "roll-back")


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction without an end; `state` is intent, committed, aborting or prepared, `error` what is damaged.

    In the log of a root it may also be unsettled.
    """

    transaction_id: str
    state: str
    paths: list[str]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The last settled transaction: its id, its sequence number and the paths that it changed, sorted."""

    transaction_id: str
    sequence: int
    paths: list[str]


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The log of durability="journal".

    `sequence` is the number of the last commit in it, `unsettled` are the transactions since the last checkpoint: they
    are committed and durable, but after a power loss their files may have to be put in place from the log. `restored`
    are the paths at which a recovery would do so now; none as long as the machine runs. `error` is what is damaged.
    """

    sequence: int = 0
    unsettled: list[PendingTransaction] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    error: str | None = None


@dataclass(slots=True)
class StoreStatus:
    """What is in the private directory.

    `pending` are transactions that wait for recovery or a decision, `debris` names that a recovery would remove,
    `unknown` names of txfiles that it would leave alone; `head` is the last settled transaction. `foreign` are files
    that somebody else put there; they do no harm. `is_root` is false where there is no private directory: the path is
    mistyped, or no transaction was ever begun. `log` is the log, where there is one.
    """

    pending: list[PendingTransaction] = field(default_factory=list)
    debris: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    head: Head | None = None
    foreign: list[str] = field(default_factory=list)
    is_root: bool = True
    log: LogStatus | None = None

    @property
    def clean(self) -> bool:
        """Nothing is pending, left over or unknown, or to be put in place from a log."""
        to_do = self.log is not None and (self.log.restored or self.log.error)
        return not (self.pending or self.debris or self.unknown or to_do)


@dataclass(slots=True)
class ObjectStatus(StoreStatus):
    """What there is on object storage: nothing is ever pending there.

    `files` are those of the current state, `packs` the objects with contents, `condemned` objects that gc is going to
    delete, `floor` the number of the commit below which it may.
    """

    files: int = 0
    packs: int = 0
    condemned: int = 0
    floor: int = 0
    tags: list[str] = field(default_factory=list)

    @property
    def seq(self) -> int:
        """The number of the last commit."""
        return 0 if self.head is None else self.head.sequence

    @classmethod
    def of(cls, facts: Facts) -> ObjectStatus:
        """REQUIRES: `facts` were asked of the root just now."""
        head = Head(facts.transaction_id, facts.sequence, [])
        return cls([], [], [], head=head, **facts.counts())


def recover(
    root: AnyPath | HasRoot,
    transaction_id: str | None = None,
    *,
    timeout: float | None = 10.0,
    on_conflict: OnConflict = "raise",
    links: Links = "refuse",
    accept: Collection[Accept] = (),
) -> RecoveryReport:
    """Finish or undo what a crash left in `root`, and say what was done. For the start of an application.

    Safe to call from many processes at once; on a root that never held a transaction it makes nothing.

    On object storage a crash leaves nothing to do. There it says whether a transaction was committed, if its id is
    given: `outcome` of the report is `"after"` or `"before"`, and final.

    Args:
        transaction_id: of object storage only, say that of a `CommitOutcomeUnknownError`.
        timeout: seconds to wait for a writer that is at work.
        on_conflict: what to do about files that somebody else changed since the crash: `"raise"`, `"keep-theirs"`
            (finish the rest), `"roll-forward"` (overwrite theirs), `"roll-back"` (undo the rest, keep theirs).
        links: `"follow"` where transactions were made with it; else one that left the root raises `RecoveryError`.
        accept: as for `FileTransaction`.

    Raises `RecoveryConflictError`, `JournalCorruptError` and `JournalVersionError` with nothing changed,
    `RecoveryError` when something needed is missing, `LockTimeoutError`, and `OSError` where the disk does not answer.
    """
    check_settings("full", timeout, accept)
    if on_conflict not in _DECISIONS:
        raise ValueError(f"on_conflict is one of {', '.join(_DECISIONS)}, not {on_conflict!r}")
    follow = check_links(links, root)
    if is_far(root):
        from txfiles.objects.far import far_of

        store = far_of(root).open()
        if transaction_id is None:
            return RecoveryReport()
        return RecoveryReport(outcome="after" if store.is_committed(transaction_id, timeout) else "before")
    if transaction_id is not None:
        raise ValueError("the outcome of one transaction can be asked for on object storage only")
    with AllHeldBack():
        home = Home.find(system.current(), _path(root), follow=follow)
        return _recover(home, timeout, on_conflict, accept)


def _recover(
    home: Home | None, timeout: float | None, on_conflict: OnConflict, accept: Collection[Accept]
) -> RecoveryReport:
    if home is None:
        return RecoveryReport()
    with home:
        if _is_at_rest(home):  # also where nothing can be locked, on a read-only mount
            check_format(home, found := inventory.undisturbed(lambda: inventory.take(home)))
            return RecoveryReport(foreign=_decoded(found.foreign))
        home.lock.acquire(timeout, here())
        home.allowance = Allowance(home.root, accept)
        return recover_locked(home, on_conflict=on_conflict)


def _is_at_rest(home: Home) -> bool:
    names = home.names()
    if any(layout.unsettled(names)):
        return False
    if layout.LOG not in names and layout.TAIL not in names:
        return True
    found = read_log(home)
    return found is not None and found.phase == "applied"


@dataclass(frozen=True, slots=True)
class Findings:
    """What is damaged in a private directory, and which changes of others since a crash need a decision; in words."""

    damaged: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Nothing is damaged, and a recovery needs no decision."""
        return not (self.damaged or self.conflicts)


def _path(root: AnyPath | HasRoot) -> bytes:
    return locate(system.current(), root_of(root))


def verify(root: AnyPath | HasRoot, *, links: Links = "refuse") -> Findings:
    """Look for damage in the private directory of `root`. Changes nothing.

    Reads every journal and, for those that a recovery would roll forward or undo, everything that they need. What is
    merely pending is sound; a change out of the root is looked at with `links="follow"` only. On object storage it asks
    the store whether it keeps its conditions, and reads every object that the current state or a tag refers to.
    """
    if is_far(root):
        from txfiles.objects.engine import problems
        from txfiles.objects.far import far_of

        return Findings(problems(far_of(root).open()))
    with HeldBack():
        home = Home.find(system.current(), _path(root), follow=check_links(links))
        if home is None:
            return Findings()
        with home:
            return _verify(home)


def _verify(home: Home) -> Findings:
    before = None
    try:
        while True:
            found = inventory.undisturbed(lambda: _examine(home))
            if found.sound or found == before:
                return found
            before = found  # a writer at work may have changed things between two questions: ask again
    except JournalVersionError as error:
        return Findings([str(error)])


def _examine(home: Home) -> Findings:
    problems, conflicts = [], []
    found = inventory.take(home)
    if not home.format_is_ours() and (found.head is not None or layout.FORMAT in found.names):
        problems.append("the format file is missing or damaged")
    if found.head is None and layout.HEAD in found.names and not inventory.is_process(home, layout.HEAD):
        problems.append("HEAD is damaged; it does no harm, the next commit replaces it")
    for pending in found.pending:
        if pending.journal is None:
            if pending.state != "intent":
                problems.append(str(pending.error))
            continue
        evidence = Evidence(home, pending.journal, same_tree=pending.same_tree)
        if not home.follows(pending.journal):
            conflicts.append(str(home.unfollowed(pending.journal)))
            continue
        try:
            if pending.state == "aborting":
                others = evidence.conflicts_undo()
            elif pending.state in ("committed", "prepared") or evidence.proves_commit():
                others = evidence.conflicts_forward()
            else:
                continue
        except RecoveryError as error:
            problems.append(str(error))
        else:
            conflicts += [str(conflict(others))] if others else []
    try:
        log = read_log(home)
    except JournalCorruptError as error:
        problems.append(str(error))
    else:
        if log is not None and home.format() != layout.FORMAT_WITH_LOG:
            problems.append("the format file is not that of a root with a log")
        if log is not None and (foreign := outlook(home, log).foreign):
            conflicts.append(str(log_conflict(foreign)))
    problems += [f"{paths.decode(name)} is not a file of txfiles" for name in found.unknown]
    return Findings(problems, conflicts)


def status(root: AnyPath | HasRoot) -> StoreStatus:
    """What is in the private directory of `root` now. Changes nothing, takes no lock, needs no write permission.

    While a writer is at work its own files show up as pending or debris.
    """
    if is_far(root):
        from txfiles.objects.engine import facts
        from txfiles.objects.far import far_of

        return ObjectStatus.of(facts(far_of(root).open()))
    with HeldBack():
        home = Home.find(system.current(), _path(root))
        if home is None:
            return StoreStatus(is_root=False)
        with home:
            return inventory.undisturbed(lambda: _describe(home))


def _decoded(names: list[bytes]) -> list[str]:
    return [paths.decode(name) for name in names]


def _describe(home: Home) -> StoreStatus:
    found = inventory.take(home)
    out = StoreStatus(unknown=_decoded(found.unknown), foreign=_decoded(found.foreign))
    if not home.format_is_ours() and found.head is not None:
        out.unknown.append(paths.decode(layout.FORMAT))
    if found.head is not None:
        out.head = Head(found.head.tid, found.head.seq, found.head.paths)
    for pending in found.pending:
        named = [] if pending.journal is None else pending.journal.paths
        damaged = pending.error is not None and pending.state != "intent"  # a writer may be writing that one now
        error = str(pending.error) if damaged else None
        out.pending.append(PendingTransaction(pending.tid, pending.state, named, error))
    live = {pending.tid for pending in found.pending} | _describe_log(home, out)
    for tid, names in found.loose.items():
        for name in names if tid not in live else ():
            kept = inventory.keeps_old(home, name, found.head)
            (out.unknown if kept else out.debris).append(paths.decode(name))
    return out


def _describe_log(home: Home, out: StoreStatus) -> set[str]:
    """The transactions of the log that still need what lies in the private directory."""
    try:
        found = read_log(home)
    except JournalCorruptError as error:
        out.log = LogStatus(error=str(error))
        return set()
    if found is None:
        return set()
    if home.format() != layout.FORMAT_WITH_LOG:
        out.unknown.append(paths.decode(layout.FORMAT))
    last, journals = place(found.header, found.records), [record.journal for record in found.records]
    what = outlook(home, found)
    if (journal := what.in_doubt) is not None:
        out.pending.append(PendingTransaction(journal.tid, what.state, journal.paths))
        journals.pop()
    if journals and (out.head is None or out.head.sequence < last.seq):
        out.head = Head(journals[-1].tid, journals[-1].seq, journals[-1].paths)
    unsettled = [PendingTransaction(one.tid, "unsettled", one.paths) for one in journals]
    out.log = LogStatus(last.seq, unsettled, _decoded(what.restored))
    return set() if journal is None else {journal.tid}
