"""N: directories below the root that nothing can be renamed into, and sandboxes."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.boundary import tree
from tests.support.disks import Place
from tests.support.halfdone import die
from tests.support.mounts import bind
from tests.support.procs import CHECKOUT, run_python
from txfiles import FileTransaction, recover, status
from txfiles.errors import UnsupportedFilesystemError

_CALLS: dict[str, Callable[[FileTransaction], object]] = {
    "new": lambda tx: tx.write("sub/new", "new"),
    "replace": lambda tx: tx.write("sub/old", "new"),
    "open": lambda tx: tx.open("sub/old", "w"),
    "append": lambda tx: tx.open("sub/old", "ab"),
    "move in": lambda tx: tx.move("top", "sub/top"),
    "copy in": lambda tx: tx.copy("top", "sub/old"),
    "deep": lambda tx: tx.write("sub/deep/new", "new"),
    "mkdir": lambda tx: tx.mkdir("sub/deep"),
    "move out": lambda tx: tx.move("sub/old", "old"),
    "delete": lambda tx: tx.delete("sub/old"),
    "delete_tree": lambda tx: tx.delete_tree("sub"),
}
_OUT = ("move out", "delete", "delete_tree")


def _fill(root: Path) -> None:
    (root / "top").write_text("top", encoding="utf-8")
    (root / "sub").mkdir(exist_ok=True)
    (root / "sub/old").write_text("old", encoding="utf-8")


# -- subvolumes -----------------------------------------------------------------------------------------------------


@pytest.mark.needs("loop", "btrfs")
def test_n06_a_subvolume_below_the_root_is_refused_at_the_call(place: Callable[[str], Place]) -> None:
    root = place("btrfs").root
    subprocess.run(["btrfs", "subvolume", "create", root / "sub"], check=True, capture_output=True)
    _fill(root)
    before = tree(root)
    for name, call in _CALLS.items():
        with FileTransaction(root) as tx:
            with pytest.raises(UnsupportedFilesystemError, match="subvolume") as caught:
                call(tx)
            assert caught.value.path in ("sub", "sub/old"), name
            tx.write("other", name)
        assert (root / "other").read_text(encoding="utf-8") == name
        (root / "other").unlink()
        assert tree(root) == before
    with FileTransaction(root) as tx:
        tx.copy("sub/old", "copy")
    assert (root / "copy").read_text(encoding="utf-8") == "old"
    (root / "copy").unlink()


@pytest.mark.needs("loop", "btrfs")
def test_n06_an_empty_subvolume_is_not_removed_as_a_directory(place: Callable[[str], Place]) -> None:
    root = place("btrfs").root
    (root / "d").mkdir()
    subprocess.run(["btrfs", "subvolume", "create", root / "d/sub"], check=True, capture_output=True)
    with (
        FileTransaction(root) as tx,
        pytest.raises(UnsupportedFilesystemError, match="'d/sub' is in another subvolume"),
    ):
        tx.delete_tree("d")


@pytest.mark.needs("loop", "btrfs")
def test_n06_a_private_directory_that_is_a_subvolume(place: Callable[[str], Place]) -> None:
    root = place("btrfs").root
    subprocess.run(["btrfs", "subvolume", "create", root / ".txfiles"], check=True, capture_output=True)
    with pytest.raises(UnsupportedFilesystemError, match="subvolume of its own"):
        FileTransaction(root).begin()


# -- mounts ---------------------------------------------------------------------------------------------------------


@pytest.mark.needs("mount")
def test_n06_a_private_directory_that_is_a_mount(root: Path, tmp_path: Path) -> None:
    (root / ".txfiles").mkdir()
    with (
        bind(root / ".txfiles", root / ".txfiles"),
        pytest.raises(UnsupportedFilesystemError, match="mount of its own"),
    ):
        FileTransaction(root).begin()
    (tmp_path / "other").mkdir()
    with (
        bind(tmp_path / "other", root / ".txfiles"),
        pytest.raises(UnsupportedFilesystemError, match="mount of its own"),
    ):
        FileTransaction(root).begin()


# -- quota projects -------------------------------------------------------------------------------------------------

_FSXATTR = struct.Struct("=5I8x")
_GET, _SET, _INHERIT = 0x801C581F, 0x401C5820, 0x200


def _set_project(path: Path, project: int) -> None:
    """What is made in the directory from now on belongs to the project."""
    fd = os.open(path, os.O_RDONLY)
    try:
        buffer = bytearray(_FSXATTR.size)
        fcntl.ioctl(fd, _GET, buffer)
        flags, *sizes, _, cow = _FSXATTR.unpack(buffer)
        fcntl.ioctl(fd, _SET, _FSXATTR.pack(flags | _INHERIT, *sizes, project, cow))
    finally:
        os.close(fd)


@pytest.mark.needs("loop", "xfs")
def test_n06_a_directory_of_another_quota_project_is_refused_at_the_call(place: Callable[[str], Place]) -> None:
    root = place("xfs").root
    _fill(root)
    _set_project(root / "sub", 7)
    before = tree(root)
    for name, call in _CALLS.items():
        if name in _OUT:
            continue
        with FileTransaction(root) as tx:
            with pytest.raises(UnsupportedFilesystemError, match=r"quota project 7, the root .* in 0") as caught:
                call(tx)
            assert caught.value.path == "sub"
        assert tree(root) == before, name
    with FileTransaction(root) as tx:
        tx.delete("sub/old")
    assert "sub/old" not in tree(root)


@pytest.mark.needs("loop", "xfs")
def test_n06_a_root_in_a_quota_project_works_and_older_files_are_refused(place: Callable[[str], Place]) -> None:
    root = place("xfs").root
    _fill(root)
    _set_project(root, 7)
    with FileTransaction(root) as tx:
        tx.write("new", "1")
        tx.write("sub/new", "1")
    with FileTransaction(root) as tx:
        tx.write("new", "2")
        tx.write("sub/new", "2")
    before = tree(root)
    for name in ("replace", *_OUT):
        with (
            pytest.raises(UnsupportedFilesystemError, match=r"'sub/old' is in the quota project 0, the root .* in 7"),
            FileTransaction(root) as tx,
        ):
            _CALLS[name](tx)
        assert tree(root) == before, name


# -- sandboxes ------------------------------------------------------------------------------------------------------

_CONFINED = """
    from tests.support.sandbox import confine
    from txfiles import FileStore, FileTransaction, recover
    from txfiles.errors import UnsupportedFilesystemError
    root = sys.argv[1]
    confine(root, refer=sys.argv[2] == "refer")
    def told(work):
        try:
            return work()
        except UnsupportedFilesystemError as error:
            assert error.outcome == "before" and error.path == root, error
            assert "Landlock" in str(error) and "LANDLOCK_ACCESS_FS_REFER" in str(error), error
            return "refused"
