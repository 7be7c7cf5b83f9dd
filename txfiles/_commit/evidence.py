"""What the disk says about a transaction: reads only, and decides nothing.

Only "no such entry" means absent (an `OSError` of any other kind comes through and stops recovery).
"""

from __future__ import annotations

import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from txfiles._disk import metadata
from txfiles._format import layout, paths
from txfiles._format.digest import digest_of
from txfiles._tree.tokens import digest_of_file
from txfiles.errors import RecoveryError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from txfiles._commit.home import Home
    from txfiles._disk.system import Stat
    from txfiles._format.journal import Identity, Journal, Meta, Operation, OpKind


# The mode of a new directory until it has its metadata. Nobody else makes one with that mode; in version 1 many did.
UNFINISHED = 0o1700 if sys.platform == "linux" else 0o700
_LOOKS = 5  # at what somebody may be changing right now
_SMALL, _AT_ONCE = 1 << 16, 100  # tokens of at most so many bytes are read so many at once


class OutOfSight(PermissionError):
    """It is in a directory that the journal has made, and that its writer closed to us: the last thing of all."""


class Evidence:
    """The state of each operation of one journal, looked at anew at every call (but see `look_anew`).

    `same_tree`: the journal is where it was written, so that inode numbers count; not so in a copied tree.
    `written`: when its file was, for who looks twice; 0 if each look is to be whole.
    """

    def __init__(self, home: Home, journal: Journal, *, same_tree: bool, written: int = 0) -> None:
        self.home = home
        self.fs = home.fs
        self.journal = journal
        self.same_tree = same_tree
        self._leaves = {op.path: op for op in journal.ops if op.kind in ("delete", "rmdir")}
        self._comes = {op.path: op for op in journal.ops if op.kind in ("write", "mkdir")}
        self._over: bool | None = None
        self._written = written
        self._seen: dict[int, tuple[int, int]] = {}  # targets found untouched: inode number and ctime, by operation
        self._ahead: dict[int, tuple[Stat, str]] = {}  # stat and digest of tokens, by number of the operation

    def look_anew(self) -> None:
        """Forget what was found out once for all operations; what is asked of one is looked at anew at every call."""
        self._over = None

    def has(self, kind: OpKind, path: bytes) -> bool:
        """Whether the journal has an operation of this kind and path."""
        op = (self._leaves if kind in ("delete", "rmdir") else self._comes).get(path)
        return op is not None and op.kind == kind

    # -- names --------------------------------------------------------------------------------------------------

    def token_name(self, op: Operation) -> bytes:
        return layout.token(self.journal.tid, op.number)

    def old_name(self, op: Operation) -> bytes:
        return layout.old(self.journal.tid, op.number)

    def token(self, op: Operation) -> Stat | None:
        ahead = self._ahead.get(op.number)
        return self._private(self.token_name(op)) if ahead is None else ahead[0]

    def old(self, op: Operation) -> Stat | None:
        return self._private(self.old_name(op))

    def target(self, op: Operation) -> Stat | None:
        """Raises `OutOfSight` where it is done, and its writer has shut it away."""
        left = _LOOKS
        while True:
            try:
                return self.home.tree.stat(op.path)
            except PermissionError as error:
                left -= 1
                if (shut := self._shut_above(op)) is not None:
                    if shut.st_mode & 0o1777 == UNFINISHED:
                        return None  # there is nothing in it yet
                    raise OutOfSight(*error.args) from error
                if not left:
                    raise
                self.home.tree.close()  # its writer, who lives, may have opened it since

    def _shut_above(self, op: Operation) -> Stat | None:
        """The directory of this journal above an operation that we may not pass."""
        for above in paths.ancestors(op.path)[1:]:
            try:
                self.home.tree.open_dir(above)
            except PermissionError:
                if not self.has("mkdir", above):
                    return None
                with suppress(PermissionError):  # what is above that has just been shut, too
                    return self.home.tree.stat(above)
                return None
        return None

    def is_shut(self, op: Operation, target: Stat) -> bool:
        """A new directory that another user has begun, and may alone go on with: empty."""
        if target.st_mode & 0o1777 != UNFINISHED:
            return False
        try:
            self.home.tree.open_dir(op.path)
        except PermissionError:
            return True
        return False

    def is_begun(self, op: Operation, target: Stat) -> bool:
        """A directory of the journal that was cut off before it had its metadata, or before that was durable.

        The mode tells, also the one that an ACL has set. The last mode does not tell that a new one has its attributes,
        too: a power loss can keep the one change and lose the other. In the boot that made it, it does.
        """
        assert op.meta is not None
        mode, wanted = target.st_mode & 0o1777, op.meta.mode & 0o1777
        if mode == (0o700 if self.journal.version == 1 else UNFINISHED):
            return True
        if (target.st_uid, target.st_gid) != (op.meta.uid, op.meta.gid) or self.fs.ids()[0] not in (0, target.st_uid):
            return False
        if mode != wanted:
            return bool(op.meta.xattrs) and mode == wanted | 0o1000
        if self.same_boot or op.kind != "mkdir":
            return False
        return not metadata.matches(self.fs, *self.home.tree.at(op.path), target, op.meta)

    def _private(self, name: bytes) -> Stat | None:
        try:
            return self.fs.stat(self.home.private_fd, name)
        except FileNotFoundError:
            return None

    def astray(self, op: Operation) -> bool:
        """It went through a link out of the root that does not lead there any more, or not from this tree."""
        found = self.journal.exit_of(op)
        return found is not None and not (self.same_tree and self.home.tree.still_leads(found))

    @property
    def same_boot(self) -> bool:
        """The machine has run ever since the journal was written, so that no power loss has touched the tree."""
        return self.journal.boot == self.fs.boot_id()

    # -- classification -----------------------------------------------------------------------------------------

    def is_old(self, op: Operation, target: Stat | None) -> bool:
        """The target is what the journal recorded before the commit; absent counts as old when nothing was there."""
        if target is None or op.old is None:
            return target is None and op.old is None
        return self._shows(op.old, target, op)

    def is_untouched(self, op: Operation, target: Stat) -> bool:
        """The same, and nobody has changed its mode, owner or attributes either, which a write would undo."""
        if not self.is_old(op, target):
            return False
        if not (self.journal.version == 1 or self.has_meta(op, target, op.was or op.meta)):
            return False
        if target.st_ctime_ns < self._written:  # or a change within one tick of the clock could show the same time
            self._seen[op.number] = target.st_ino, target.st_ctime_ns
        return True

    def is_as_seen(self, op: Operation, target: Stat) -> bool:
        """A look has found the token whole and the target untouched, and it is still that: every change sets ctime."""
        return self._seen.get(op.number) == (target.st_ino, target.st_ctime_ns)

    def has_meta(self, op: Operation, target: Stat, recorded: Meta | None) -> bool:
        """Mode, owner and attributes of the target are those recorded; in a copied tree they may have been lost."""
        return not self.same_tree or metadata.read(self.fs, *self.home.tree.at(op.path), target) == recorded

    def is_new(self, op: Operation, target: Stat | None) -> bool:
        """The target of a write is what the token was. In a copied tree the digest has to say so."""
        if target is None or op.new is None or not self._shows(op.new, target, op):
            return False
        return self.same_tree or self._digest(*self.home.tree.at(op.path), target) == op.digest

    def is_undisturbed(self, op: Operation, target: Stat | None) -> bool:
        """Nobody has touched the new file of a write: it is there, with its metadata.

        After a power loss a missing one says nothing: the rename that puts the old file back can have taken it (A1).
        """
        if target is None:
            return not self.same_boot or self.old(op) is None
        return self.has_meta(op, target, op.meta)

    def deleted(self, op: Operation) -> Stat | None:
        """The deleted file, once a delete is done: it lies under its token's name."""
        token = self.token(op)
        if token is None or stat.S_ISDIR(token.st_mode):
            return None
        return None if self.journal.version == 1 and self._is_marker(op, token) else token

    def took_a_directory(self, op: Operation) -> bool:
        """Somebody had put a directory in the place of what was to be deleted, and the rename has moved that."""
        token = self.token(op) if op.kind == "delete" else None
        return token is not None and stat.S_ISDIR(token.st_mode)

    def _is_marker(self, op: Operation, token: Stat) -> bool:
        """The empty file that waited under the token's name for the deleted one, in version 1 of the journal."""
        assert op.old is not None
        if self._shows(op.old, token, op, private=True):
            return False
        return token.st_size == 0 or self.is_old(op, self.target(op))  # who has the file open may have changed it

    def is_to_go(self, op: Operation, target: Stat | None) -> bool:
        """A delete is still to be done: its target is at its name yet, or at both names of the rename (A1)."""
        if target is None:
            return False
        deleted = self.deleted(op)
        return not self._deletes_are_over() if deleted is None else same_inode(deleted, target)

    def _deletes_are_over(self) -> bool:
        """They are durable before a directory's token goes, and before an old file does when all is settled.

        So it is with a journal that has come back from the dead, and whose deleted files have not.
        """
        if self._over is None:
            self._over = any(
                self.token(op) is None if op.kind != "write" else op.old is not None and self.old(op) is None
                for op in self.journal.ops
                if op.kind != "delete"
            )
        return self._over

    def _shows(self, recorded: Identity, found: Stat, op: Operation, *, private: bool = False) -> bool:
        """What was found, the target or with `private` the token, is the one recorded."""
        ino, size, mtime_ns, link = recorded
        if link is not None:
            at, name = (self.home.private_fd, self.token_name(op)) if private else self.home.tree.at(op.path)
            return stat.S_ISLNK(found.st_mode) and self.fs.readlink(at, name) == link
        if found.st_ino != ino and self.same_tree:
            return False
        return stat.S_ISREG(found.st_mode) and (found.st_size, found.st_mtime_ns) == (size, mtime_ns)

    def _digest(self, at: int, name: bytes, found: Stat) -> str | None:
        if stat.S_ISLNK(found.st_mode):
            return digest_of(self.fs.readlink(at, name))
        return digest_of_file(self.fs, at, name, found.st_size) if stat.S_ISREG(found.st_mode) else None

    def _digest_of_token(self, op: Operation, token: Stat) -> str | None:
        ahead = self._ahead.get(op.number)
        return self._digest(self.home.private_fd, self.token_name(op), token) if ahead is None else ahead[1]

    def is_file_or_link(self, op: Operation, token: Stat) -> bool:
        """The token of a write is of the kind that was staged: a rename would put anything else in place, too."""
        assert op.new is not None
        return stat.S_IFMT(token.st_mode) == (stat.S_IFREG if op.new.link is None else stat.S_IFLNK)

    def token_is_whole(self, op: Operation, token: Stat) -> bool:
        """Content and metadata are those that the journal recorded; a crash in the sync round can lose either."""
        assert op.new is not None
        if not self.is_file_or_link(op, token):
            return False
        assert op.meta is not None
        at, name = self.home.private_fd, self.token_name(op)
        try:
            if op.new.link is None and (
                token.st_size != op.new.size or not metadata.matches(self.fs, at, name, token, op.meta)
            ):
                return False
            return self._digest_of_token(op, token) == op.digest
        except PermissionError as error:
            return self._believe(op, token, error)

    def _believe(self, op: Operation, found: Stat, error: PermissionError) -> bool:
        """Whether a file that its writer closed to us is the one recorded; raises `error` where nobody can tell.

        Other members of the group have to recover, whatever the umask of the one that died. What the first sync round
        made durable (I1), or what this boot wrote, is whole if it is still the same file.
        """
        if not self.same_tree or (self.journal.durability != "full" and self.journal.boot != self.fs.boot_id()):
            paths.give_name(error, op.path, always=True)
            raise error
        return self.is_new(op, found)

    def lost_its_name(self, op: Operation, target: Stat | None) -> bool:
        """Of the rename of a write a power loss has left this: the old file has no name, the new one still its old one.

        In the boot that wrote the journal it was somebody else who removed the old file.
        """
        return target is None and not self.same_boot and self.old(op) is not None

    def came_back(self, op: Operation) -> bool:
        """An earlier recovery may have put that back, and have been killed before it was durable."""
        target = self.target(op)
        if op.kind == "delete":
            return target is not None and stat.S_ISDIR(target.st_mode)
        return op.kind == "write" and op.old is not None and not self.same_boot and self.old(op) is None

    def lost_astray(self) -> list[Operation]:
        """Files without a name that a link led to which leads elsewhere now."""
        return [op for op in self.journal.ops if self.lost_its_name(op, self.target(op)) and self.astray(op)]

    # -- proof --------------------------------------------------------------------------------------------------

    def proves_commit(self) -> bool:
        """Something was applied, so the commit point was passed even if the rename of the journal was lost.

        Not size and time alone, not a directory: those could be anybody's.
        """
        return not self.journal.two_phase and any(self._was_applied(op) for op in self.journal.ops)

    def _was_applied(self, op: Operation) -> bool:
        if op.kind == "delete":
            return self.deleted(op) is not None
        if op.kind != "write":
            return False
        target, token = self.target(op), self.token(op)
        if target is None:
            return False
        if token is not None:
            return same_inode(target, token)  # both names of one rename (A1)
        if not self._has_new_content(op, target):
            return False
        return (self.same_tree and self.is_new(op, target)) or self._old_differed(op)

    def _has_new_content(self, op: Operation, target: Stat) -> bool:
        assert op.meta is not None
        assert op.new is not None
        at, name = self.home.tree.at(op.path)
        if stat.S_ISREG(target.st_mode) and (target.st_size, stat.S_IMODE(target.st_mode)) != (
            op.new.size,
            op.meta.mode,
        ):
            return False
        try:
            return self._digest(at, name, target) == op.digest
        except PermissionError as error:
            return self._believe(op, target, error)

    def _old_differed(self, op: Operation) -> bool:
        """A replaced file left its link before the commit point; without it the first sync round was not complete."""
        if op.old is None:
            return True
        old = self.old(op)
        if old is None:
            return False
        assert op.meta is not None
        if stat.S_IFMT(old.st_mode) != (stat.S_IFLNK if op.new and op.new.link is not None else stat.S_IFREG):
            return True
        if op.old.link is None and stat.S_IMODE(old.st_mode) != op.meta.mode:
            return True
        with paths.Naming(op.path, always=True):
            return self._digest(self.home.private_fd, self.old_name(op), old) != op.digest

    # -- what stands in the way ---------------------------------------------------------------------------------

    def conflicts_forward(self) -> list[Operation]:
        """Operations still to be done whose target is foreign. Raises `RecoveryError` for a token lost or damaged."""
        found: list[Operation] = []
        self.look_anew()
        coming: set[bytes] = set()
        blocked: set[bytes] = set()
        for op in self._each_read_ahead():
            try:
                is_blocked = self._blocked(op, coming, blocked)
            except OutOfSight:
                continue
            if is_blocked:
                found.append(op)
                blocked.add(op.path)
            elif op.kind == "mkdir" and self.token(op) is not None:
                coming.add(op.path)
        return found

    def _each_read_ahead(self) -> Iterator[Operation]:
        """The operations; the small tokens of writes are read many at once, in half the time."""
        for start in range(0, len(self.journal.ops), _AT_ONCE):
            some = self.journal.ops[start : start + _AT_ONCE]
            try:
                self._read_ahead([op for op in some if op.new is not None and op.new.size <= _SMALL])
                yield from some
            finally:
                self._ahead = {}

    def _read_ahead(self, ops: list[Operation]) -> None:
        """Where one of them is not there, or no small file any more, each is read when its turn comes."""
        with suppress(OSError):
            found, contents = self.fs.read_small(self.home.private_fd, [*map(self.token_name, ops)], _SMALL) or ((), ())
            read = zip(ops, found, contents, strict=False)
            self._ahead = {op.number: (status, digest_of(content)) for op, status, content in read}

    def _blocked(self, op: Operation, coming: set[bytes], blocked: set[bytes]) -> bool:
        """`coming`: directories that the journal is yet to make."""
        token, target = self.token(op), self.target(op)
        if self.took_a_directory(op):
            return True
        if self.astray(op):
            return self.is_to_go(op, target) if op.kind == "delete" else token is not None
        if op.kind == "delete":
            return self.is_to_go(op, target) and not self.is_old(op, target)
        if op.kind in ("write", "mkdir"):
            if token is not None and (op.path in blocked or not self.has_parent(op, coming, blocked)):
                return True
            if self._still_to_go(op, target):
                target = None
        if token is None:
            if op.kind == "write" and target is None:
                return True  # lost or deleted, nobody can tell: not for silence
            if op.kind == "write" and op.old is not None and self.is_old(op, target) and not self.is_new(op, target):
                raise _lost(op, "is missing")  # and no symbolic link that looks like the one before
            return False
        if target is None:
            if op.kind == "write" and not self.token_is_whole(op, token):
                raise _lost(op, "is damaged")
            return op.old is not None and self.same_boot
        if op.kind == "write":
            if same_inode(token, target) or self.is_new(op, target):
                return False
            if not self.token_is_whole(op, token):
                raise _lost(op, "is damaged")
            return not self.is_untouched(op, target)
        if op.kind == "mkdir":
            return not stat.S_ISDIR(target.st_mode)
        if not stat.S_ISDIR(target.st_mode):
            return False
        inside = (paths.join(op.path, n) for n in self.fs.listdir(self.home.tree.open_dir(op.path)))
        return any(path not in self._leaves or path in blocked for path in inside)

    def can_force(self, op: Operation) -> bool:
        """Whether one rename, or a new directory, can put the operation over what somebody else has there."""
        target = self.target(op)
        if self.took_a_directory(op):
            return False
        if self.astray(op) or (target is not None and stat.S_ISDIR(target.st_mode) != (op.kind == "mkdir")):
            return False
        for above in paths.ancestors(op.path)[1:]:
            found = self.home.tree.stat(above)
            if found is not None and not stat.S_ISDIR(found.st_mode):
                return False
        return True

    def can_come_back(self, op: Operation) -> bool:
        """Whether an undo can give an old file its name without taking one from somebody else."""
        return op.kind == "write" and op.old is not None and self.target(op) is None and self.has_parent(op)

    def has_parent(self, op: Operation, coming: Collection[bytes] = (), blocked: Collection[bytes] = ()) -> bool:
        """The directory of the target is there, or comes with the journal."""
        parent, _ = paths.split(op.path)
        if not parent:
            return True
        if parent in coming or parent in blocked:
            return parent not in blocked
        found = self.home.tree.stat(parent)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def _still_to_go(self, op: Operation, target: Stat | None) -> bool:
        """The delete or rmdir that makes room for `op` is not done yet, or half done: both names of its rename (A1)."""
        other = self._leaves.get(op.path)
        if other is None or target is None:
            return False
        if other.kind == "rmdir":
            return self.token(other) is not None and stat.S_ISDIR(target.st_mode)
        return self.is_to_go(other, target) and self.is_old(other, target)

    def conflicts_undo(self) -> list[Operation]:
        """Applied operations whose target is foreign now. Raises `RecoveryError` for an old file that is lost."""
        found: list[Operation] = []
        coming: set[bytes] = set()
        blocked: set[bytes] = set()
        for op in reversed(self.journal.ops):  # directories that come back before the files in them
            if self._blocked_undo(op, coming, blocked):
                found.append(op)
                blocked.add(op.path)
            elif op.kind == "rmdir" and self._comes_back(op):
                coming.add(op.path)
        return found

    def _blocked_undo(self, op: Operation, coming: set[bytes], blocked: set[bytes]) -> bool:
        token, target = self.token(op), self.target(op)
        if self.astray(op):
            return True
        if op.kind == "write" and token is None:
            if op.old is None:
                return target is not None and not self.is_new(op, target)
            old = self.old(op)
            if old is None:
                if self.is_new(op, target):
                    raise _lost(op, "(the old file) is missing")
                return False
            if target is None and not self.has_parent(op, coming, blocked):
                return True
            if target is not None and same_inode(old, target):
                return False
            return not ((target is None or self.is_new(op, target)) and self.is_undisturbed(op, target))
        if self.lost_its_name(op, target):
            return not self.has_parent(op, coming, blocked)
        if op.kind == "delete" and (deleted := self.deleted(op)) is not None:
            if target is None:
                return not self.has_parent(op, coming, blocked)
            if stat.S_ISDIR(target.st_mode):
                return not self._is_all_ours(op.path, blocked)
            return not same_inode(deleted, target)
        return op.kind == "rmdir" and target is None and not self.has_parent(op, coming, blocked)

    def _comes_back(self, op: Operation) -> bool:
        """A removed directory is there, or its name is free: at the latest when the journal's own file is undone."""
        target = self.target(op)
        if target is None or stat.S_ISDIR(target.st_mode):
            return True
        other = self._comes.get(op.path)
        return other is not None and self.is_new(other, target)

    def _is_all_ours(self, directory: bytes, blocked: set[bytes]) -> bool:
        """The journal made this directory and all that is in it, so that undoing it leaves its name free."""
        todo = [directory]
        while todo:
            path = todo.pop()
            made = self._comes.get(path)
            if made is None or path in blocked:
                return False
            if made.kind == "mkdir":
                todo += [paths.join(path, n) for n in self.fs.listdir(self.home.tree.open_dir(path))]
        return True


def same_inode(one: Stat, other: Stat) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _lost(op: Operation, what: str) -> RecoveryError:
    shown = paths.decode(op.path)
    message = f"recovery cannot go on: what it needs for {shown!r} {what}; nothing was touched"
    return RecoveryError(message, path=shown)


__all__ = ["UNFINISHED", "Evidence", "OutOfSight", "same_inode"]
