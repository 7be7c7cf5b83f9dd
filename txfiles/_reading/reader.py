"""One committed state of a root, found without the lock, and questions asked of it. Writes nothing but to recover.

A commit renames its files one by one while T.committed (or, in an undo, T.aborting) is there, and ends by making
T.committed HEAD. A *look* is a list of those journals, and then the identity of HEAD.

    R1  The state is that of HEAD at the beginning: a commit whose writer lives (I8) is still to come. Or it is that
        after a journal that nobody holds, and whose end could not be waited for.
    R2  An answer counts if the look after it is the one before it, and the question asked again has the same answer: a
        commit that ended in between has replaced HEAD, one that is under way has a journal, and of one that was undone
        nothing is found again. HEAD is kept open, so that its inode number cannot come back meanwhile.
    R3  A journal under way is laid over the tree (`overlay`): after it, if it is one of R1, or else before it. What
        is laid there is part of the look.
    R4  Later commits are followed as long as none is missed. What they changed has expired.
    R5  A root that is known to be at rest stays so while its private directory has the same mtime: a transaction
        begins with making a file there. Then no look is needed, and no question is asked twice.
"""

from __future__ import annotations

import errno
import random
import time
from typing import TYPE_CHECKING, TypeVar

from txfiles._commit.recover import conflict, recover_locked
from txfiles._disk.allowance import UnsyncedDirectoryError
from txfiles._disk.interrupts import GivingWay
from txfiles._disk.lock import is_locked
from txfiles._format import layout, paths
from txfiles._reading.lookout import AT_REST, NEVER, Gone, Known, Look, Lookout, Standing, rest, unreadable
from txfiles._reading.overlay import Entries, lay_after, lay_before, lay_intent_before, name_of
from txfiles._reading.question import Question, Traced, attempt, expired
from txfiles._reading.records import Moved
from txfiles.errors import (
    JournalCorruptError,
    JournalVersionError,
    LockTimeoutError,
    RecoveryError,
    SnapshotExpiredError,
    UnsupportedFilesystemError,
)

if TYPE_CHECKING:
    from txfiles._disk.system import FileSystem
    from txfiles._reading.lookout import Mark
    from txfiles._reading.records import LogLook, State

_PATIENCE = 10.0  # seconds that a commit is given to end where the caller would wait for ever
_TRIES = 20  # at least, however short the timeout
_SOON = 0.005  # seconds in which most commits end; only after them the lock is tried
_NO_JOURNALS: frozenset[bytes] = frozenset()
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)

T = TypeVar("T")


class Patience:
    """Waiting for at most `timeout` seconds, at random and growing intervals."""

    def __init__(self, timeout: float | None) -> None:
        self._began = time.monotonic()
        self._until = self._began + (_PATIENCE if timeout is None else timeout)
        self._interval = 0.0005
        self._tries = 0
        self._last_chance = False

    @property
    def fresh(self) -> bool:
        return time.monotonic() < min(self._began + _SOON, self._until)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._until

    def sleep(self) -> None:
        with GivingWay():
            time.sleep(max(0.0, min(self._interval * random.uniform(0.5, 1), self._until - time.monotonic())))
        self._interval = min(self._interval * 1.3, 0.02)

    def try_again(self, root: bytes) -> None:
        """Raise `LockTimeoutError` when there was time, and more than a few times to try, for what did not succeed."""
        self._tries += 1
        if self._last_chance and self._tries > _TRIES:
            shown, waited = paths.decode(root), time.monotonic() - self._began
            raise LockTimeoutError(f"{shown!r} was not at rest for a moment in {waited:.3f} s", path=shown)
        self._last_chance = self.over  # one more, which waits for nobody and reads what stands still as it is