"""


@pytest.mark.needs("landlock")
@pytest.mark.parametrize("refer", ["refer", "no"])
@pytest.mark.parametrize("used", [False, True])
def test_n07_a_sandbox_without_the_right_to_refer_is_refused_at_begin(root: Path, used: bool, refer: str) -> None:
    code = """
        def save():
            with FileTransaction(root) as tx:
                tx.write("old", "new")
                tx.write("sub/new", "new")
        print(told(save))
    """
    if used:
        with FileTransaction(root) as tx:
            tx.write("first", "first")
    (root / "old").write_text("old", encoding="utf-8")
    before = tree(root)
    done = run_python(dedent(_CONFINED) + dedent(code), root, refer, cwd=CHECKOUT).check()
    if refer == "refer":
        assert done.stdout == "None\n"
        assert ((root / "old").read_text(encoding="utf-8"), (root / "sub/new").read_text(encoding="utf-8")) == (
            "new",
            "new",
        )
    else:
        assert done.stdout == "refused\n"
        assert tree(root) == before


@pytest.mark.leaves_debris
@pytest.mark.needs("landlock")
def test_n07_a_recovery_in_such_a_sandbox_touches_nothing_and_readers_read(root: Path) -> None:
    code = """
        print(told(lambda: recover(root)))
        with FileStore(root).snapshot() as snap:
            print([snap.read_text(name) for name in ("a", "b", "sub/c")])
    """
    die(root, 1)
    before, pending = tree(root), status(root).pending
    done = run_python(dedent(_CONFINED) + dedent(code), root, "no", cwd=CHECKOUT).check()
    said, read = done.stdout.splitlines()
    assert said == "refused"
    assert (tree(root), status(root).pending) == (before, pending)
    assert recover(root).rolled_forward
    assert read == str([(root / name).read_text(encoding="utf-8") for name in ("a", "b", "sub/c")])


@pytest.mark.needs("landlock")
def test_n07_a_root_at_rest_is_read_in_such_a_sandbox(root: Path) -> None:
    code = """
        from txfiles import status
        print(recover(root).clean, status(root).clean)
        with FileStore(root).snapshot() as snap:
            print(snap.read_text("a"))
    """
    with FileTransaction(root) as tx:
        tx.write("a", "a")
    done = run_python(dedent(_CONFINED) + dedent(code), root, "no", cwd=CHECKOUT).check()
    assert done.stdout.split() == ["True", "True", "a"]


@pytest.mark.needs("landlock")
def test_n07_a_sandbox_that_comes_later_is_named_at_the_commit(root: Path) -> None:
    code = """
        from tests.support.sandbox import confine
        from txfiles import FileTransaction
        root = sys.argv[1]
        tx = FileTransaction(root).begin()
        tx.write("new", "new")
        confine(root, refer=False)
        try:
            tx.commit()
        except Exception as error:
            print(type(error).__name__, error.outcome, "Landlock" in str(error))
    """
    done = run_python(code, root, cwd=CHECKOUT).check()
    assert done.stdout == "UnsupportedFilesystemError before True\n"
    assert tree(root) == {}
