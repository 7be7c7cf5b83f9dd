"""What another user can plant in a directory that both may write to, and what comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.boundary import killed, tree
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, recover, status

pytestmark = pytest.mark.needs("users")

_PLANT = """
    from txfiles._format import journal, layout
    from txfiles._format.digest import Digest
    from txfiles._format.journal import Identity, Journal, Meta, Operation
    root, tid = sys.argv[1], "ab" * 16
    private = root + "/.txfiles"
    os.makedirs(private, 0o700, exist_ok=True)
    for name, content in ((layout.FORMAT, layout.FORMAT_TEXT), (layout.LOCK, b"")):
        with open(os.path.join(private.encode(), name), "wb") as file:
            file.write(content)
    token = f"{private}/{tid}.0"
    with open(token, "wb") as file:
        file.write(b"planted")
    def identity(path):
        found = os.stat(path)
        return Identity(found.st_ino, found.st_size, found.st_mtime_ns)
    digest = Digest()
    digest.update(b"planted")
    def metadata(path):
        found = os.stat(path)
        return Meta(found.st_mode & 0o7777, found.st_uid, found.st_gid)
    victim, meta, was = identity(root + "/victim"), metadata(token), metadata(root + "/victim")
    was = None if was == meta else was
    op = Operation(0, "write", b"victim", victim, identity(token), digest.hexdigest(), meta, was)
    with open(f"{private}/{tid}.committed", "wb") as file:
        ino = os.fstat(file.fileno()).st_ino
        dirs = ((b"", os.stat(root).st_ino),)
        file.write(journal.encode(Journal(tid, 1, "full", "", ino, (op,), dirs)))
"""


def _begin(root: Path) -> None:
    FileTransaction(root).begin()


def _snapshot(root: Path) -> None:
    with FileStore(root).snapshot("victim"):
        pass


def _state_version(root: Path) -> None:
    FileStore(root).state_version()


@pytest.mark.parametrize("opening", [_begin, recover, status, _snapshot, _state_version])
@pytest.mark.parametrize("bits", [0o1777, 0o3777])
def test_a_private_directory_that_a_stranger_planted_in_a_sticky_directory(
    bits: int, opening: Callable[[Path], object]
) -> None:
    """The sticky bit keeps the stranger from replacing the file; so does recovery by its owner, or by root."""
    with public_directory() as root:
        root.chmod(bits)
        (root / "victim").write_text("precious", encoding="utf-8")
        run_python(_PLANT, root, **as_user(1000)).check()
        with pytest.raises(PermissionError) as caught:
            opening(root)
        assert str(caught.value.filename).endswith(".txfiles")
        assert tree(root) == {"victim": b"precious"}
        assert len(os.listdir(root / ".txfiles")) == 4


def test_who_may_use_a_sticky_directory(tmp_path: Path) -> None:
    with public_directory(0o1777) as root:
        code = (
            "from txfiles import FileTransaction\nwith FileTransaction(sys.argv[1]) as tx: tx.write(sys.argv[2], 'x')"
        )
        run_python(code, root, "first", **as_user(1000)).check()
        run_python(code, root, "second", **as_user(1000)).check()
        assert "PermissionError" in run_python(code, root, "third", **as_user(1001)).stderr
        assert "PermissionError" in run_python(code, root, "of root", **as_user(0)).stderr
        os.chown(root, 1000, 1000)
        run_python(code, root, "of root, for the owner", **as_user(0)).check()
        assert sorted(tree(root)) == ["first", "of root, for the owner", "second"]


def test_members_of_a_group_trust_each_other() -> None:
    """Who may write the private directory decides what is below the root: that is what sharing it means."""
    with public_directory() as root:
        os.chown(root, 0, 5000)
        root.chmod(0o2775)
        (root / "victim").write_text("precious", encoding="utf-8")
        os.chown(root / "victim", 1001, 5000)
        run_python(
            "from txfiles import *; FileTransaction(sys.argv[1]).begin().rollback()",
            root,
            **as_user(1000, groups=[5000]),
        ).check()
        run_python(_PLANT, root, **as_user(1000, groups=[5000])).check()
        run_python("from txfiles import recover; recover(sys.argv[1])", root, **as_user(1001, groups=[5000]))
        assert tree(root) == {"victim": b"planted"}


@pytest.mark.parametrize("reading", [_snapshot, _state_version])
@pytest.mark.parametrize(("user", "group", "bits"), [(1000, 1000, 0o755), (0, 5000, 0o2775), (1001, 5000, 0o2775)])
def test_who_only_reads_replays_no_journal_of_others(
    reading: Callable[[Path], object], user: int, group: int, bits: int
) -> None:
    """Root reads in the root of a user, and of a group; in neither may the user replace what is root's."""
    with public_directory() as root:
        os.chown(root, user, group)
        root.chmod(bits)
        (root / "closed").mkdir()
        (root / "victim").write_text("precious", encoding="utf-8")
        begin = "from txfiles import *; FileTransaction(sys.argv[1]).begin().rollback()"
        run_python(begin, root, **as_user(1000, groups=[group])).check()
        run_python(_PLANT, root, **as_user(1000, groups=[group])).check()
        reading(root)
        assert tree(root) == {"closed": None, "victim": b"precious"}
        assert len(status(root).pending) == 1


