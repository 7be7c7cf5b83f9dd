"""Mode, owner, group, attributes and ACLs: which file of a transaction has whose."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.boundary import Refusing, killed
from tests.support.mounts import run
from tests.support.procs import run_python
from txfiles import FileTransaction, recover
from txfiles._disk import system
from txfiles.errors import CommitError

pytestmark = pytest.mark.needs("root", "setfacl")

ACCESS = "system.posix_acl_access"


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def meta(path: Path) -> dict[str, Any]:
    found = path.lstat()
    keys = sorted(os.listxattr(path, follow_symlinks=False))
    return {
        "mode": stat.S_IMODE(found.st_mode),
        "owner": (found.st_uid, found.st_gid),
        "xattrs": {key: os.getxattr(path, key, follow_symlinks=False) for key in keys},
    }


def _special(path: Path) -> dict[str, Any]:
    """A file with everything that a file can have."""
    path.write_text("old", encoding="utf-8")
    os.chown(path, 1234, 4321)
    run("setfacl", "-m", "user:1111:rw,group:2222:r,mask::rw", path)
    os.setxattr(path, "user.colour", b"blue\0")
    os.setxattr(path, "trusted.note", b"x")
    path.chmod(0o4664)
    return meta(path)


def _plain(path: Path) -> dict[str, Any]:
    """What a plain open() makes there."""
    path.write_text("plain", encoding="utf-8")
    found = meta(path)
    path.unlink()
    return found


REPLACE: dict[str, Callable[[FileTransaction], object]] = {
    "write": lambda tx: tx.write("a", "new"),
    "write twice": lambda tx: [tx.write("a", content) for content in ("x", "new")],  # type: ignore[func-returns-value]
    "json": lambda tx: tx.write_json("a", 1),
    "w": lambda tx: tx.open("a", "w").close(),
    "a": lambda tx: tx.open("a", "a").close(),
    "through a link": lambda tx: tx.write("link", "new"),
}


@pytest.mark.parametrize("how", REPLACE)
@pytest.mark.parametrize("end", ["commit", "recovery"])
def test_a_replaced_file_keeps_everything(root: Path, how: str, end: str) -> None:
    before = _special(root / "a")
    (root / "link").symlink_to("a")

    def work() -> None:
        with FileTransaction(root) as tx:
            REPLACE[how](tx)
            tx.write("b", "x")

    if end == "commit":
        work()
    else:
        FileTransaction(root).begin().rollback()
        killed(work, "rename", 3)
        assert recover(root).rolled_forward
    assert meta(root / "a") == before
    assert (root / "a").read_text(encoding="utf-8") != "old" or how == "a"
    assert (root / "link").is_symlink()


def test_an_undone_replacement_keeps_everything(root: Path) -> None:
    before = _special(root / "a")
    inode = (root / "a").stat().st_ino
    with system.use(Refusing(b"b")):
        tx = FileTransaction(root).begin()
    tx.write("a", "new")
    tx.write("b", "x")
    with pytest.raises(CommitError):
        tx.commit()
    assert (meta(root / "a"), (root / "a").stat().st_ino) == (before, inode)


def test_deleted_and_written_is_a_new_file(root: Path) -> None:
    _special(root / "a")
    expected = _plain(root / "plain")
    with FileTransaction(root) as tx:
        tx.delete("a")
        tx.write("a", "new")
    assert meta(root / "a") == expected


def test_a_moved_file_takes_its_own_along(root: Path) -> None:
    before = _special(root / "a")
    (root / "b").write_text("plain", encoding="utf-8")
    with FileTransaction(root) as tx:
        tx.move("a", "b")
        tx.write("c", "staged")
        tx.move("c", "d/c")
    assert meta(root / "b") == before
    assert meta(root / "d/c") == _plain(root / "d/plain")


def test_a_copy_has_mode_and_attributes_but_not_the_owner(root: Path) -> None:
    """And no set-id bit that would be the new owner's."""
    before = _special(root / "a")
    with FileTransaction(root) as tx:
        tx.copy("a", "b")
    assert meta(root / "b") == before | {"mode": 0o664, "owner": (0, 0)}


