"""Fixed courses of events: a commit dies, somebody meddles with the tree or with what it left, recovery is asked.

Each stands for a check of recovery that nothing else would miss. See `steps`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.crash import steps as s
from tests.crash.steps import (
    PRIVATE,
    WRITES,
    case,
    copied,
    copy_is,
    damage,
    dying,
    keep_theirs,
    old_tree,
    overwrite,
    private,
    recover_copy,
    recover_now,
    refused,
    replaced,
    shows,
    to_aborting,
    to_intent,
)
from tests.crash.test_simfs_engine import Change, commit, everything, never_used, rotate_directory, write
from txfiles import FileTransaction, recover
from txfiles._format.journal import taint
from txfiles.errors import (
    CommitError,
    CommitOutcomeUnknownError,
    ConflictError,
    JournalCorruptError,
    JournalVersionError,
    RecoveryConflictError,
    RecoveryError,
    TxFilesError,
)
from txfiles.testing import Scenario, SimFS

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
    """The rename of a deleted file did not survive: it is where it was, and its token an empty marker."""

    def step(fs: SimFS) -> None:
        kind = "link" if path == "link" else "file"
        tokens = [name for name in fs.names(PRIVATE) if name[32:34] == "." + name[33:34] and name[-1].isdigit()]
        found = fs.tree(skip_private=False)
        for name in sorted(tokens):
            if found[f".txfiles/{name}"].kind == kind and found[f".txfiles/{name}"].content in (b"dir/one", b"old a"):
                fs.put_link(f"/sim/{path}", f"{PRIVATE}/{name}")
                fs.remove(f"{PRIVATE}/{name}")
                fs.put(f"{PRIVATE}/{name}", "", mode=0o600)

    return step


def file_for_directory(fs: SimFS) -> None:
    fs.put("/sim/empty", "other", mode=0o700)


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
    s.at_rest(fs, ())


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
    ("a-removed", WRITES, 5, removed("a"), None, {"a": "old a", "b": "old b", "e": None}),
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

CASES = {
    one.name: one
    for one in [
        case("no-sync", without_sync(undone_process, commit(everything, durability="process"))),
        case(
            "no-sync-in-recovery",
            dying(rotate_directory, "rename", 4, durability="process"),
            without_sync(begin_process),
            dying(s.new_tree, "rename", 3, durability="process"),
            to_aborting,
            without_sync(begin_process),
        ),
        case("few-syncs", commit(write("a", "dir/one")), syncs_of(write("a", "dir/one"), 3, 5)),
        case("few-syncs-new-directory", commit(write("dir/one")), syncs_of(write("dir/x/y"), 2, 8)),
        Scenario("first-commit-below", s.then(never_used, directory("dir")), [commit(write("dir/x"))]),
        # directories that somebody made or removed
        case("theirs-after-rmdir", dying(old_tree, "rename", 3), directory("gone"), recover_now, entry("gone", "dir")),
        case("file-for-directory", meddled_commit(s.new_tree, 1, overwrite("/sim/x")), shows(x="other", z=None)),
        case(
            "file-for-parent",
            dying(s.into_parent, "rename", 3),
            s.parent_goes,
            overwrite("/sim/gone"),
            refused(RecoveryConflictError),
            refuses("roll-forward"),
            keep_theirs,
            shows(a="new a", gone="other"),
        ),
        case(
            "file-for-new-directory",
            dying(s.new_tree, "mkdir", 1),
            overwrite("/sim/x"),
            refused(RecoveryConflictError),
            refuses("roll-forward"),
            keep_theirs,
            shows(x="other", z="new"),
        ),
        case(
            "directory-for-file",
            dying(WRITES, "rename", 4),
            directory("e"),
            refused(RecoveryConflictError),
            refuses("roll-forward"),
            keep_theirs,
            entry("e", "dir"),
            shows(a="new a"),
        ),
        case(
            "theirs-deep-in-directory",
            dying(delete_nested, "rename", 3),
            overwrite("/sim/dir/deep/x"),
            refused(RecoveryConflictError),
            keep_theirs,
            shows(**{"a": "new a", "dir/deep/x": "other", "dir/one": None}),
        ),
        case(
            "theirs-in-what-becomes-a-file",
            dying(rotate_directory, "rename", 3),
            overwrite("/sim/gone/x"),
            refused(RecoveryConflictError),
            keep_theirs,
            shows(**{"gone/x": "other", "a/below": "a directory now"}),
        ),
        case(
            "theirs-for-what-becomes-a-directory",
            dying(rotate_directory, "rename", 2),
            replaced("/sim/a"),
            refused(RecoveryConflictError),
            keep_theirs,
            shows(**{"a": "other", "gone": "a file now"}),
        ),
        case(
            "forced-deep-parent",
            dying(into_deep, "rename", 3),
            removed("dir/deep/two", "dir/deep"),
            refused(RecoveryConflictError),
            decided("roll-forward"),
            shows(**{"a": "new a", "dir/deep/two": "new"}),
        ),
        # decisions
        case(
            "directory-stays",
            dying(old_tree, "rename", 2),
            overwrite("/sim/gone/g"),
            decided("roll-forward"),
            shows(**{"a": "new", "gone/f": None, "gone/g": "other"}),
        ),
        case(
            "delete-kept",
            dying(s.delete_two, "rename", 2),
            replaced("/sim/b"),
            refused(RecoveryConflictError),
            keep_theirs,
            shows(a=None, b="other"),
        ),
        case(
            "delete-forced",
            dying(s.delete_two, "rename", 2),
            replaced("/sim/b"),
            decided("roll-forward"),
            shows(b=None),
        ),
        case("write-forced", dying(WRITES, "rename", 3), replaced("/sim/b"), decided("roll-forward"), shows(b="new b")),
        case(
            "rolled-back",
            dying(WRITES, "rename", 4),
            overwrite("/sim/e"),
            decided("roll-back"),
            shows(a="old a", b="old b", e="other"),
            nothing_left,
        ),
        case(
            "rolled-back-around-theirs",
            dying(WRITES, "rename", 4),
            overwrite("/sim/e"),
            replaced("/sim/a"),
            decided("roll-back"),
            shows(a="other", b="old b", e="other"),
        ),
        case(
            "takes-back-file-for-directory",
            directory("empty"),
            dying(s.remove_empty_directory, "rename", 3),
            to_aborting,
            file_for_directory,
            recover_now,
            shows(a="old a", empty="other"),
        ),
        case(
            "takes-back-an-empty-file",
            lambda fs: fs.put("/sim/empty", ""),
            dying(delete_empty, "rename", 4),
            to_aborting,
            recover_now,
            shows(a="old a", empty=""),
        ),
        case("rolled-back-without-need", dying(WRITES, "rename", 3), decided("roll-back"), shows(a="new a", e="new e")),
        case("undone-beside-theirs", undone_beside_theirs, shows(a="old a", b="other")),
        case(
            "mode-beside-undo",
            dying(old_tree, "rmdir", 1),
            to_aborting,
            other_mode,
            recover_now,
            entry("gone", "dir", 0o711),
        ),
        case("file-removed-in-commit", removed_in_commit, shows(a="new a", b="new b")),
        case(
            "new-directory-removed",
            dying(new_empty_directory, "rename", 2),
            removed("p/q", "p"),
            recover_now,
            shows(a="new a", p=None),
        ),
        case(
            "new-parent-lost",
            dying(s.new_tree, "rename", 2),
            removed("x"),
            refused(RecoveryConflictError),
            decided("roll-forward"),
            shows(**{"x/y": "new", "z": "new"}),
        ),
        case(
            "theirs-before-a-new-directory",
            dying(rotate_directory, "mkdir", 1),
            overwrite("/sim/a"),
            refused(RecoveryConflictError),
            keep_theirs,
            shows(a="other", gone="a file now"),
        ),
        case(
            "failed-sync-noted",
            dying(WRITES, "rename", 3),
            lambda fs: edited(".committed", lambda raw: raw + taint(fs.boot_id()))(fs),
            refused(RecoveryError),
            restart,
            recover_now,
            shows(a="new a", b="new b", e="new e"),
        ),
        case(
            "process-conflict",
            dying(WRITES, "rename", 3, durability="process"),
            replaced("/sim/b"),
            refused(RecoveryConflictError),
        ),
        case(
            "process-restarted",
            dying(WRITES, "rename", 3, durability="process"),
            restart,
            recover_now,
            shows(a="new a", b="new b", e="new e"),
        ),
        case(
            "process-damaged",
            dying(WRITES, "rename", 3, durability="process"),
            restart,
            overwrite("/sim/b", "torn"),
            recover_now,
            lambda fs: s.quietly(fs, ()),
        ),
        case(
            "process-undo-restarted",
            dying(WRITES, "rename", 4, durability="process"),
            to_aborting,
            restart,
            recover_now,
            shows(a="old a", b="old b", e=None),
        ),
        *(
            case(
                f"takes-back-{name}",
                dying(change, "rename", renames),
                to_aborting,
                act,
                *([refused(RecoveryConflictError), keep_theirs] if asks else [recover_now]),
                shows(**found),
            )
            for name, change, renames, act, asks, found in TAKES_BACK
        ),
        # both names of one rename, and copies
        case(
            "both-names-then-written",
            dying(WRITES, "rename", 3),
            both_names(".1", "b"),
            overwrite("/sim/b"),
            recover_now,
            shows(a="new a", b="other", e="new e"),
        ),
        case(
            "both-names-copied",
            dying(WRITES, "rename", 3),
            both_names(".1", "b"),
            copied,
            recover_copy,
            copy_is(a="new a", b="new b", e="new e"),
        ),
        case(
            "both-names-of-an-intent",
            dying(WRITES, "rename", 2),
            both_names(".0", "a"),
            to_intent,
            recover_now,
            shows(a="new a", b="new b", e="new e"),
        ),
        case(
            "copied-new-file",
            dying(write("A", "b"), "rename", 3),
            to_intent,
            copied,
            recover_copy,
            copy_is(A="new A", b="new b"),
        ),
        case(
            "copied-mode",
            twin,
            dying(mode_over_file, "rename", 4),
            to_intent,
            copied,
            recover_copy,
            copy_entry("a", "file", 0o600),
            copy_is(b="new b"),
        ),
        case(
            "copied-link",
            dying(link_over_file, "rename", 4),
            to_intent,
            copied,
            recover_copy,
            copy_entry("a", "link"),
            copy_is(b="new b"),
        ),
        case(
            "copied-mode-alone",
            twin,
            dying(mode_over_file, "rename", 4),
            to_intent,
            delete_lost("twin"),
            copied,
            recover_copy,
            copy_entry("a", "file", 0o600),
            copy_is(b="new b"),
        ),
        case(
            "copied-link-alone",
            dying(link_over_file, "rename", 4),
            to_intent,
            delete_lost("link"),
            copied,
            recover_copy,
            copy_entry("a", "link"),
            copy_is(b="new b"),
        ),
        case(
            "marker-damaged",
            dying(s.delete_and_write, "rename", 2),
            damage_marker,
            recover_now,
            shows(a="new a", b=None),
        ),
        case(
            "marker-of-an-intent-damaged",
            dying(s.delete_and_write, "rename", 2),
            to_intent,
            damage_marker,
            recover_now,
            shows(a="old a", b="old b"),
        ),
        case(
            "undo-that-fails", dying(s.new_tree, "rename", 3), to_aborting, rmdir_fails, recover_now, entry("x", None)
        ),
        case("link-proves", dying(s.link_moves, "rename", 4), to_intent, recover_now, entry("other", "link")),
        # what is in the private directory
        case("token-owner", dying(WRITES, "rename", 3), damage(".1", uid=7), refused(RecoveryError)),
        case("token-group", dying(WRITES, "rename", 3), damage(".1", gid=7), refused(RecoveryError)),
        case("token-grown-in-a-tick", meddled_token(lambda fs, path: fs.put(path, "longer")), options=s.TICK),
        case("token-replaced-in-a-tick", meddled_token(replaced_by_another), options=s.TICK),
        case(
            "token-xattr",
            dying(write("a", "special"), "rename", 3),
            damage(".1", content="new special", xattrs={"user.k": b"w"}),
            refused(RecoveryError),
        ),
        case(
            "journal-newer",
            dying(WRITES, "rename", 3),
            edited(".committed", lambda raw: raw.replace(b"journal 1", b"journal 2", 1)),
            refused(JournalVersionError),
        ),
        case(
            "journal-zero",
            dying(WRITES, "rename", 3),
            edited(".committed", lambda raw: raw.replace(b"journal 1", b"journal 0", 1)),
            refused(JournalCorruptError),
        ),
        case(
            "journal-cut",
            dying(WRITES, "rename", 3),
            edited(".committed", lambda raw: raw[:-1]),
            refused(JournalCorruptError),
        ),
        case(
            "journal-flipped",
            dying(WRITES, "rename", 3),
            edited(".committed", lambda raw: raw.replace(b'"path":"b"', b'"path":"c"')),
            refused(JournalCorruptError),
        ),
        case("journal-of-another", dying(WRITES, "rename", 3), renamed_journal, refused(JournalCorruptError)),
        case(
            "journal-is-a-link",
            lambda fs: fs.put_symlink(f"{PRIVATE}/{'0' * 32}.committed", "HEAD"),
            unknown_left(f"{'0' * 32}.committed"),
        ),
        case("token-is-a-directory", lambda fs: fs.mkdirs(f"{PRIVATE}/{'0' * 32}.1"), unknown_left(f"{'0' * 32}.1")),
        case("no-name-of-ours", lambda fs: fs.put(f"{PRIVATE}/notes", "?"), unknown_left("notes")),
        case("loose-link", lambda fs: fs.put_symlink(f"{PRIVATE}/{'0' * 32}.1", "a"), removes(f"{'0' * 32}.1")),
        case("format-lost-at-rest", lambda fs: fs.remove(f"{PRIVATE}/format"), refused(RecoveryError), no_begin),
        case(
            "format-lost-beside-process",
            commit(write("a"), durability="process"),
            dying(WRITES, "rename", 3, durability="process"),
            lambda fs: fs.remove(f"{PRIVATE}/format"),
            recover_now,
            shows(a="new a", b="new b"),
        ),
        case(
            "format-lost-after-process",
            commit(write("a"), durability="process"),
            lambda fs: fs.remove(f"{PRIVATE}/format"),
            commit(write("b")),
            shows(a="new a", b="new b"),
        ),
        case(
            "format-newer",
            dying(WRITES, "rename", 3),
            overwrite(f"{PRIVATE}/format", "txfiles 2 flock\n"),
            refused(JournalVersionError),
        ),
        # an undo in the commit itself, and directories of others
        case(
            "undo-beside-theirs",
            meddled_commit(WRITES, 3, s.then(replaced("/sim/a"), overwrite("/sim/e")), "left as it is: 'a'"),
            shows(a="other", b="old b", e="other"),
            nothing_left,
        ),
        case(
            "undo-beside-their-new-file",
            meddled_commit(write("A", "b", "e"), 3, s.then(replaced("/sim/A"), overwrite("/sim/e"))),
            shows(A="other", b="old b", e="other"),
            nothing_left,
        ),
        case("undo-leaves-a-removal", undone_beside_removal, shows(a="old a", b="old b", c=None), nothing_left),
        case("undo-without-old", undone_without_old, refused(RecoveryError), shows(a="new a", b="old b")),
        case(
            "undone-then-removed",
            dying(WRITES, "rename", 5),
            to_aborting,
            lambda fs: fs.remove(private(fs, ".0.old")),
            removed("a"),
            recover_now,
            shows(a=None, b="old b", e=None),
            nothing_left,
        ),
        case(
            "copied-delete-taken-back",
            dying(s.delete_and_write, "rename", 3),
            to_aborting,
            copied,
            recover_copy,
            copy_is(a="old a", b="old b"),
        ),
        case(
            "copied-delete-of-an-empty-file",
            overwrite("/sim/b", ""),
            dying(s.delete_and_write, "rename", 3),
            to_aborting,
            copied,
            recover_copy,
            copy_is(a="old a", b=""),
        ),
        case(
            "copied-delete-written-to",
            dying(s.delete_and_write, "rename", 3),
            damage(".1", content="old b, and more"),
            to_aborting,
            copied,
            recover_copy,
            copy_is(a="old a", b="old b, and more"),
        ),
        case(
            "copied-delete-to-do",
            dying(s.delete_two, "rename", 2),
            copied,
            recover_copy,
            lambda fs: s.gone(fs, "/copy/a", "/copy/b"),
        ),
        case(
            "copied-delete-with-a-damaged-marker",
            dying(s.delete_two, "rename", 2),
            damage(".1", content="\0"),
            copied,
            recover_copy,
            lambda fs: s.gone(fs, "/copy/a", "/copy/b"),
        ),
        case(
            "copied-delete-foreign", dying(s.delete_two, "rename", 2), copied, replaced("/copy/b"), s.conflict_in_copy
        ),
        case("undo-twice", undo_interrupted, shows(a="old a", b="old b", e=None), nothing_left),
        case("undo-of-an-emptied-file", undone_beside_emptied, shows(a="old a", b=""), nothing_left),
        case(
            "rolled-back-without-token",
            dying(WRITES, "rename", 4),
            damage(".2", content="other"),
            refused(RecoveryError),
            keep_theirs_is_refused,
            decided("roll-back"),
            shows(a="old a", b="old b", e=None),
            nothing_left,
        ),
        case("theirs-before-mkdir", beside_mkdir(0o750), entry("x", "dir", 0o750), shows(z="new", **{"x/y": "new"})),
        case(
            "theirs-before-mkdir-private",
            beside_mkdir(0o700, "secret"),
            entry("x", "dir", 0o700),
            shows(z="new", **{"x/y": "new", "x/secret": "other"}),
        ),
        case(
            "theirs-before-mkdir-same-name",
            meddled_commit(s.new_tree, 1, s.then(lambda fs: fs.mkdirs("/sim/x", mode=0o700), overwrite("/sim/x/y"))),
            entry("x", "dir", 0o700),
            shows(z=None, **{"x/y": "other"}),
        ),
        Scenario(
            "home-round-fails",
            s.then(never_used, s.failing(write("a"), "sync_file", 1, flushed=False)),
            [commit(write("a"))],
        ),
        Scenario(
            "half-made-root",
            s.half_made_root,
            [s.in_new_root],
            recover=s.recover_new_root,
            check=s.whole_new_root,
        ),
        Scenario(
            "copied-root",
            s.copied_root,
            [s.in_new_root],
            recover=s.recover_copied_root,
            check=s.whole_copied_root,
        ),
        case(
            "format-lost", dying(WRITES, "rename", 3), lambda fs: fs.remove(f"{PRIVATE}/format"), refused(RecoveryError)
        ),
        case(
            "format-lost-without-head",
            dying(WRITES, "rename", 3),
            lambda fs: fs.remove(f"{PRIVATE}/format"),
            lambda fs: fs.remove(f"{PRIVATE}/HEAD"),
            refused(RecoveryError),
        ),
    ]
}
