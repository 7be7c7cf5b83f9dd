"""What fixed courses of events are made of: changes that die, what somebody does, and what recovery is asked."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.crash import steps as s
from tests.crash import steps_of_others as o
from tests.crash.steps import PRIVATE, WRITES, old_tree, overwrite, private, replaced
from tests.crash.test_simfs_engine import Change, commit, rotate_directory, write
from txfiles import FileTransaction, recover
from txfiles.errors import (
    CommitError,
    CommitOutcomeUnknownError,
    ConflictError,
    RecoveryConflictError,
    RecoveryError,
    TxFilesError,
)
from txfiles.testing import SimFS

Step = Callable[[SimFS], Any]


# -- changes that die -----------------------------------------------------------------------------------------------


def delete_nested(tx: FileTransaction) -> None:
    tx.delete_tree("dir")
    tx.write("a", "new a")


def delete_inner(tx: FileTransaction) -> None:
    tx.delete_tree("dir/deep")
    tx.write("a", "new a")


def delete_in_directory(tx: FileTransaction) -> None:
    tx.delete("gone/f")
    tx.write("a", "new a")


def new_empty_directory(tx: FileTransaction) -> None:
    tx.mkdir("p/q")
    tx.write("a", "new a")


def delete_empty(tx: FileTransaction) -> None:
    tx.delete("empty")
    tx.write("a", "new a")


def replace_in_directory(tx: FileTransaction) -> None:
    tx.write("a", "new a")
    tx.write("gone/f", "new")


def into_deep(tx: FileTransaction) -> None:
    tx.write("a", "new a")
    tx.write("dir/deep/two", "new")


def link_over_file(tx: FileTransaction) -> None:
    tx.move("link", "a")
    tx.write("b", "new b")


def mode_over_file(tx: FileTransaction) -> None:
    tx.move("twin", "a")
    tx.write("b", "new b")


# -- what somebody does ---------------------------------------------------------------------------------------------


def decided(decision: str) -> Step:
    return lambda _: recover("/sim", on_conflict=decision)  # type: ignore[arg-type]


def refuses(decision: str) -> Step:
    """Nothing is changed: what is there has to be moved away by hand."""

    def step(fs: SimFS) -> None:
        before = fs.tree(skip_private=False)
        with pytest.raises(RecoveryConflictError, match="by hand"):
            decided(decision)(fs)
        assert fs.tree(skip_private=False) == before

    return step


def removed(*paths: str) -> Step:
    def step(fs: SimFS) -> None:
        for path in paths:
            fs.remove(f"/sim/{path}")

    return step


def directory(path: str) -> Step:
    return lambda fs: fs.mkdirs(f"/sim/{path}")


def both_names(ending: str, path: str) -> Step:
    """The rename of a token to its target left both names (A1)."""

    def step(fs: SimFS) -> None:
        with suppress(FileNotFoundError):
            fs.remove(f"/sim/{path}")
        fs.put_link(f"/sim/{path}", private(fs, ending))

    return step


def twin(fs: SimFS) -> None:
    """A file with the bytes of `a`, and another mode."""
    fs.put("/sim/twin", "old a", mode=0o600)


def edited(ending: str, change: Callable[[bytes], bytes]) -> Step:
    def step(fs: SimFS) -> None:
        path = private(fs, ending)
        fs.put(path, change(fs.get(path)))

    return step


def foreign_left(name: str) -> Step:
    """The same for what has no name of ours, which does no harm."""

    def step(fs: SimFS) -> None:
        report = recover("/sim")
        assert name in report.foreign
        assert report.clean
        assert name in fs.names(PRIVATE)

    return step


def unknown_left(name: str) -> Step:
    """Recovery tells of what it does not know, and leaves it."""

    def step(fs: SimFS) -> None:
        assert name in recover("/sim").unknown
        assert name in fs.names(PRIVATE)

    return step


def removes(name: str) -> Step:
    def step(fs: SimFS) -> None:
        assert recover("/sim").removed == [name]
        nothing_left(fs)

    return step


def entry(path: str, kind: str | None, mode: int | None = None) -> Step:
    def step(fs: SimFS) -> None:
        found = fs.tree().get(path)
        assert (found and found.kind) == kind, f"{path} is {found}"
        assert mode is None or (found is not None and found.mode & 0o777 == mode), f"{path} is {found}"

    return step


def copy_entry(path: str, kind: str, mode: int | None = None) -> Step:
    def step(fs: SimFS) -> None:
        found = fs.tree("/copy")[path]
        assert found.kind == kind
        assert mode is None or found.mode & 0o777 == mode

    return step


def renamed_journal(fs: SimFS) -> None:
    name = private(fs, ".committed")
    content = fs.get(name)
    fs.remove(name)
    fs.put(f"{PRIVATE}/{'0' * 32}.committed", content)


def delete_lost(path: str) -> Step:
    """The rename of a deleted file did not survive: it is where it was, and nothing under its token's name."""

    def step(fs: SimFS) -> None:
        kind = "link" if path == "link" else "file"
        tokens = [name for name in fs.names(PRIVATE) if name[32:34] == "." + name[33:34] and name[-1].isdigit()]
        found = fs.tree(skip_private=False)
        for name in sorted(tokens):
            if found[f".txfiles/{name}"].kind == kind and found[f".txfiles/{name}"].content in (b"dir/one", b"old a"):
                fs.put_link(f"/sim/{path}", f"{PRIVATE}/{name}")
                fs.remove(f"{PRIVATE}/{name}")

    return step