class Reader:
    """Reads from one state of `root`, which `begin` fixes. `version` names the state. Not for two threads at once."""

    def __init__(
        self, fs: FileSystem, root: bytes, timeout: float | None, *, durable: bool, links_out: bool = False
    ) -> None:
        self.version = NEVER
        self._fs = fs
        self._root = root
        self._timeout = timeout
        self._durable = durable
        self._links_out = links_out
        self._lookout = Lookout(fs, root, follow=links_out)
        self._may_recover = True
        self._at_rest = False
        self._mark: Mark | None = None

    def close(self) -> None:
        """Free the descriptors; may be called again."""
        self._lookout.close()

    # -- the state ----------------------------------------------------------------------------------------------

    def begin(self, first: Question[T], *, follow: bool) -> T:
        """Fix the state, and ask a first question about it. Without `follow` more may expire later than has to.

        What a dead writer left is recovered; a commit of which that cannot be told is given time to end. Raises
        `RecoveryError` and its kinds, `LockTimeoutError`, and `OSError`.
        """
        patience: Patience | None = None
        self._hopeful = True
        while True:
            if self._fix(patience, follow):
                try:
                    return self.ask(first)
                except (Moved, SnapshotExpiredError):
                    pass
            patience = patience or Patience(self._timeout)
            patience.try_again(self._root)
            self._hopeful = False

    def begin_from(self, version: str, mark: Mark) -> None:
        """`begin` with the state of a root that was at rest a while ago, and had this mark (R5)."""
        self._forget()
        self.version, self._at_rest, self._hopeful = version, True, False
        self._mark = mark
        self._stand_at(AT_REST)
        now = self._lookout.mark()
        self._lost = now is None or now[:2] != mark[:2]  # another directory is there by now

    def _forget(self) -> None:
        """No state is fixed."""
        self._taken: dict[str, int] = {}
        self._sequence: int | None = None
        self._expired: set[bytes] = set()
        self._lost = False
        self._adopted = False
        self._place: State | None = None

    def _fix(self, patience: Patience | None, follow: bool) -> bool:
        """Fix the state as it is now (R1); false if that has to be done again."""
        lookout = self._lookout
        self._forget()
        lookout.intents = None
        try:
            if patience is None:
                self._hope(follow)
                return True
            self._at_rest = False
            lookout.adopt_head()
            lookout.require_format()
            return self._examine(patience)
        except PermissionError as error:
            raise unreadable(self._root) from error
        except Gone:
            lookout.close()
            self._lookout = Lookout(self._fs, self._root, follow=self._links_out)
        except (Moved, FileNotFoundError):
            pass
        return False

    def _hope(self, follow: bool) -> None:
        """Take it for granted that no commit is under way. If it is not known (R5), the first look tells."""
        lookout = self._lookout
        self._mark = lookout.mark()
        version = NEVER if self._mark is None else self._known(self._mark)
        self._at_rest = version is not None
        self._began = 0.0 if self._at_rest else time.monotonic()
        log = self._adopt() if version is None or follow else None
        if version is None:
            lookout.require_format()
            version = lookout.version(log=self._place)
        self.version = version
        self._stand_at(AT_REST._replace(head=lookout.head, log=log))

    def _known(self, mark: Mark) -> str | None:
        """The version of a root that is known to be at rest (R5); one with a log is so in its session only (L1)."""
        known = rest.known(mark)
        if known is None or known.session is None:
            return None if known is None else known.version
        return known.version if self._lookout.session() == known.session else None

    def _adopt(self) -> LogLook | None:
        """Go by HEAD and the log as they are now."""
        lookout = self._lookout
        lookout.adopt_head()
        self._adopted = True
        log = lookout.look_at_log()
        self._place = lookout.state(log)
        if self._hopeful and log is not None and log.is_dead:
            raise Moved
        return log

    def _examine(self, patience: Patience) -> bool:
        lookout = self._lookout
        look = lookout.look()
        if look.head != lookout.head:
            return False
        standing = [one for one in lookout.standing(look) if one.begun or _differs_from_before(one)]
        begun = [one for one in standing if one.begun]
        dead = look.log if look.log is not None and look.log.is_dead else None
        if begun or dead:
            if self._ends(patience, sure=dead is None or dead.here):
                return False
            try:
                _require_no_conflict(begun)
            except RecoveryError:
                if lookout.look() != look:
                    raise Moved from None
                raise
        self._place = lookout.state(look.log)
        if dead is not None:
            self._place = lookout.records.state_after(dead)
            lookout.records.require_no_conflict(dead)
        self.version = lookout.version(log=self._place)
        for one in begun:
            if one.forward:
                journal = one.evidence.journal
                self._taken[journal.tid] = self._sequence = journal.seq
                self.version = lookout.version(one.name, self._place)
        lookout.intents = frozenset(one.name for one in standing if one.name.endswith(b".intent"))
        self._stand_at(look._replace(journals=frozenset(name for name in look.journals if lookout.matters(name))))
        return True

    def _ends(self, patience: Patience, *, sure: bool) -> bool:
        """Let a commit under way come to its end; false when it does not, and has to be read as it is.

        Unless it is `sure` that what it shows has passed its commit point, it is not read while somebody is at work.
        """
        if patience.fresh:
            patience.sleep()
            return True
        locked = self._recover() if self._may_recover else None
        if locked is None:
            locked = is_locked(self._fs, self._lookout.private_fd)
            if not locked:
                return False
        if locked and patience.over:
            return not sure
        if locked:
            patience.sleep()
        return True

    def _recover(self) -> bool | None:
        """Recover, or say that the lock is taken. `None`: this is not allowed here, or recovery needs a decision.

        What others may have written is read, and replayed only for who opens the root for writing: the journal of a
        user would otherwise have root, who only reads, replace files that the user may not.
        """
        home = self._lookout.home
        if not home.is_the_callers_own():
            self._may_recover = False
            return None
        try:
            home.lock.acquire(0, object())
            try:
                recover_locked(home, durable=self._durable)
            finally:
                home.close_log()
                home.lock.release()
        except LockTimeoutError:
            return True
        except (JournalCorruptError, JournalVersionError):
            raise
        except (RecoveryError, UnsupportedFilesystemError):
            self._may_recover = False
            return None
        except OSError as error:
            if error.errno not in _FORBIDDEN and not isinstance(error, UnsyncedDirectoryError):
                raise
            self._may_recover = False
            return None
        return False

    # -- following ----------------------------------------------------------------------------------------------

    def _unmoved(self) -> bool:
        """Look again. When it is not as it was, go on from there. Raises `Moved` while there is nothing to go on from.

        At the beginning it is hoped that nothing is under way: the first look tells.
        """
        lookout = self._lookout
        if self._at_rest and lookout.mark() == self._mark:
            return True
        try:
            if self._at_rest:
                self._leave_rest()
                if self._lost:
                    return False
            look = lookout.look()
            if look == self._seen and (look.is_quiet or self._entries(look) == self._view.entries):
                if self._hopeful:
                    self._note_rest()
                return True
            if self._hopeful and look.is_dead:
                raise Moved
            lookout.tree.close()
            if self._hopeful:
                look = look._replace(log=self._adopt())
                self.version = lookout.version(log=self._place)
            else:
                if look.log != self._seen.log:
                    self._follow_log(look.log)
                if look.head != lookout.head:
                    self._follow()
            self._note_undone(look)
            self._stand_at(look._replace(head=lookout.head))
        except Gone:
            self._lost = True
        except (Moved, FileNotFoundError):
            if self._hopeful:
                raise Moved from None
            # the next look will differ from the last one, too
        return False

    def _note_rest(self) -> None:
        lookout = self._lookout
        lookout.intents = _NO_JOURNALS
        if self._seen.is_quiet and lookout.mark_is_kept(self._mark) and lookout.mark() == self._mark:
            session = None if self._seen.log is None else lookout.session()
            rest.examined(self._root, self._mark, self._began, Known(self.version, session))

    def _leave_rest(self) -> None:
        """Somebody has begun to do something: from now on look at what it is."""
        if self._hopeful:
            raise Moved
        self._lookout.intents = _NO_JOURNALS
        if self._mark is None:
            self._sequence = 0
        elif not self._adopted:
            log = self._adopt()
            self._lost = self._lookout.version(log=self._place) != self.version
            self._seen = Look(self._lookout.head, _NO_JOURNALS, log=log)
        self._at_rest = False

    def _follow(self) -> None:
        """HEAD was replaced: note what the one commit since has changed, if it was one (R4)."""
        if self._sequence is None:
            self._sequence = self._sequence_of_head()
        if self._place is not None:
            self._sequence = max(self._sequence, self._place.at.seq)
        self._lookout.adopt_head()
        journal = self._lookout.read_head()
        if journal is not None and self._taken.get(journal.tid) == journal.seq:
            return
        if journal is None or journal.seq != self._sequence + 1:
            self._lost = True
        else:
            self._sequence = journal.seq
            self._expired.update(op.path for op in journal.ops)

    def _follow_log(self, look: LogLook | None) -> None:
        """Note what records since have changed (R4)."""
        if look is None:
            self._lost = True
            return
        records, since = self._lookout.records, self._place
        if since is not None and since == records.state_after(look):
            return
        now = records.state(look)
        changed = records.changed(since, now)
        if changed is None:
            self._lost = True
        else:
            self._place = now
            self._expired |= changed

    def _note_undone(self, look: Look) -> None:
        """Of a journal that was read as done and then undone no state is left to read from."""
        for tid, sequence in self._taken.items():
            stands = any(layout.journal(tid, state) in look.journals for state in ("intent", "committed"))
            if not stands and self._sequence_of_head() < sequence:
                self._lost = True

    def _sequence_of_head(self) -> int:
        journal = self._lookout.read_head()
        return 0 if journal is None else journal.seq

    def _stand_at(self, look: Look) -> None:
        lookout = self._lookout  # not `self`: a cycle would keep all of it until it is collected
        self._view = Traced(
            self._fs, lookout.tree, lambda held: (lookout.private_fd, name_of(held)), self._entries(look)
        )
        self._seen = look

    def _entries(self, look: Look) -> Entries:
        """R3."""
        entries: Entries = {}
        for name in look.live:
            lay_before(self._lookout.live(name), entries)
        for one in self._lookout.standing(look):
            if one.evidence.journal.tid in self._taken:
                lay_after(one.evidence, entries)
            elif one.begun:
                lay_before(one.evidence, entries)
            else:
                lay_intent_before(one.evidence, entries)
        if look.log is not None and self._place is not None:
            self._lookout.records.lay(look.log, self._place, entries)
        return entries

    # -- asking -------------------------------------------------------------------------------------------------

    def ask(self, question: Question[T]) -> T:
        """What the state answers; errors are answers, too.

        Raises `SnapshotExpiredError`, and `LockTimeoutError` when there is no rest.
        """
        patience: Patience | None = None
        while not self._lost:
            view = self._view
            view.is_still = self._at_rest
            view.forget()
            answer, error = attempt(question.ask, view)
            counts = False
            try:
                if self._holds(question, answer, error):
                    view.require_none_of(self._expired)
                    counts = True
                    if error is not None:
                        raise error
                    return answer  # type: ignore[return-value]
            finally:
                if not counts and error is None:
                    question.drop(answer)  # type: ignore[arg-type]
            patience = patience or Patience(self._timeout)
            patience.try_again(self._root)
        raise expired(self._root, "the directory")

    def _holds(self, question: Question[T], answer: T | None, error: Exception | None) -> bool:
        """R2. Two commits can make one name, and both be undone: where names are told, a third look excludes that."""
        view = self._view
        if not self._unmoved():
            return False
        self._hopeful = False
        if self._at_rest:
            return True
        self._lookout.tree.close()  # a directory that is kept open may have been removed and made anew
        now, failed = attempt(question.again if error is None else question.ask, view)
        if error is not None and failed is None:
            question.drop(now)  # type: ignore[arg-type]
        if error is None or failed is None:
            same = error is failed and now == answer
        else:
            same = (type(error), str(error)) == (type(failed), str(failed))
        return same and (not question.by_name or self._unmoved())


def _differs_from_before(one: Standing) -> bool:
    entries: Entries = {}
    lay_intent_before(one.evidence, entries)
    return bool(entries)


def _require_no_conflict(begun: list[Standing]) -> None:
    """Where recovery needs a decision nobody can tell the state. Raises what recovery would."""
    for one in begun:
        examine = one.evidence.conflicts_forward if one.forward else one.evidence.conflicts_undo
        try:
            found = examine()
        except RecoveryError:
            found = examine()  # a writer that lives may have moved a file between two of its looks
        if found:
            found = [op for op in examine() if op in found]
        if found:
            raise conflict(found)
