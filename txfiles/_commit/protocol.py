"""The protocol: prepare, commit point, apply, settle, undo, recover. This page is the whole of it.

Guarantee. After any sequence of process kills and power losses, also during recovery, and one recovery that
finishes, the tree is exactly the state before or exactly the state after a transaction; with durability "full" it is
the state after whenever `commit` returned. The private directory then holds its permanent files only.

Assumptions.
    A1  rename is atomic for everybody who looks. After a power loss it happened, or it did not, or both names exist
        for the one inode; never neither. Or what it was to replace is gone, and the old name is still there.
    A2  changes of a directory are durable once its fsync returned; before that any subset may survive.
    A3  fsync of a file makes content, size and metadata durable; what is not synced may come back as anything.
    A4  fsync reports an error once; after one, what the page cache shows may not be on disk.
    A5  programs that do not use txfiles may change files at any time; that is detected, not prevented.

States of a transaction T. The name of the journal is the state.

        prepare                commit                     settle
    ──> T.intent ────────────> T.committed ─────────────> HEAD
           │  │                   │  ▲ apply, roll forward
           │  │ prepare           │  └──┘
           │  └─────> T.prepared ─┘ commit (two-phase)
           │ abandon     │        │ undo
           ▼             ▼        ▼
        (nothing) <── abandon   T.aborting ──> retire ──> (nothing)

Invariants.
    I1  No target is touched before the first sync round returned: every token, the journal, every `.old` link, and
        whatever they stand on, are durable. So whoever sees a target with its new identity knows that.
    I2  An operation is done when its token is gone; a delete, when its token is there, which is the deleted file.
    I3  A target is replaced or removed only by one rename, and only if it is what the journal recorded.
    I4  T.committed becomes HEAD only when every operation is done and durable.
    I5  T.aborting is durable before the first undo, and gone, durably, before what it needs goes.
    I6  Recovery changes nothing that belongs to a journal before all of that journal's evidence was examined.
    I7  Everything that changes the private directory or a target happens under the lock.
    I8  A writer holds its journal (flock) from before it is T.committed until its commit has ended, and nobody else
        ever does. So the state is the one before as long as T.committed is held, and `.old` has what was replaced.

Recovery decides by what it sees, in the order of sequence numbers; first it syncs the private directory, so that what
it saw is what is durable.
    a journal not newer than HEAD, or noted as over     its transaction is settled, or came to nothing: remove
    T.aborting                                          finish the undo
    T.committed                                         roll forward, settle (the directories above are synced first)
    T.intent with proof that something was applied      the rename of the journal was lost: roll forward, settle
    T.intent without proof, or invalid                  commit had not returned: abandon
    T.prepared                                          leave it, report it
    T.committed or T.aborting, invalid                  JournalCorruptError
    a token or an old file that is needed and not whole RecoveryError
    an operation not done whose target is foreign       RecoveryConflictError, until the caller decides
    tokens and `.old` files without a journal           remove; keep an `.old` that is the only link to its file
    anything else                                       leave it, report it
"""

from __future__ import annotations