def file_for_directory(fs: SimFS) -> None:
    fs.put("/sim/empty", "other", mode=0o1700)


def damage_marker(fs: SimFS) -> None:
    """A byte in the marker of a delete that is not done."""
    empty = [name for name, found in fs.tree(skip_private=False).items() if name[-1].isdigit() and found.content == b""]
    (name,) = [name for name in empty if name.startswith(".txfiles/")]
    fs.put(f"/sim/{name}", "\0")


def restart(fs: SimFS) -> None:
    """The machine was started anew, with all that was done on disk."""
    fs._boot += 1


def other_mode(fs: SimFS) -> None:
    at = fs.open_dir(None, b"/sim/gone")
    fs.chmod(at, 0o711)
    fs.close(at)


def removed_in_commit(fs: SimFS) -> None:
    """Nobody's file is in the way of the new one."""
    with FileTransaction("/sim") as tx:
        write("a", "b")(tx)
        fs.plan = s.at_call("rename", 1, lambda: fs.remove("/sim/b"))
    fs.plan = None


def meddled_token(act: Callable[[SimFS, str], None]) -> Step:
    """Somebody changes what is staged; the commit does not put it in place."""

    def step(fs: SimFS) -> None:
        with pytest.raises(ConflictError), FileTransaction("/sim") as tx:
            tx.write("e", "new e")
            act(fs, private(fs, ".0"))

    return step


def replaced_by_another(fs: SimFS, path: str) -> None:
    fs.put("/sim/another", "newer")
    fs.remove(path)
    fs.put_link(path, "/sim/another")


def undone_beside_theirs(fs: SimFS) -> None:
    """A file is deleted, somebody makes another one, and then the commit fails."""

    def fail() -> None:
        fs.put("/sim/b", "other")
        raise OSError(errno.EIO, "injected")

    with suppress(CommitError), FileTransaction("/sim") as tx:
        s.delete_and_write(tx)
        fs.plan = s.at_call("rename", 3, fail)
    fs.plan = None


def undone_beside(act: Step) -> Step:
    """A file is replaced, somebody does something to the new one, and then the commit fails and says what it left."""

    def step(fs: SimFS) -> None:
        def fail() -> None:
            act(fs)
            raise OSError(errno.EIO, "injected")

        with pytest.raises(CommitError) as caught, FileTransaction("/sim") as tx:
            WRITES(tx)
            fs.plan = s.at_call("rename", 3, fail)
        fs.plan = None
        assert any("'a'" in note for note in caught.value.__notes__)

    return step