def test_a_copy_onto_a_file_keeps_that_files_owner(root: Path) -> None:
    before = _special(root / "a")
    (root / "b").write_text("x", encoding="utf-8")
    os.chown(root / "b", 1234, 4321)
    with FileTransaction(root) as tx:
        tx.copy("a", "b")
    assert meta(root / "b") == before


PLACES = ["plain", "setgid", "default ACL", "default ACL with mask"]


@pytest.mark.parametrize("mask", [0o002, 0o022, 0o077], ids=oct)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_new_is_as_open_and_mkdir_make_it(root: Path, place: str, mask: int) -> None:
    """In directories that were there and, below them, in directories that are new themselves."""
    (root / "d").mkdir()
    if place == "setgid":
        os.chown(root / "d", -1, 4321)
        (root / "d").chmod(0o2775)
    elif place == "default ACL":
        run("setfacl", "-d", "-m", "user::rw,group::r,other::-", root / "d")
    elif place != "plain":
        run("setfacl", "-d", "-m", "user:1234:rwx,group:2222:rx,other::-", root / "d")
    with umask(mask):
        (root / "d/e/f").mkdir(parents=True)
        expected = {path: meta(root / path) for path in ("d/e", "d/e/f")}
        expected["d/x"] = _plain(root / "d/x")
        expected["d/e/x"] = _plain(root / "d/e/x")
        (root / "d/e/f").rmdir()
        (root / "d/e").rmdir()
        with FileTransaction(root) as tx:
            tx.write("d/x", "x")
            tx.write("d/e/x", "x")
            tx.mkdir("d/e/f")
    assert {path: meta(root / path) for path in expected} == expected


@pytest.mark.parametrize("mask", [0o002, 0o077], ids=oct)
def test_the_umask_is_that_of_the_call(root: Path, mask: int) -> None:
    with FileTransaction(root) as tx:
        with umask(mask):
            tx.write("a", "x")
        with umask(0o027):
            tx.write("b", "x")
    assert (meta(root / "a")["mode"], meta(root / "b")["mode"]) == (0o666 & ~mask, 0o640)


def test_directories_keep_theirs_when_they_are_removed_and_that_is_undone(root: Path) -> None:
    (root / "d").mkdir()
    os.chown(root / "d", 1234, 4321)
    run("setfacl", "-d", "-m", "user:1111:rwx", root / "d")
    os.setxattr(root / "d", "user.colour", b"blue")
    (root / "d").chmod(0o2751)
    before = meta(root / "d")
    with system.use(Refusing(b"z")):
        tx = FileTransaction(root).begin()
    tx.delete_tree("d")
    tx.write("z", "x")
    with pytest.raises(CommitError):
        tx.commit()
    assert meta(root / "d") == before


# -- as another user ------------------------------------------------------------------------------------------------

WRITE = """
from txfiles import FileTransaction
with FileTransaction(sys.argv[1]) as tx:
    tx.write("a", "new")
"""


ACCEPT = WRITE.replace("argv[1])", "argv[1], accept={'narrowed-modes'})")


def _as(uid: int, code: str, root: Path, **settings: Any) -> str:
    done = run_python(code, root, **as_user(uid, **settings))
    return done.stderr.splitlines()[-1] if done.returncode else ""


@pytest.mark.needs("users")
@pytest.mark.parametrize("member", [True, False], ids=["member", "no member"])
@pytest.mark.parametrize(("bits", "kept"), [(0o664, 0o644), (0o670, 0o600), (0o626, 0o626), (0o600, 0o600)], ids=str)
def test_a_group_that_cannot_be_kept_loses_its_permissions(bits: int, kept: int, member: bool) -> None:
    """But for those that everybody has."""
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        (root / "a").write_text("old", encoding="utf-8")
        os.chown(root / "a", 1000, 4321)
        (root / "a").chmod(bits)
        groups = [4321] if member else []
        if bits != kept and not member:
            assert "accept={" in _as(1000, WRITE, root)
            assert meta(root / "a")["mode"] == bits
        assert _as(1000, WRITE if bits == kept else ACCEPT, root, groups=groups) == ""
        assert (root / "a").read_text(encoding="utf-8") == "new"
        found = meta(root / "a")
        assert found["owner"] == (1000, 4321 if member else 1000)
        assert found["mode"] == (bits if member else kept)