import errno
import stat
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from txfiles._commit import spare
from txfiles._commit.durable import first_round, home_round, second_round, sync_directories, sync_open, sync_private
from txfiles._commit.evidence import UNFINISHED, Evidence, OutOfSight, same_inode
from txfiles._commit.inventory import read_head
from txfiles._disk import metadata
from txfiles._disk.allowance import UnsyncedDirectoryError
from txfiles._disk.interrupts import give_way
from txfiles._disk.system import give, write_all
from txfiles._format import journal as codec
from txfiles._format import layout, paths
from txfiles._format.journal import Exit, Head, Journal, Operation, Synced
from txfiles._tree.borders import POSSIBLE
from txfiles.errors import (
    CommitError,
    CommitOutcomeUnknownError,
    ConflictError,
    SettleError,
    TxFilesError,
    UnsupportedFilesystemError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from txfiles._commit.home import Home
    from txfiles._disk.system import Stat
    from txfiles._format.layout import State
    from txfiles._tree.staging import Staging

T = TypeVar("T")

NOTHING: frozenset[int] = frozenset()
_PATIENCE = 10  # exceptions in one step
_OPENED = 0o4000  # of a new directory that its group may write until all is done: it means nothing there


# -- before the commit point ----------------------------------------------------------------------------------------


def prepare(
    home: Home,
    staging: Staging,
    durability: Synced,
    *,
    two_phase: bool = False,
    operations: list[Operation] | None = None,
) -> Journal | None:
    """Make the intent durable, no target touched (I1). `None`, and nothing written, when there is nothing to do.

    `operations` are those of `staging.plan()`, if it was asked just now.

    Raises `CommitError` or the error that stood in the way; nothing has changed then.
    """
    made: list[bytes] = []
    number = 0
    try:
        if operations is None:
            home.require_in_place()
            operations = staging.plan()
        if not operations:
            run_to_end(staging.tokens.remove_all)
            return None
        staging.tokens.keep_only({op.number for op in operations})
        if home.progress is not None:
            files = sum(op.new is not None and op.new.link is None for op in operations)
            home.progress.begin(len(operations) + (files if durability == "full" else 0))
        head = read_head(home)
        if durability == "full" and (head is None or not head.vouches):
            _make_home_durable(home)
        number = home.next_number(head)
        journal = _write_intent(home, staging, operations, durability, number, head, two_phase, made)
        give_way()
        first_round(home, staging.tokens, journal, head)
        staging.tokens.close()
        give_way()  # beyond this point it is finished
    except BaseException as cause:
        give_up(home, staging, made, number, cause)
        raise
    return journal


def _make_home_durable(home: Home) -> None:
    try:
        home_round(home)
    except OSError:
        with suppress(OSError):
            home.write_format()  # the next commit is to sync another file than the one that failed (A4)
        raise


def _write_intent(
    home: Home,
    staging: Staging,
    operations: list[Operation],
    durability: Synced,
    number: int,
    head: Head | None,
    two_phase: bool,
    made: list[bytes],
) -> Journal:
    fs, tokens = home.fs, staging.tokens
    name = layout.journal(tokens.tid, "intent")
    # A process journal is made read-only: so it is known for what it is even when a power loss left it garbage.
    mode = 0o600 if durability == "full" else 0o400
    fd = _with_room(home, head, lambda: fs.create(home.private_fd, name, mode))
    try:
        made.append(name)
        home.hold(fd)
        ino = home.share(fd, mode).st_ino  # first: if root dies here, the owner of the directory has to recover
        exits = staging.exits(operations)
        journal = Journal(
            tid=tokens.tid,
            seq=number,
            durability=durability,
            boot=fs.boot_id(),
            ino=ino,
            born=fs.born(fd),
            ops=tuple(_with_room(home, head, partial(_secure, home, staging, op)) for op in operations),
            dirs=directories(home, operations, exits),
            two_phase=two_phase,
            exits=exits,
        )
        raw = codec.encode_for_head(journal)

        def write() -> None:
            try:
                write_all(fs, fd, raw)
            except OSError:
                fs.seek(fd, 0, 0)  # for another try
                raise

        _with_room(home, head, write)
        spare.require(home, len(operations))
        if durability == "full":
            fs.start_writeback(fd)
    finally:
        tokens.keep_journal(fd)
    return journal


def _with_room(home: Home, head: Head | None, step: Callable[[], T]) -> T:
    """Do it; on a full disk again in the room of the spare, and of HEAD, so that deleting is possible there, too.

    A transaction that ends without a new HEAD leaves a root that has none: the next one syncs more than it needs.
    """
    while True:
        try:
            return step()
        except OSError as error:
            if not spare.give(home, error, *(() if head is None else (layout.HEAD,))):
                raise


def _secure(home: Home, staging: Staging, op: Operation) -> Operation:
    """Give the operation its token, and a write the link to what it replaces, whose identity is the one that counts."""
    fs, tokens = home.fs, staging.tokens
    if op.kind == "delete":
        return op._replace(number=tokens.reserve())
    if op.kind != "write":
        return op._replace(number=tokens.marker())
    found = fs.stat(home.private_fd, tokens.name(op.number))
    assert op.new is not None
    if (found.st_ino, found.st_size, found.st_mtime_ns) != (op.new.ino, op.new.size, op.new.mtime_ns):
        raise _meddled(op)
    if op.old is None:
        return op
    old = tokens.link_old(home.tree, op)
    # `_replace` takes ten times as long
    return Operation(op.number, op.kind, op.path, old, op.new, op.digest, op.meta, op.was, op.via)


def directories(home: Home, operations: list[Operation], exits: Iterable[Exit]) -> tuple[tuple[bytes, int], ...]:
    involved = {paths.split(op.path)[0] for op in operations}
    involved.update(paths.split(link)[0] for one in exits for link in one.links)
    involved.update(*map(paths.ancestors, involved))
    involved.update(op.path for op in operations if op.kind == "mkdir")
    out = []
    for path in sorted(involved):
        if home.tree.is_above_root(path):
            continue
        found = home.tree.stat(path)
        out.append((path, found.st_ino if found is not None and stat.S_ISDIR(found.st_mode) else 0))
    return tuple(out)


def give_up(home: Home, staging: Staging, made: list[bytes], number: int, cause: BaseException) -> None:
    """Remove the intent and the tokens; raises the error that the caller of `commit` is to see."""
    left: list[OSError] = []

    def remove() -> None:
        for name in made:
            home.use_up(number)
            # Where a directory cannot be synced this cannot be made durable either, nor can what might prove it.
            durable = staging.tokens.durable and not isinstance(cause, UnsyncedDirectoryError)
            remove_journal(home, name, durable=durable)
        try:
            staging.tokens.remove_all()
        except OSError as error:  # without a journal they are nobody's: the outcome is known
            left.append(error)

    shown = paths.decode(home.root)
    try:
        run_to_end(remove)
    except OSError as error:
        message = f"the commit in {shown!r} failed ({paths.told(cause, home.root)}), and so did its cleanup"
        message += f" ({paths.told(error, home.root)}); recovery decides"
        raise CommitOutcomeUnknownError(message, path=shown) from cause
    if isinstance(cause, OSError) and not isinstance(cause, TxFilesError):
        if (interrupt := interrupt_in(cause)) is not None:
            raise interrupt
        failure = CommitError(
            f"nothing was changed in {shown!r}: {paths.told(cause, home.root)}", path=path_of(cause, shown)
        )
        _add_notes(failure, left, home)
        raise failure from cause
    _add_notes(cause, left, home)


def _add_notes(failure: BaseException, left: list[OSError], home: Home) -> None:
    for error in left:
        failure.add_note(f"txfiles: staged files could not be removed: {paths.told(error, home.root)}")


def abandon(home: Home, journal: Journal, *, same_tree: bool) -> None:
    """Forget an intent of which nothing is applied: what apply can have left is an old file without its name (A1),
    or somebody's directory under the name of a deleted file.

    Directories are left alone: T.committed is durable before the first of them is touched.
    """
    evidence = Evidence(home, journal, same_tree=same_tree)
    lost = [op for op in journal.ops if evidence.lost_its_name(op, evidence.target(op)) and evidence.has_parent(op)]
    for op in lost:
        home.fs.rename(home.private_fd, evidence.old_name(op), *home.tree.at(op.path))
    lost += [op for op in journal.ops if _give_back(home, evidence, op)]
    if journal.durability == "full":
        lost += [op for op in journal.ops if evidence.came_back(op)]
        sync_directories(home, {paths.split(op.path)[0] for op in lost})
    retire(home, journal, "intent")


def remove_journal(home: Home, name: bytes, *, durable: bool) -> None:
    """Remove it for good: one that was reported dead must not come back and find proof.

    Once a sync of a directory has failed, a later one that succeeds may not be true (A4), so that the name can be back.
    The file says then that it is over. If that cannot be made durable, the journal is left with its name, tainted.
    """
    if not durable:
        home.remove(name)
        return
    try:
        fd = home.fs.open_append(home.private_fd, name)
    except FileNotFoundError:  # removed, before an interrupt
        sync_private(home)
        return
    try:
        if home.sync_failed:
            try:
                _note_over(home, fd)
            except OSError:
                _note_failed_sync(home, name)
                raise
        home.remove(name)
        try:
            sync_private(home)
        except OSError:
            _note_over(home, fd)
    finally:
        home.fs.close(fd)


def _note_over(home: Home, fd: int) -> None:
    write_all(home.fs, fd, codec.OVER)
    sync_open(home, fd)


def retire(home: Home, journal: Journal, state: State) -> None:
    """Remove the journal, durably, and then what it needed (I5): it must not come back and miss them."""
    remove_journal(home, layout.journal(journal.tid, state), durable=journal.durability == "full")
    for op in journal.ops:
        home.discard(layout.token(journal.tid, op.number))
        home.discard(layout.old(journal.tid, op.number))


# -- the commit point and after -------------------------------------------------------------------------------------


class Commit:
    """One way through the states, from a durable intent (or prepared) to its end. Call it once.

    Each step can be repeated after an interrupt; it names the next one as its last act. Raises `CommitError` or
    `ConflictError` (undone), `CommitOutcomeUnknownError` or `SettleError`; an interrupt, when all that is done.
    """

    def __init__(self, home: Home, journal: Journal, state: State = "intent") -> None:
        self.home = home
        self.journal = journal
        self.state = state
        self.durable = journal.durability == "full"
        self.shown = paths.decode(home.root)
        self.failure: BaseException | None = None
        self._next: Callable[[], None] | None = self._pass_commit_point

    def __call__(self) -> None:
        try:
            run_to_end(self._steps)
        except BaseException as interrupt:
            if interrupt is not self.failure:
                interrupt.__cause__ = self.failure
            raise
        if self.failure is not None:
            raise interrupt_in(self.failure) or self.failure

    def _steps(self) -> None:
        while self._next is not None:
            self._next()

    def _pass_commit_point(self) -> None:
        fs, private = self.home.fs, self.home.private_fd
        before, after = layout.journal(self.journal.tid, self.state), layout.journal(self.journal.tid, "committed")
        try:
            try:
                fs.rename(private, before, private, after)
            except FileNotFoundError:  # an interrupt hit between the rename and its return
                fs.stat(private, after)
            if self.state == "prepared" and self.durable:
                sync_private(self.home)  # a decision must not be lost: nothing else would prove it
        except OSError as error:
            if spare.give(self.home, error):
                return
            if self.state == "prepared":
                message = f"the decision in {self.shown!r} could not be made durable: {self._told(error)}"
                self._fail(CommitOutcomeUnknownError(message, path=self.shown), error)
            else:
                self._fail(
                    CommitError(f"nothing was changed in {self.shown!r}: {self._told(error)}", path=self.shown), error
                )
                self._next = self._undo
            return
        self._next = self._apply

    def _apply(self) -> None:
        self.home.tree.close()  # directories may have been moved since they were opened
        try:
            apply(self.home, self.journal)
        except Exception as cause:
            if spare.give(self.home, cause):
                return
            if (known := self._crossing(cause)) is not None:
                self._fail(known, cause)
            elif isinstance(cause, OSError) and not isinstance(cause, TxFilesError):
                message = f"nothing was changed in {self.shown!r}: {self._told(cause)}"
                self._fail(CommitError(message, path=path_of(cause, self.shown)), cause)
            else:
                self.failure = cause
            self._next = self._undo
            return
        self._next = self._sync

    def _undo(self) -> None:
        try:
            if not self._exists("intent"):  # otherwise nothing was touched
                begin_undo(self.home, self.journal)
                tell_what_is_theirs(self.failure, finish_undo(self.home, self.journal))
        except (OSError, TxFilesError) as error:
            if not spare.give(self.home, error):
                self._fail_undo(error)
        else:
            self._next = self._retire  # not again from the start: a token that is gone would count as applied

    def _retire(self) -> None:
        try:
            retire(self.home, self.journal, "intent" if self._exists("intent") else "aborting")
        except OSError as error:
            self._fail_undo(error)
        else:
            self._tell_what_stayed()
            self._next = None

    def _crossing(self, cause: Exception) -> UnsupportedFilesystemError | None:
        """What is in the way where the system said EXDEV, if that can be found out."""
        if not (isinstance(cause, OSError) and cause.errno == errno.EXDEV and isinstance(cause.filename, str)):
            return None
        cause.strerror = f"{cause.strerror}: {POSSIBLE}"
        with suppress(OSError):
            path = paths.encode(cause.filename)
            return self.home.tree.explain_crossing(paths.OUTSIDE + path if path.startswith(b"/") else path)
        return None

    def _fail_undo(self, error: Exception) -> None:
        if isinstance(error, OSError):
            taint(self.home, self.journal, "aborting")
        message = f"the commit in {self.shown!r} failed ({self.failure}), and so did undoing it ({self._told(error)})"
        self._fail(CommitOutcomeUnknownError(f"{message}; recovery decides", path=self.shown), error)

    def _tell_what_stayed(self) -> None:
        with suppress(OSError):  # the outcome is known, this is only a hint
            names = [name for name in self.home.names() if layout.parse(name).tid == self.journal.tid]
            if names and self.failure is not None:
                shown = paths.some([paths.decode(name) for name in sorted(names)])
                self.failure.add_note(f"txfiles: cannot be removed, and is left in the private directory: {shown}")

    def _exists(self, state: State) -> bool:
        try:
            self.home.fs.stat(self.home.private_fd, layout.journal(self.journal.tid, state))
        except FileNotFoundError:
            return False
        return True

    def _sync(self) -> None:
        private_done = [False]
        try:
            if self.durable:
                second_round(self.home, self.journal, private_done)
        except OSError as error:
            taint(self.home, self.journal, "committed")
            if private_done[0]:
                self._fail(self._settle_error(error), error)
            else:  # T.committed itself may be lost, and with it what was applied
                message = f"syncing {self.shown!r} failed after the commit: {self._told(error)}; recovery decides"
                self._fail(CommitOutcomeUnknownError(message, path=self.shown), error)
            return
        self._next = self._settle

    def _settle(self) -> None:
        try:
            settle(self.home, self.journal)
        except OSError as error:
            if spare.give(self.home, error):
                return
            self._fail(self._settle_error(error), error)
        else:
            spare.keep(self.home, durable=self.durable)
        self._next = None

    def _settle_error(self, error: OSError) -> SettleError:
        message = f"committed in {self.shown!r}, but tidying up failed and is left to recovery: {self._told(error)}"
        return SettleError(message, path=self.shown)

    def _told(self, error: BaseException) -> str:
        return paths.told(error, self.home.root)

    def _fail(self, failure: TxFilesError, cause: BaseException) -> None:
        failure.__cause__ = cause
        self.failure = failure
        self._next = None


def apply(
    home: Home,
    journal: Journal,
    skip: frozenset[int] = NOTHING,
    force: frozenset[int] = NOTHING,
    *,
    evidence: Evidence | None = None,
) -> None:
    """Do what is not done yet; the first time, again after an interrupt, and in recovery with the evidence it has.

    Operations in `skip` are given up, those in `force` replace whatever is there. Directory changes have barriers
    around them: what was renamed out of a directory must be durable before the directory goes, and a directory must
    be durable before anything is renamed into it, or the file would be lost with it.
    """
    if evidence is None:
        evidence = Evidence(home, journal, same_tree=True)
    durable = journal.durability == "full"
    by_kind = {kind: [op for op in journal.ops if op.kind == kind] for kind in ("delete", "rmdir", "mkdir", "write")}
    for op in by_kind["delete"]:
        with paths.Naming(op.path, always=True):
            _apply_delete(home, evidence, op, skip, force)
        home.step()
    made = by_kind["rmdir"] + by_kind["mkdir"]
    closing = {op.number: op for op in by_kind["mkdir"] if _is_closed_to_others(home, op)}
    if made and durable:
        sync_directories(home, {paths.split(op.path)[0] for op in by_kind["delete"]}, private=True)
    for op in made:
        with suppress(OutOfSight), paths.Naming(op.path, always=True):
            _apply_directory(home, evidence, op, skip, _open_directory if op.number in closing else _finish_directory)
    if made and durable:
        parents = {paths.split(op.path)[0] for op in made}
        sync_directories(home, parents | {op.path for op in by_kind["mkdir"]})
    for op in made:
        if op.number not in closing:
            home.remove(evidence.token_name(op))
        home.step()
    for op in by_kind["write"]:
        try:  # which is faster than `Naming`, for many files
            _apply_write(home, evidence, op, skip, force)
        except OutOfSight:
            pass
        except OSError as error:
            paths.give_name(error, op.path, always=True)
            raise
        home.step()
    for op in reversed(closing.values()):
        with suppress(OutOfSight), paths.Naming(op.path, always=True):
            _close_directory(home, evidence, op)
    if closing and durable:
        sync_directories(home, {op.path for op in closing.values()})  # or without its token one would stay open
    for op in closing.values():
        home.remove(evidence.token_name(op))


def _apply_delete(home: Home, evidence: Evidence, op: Operation, skip: frozenset[int], force: frozenset[int]) -> None:
    target = evidence.target(op)
    if target is None and _give_back(home, evidence, op):
        target = evidence.target(op)
    if not evidence.is_to_go(op, target):
        return  # what is there now came later and is somebody else's
    assert target is not None
    at, name = home.tree.at(op.path)
    if evidence.deleted(op) is not None:
        home.fs.unlink(at, name)  # both names of one rename (A1): a rename between them would do nothing
    elif op.number in skip:
        return
    elif op.number in force or evidence.is_old(op, target):
        home.fs.rename(at, name, home.private_fd, evidence.token_name(op))
        if evidence.took_a_directory(op):
            _give_back(home, evidence, op)
            raise _foreign(evidence, op, target)
    else:
        raise _foreign(evidence, op, target)


def _give_back(home: Home, evidence: Evidence, op: Operation) -> bool:
    """Take back the rename of a delete that moved a directory, which somebody had put there after the look."""
    if not evidence.took_a_directory(op) or evidence.target(op) is not None or not evidence.has_parent(op):
        return False
    home.fs.rename(home.private_fd, evidence.token_name(op), *home.tree.at(op.path))
    return True


def _apply_directory(
    home: Home, evidence: Evidence, op: Operation, skip: frozenset[int], finish: Callable[[Home, Operation], None]
) -> None:
    if evidence.token(op) is None or op.number in skip:
        return
    target = evidence.target(op)
    if op.kind == "rmdir":
        if target is not None and stat.S_ISDIR(target.st_mode):
            home.tree.forget(op.path)
            home.fs.rmdir(*home.tree.at(op.path))
    elif target is None:
        _make_directory(home, op, finish)
    elif not stat.S_ISDIR(target.st_mode):
        raise _foreign(evidence, op, target)
    elif evidence.is_shut(op, target):  # whoever began it has put nothing into it yet
        home.tree.forget(op.path)
        home.fs.rmdir(*home.tree.at(op.path))
        _make_directory(home, op, finish)
    else:
        _finish_if_begun(home, evidence, op, target, finish)


def _apply_write(home: Home, evidence: Evidence, op: Operation, skip: frozenset[int], force: frozenset[int]) -> None:
    target = evidence.target(op)
    if target is not None and evidence.is_as_seen(op, target):
        home.fs.rename(home.private_fd, evidence.token_name(op), *home.tree.at(op.path))
        return
    token = evidence.token(op)
    if token is None:
        if target is not None and evidence.is_old(op, target) and not evidence.is_new(op, target):
            raise _meddled(op)
        return
    if op.number in skip or (target is not None and (same_inode(token, target) or evidence.is_new(op, target))):
        home.remove(evidence.token_name(op))  # both names of one rename (A1)
    elif not evidence.is_file_or_link(op, token):
        raise _meddled(op)
    elif target is None or op.number in force or evidence.is_untouched(op, target):
        if op.number in force:
            make_parents(home, op)
        home.fs.rename(home.private_fd, evidence.token_name(op), *home.tree.at(op.path))
    else:
        raise _foreign(evidence, op, target)


def make_parents(home: Home, op: Operation) -> None:
    """Make the directories that somebody removed from under a write that is to be done all the same."""
    for directory in paths.ancestors(op.path)[1:]:
        if home.tree.stat(directory) is None:
            home.fs.mkdir(*home.tree.at(directory), 0o777)
            sync_directories(home, [paths.split(directory)[0]])


def settle(home: Home, journal: Journal) -> None:
    """The journal becomes HEAD; then the old and the deleted files go. REQUIRES: all done and durable (I4)."""
    committed = layout.journal(journal.tid, "committed")
    try:  # noqa: SIM105 (in every commit)
        home.fs.rename(home.private_fd, committed, home.private_fd, layout.HEAD)
    except FileNotFoundError:  # an interrupt hit between the rename and its return
        pass
    _remove_leftovers(home, journal)


def _remove_leftovers(home: Home, journal: Journal) -> None:
    for op in journal.ops:
        if op.kind != "write":
            home.discard(layout.token(journal.tid, op.number))
        elif op.old is not None:
            home.remove(layout.old(journal.tid, op.number))


# -- undo -----------------------------------------------------------------------------------------------------------


def begin_undo(home: Home, journal: Journal, state: State = "committed") -> None:
    """From here on the transaction is lost (I5)."""
    before, after = layout.journal(journal.tid, state), layout.journal(journal.tid, "aborting")
    with suppress(FileNotFoundError):
        home.fs.rename(home.private_fd, before, home.private_fd, after)
    if journal.durability == "full":
        sync_private(home)  # or recovery would roll forward what is half undone


def finish_undo(
    home: Home,
    journal: Journal,
    skip: frozenset[int] = NOTHING,
    force: frozenset[int] = NOTHING,
    *,
    same_tree: bool = True,
) -> list[Operation]:
    """Put back what was applied, in reverse, with the barriers of `apply`; the journal is to be retired next.

    Operations in `skip` stay as they are; the old files of those in `force` come back though the new ones were removed.
    Returns the writes that are not undone, because somebody else has changed their targets since.
    """
    evidence = Evidence(home, journal, same_tree=same_tree)
    durable = journal.durability == "full"
    ops = [op for op in journal.ops if op.number not in skip]
    made = [op for op in ops if op.kind in ("rmdir", "mkdir")]
    files = [op for op in ops if op.kind in ("write", "delete")]
    left = []
    for op in reversed([op for op in files if op.kind == "write"]):
        with paths.Naming(op.path, always=True):
            if not _undo_write(home, evidence, op, force):
                left.append(op)
    if made and durable:
        sync_directories(home, {paths.split(op.path)[0] for op in files if op.kind == "write"}, private=True)
    for op in reversed(made):
        with paths.Naming(op.path, always=True):
            _undo_directory(home, evidence, op)
    if made and durable:
        parents = {paths.split(op.path)[0] for op in made}
        sync_directories(home, parents | {op.path for op in made if op.kind == "rmdir"})
    for op in reversed([op for op in files if op.kind == "delete"]):
        with paths.Naming(op.path, always=True):
            _undo_delete(home, evidence, op)
    if durable:
        second_round(home, journal, [False])
    return left


def _undo_write(home: Home, evidence: Evidence, op: Operation, force: frozenset[int]) -> bool:
    """False where somebody else has replaced the target since, removed it, or changed its mode, owner or attributes."""
    token, target = evidence.token(op), evidence.target(op)
    if token is not None and (target is None or not same_inode(token, target)):
        if evidence.lost_its_name(op, target):
            home.fs.rename(home.private_fd, evidence.old_name(op), *home.tree.at(op.path))
        return True  # not applied
    if target is not None and not evidence.is_new(op, target):
        return evidence.is_old(op, target)  # undone already
    if token is None and op.old is not None and op.number not in force and not evidence.is_undisturbed(op, target):
        return False
    if op.old is not None:
        # It is missing where it was put back, and the file then removed, or where nothing was ever synced.
        if (target is not None and token is None) or evidence.old(op) is not None:
            home.fs.rename(home.private_fd, evidence.old_name(op), *home.tree.at(op.path))
    elif token is not None:
        home.fs.unlink(*home.tree.at(op.path))  # both names of one rename (A1)
    elif target is not None:
        home.fs.rename(*home.tree.at(op.path), home.private_fd, evidence.token_name(op))
    return True


def _undo_delete(home: Home, evidence: Evidence, op: Operation) -> None:
    _give_back(home, evidence, op)
    if evidence.target(op) is None and evidence.deleted(op) is not None:
        home.fs.rename(home.private_fd, evidence.token_name(op), *home.tree.at(op.path))


def _undo_directory(home: Home, evidence: Evidence, op: Operation) -> None:
    target = evidence.target(op)
    if op.kind == "rmdir":
        if target is None:
            _make_directory(home, op, _finish_directory)
        elif stat.S_ISDIR(target.st_mode):
            _finish_if_begun(home, evidence, op, target, _finish_directory)
    elif op.kind == "mkdir" and target is not None:
        home.tree.forget(op.path)
        try:
            home.fs.rmdir(*home.tree.at(op.path))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise  # what others put there meanwhile stays, and so the directory


def _make_directory(home: Home, op: Operation, finish: Callable[[Home, Operation], None]) -> None:
    at, name = home.tree.at(op.path)
    home.fs.mkdir(at, name, UNFINISHED)
    finish(home, op)


def _finish_if_begun(
    home: Home, evidence: Evidence, op: Operation, target: Stat, finish: Callable[[Home, Operation], None]
) -> None:
    """Finish what was cut off before it was durable; somebody else's has another mode, or something else in it."""
    if not evidence.is_begun(op, target):
        return
    if all(evidence.has(op.kind, paths.join(op.path, name)) for name in home.fs.listdir(home.tree.open_dir(op.path))):
        finish(home, op)


def _finish_directory(home: Home, op: Operation) -> None:
    assert op.meta is not None
    fd = home.tree.open_dir(op.path)
    has = metadata.apply(home.fs, fd, home.fs.fstat(fd), op.meta)
    home.allowance.metadata(op.path, op.meta, has, new=op.kind == "mkdir")


# -- directories of a root that a group shares ----------------------------------------------------------------------


def _is_closed_to_others(home: Home, op: Operation) -> bool:
    """A new directory that some who may write the root, and so have to recover it, may not change."""
    assert op.meta is not None
    root = home.fs.fstat(home.root_fd)
    shared = root.st_mode & 0o070 if home.fs.fstat(home.private_fd).st_mode & stat.S_IWGRP else 0
    return bool(shared & ~op.meta.mode) or bool(shared and op.meta.gid != root.st_gid)


def _open_directory(home: Home, op: Operation) -> None:
    """To the group of the root, until all is done: those can read and change as much in the private directory."""
    fs, fd = home.fs, home.tree.open_dir(op.path)
    root = fs.fstat(home.root_fd)
    for key in {metadata.DEFAULT_ACL, metadata.ACCESS_ACL}.intersection(fs.xattrs(*home.tree.at(op.path))):
        fs.remove_xattr(fd, key)
    if fs.fstat(fd).st_gid == root.st_gid or give(fs, fd, -1, root.st_gid):
        fs.chmod(fd, _OPENED | 0o700 | root.st_mode & 0o070)
    else:
        _finish_directory(home, op)


def _close_directory(home: Home, evidence: Evidence, op: Operation) -> None:
    target = evidence.target(op)
    if evidence.token(op) is None or target is None or not (stat.S_ISDIR(target.st_mode) and target.st_mode & _OPENED):
        return
    assert op.meta is not None
    try:
        if op.meta.gid != target.st_gid:
            home.fs.chmod(home.tree.open_dir(op.path), _OPENED | 0o700)  # or for a moment another group could enter
        _finish_directory(home, op)
    except PermissionError:
        if target.st_uid == home.fs.ids()[0]:
            raise
        home.allowance.left_open(op.path, target.st_uid, op.meta.mode)


# -- shared ---------------------------------------------------------------------------------------------------------


def run_to_end(step: Callable[[], object]) -> None:
    """Run a step that can be repeated. An interrupt waits until the step is done: half done is for nobody.

    An exception that no step raises is one, too: one thread can make another raise between two lines. What comes
    again and again is a mistake.
    """
    interrupt: BaseException | None = None
    patience = _PATIENCE
    while True:
        try:
            step()
            break
        except (OSError, TxFilesError) as failure:
            if interrupt is None:
                raise
            raise interrupt from failure
        except (KeyboardInterrupt, SystemExit, Exception) as error:
            interrupt = error
            patience -= isinstance(error, Exception)
            if not patience:
                raise
    if interrupt is not None:
        raise interrupt


def interrupt_in(failure: BaseException | None) -> BaseException | None:
    """The Ctrl-C that came beside a failure (see `FileSystem.run_all`): it is the one to raise."""
    while isinstance(failure, Exception):
        failure = failure.__cause__
    return failure


def tell_what_is_theirs(failure: BaseException | None, left: list[Operation]) -> None:
    """What could not be undone."""
    if left and failure is not None:
        shown = paths.some([repr(paths.decode(op.path)) for op in left])
        failure.add_note(f"txfiles: changed by somebody else meanwhile, and left as it is: {shown}")


def taint(home: Home, journal: Journal, state: State) -> None:
    """Note in the journal that a sync failed in this boot (A4): until a restart its evidence cannot be believed.

    Where it was any other call that failed, what can be read is so, and a later sync makes it durable.
    """
    if home.sync_failed:
        _note_failed_sync(home, layout.journal(journal.tid, state))


def _note_failed_sync(home: Home, name: bytes) -> None:
    with suppress(OSError):  # the error that led here is the one to raise; this note is only for the page cache
        fd = home.fs.open_append(home.private_fd, name)
        try:
            write_all(home.fs, fd, codec.taint(home.fs.boot_id()))
        finally:
            home.fs.close(fd)


def _meddled(op: Operation) -> ConflictError:
    shown = paths.decode(op.path)
    return ConflictError(f"what was staged for {shown!r} was changed by somebody else", path=shown)


def _foreign(evidence: Evidence, op: Operation, target: Stat) -> TxFilesError:
    shown = paths.decode(op.path)
    for other in evidence.journal.ops:
        if other.number != op.number and evidence.is_new(other, target):
            return paths.one_name(other.path, op.path)
    return ConflictError(f"{shown!r} was changed by somebody else during the commit", path=shown)


def path_of(cause: OSError, otherwise: str) -> str:
    name = cause.filename
    if isinstance(name, bytes):
        return paths.decode(name)
    return name if isinstance(name, str) else otherwise