def closed(path: str) -> Step:
    """Somebody takes the rights of others to read a file."""

    def step(fs: SimFS) -> None:
        at = fs.open_dir(None, b"/sim")
        fd = fs.open_read(at, path.encode())
        fs.chmod(fd, 0o600)
        fs.close(fd)
        fs.close(at)

    return step


def undone_beside_emptied(fs: SimFS) -> None:
    """Who has a deleted file open empties it, and then the commit fails."""

    def fail() -> None:
        fs.put(private(fs, ".1"), "")
        raise OSError(errno.EIO, "injected")

    with pytest.raises(CommitError), FileTransaction("/sim") as tx:
        s.delete_and_write(tx)
        fs.plan = s.at_call("rename", 3, fail)
    fs.plan = None


def undone_beside_removal(fs: SimFS) -> None:
    """Somebody removes a file that was not yet replaced, and then the commit fails."""

    def fail() -> None:
        fs.remove("/sim/c")
        raise OSError(errno.EIO, "injected")

    with pytest.raises(CommitError), FileTransaction("/sim") as tx:
        write("a", "b", "c")(tx)
        fs.plan = s.at_call("rename", 3, fail)
    fs.plan = None


def undone_without_old(fs: SimFS) -> None:
    """Somebody takes an old file out of the private directory, and then the commit fails: it cannot be undone."""

    def fail() -> None:
        fs.remove(private(fs, ".0.old"))
        raise OSError(errno.EIO, "injected")

    with pytest.raises(CommitOutcomeUnknownError), FileTransaction("/sim") as tx:
        WRITES(tx)
        fs.plan = s.at_call("rename", 4, fail)
    fs.plan = None


def undo_interrupted(fs: SimFS) -> None:
    """A Ctrl-C comes in the midst of an undo, which then begins again: nothing in it is somebody else's."""

    def fail() -> None:
        fs.plan = s.at_call("rename", 3, interrupt)  # of the undo: its journal, b, then a
        raise OSError(errno.EIO, "injected")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught, FileTransaction("/sim") as tx:
        WRITES(tx)
        fs.plan = s.at_call("rename", 4, fail)
    fs.plan = None
    assert isinstance(caught.value.__cause__, CommitError)
    assert not getattr(caught.value.__cause__, "__notes__", [])


def beside_mkdir(mode: int, *names: str) -> Step:
    """Somebody makes a directory that a commit is about to make."""

    def step(fs: SimFS) -> None:
        def make() -> None:
            fs.mkdirs("/sim/x", mode=mode)
            for name in names:
                fs.put(f"/sim/x/{name}", "other")

        with FileTransaction("/sim") as tx:
            s.new_tree(tx)
            fs.plan = s.at_call("rename", 1, make)
        fs.plan = None

    return step


def keep_theirs_is_refused(fs: SimFS) -> None:
    with pytest.raises(RecoveryError, match="is damaged"):
        decided("keep-theirs")(fs)


def rmdir_fails(fs: SimFS) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    fs.plan = s.at_call("rmdir", 1, fail)
    with suppress(OSError):
        recover("/sim")
    fs.plan = None


def no_begin(_: SimFS) -> None:
    try:
        FileTransaction("/sim").begin()
    except RecoveryError:
        return
    raise AssertionError("it begins without a format")


def nothing_left(fs: SimFS) -> None:
    o.at_rest(fs, ())


def refuse_to_sync(_: int, name: str) -> None:
    assert not name.startswith("sync"), "a process transaction syncs"


def without_sync(*acts: Step) -> Step:
    def step(fs: SimFS) -> None:
        for act in acts:
            fs.plan = refuse_to_sync
            act(fs)
        fs.plan = None

    return step


def undone_process(fs: SimFS) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    fail_once = s.at_call("rename", 4, fail)

    def plan(number: int, name: str) -> None:
        refuse_to_sync(number, name)
        fail_once(number, name)

    with suppress(CommitError), FileTransaction("/sim", durability="process") as tx:
        rotate_directory(tx)
        fs.plan = plan


