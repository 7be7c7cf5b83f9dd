"""P01: libraries that open URLs of a running fsspec transaction, in threads of their own."""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from fsspec.asyn import get_loop
from fsspec.generic import rsync

from tests.support.boundary import tree
from txfiles import FileTransaction
from txfiles.integrations.fsspec import TxFilesFileSystem

get_loop()  # the thread of fsspec's own, which lasts


@pytest.fixture(autouse=True)
def _no_instance_is_kept() -> Iterator[None]:
    yield
    TxFilesFileSystem.clear_instance_cache()


def _write(url: str) -> None:
    with fsspec.open(url, "wb") as file:
        file.write(b"by url")


def _write_by_instance(url: str) -> None:
    fs, path = fsspec.url_to_fs(url)
    fs.pipe(path, b"by url")


WAYS: dict[str, Callable[[str], None]] = {"open": _write, "instance": _write_by_instance}


@pytest.mark.parametrize("before", [False, True], ids=["first", "the thread had an instance before"])
@pytest.mark.parametrize("way", WAYS)
def test_p01_urls_in_other_threads_take_part(root: Path, way: str, before: bool) -> None:
    fs = fsspec.filesystem("txfiles", root=root, timeout=5)
    with ThreadPoolExecutor(1) as pool:
        if before:
            pool.submit(WAYS[way], f"txfiles://{root}/first").result(60)
        with fs.transaction:
            pool.submit(WAYS[way], f"txfiles://{root}/a").result(60)
            assert not (root / "a").exists()
            assert (
                pool.submit(lambda: fsspec.url_to_fs(f"txfiles://{root}/a")[0].cat(f"{root}/a")).result(60) == b"by url"
            )
        assert (root / "a").read_bytes() == b"by url"
        with pytest.raises(ZeroDivisionError), fs.transaction:
            pool.submit(WAYS[way], f"txfiles://{root}/undone").result(60)
            raise ZeroDivisionError
        assert not (root / "undone").exists()
        pool.submit(WAYS[way], f"txfiles://{root}/after").result(60)
        assert (root / "after").read_bytes() == b"by url"


def test_p01_an_instance_with_a_root_keeps_to_itself(root: Path) -> None:
    fs = fsspec.filesystem("txfiles", root=root)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ZeroDivisionError), fs.transaction:
            fs.pipe(f"{root}/a", b"1")
            theirs = pool.submit(TxFilesFileSystem, root, timeout=60).result(60)
            assert not pool.submit(theirs.exists, f"{root}/a").result(60)
            waiting = pool.submit(theirs.pipe, f"{root}/b", b"theirs")
            raise ZeroDivisionError
        waiting.result(60)
    assert tree(root) == {"b": b"theirs"}


def test_p01_an_instance_from_before_keeps_to_itself(root: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(TxFilesFileSystem, root, timeout=60).result(60)
        fs = fsspec.filesystem("txfiles", root=root)
        with pytest.raises(ZeroDivisionError), fs.transaction:
            fs.pipe(f"{root}/a", b"1")
            waiting = pool.submit(theirs.pipe, f"{root}/b", b"theirs")
            raise ZeroDivisionError
        waiting.result(60)
    assert tree(root) == {"b": b"theirs"}


def test_p01_instances_do_not_outlive_their_block(root: Path) -> None:
    fs = fsspec.filesystem("txfiles", root=root)
    cache: dict[str, TxFilesFileSystem] = TxFilesFileSystem._cache  # type: ignore[attr-defined]
    cached = len(cache)
    for _ in range(3):
        with fs.transaction:
            _write(f"txfiles://{root}/a")
    assert len(cache) == cached
    assert fsspec.filesystem("txfiles", root=root) is fs


# -- what else its local file system can ----------------------------------------------------------------------------


def test_p01_links_and_modes(root: Path) -> None:
    fs = fsspec.filesystem("txfiles", root=root)
    with fs.transaction:
        fs.pipe(f"{root}/a", b"1")
        fs.symlink(f"{root}/a", f"{root}/sub/to a")
        fs.link(f"{root}/a", f"{root}/staged")
        assert fs.cat(f"{root}/sub/to a") == fs.cat(f"{root}/staged") == b"1"
        fs.chmod(f"{root}/a", 0o600)
    fs.link(f"{root}/a", f"{root}/second")
    for name in ("second", "sub"):
        with pytest.raises((FileExistsError, IsADirectoryError)):
            fs.link(f"{root}/a", f"{root}/{name}")
    with pytest.raises(FileNotFoundError):
        fs.link(f"{root}/no", f"{root}/third")
    assert os.stat(root / "a").st_ino == os.stat(root / "second").st_ino
    assert stat.S_IMODE(os.stat(root / "a").st_mode) == 0o600
    assert fs.islink(f"{root}/sub/to a")
    assert tree(root) == {"a": b"1", "staged": b"1", "second": b"1", "sub": None, "sub/to a": f"-> {root}/a"}


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_p01_an_open_reader_is_pickled(root: Path, size: int) -> None:
    fs = fsspec.filesystem("txfiles", root=root)
    fs.pipe(f"{root}/a", bytes(range(10)) * (size // 10))
    with fs.open(f"{root}/a") as file:
        file.seek(3)
        with pickle.loads(pickle.dumps(file)) as copy:
            assert copy.read(2) == file.read(2) == b"\3\4"


def _filled(path: Path) -> Path:
    (path / "sub").mkdir(parents=True, exist_ok=True)
    (path / "a").write_bytes(b"1")
    (path / "sub/b").write_bytes(b"2")
    return path


FILLED = {"a": b"1", "sub": None, "sub/b": b"2"}


@pytest.mark.parametrize("method", ["default", "current", "options"])
@pytest.mark.parametrize("way", ["there", "here"])
def test_p01_rsync(root: Path, tmp_path: Path, way: str, method: str) -> None:
    if method == "current":
        fsspec.filesystem("txfiles", root=root)
    ours, theirs = f"txfiles://{root}", f"file://{tmp_path / 'other'}"
    options = {"inst_kwargs": {"default_method": method}} if method != "default" else {}
    if way == "there":
        _filled(root)
        rsync(ours, theirs, **options)
    else:
        _filled(tmp_path / "other")
        rsync(theirs, ours, **options)
    assert tree(root) == tree(tmp_path / "other") == FILLED


def test_p01_rsync_between_roots_and_again(root: Path, watch: Callable[[Path], Path], tmp_path: Path) -> None:
    other = watch(tmp_path / "other")
    _filled(root)
    with FileTransaction(root) as tx:
        tx.write("sub/c", b"3")
    assert len(rsync(f"txfiles://{root}", f"txfiles://{other}")) == 3
    assert tree(other) == tree(root)
    (root / "a").write_bytes(b"other")
    (other / "sub/more").write_bytes(b"x")
    assert len(rsync(f"txfiles://{root}", f"txfiles://{other}", delete_missing=True)) == 1
    assert tree(other) == tree(root)


def test_p01_rsync_in_a_block_is_part_of_it(root: Path, tmp_path: Path) -> None:
    fs = fsspec.filesystem("txfiles", root=root)
    _filled(tmp_path / "other")
    with fs.transaction:
        rsync(f"file://{tmp_path / 'other'}", f"txfiles://{root}")
        assert fs.cat(f"{root}/sub/b") == b"2"
        assert not (root / "sub").exists()
    assert tree(root) == FILLED