def test_who_only_reads_replays_what_is_his_alone() -> None:
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        (root / "victim").write_text("precious", encoding="utf-8")
        run_python(_PLANT, root, **as_user(1000)).check()
        _snapshot(root)
        code = """
            from txfiles import FileStore
            with FileStore(sys.argv[1]).snapshot("victim") as snap:
                print(snap.read_text("victim"))
        """
        assert run_python(code, root, **as_user(1000)).check().stdout == "planted\n"
        assert tree(root) == {"victim": b"planted"}
        assert status(root).clean


def test_who_only_reads_replays_nothing_that_another_wrote_while_it_was_shared() -> None:
    with public_directory() as root:
        os.chown(root, 1000, 5000)
        root.chmod(0o2775)
        (root / "victim").write_text("precious", encoding="utf-8")
        begin = "from txfiles import *; FileTransaction(sys.argv[1]).begin().rollback()"
        run_python(begin, root, **as_user(1000, groups=[5000])).check()
        run_python(_PLANT, root, **as_user(1001, groups=[5000])).check()
        root.chmod(0o755)
        (root / ".txfiles").chmod(0o700)
        code = "from txfiles import *; FileStore(sys.argv[1]).state_version()"
        run_python(code, root, **as_user(1000)).check()
        assert tree(root) == {"victim": b"precious"}


@pytest.mark.parametrize("death", [("link", 1), ("link", 2), ("sync_file", 2), ("rename", 2)])
def test_the_owner_recovers_what_root_left_half_done(death: tuple[str, int]) -> None:
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        for name in "ab":
            (root / name).write_text("old", encoding="utf-8")
            os.chown(root / name, 1000, 1000)
        run_python("from txfiles import *; FileTransaction(sys.argv[1]).begin().rollback()", root, **as_user(1000))

        def commit() -> None:
            with FileTransaction(root) as tx:
                tx.write("a", "new")
                tx.write("b", "new")

        killed(commit, *death)
        code = """
            from txfiles import FileStore, FileTransaction, recover, status
            status(sys.argv[1])
            with FileStore(sys.argv[1]).snapshot() as snap:
                print(snap.read_text("a"), snap.read_text("b"))
            recover(sys.argv[1])
        """
        assert run_python(code, root, **as_user(1000)).check().stdout in ("old old\n", "new new\n")
        assert status(root).clean


def test_nobody_else_can_look_into_the_private_directory_or_hold_its_lock() -> None:
    with public_directory() as root, FileTransaction(root) as tx:
        tx.write("secret", "staged")
        code = """
            for name in ("", "/lock", "/format", "/HEAD"):
                try:
                    os.open(sys.argv[1] + "/.txfiles" + name, os.O_RDONLY)
                except PermissionError:
                    print("closed")
        """
        assert run_python(code, root, **as_user(1000)).check().stdout == "closed\n" * 4