def begin_process(_: SimFS) -> None:
    with FileTransaction("/sim", durability="process"):
        pass


def syncs_of(change: Change, files: int, directories: int) -> Step:
    """A commit that follows one like it syncs so many files and directories, and not more."""

    def step(fs: SimFS) -> None:
        count = {"sync_file": 0, "sync_dir": 0}

        def plan(_: int, name: str) -> None:
            if name in count:
                count[name] += 1

        fs.plan = plan
        try:
            commit(change)(fs)
        finally:
            fs.plan = None
        assert count["sync_file"] <= files
        assert count["sync_dir"] <= directories

    return step


def meddled_commit(change: Change, number: int, act: Step, note: str = "") -> Step:
    """Somebody acts before this rename of a commit, which must not succeed, and say this much about it."""

    def step(fs: SimFS) -> None:
        raised: TxFilesError | None = None
        try:
            with FileTransaction("/sim") as tx:
                change(tx)
                fs.plan = s.at_call("rename", number, lambda: act(fs))
        except TxFilesError as error:
            raised = error
        finally:
            fs.plan = None
        assert raised is not None, "the commit did not raise"
        assert note in "".join(getattr(raised, "__notes__", []))

    return step


TAKES_BACK: list[
    tuple[str, Change, int, Step, int | None, dict[str, Any]]
] = [  # the change, how many renames happen, what is done then, and what a recovery that keeps theirs shows
    ("a-removed", WRITES, 5, removed("a"), 1, {"a": None, "b": "old b", "e": None}),
    ("parent-of-a-write", replace_in_directory, 4, removed("gone/f", "gone"), 1, {"a": "old a", "gone/f": None}),
    ("parent-of-a-delete", delete_in_directory, 4, removed("gone"), 1, {"a": "old a", "gone/f": None}),
    ("parent-of-a-directory", delete_inner, 4, removed("dir/one", "dir"), 1, {"a": "old a", "dir/deep/two": None}),
    ("over-a-delete", s.delete_and_write, 4, overwrite("/sim/b"), 1, {"a": "old a", "b": "other"}),
    ("over-a-link-to-ours", old_tree, 4, lambda fs: fs.put_link("/sim/gone", "/sim/a"), 1, {"a": "old a"}),
    ("whole-rotation", rotate_directory, 6, lambda _: None, None, {"a": "old a", "gone/f": "f"}),
    ("over-a-file-to-come", rotate_directory, 5, overwrite("/sim/gone"), 1, {"a": "old a", "gone": "other"}),
    ("over-a-file-that-came", rotate_directory, 6, overwrite("/sim/gone"), 1, {"a": "old a", "gone": "other"}),
    ("rotation", rotate_directory, 5, lambda _: None, None, {"a": "old a", "gone/f": "f"}),
    ("over-a-new-file-below", rotate_directory, 5, replaced("/sim/a/below"), 1, {"a/below": "other", "gone/f": "f"}),
    ("over-a-marker", s.delete_two, 3, replaced("/sim/b"), None, {"a": "old a", "b": "other"}),
    ("new-file-removed", WRITES, 5, removed("e"), None, {"a": "old a", "b": "old b", "e": None}),
    ("beside-a-marker", s.delete_two, 3, removed("b"), None, {"a": "old a", "b": None}),
    ("file-for-tree", old_tree, 4, overwrite("/sim/gone"), 1, {"a": "old a", "gone": "other"}),
    ("in-a-new-directory", rotate_directory, 5, overwrite("/sim/a/x"), 1, {"a/x": "other", "gone/f": "f"}),
    ("over-an-old-file", WRITES, 5, replaced("/sim/a"), 1, {"a": "other", "b": "old b", "e": None}),
    ("over-a-new-file", WRITES, 5, replaced("/sim/e"), 1, {"a": "old a", "e": "other"}),
]