@pytest.mark.needs("users")
def test_an_acl_whose_group_cannot_be_kept_goes() -> None:
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        (root / "a").write_text("old", encoding="utf-8")
        run("setfacl", "-m", "user:1111:rw", root / "a")
        os.chown(root / "a", 1000, 4321)
        assert "accept={" in _as(1000, WRITE, root)
        assert ACCESS in meta(root / "a")["xattrs"]
        assert _as(1000, ACCEPT, root) == ""
        found = meta(root / "a")
        assert ACCESS not in found["xattrs"]
        assert found["mode"] == 0o644


@pytest.mark.needs("users")
@pytest.mark.parametrize(
    "call", ["tx.write('a', 'x')", "tx.open('a', 'w')", "tx.open('a', 'a')", "tx.write_json('a', 1)"]
)
def test_a_write_protected_file_is_refused_at_the_call(call: str) -> None:
    code = f"""
        from txfiles import FileTransaction
        with FileTransaction(sys.argv[1]) as tx:
            try:
                {call}
            except PermissionError as error:
                assert error.filename == "a"
                tx.write("b", "goes on")
    """
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        (root / "a").write_text("old", encoding="utf-8")
        os.chown(root / "a", 1000, 1000)
        (root / "a").chmod(0o444)
        run_python(code, root, **as_user(1000)).check()
        assert (root / "a").read_text(encoding="utf-8") == "old"
        assert (root / "b").read_text(encoding="utf-8") == "goes on"
        with FileTransaction(root) as tx:
            tx.write("a", "root may")
        assert (root / "a").read_text(encoding="utf-8") == "root may"
        assert meta(root / "a")["mode"] == 0o444


@pytest.mark.needs("users")
@pytest.mark.parametrize("what", ["root", "directory", "private directory"])
def test_a_place_where_one_may_not_write(what: str) -> None:
    with public_directory() as root:
        (root / "d").mkdir()
        (root / "d/a").write_text("old", encoding="utf-8")
        os.chown(root / "d/a", 1000, 1000)
        if what != "root":
            os.chown(root, 1000, 1000)
        if what == "private directory":
            (root / ".txfiles").mkdir(0o700)
        code = WRITE.replace('"a"', '"d/a"')
        assert "Permission" in _as(1000, code, root)
        assert (root / "d/a").read_text(encoding="utf-8") == "old"
        assert what == "root" or "txfiles" not in os.listdir(root)
        if what == "private directory":
            (root / ".txfiles").rmdir()
        os.chown(root, 1000, 1000)
        os.chown(root / "d", 1000, 1000)
        run_python(code, root, **as_user(1000)).check()
        assert (root / "d/a").read_text(encoding="utf-8") == "new"


def test_the_private_directory_is_private_and_shared_only_when_the_root_is(tmp_path: Path) -> None:
    for bits, private, lock in (
        (0o755, 0o700, 0o600),
        (0o775, 0o770, 0o660),
        (0o2770, 0o770, 0o660),
        (0o777, 0o770, 0o660),
    ):
        root = tmp_path / oct(bits)
        root.mkdir()
        root.chmod(bits)
        for mask in (0o000, 0o077):
            with umask(mask), FileTransaction(root) as tx:
                tx.write("a", "x")
        assert meta(root / ".txfiles")["mode"] & 0o777 == private
        assert {name: meta(root / ".txfiles" / name)["mode"] for name in ("format", "lock", "HEAD")} == {
            "format": lock, "lock": lock, "HEAD": lock,
        }  # fmt: skip


@pytest.mark.parametrize("durability", ["full", "process"])
def test_what_is_staged_is_never_more_open_than_its_target(root: Path, durability: Any) -> None:
    (root / "a").write_text("old", encoding="utf-8")
    (root / "a").chmod(0o640)
    with umask(0), FileTransaction(root, durability=durability) as tx:
        with tx.open("a", "wb") as stream:
            stream.write(bytes(1 << 19))
            stream.flush()
            assert _modes(root) == {0o600}
        tx.write("b", "x")
        assert _modes(root) == {0o640, 0o666}
    assert meta(root / "a")["mode"] == 0o640


def _modes(root: Path) -> set[int]:
    """Of what is staged."""
    return {meta(path)["mode"] for path in (root / ".txfiles").iterdir() if path.name not in ("format", "lock", "HEAD")}
