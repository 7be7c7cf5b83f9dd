"""What people move, link and copy beside a log, and then the power fails: nothing that was committed goes with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.boundary import killed
from tests.support.disks import Restarted
from tests.support.loop import crash_image, loop_fs
from txfiles import FileStore, recover
from txfiles._commit import idle
from txfiles._disk import system

ONE, TWO = "one " * 1000, "two " * 1000
Deed = Callable[[FileStore, Path], dict[str, str]]
DISKS = [
    pytest.param("ext4", ["commit=600"], marks=pytest.mark.needs("loop", "ext4")),
    pytest.param("xfs", [], marks=pytest.mark.needs("loop", "xfs")),
]


def put(store: FileStore, **contents: str | None) -> None:
    with store.transaction() as tx:
        for name, content in contents.items():
            if content is None:
                tx.delete(name)
            else:
                tx.write(name.replace("_", "/"), content)


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def moves_a_file(store: FileStore, root: Path) -> dict[str, str]:
    put(store, a=ONE)
    (root / "a").rename(root / "b")
    store.checkpoint()
    return {"b": ONE}


def moves_a_directory(store: FileStore, root: Path) -> dict[str, str]:
    put(store, d_x=ONE)
    (root / "d").rename(root / "e")
    store.checkpoint()
    return {"e/x": ONE}


def moves_a_file_whose_place_is_taken(store: FileStore, root: Path) -> dict[str, str]:
    put(store, a=ONE)
    (root / "a").rename(root / "b")
    put(store, a=TWO)
    sync(root)
    return {"a": TWO, "b": ONE}


def links_what_is_replaced(store: FileStore, root: Path) -> dict[str, str]:
    put(store, a=ONE)
    (root / "b").hardlink_to(root / "a")
    put(store, a=TWO)
    sync(root)
    return {"a": TWO, "b": ONE}


def links_what_is_deleted(store: FileStore, root: Path) -> dict[str, str]:
    put(store, a=ONE)
    (root / "b").hardlink_to(root / "a")
    put(store, a=None)
    sync(root)
    return {"b": ONE}


def moves_a_directory_away_and_back(store: FileStore, root: Path) -> dict[str, str]:
    put(store, d_x=ONE)
    store.checkpoint()
    (root / "d").rename(root / "e")
    os.sync()
    (root / "e").rename(root / "d")
    put(store, d_x=TWO)
    return {"d/x": TWO}


def moves_a_directory_and_nobody_checkpoints(store: FileStore, root: Path) -> dict[str, str]:
    put(store, d_x=ONE, a=ONE)
    (root / "deep" / "er").mkdir(parents=True)
    (root / "d").rename(root / "deep" / "er" / "d")
    for directory in ("deep", "deep/er", "."):
        sync(root / directory)
    return {"deep/er/d/x": ONE, "a": ONE}


def copies_the_root_by_links(store: FileStore, root: Path) -> dict[str, str]:
    """The copy empties its log, and the root has the same."""
    put(store, a=ONE)
    copy = root.parent / "copy"
    subprocess.run(["cp", "-al", root, copy], check=True)
    put(store, a=TWO)
    FileStore(copy).checkpoint()
    assert (copy / "a").read_text(encoding="utf-8") == ONE
    return {"a": TWO}


def copies_the_root_by_links_and_recovers_the_copy(store: FileStore, root: Path) -> dict[str, str]:
    put(store, a=ONE)
    store.checkpoint()
    copy = root.parent / "copy"
    subprocess.run(["cp", "-al", root, copy], check=True)
    os.sync()
    put(store, a=TWO)
    return {"a": TWO}


def links_what_a_killed_commit_has_replaced(store: FileStore, root: Path) -> dict[str, str]:
    put(store, a=ONE)
    (root / "b").hardlink_to(root / "a")
    killed(lambda: put(store, a=TWO), "sync_file", 1)  # which makes the other name's content durable
    recover(root)
    sync(root)
    return {"a": TWO, "b": ONE}


def links_what_recovery_replaces(store: FileStore, root: Path) -> dict[str, str]:
    put(store, a=ONE)
    (root / "b").hardlink_to(root / "a")
    killed(lambda: put(store, a=TWO), "exchange", 1)
    recover(root)
    sync(root)
    return {"a": TWO, "b": ONE}


DEEDS: list[Deed] = [
    links_what_recovery_replaces,
    links_what_a_killed_commit_has_replaced,
    moves_a_file,
    moves_a_directory,
    moves_a_file_whose_place_is_taken,
    links_what_is_replaced,
    links_what_is_deleted,
    moves_a_directory_away_and_back,
    moves_a_directory_and_nobody_checkpoints,
    copies_the_root_by_links,
    copies_the_root_by_links_and_recovers_the_copy,
]


@pytest.mark.parametrize(("fstype", "options"), DISKS)
@pytest.mark.parametrize("deed", DEEDS)
def test_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fstype: str, options: list[str], deed: Deed
) -> None:
    monkeypatch.setattr(idle, "AFTER", 1000)
    with loop_fs(tmp_path, fstype, options=options) as fs:
        root = fs.path / "root"
        store = FileStore(root, durability="journal", create=True)
        put(store, first="1")
        (root / "d").mkdir()
        store.checkpoint()
        os.sync()
        wanted = deed(store, root)
        with crash_image(fs) as after, system.use(Restarted()):
            if (after.path / "copy").exists():
                recover(after.path / "copy")
            recover(after.path / "root")
            found = {
                str(path.relative_to(after.path / "root")): path.read_text(encoding="utf-8")
                for path in (after.path / "root").rglob("*")
                if path.is_file() and ".txfiles" not in path.parts and path.name != "first"
            }
            if deed is copies_the_root_by_links_and_recovers_the_copy:
                assert (after.path / "copy" / "a").read_text(encoding="utf-8") == ONE
            with crash_image(after) as again, system.use(Restarted()):
                recover(again.path / "root")
                for name, content in found.items():
                    assert (again.path / "root" / name).read_text(encoding="utf-8") == content
        idle.forget()
    assert found == wanted
