"""The fsspec file system: its transactions, and each of its calls as a transaction of its own."""

from __future__ import annotations

import errno
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.support.boundary import tree
from tests.support.halfdone import die
from tests.support.procs import run_python
from txfiles import FileTransaction, status
from txfiles._disk import system
from txfiles.errors import (
    CommitError,
    InvalidPathError,
    LockTimeoutError,
    NestedTransactionError,
    TransactionClosedError,
)
from txfiles.integrations.fsspec import TxFilesFileSystem
from txfiles.testing._faults import FaultyFS


@pytest.fixture(autouse=True)
def _no_instance_is_kept() -> Iterator[None]:
    yield
    TxFilesFileSystem.clear_instance_cache()


@pytest.fixture
def fs(root: Path) -> TxFilesFileSystem:
    (root / "sub").mkdir()
    (root / "a").write_bytes(b"old a")
    (root / "sub/b").write_bytes(b"old b")
    return TxFilesFileSystem(root, durability="process", timeout=5)


OLD = {"a": b"old a", "sub": None, "sub/b": b"old b"}


@pytest.fixture
def at(root: Path) -> Callable[[str], str]:
    return lambda path: f"{root}/{path}"


def commits(fs: TxFilesFileSystem) -> int:
    head = status(fs.root).head
    return 0 if head is None else head.sequence


# -- transactions ---------------------------------------------------------------------------------------------------


def test_a_transaction_is_one_commit(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    with fs.transaction:
        fs.pipe(at("a"), b"new a")
        with fs.open(at("sub/b"), "wb") as file:
            file.write(b"new b")
        with fs.open(at("c"), "w") as text:
            text.write("ü")
        fs.rm(at("sub/b"))
        fs.mv(at("a"), at("new/a"))
        fs.touch(at("empty"))
        fs.mkdir(at("dir"))
        assert tree(root) == OLD
    assert tree(root) == {
        "new": None,
        "new/a": b"new a",
        "sub": None,
        "c": "ü".encode(),
        "empty": b"",
        "dir": None,
    }
    assert commits(fs) == 1


def test_an_exception_undoes_all(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fs.pipe(at("a"), b"new a")
        fs.rm(at("sub"), recursive=True)
        raise ZeroDivisionError
    assert tree(root) == OLD
    assert commits(fs) == 0
    fs.pipe(at("a"), b"later")  # outside again
    assert tree(root)["a"] == b"later"


def test_reads_inside_see_what_was_written_inside(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    with fs.transaction:
        fs.pipe(at("new/c"), b"0123456789")
        fs.rm(at("a"))
        assert fs.cat(at("new/c")) == b"0123456789"
        assert fs.cat_file(at("new/c"), 2, -3) == b"23456"
        assert fs.cat_ranges([at("new/c")] * 2, [0, 8], [2, 10]) == [b"01", b"89"]
        with fs.open(at("new/c")) as file:
            assert file.size == 10
            file.seek(8)
            assert file.read() == b"89"
        assert (fs.size(at("new/c")), fs.isfile(at("new/c")), fs.isdir(at("new"))) == (10, True, True)
        assert not fs.exists(at("a"))
        assert fs.ls(root, detail=False) == [at("new"), at("sub")]
        assert fs.find(root) == [at("new/c"), at("sub/b")]
        assert fs.glob(at("*/c")) == [at("new/c")]
        assert [names for _, *names in fs.walk(at("new"))] == [[[], ["c"]]]
        assert (fs.created(at("new/c")) - fs.modified(at("new/c"))).total_seconds() < 5
        assert fs.info(at("new"))["mode"] & 0o777 == 0o755
        with pytest.raises(FileNotFoundError):
            fs.cat(at("a"))
        with pytest.raises(FileNotFoundError):
            fs.info(at("a"))


def test_others_see_the_state_before(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    seen: list[object] = []

    def look() -> None:
        other = TxFilesFileSystem(root, timeout=0)
        seen.append((other.cat(at("a")), other.find(root), (root / "a").read_bytes()))
        with pytest.raises(LockTimeoutError):
            other.pipe(at("a"), b"theirs")

    with fs.transaction:
        fs.pipe({at("a"): b"new a", at("c"): b"c"})
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [(b"old a", [at("a"), at("sub/b")], b"old a")]


def test_all_that_the_thread_does_below_the_root_takes_part(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    """Libraries are given URLs and make instances of their own."""
    with fs.transaction:
        fs.pipe(at("a"), b"new a")
        for options in ({}, {"root": f"{root}/"}, {"root": str(root), "durability": "full"}):
            with fsspec.open(f"txfiles://{root}/a", "ab", **options) as file:
                file.write(b"+")
        assert tree(root) == OLD
    assert tree(root)["a"] == b"new a+++"


def test_threads_that_use_the_instance_take_part(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    with fs.transaction:
        threads = [threading.Thread(target=fs.pipe, args=(at(f"t{n}"), b"x")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert tree(root) == OLD
    assert commits(fs) == 1
    assert len(tree(root)) == len(OLD) + 4


def test_without_a_block(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    fs.start_transaction()
    fs.pipe(at("a"), b"new a")
    assert tree(root) == OLD
    fs.end_transaction()
    assert tree(root)["a"] == b"new a"
    fs.start_transaction()
    fs.pipe(at("a"), b"newer")
    fs.transaction.complete(commit=False)
    assert tree(root)["a"] == b"new a"


def test_ended_in_another_thread(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    fs.start_transaction()
    fs.pipe(at("a"), b"new a")
    thread = threading.Thread(target=fs.end_transaction)
    thread.start()
    thread.join()
    assert tree(root)["a"] == b"new a"
    fs.pipe(at("a"), b"newer")
    assert tree(root)["a"] == b"newer"


def test_they_do_not_nest(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    other = TxFilesFileSystem(root)
    for inner in (fs, other):
        with pytest.raises(NestedTransactionError), fs.transaction:
            fs.pipe(at("a"), b"new a")
            with inner.transaction:
                pass
        assert tree(root) == OLD
    fs.pipe(at("a"), b"later")


def test_one_that_cannot_begin(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    holder = FileTransaction(root)
    thread = threading.Thread(target=holder.begin)
    thread.start()
    thread.join()
    hurried = TxFilesFileSystem(root, timeout=0)
    with pytest.raises(LockTimeoutError), hurried.transaction:
        pass
    holder.rollback()
    with hurried.transaction:
        hurried.pipe(at("a"), b"new a")
    assert tree(root)["a"] == b"new a"


def test_one_that_cannot_be_committed(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    """A file that is still open would be torn: nothing is committed, and the next one begins anew."""
    with pytest.raises(CommitError, match="still open"), fs.transaction:
        fs.pipe(at("c"), b"c")
        file = fs.open(at("a"), "wb")
        file.write(b"half")
    file.close()
    assert tree(root) == OLD
    with fs.transaction:
        fs.pipe(at("c"), b"c")
    assert tree(root)["c"] == b"c"


def test_a_call_that_fails_leaves_nothing_in_the_transaction(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    with fs.transaction:
        fs.pipe(at("a"), b"new a")
        with pytest.raises(InvalidPathError):
            fs.pipe({at("a"): b"lost", at("c"): b"lost", at(".txfiles/x"): b"refused"})
        with pytest.raises(ZeroDivisionError), fs.open(at("a"), "wb") as file:
            file.write(b"half")
            raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError), fs.open(at("a"), "w") as text:
            text.write("half")
            raise ZeroDivisionError
    assert tree(root) == {**OLD, "a": b"new a"}


def test_files_that_are_committed_later(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    files = [fs.open(at(name), "wb", autocommit=False) for name in "abc"]
    for file in files:
        file.write(b"new")
        file.close()
    assert tree(root) == OLD
    files[0].commit()
    assert tree(root)["a"] == b"new"
    fs.transaction.files.popleft()
    fs.end_transaction()
    assert commits(fs) == 2
    assert tree(root) == {**OLD, "a": b"new", "b": b"new", "c": b"new"}
    fs.open(at("a"), "wb", autocommit=False).close()
    fs.transaction.complete(commit=False)
    assert tree(root)["a"] == b"new"


def test_threads_do_not_lose_each_others_writes(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    fs.pipe(at("count"), b"0")

    def increment() -> None:
        mine = TxFilesFileSystem(root, durability="process", timeout=60)  # each thread gets an instance of its own
        for _ in range(5):
            with mine.transaction:
                mine.pipe(at("count"), b"%d" % (int(mine.cat(at("count"))) + 1))

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fs.cat(at("count")) == b"20"


def test_a_forked_child_has_no_part_in_it(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    with fs.transaction:
        fs.pipe(at("a"), b"new a")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(TransactionClosedError, match="process"):
                    fs.pipe(at("a"), b"child")
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    assert tree(root)["a"] == b"new a"


# -- single calls ---------------------------------------------------------------------------------------------------


def test_a_call_is_one_commit(fs: TxFilesFileSystem, root: Path, at: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "x/y").mkdir(parents=True)
    for name in ("1", "x/2", "x/y/3"):
        (source / name).write_text(name, encoding="utf-8")
    calls: list[Callable[[], object]] = [
        lambda: fs.pipe({at("p1"): b"1", at("p2"): b"2"}),
        lambda: fs.put(str(source), at("put"), recursive=True),
        lambda: fs.copy(at("put"), at("copy"), recursive=True),
        lambda: fs.mv(at("copy"), at("moved")),
        lambda: fs.mv(at("p?"), at("into/")),
        lambda: fs.rm([at("moved"), at("sub")], recursive=True),
    ]
    for number, call in enumerate(calls, 1):
        call()
        assert commits(fs) == number
    assert fs.find(root) == [at(name) for name in ("a", "into/p1", "into/p2", "put/1", "put/x/2", "put/x/y/3")]
    target = tmp_path / "target"
    fs.get(at("put"), str(target), recursive=True)
    assert tree(target) == tree(source)


def test_a_call_is_all_or_nothing(fs: TxFilesFileSystem, root: Path, at: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "1").write_text("1", encoding="utf-8")
    (source / "sub").write_text("where a directory is", encoding="utf-8")
    calls: list[Callable[[], object]] = [
        lambda: fs.pipe({at("c"): b"1", at("sub"): b"2"}),
        lambda: fs.put([str(source / "1"), str(source / "sub")], [at("1"), at("sub")]),
        lambda: fs.copy([at("a"), at("a")], [at("c"), at("sub")]),
        lambda: fs.rm([at("a"), at("sub")]),
    ]
    for call in calls:
        with pytest.raises(IsADirectoryError):
            call()
        assert tree(root) == OLD
    assert commits(fs) == 0


def test_writing_a_file_holds_no_lock(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    with fs.open(at("a"), "wb") as one, fs.open(at("a"), "ab") as two, fs.open(at("c"), "wb") as three:
        for file in (one, two, three):
            file.write(b"x" * 3)
            assert file.tell() == 3
        with FileTransaction(root, timeout=0) as tx:
            tx.write("a", b"theirs ")
        assert tree(root)["a"] == b"theirs "
    assert tree(root) == {**OLD, "a": b"xxx", "c": b"xxx"}  # each in turn: three, two, one


def test_appending_reads_under_the_lock(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    with fs.open(at("a"), "ab") as file:
        file.write(b"+mine")
        fs.pipe(at("a"), b"theirs")
    assert tree(root)["a"] == b"theirs+mine"


def test_large_content(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    data = os.urandom(3 << 20)
    with fs.open(at("large"), "wb") as file:
        for start in range(0, len(data), 1 << 19):
            file.write(data[start : start + (1 << 19)])
    with fs.open(at("large")) as file:
        fs.pipe(at("large"), b"replaced meanwhile")
        assert file.size == len(data)
        assert file.read() == data
    with fs.transaction:
        fs.pipe(at("large"), data)
        fs.cp(at("large"), at("copy"))
    assert fs.cat(at("copy")) == data


@pytest.mark.parametrize("mode", ["wb", "w", "ab", "xb", "x"])
def test_a_block_that_raises_writes_nothing(fs: TxFilesFileSystem, root: Path, at: Any, mode: str) -> None:
    name = at("c" if "x" in mode else "a")
    with pytest.raises(ZeroDivisionError), fs.open(name, mode) as file:
        file.write(b"half" if "b" in mode else "half")
        raise ZeroDivisionError
    assert tree(root) == OLD


def test_a_file_that_is_dropped_is_not_written(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    file = fs.open(at("a"), "wb")
    file.write(b"half")
    with pytest.warns(ResourceWarning, match="dropped while open"):
        del file
    assert tree(root) == OLD


def test_modes(fs: TxFilesFileSystem, at: Any) -> None:
    with fs.open(at("t"), "wt", encoding="latin-1", newline="\r\n") as file:
        file.write("ä\n")
    assert fs.cat(at("t")) == b"\xe4\r\n"
    assert fs.read_text(at("t"), encoding="latin-1") == "ä\n"
    with fs.open(at("z.gz"), "wt", compression="infer") as file:
        file.write("zip")
    with fs.open(at("z.gz"), "rt", compression="infer") as file:
        assert file.read() == "zip"
    with pytest.raises(ZeroDivisionError), fs.open(at("z.gz"), "wb", compression="gzip") as file:
        file.write(b"half")
        raise ZeroDivisionError
    with fs.transaction, fs.open(at("z.gz"), "ab", compression="gzip") as file:
        file.write(b"ped")
    with fs.open(at("z.gz"), compression="gzip") as file:
        assert file.read() == b"zipped"
    with pytest.raises(FileExistsError):
        fs.open(at("a"), "xb")
    with pytest.raises(FileNotFoundError):
        fs.open(at("missing"), "rb")
    for wrong in (at("sub"), at("")):
        for mode in ("rb", "wb"):
            with pytest.raises((IsADirectoryError, InvalidPathError)):
                fs.open(wrong, mode)
    for mode in ("r+b", "rwb"):
        with pytest.raises(ValueError, match="is not one of"):
            fs.open(at("a"), mode)
        with pytest.raises(ValueError, match="is not one of"), fs.transaction:
            fs.open(at("a"), mode)


def test_exclusive_creation_is_checked_at_the_end_too(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    with pytest.raises(FileExistsError), fs.open(at("c"), "xb") as file:
        file.write(b"mine")
        fs.pipe(at("c"), b"theirs")
    assert tree(root)["c"] == b"theirs"
    with pytest.raises(FileExistsError):
        fs.pipe_file(at("c"), b"mine", mode="create")


def test_parts_of_files(fs: TxFilesFileSystem, at: Any) -> None:
    fs.pipe(at("n"), b"0123456789")
    assert fs.cat_file(at("n"), -3) == b"789"
    assert fs.cat_ranges([at("n"), at("missing")], [1, 0], [3, 1])[0] == b"12"
    assert (fs.head(at("n"), 2), fs.tail(at("n"), 2), fs.read_block(at("n"), 3, 4)) == (b"01", b"89", b"3456")
    assert fs.cat([at("n"), at("a")]) == {at("n"): b"0123456789", at("a"): b"old a"}


def test_directories(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    fs.mkdir(at("d/e"))
    with pytest.raises(FileExistsError):
        fs.mkdir(at("d"))
    with pytest.raises(FileNotFoundError):
        fs.mkdir(at("x/y"), create_parents=False)
    fs.makedirs(at("d/e"), exist_ok=True)
    for exist_ok in (True, False):
        with pytest.raises(FileExistsError):
            fs.makedirs(at("a"), exist_ok=exist_ok)
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(at("d"))
    fs.rmdir(at("d/e"))
    with pytest.raises(NotADirectoryError):
        fs.rmdir(at("a"))
    with pytest.raises(IsADirectoryError):
        fs.rm(at("sub"))
    with pytest.raises(OSError, match="root itself"):
        fs.rm(root, recursive=True)
    assert tree(root) == {**OLD, "d": None}


def test_removing_to_a_depth(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    fs.pipe({at("d/1"): b"", at("d/e/2"): b"", at("d/e/f/3"): b""})
    fs.rm(at("d"), recursive=True, maxdepth=2)
    assert fs.find(at("d")) == [at("d/e/f/3")]
    fs.rm(at("d"), recursive=True, maxdepth=9)
    assert not fs.exists(at("d"))


def test_moving(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    fs.mv(at("a"), at("a"))
    fs.copy(at("a"), at("a"))
    fs.mv(root / "a", root / "a2")
    fs.mv([at("a2")], [at("a")])
    fs.mv(at("a"), at("sub"))  # into the directory
    fs.mv(at("sub/b"), at("sub/a"))
    fs.mv(at("sub"), at("deep/er"))
    assert tree(root) == {"deep": None, "deep/er": None, "deep/er/a": b"old b"}
    with pytest.raises(FileNotFoundError):
        fs.mv(at("missing"), at("x"))


def test_names_that_look_like_patterns(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    with fsspec.open(f"txfiles://{root}/new [1]/a[1]", "wb", root=root) as file:
        file.write(b"x")
    fs.pipe({at("new [1]/a1"): b"y", at("new [1]/*"): b"z"})
    fs.mv(at("new [1]/a[1]"), at("new [1]/b[1]"))
    fs.rm(at("new [1]/*"))
    assert fs.ls(at("new [1]"), detail=False) == [at("new [1]/a1"), at("new [1]/b[1]")]


def test_touch(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    os.utime(root / "a", (0, 0))
    assert fs.modified(at("a")) == datetime.fromtimestamp(0, UTC)
    fs.touch(at("a"), truncate=False)
    assert fs.cat(at("a")) == b"old a"
    assert fs.modified(at("a")) > datetime(2020, 1, 1, tzinfo=UTC)
    fs.touch(at("a"))
    assert fs.cat(at("a")) == b""
    fs.touch(at("new"), truncate=False)
    assert fs.created(at("new")) > datetime(2020, 1, 1, tzinfo=UTC)


def test_what_is_told_is_what_the_local_file_system_tells(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    (root / "file-link").symlink_to("a")
    (root / "dir-link").symlink_to("sub")
    local = fsspec.filesystem("file")
    os.chmod(root / "a", 0o640)
    for name in ("a", "sub", "sub/b", "file-link", "dir-link", ""):
        ours, theirs = fs.info(at(name)), local.info(at(name))
        assert ours == pytest.approx(theirs), name
    assert fs.find(root) == [at(n) for n in ("a", "dir-link", "file-link", "sub/b")]
    assert fs.ls(at("a"), detail=False) == [at("a")]
    assert fs.du(root) == local.du(str(root / "a")) * 2 + 5 + fs.info(at("dir-link"))["size"]


def test_links(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    (root / "file-link").symlink_to("a")
    (root / "broken").symlink_to("nowhere")
    (root / "out").symlink_to("/etc/hostname")
    types = {Path(e["name"]).name: e["type"] for e in fs.ls(root)}
    assert types == {"a": "file", "broken": "other", "file-link": "file", "out": "other", "sub": "directory"}
    assert [fs.exists(at(n)) for n in ("file-link", "broken", "out")] == [True, False, False]
    with pytest.raises(InvalidPathError):
        fs.cat(at("out"))
    fs.pipe(at("file-link"), b"through the link")
    assert all(fs.islink(at(n)) and fs.lexists(at(n)) for n in ("file-link", "broken", "out"))
    assert not fs.lexists(at("missing"))
    fs.rm([at("file-link"), at("broken")], recursive=True)
    fs.rm_file(at("out"))
    assert tree(root) == {**OLD, "a": b"through the link"}


def test_links_to_directories_are_not_walked_into(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    (root / "sub/up").symlink_to("..")
    assert fs.find(root) == [at("a"), at("sub/b"), at("sub/up")]
    fs.rm(at("sub/up"), recursive=True)
    assert tree(root) == OLD


def test_an_error_is_no_empty_directory(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    assert fs.find(at("missing")) == []
    failing = FaultyFS(system.KernelFS(), lambda _, name: fail(errno.EIO) if name == "listdir" else None)
    with system.use(failing):  # type: ignore[arg-type]
        for call in (fs.ls, fs.find, fs.du, lambda path: list(fs.walk(path)), lambda path: fs.glob(f"{path}/**")):
            with pytest.raises(OSError, match="injected"):
                call(root)


def fail(error: int) -> None:
    raise OSError(error, "injected")


def test_a_mapper(fs: TxFilesFileSystem, at: Any) -> None:
    store = fs.get_mapper(at("store"))
    with fs.transaction:
        store["group/0"] = b"zero"
        store.setitems({"group/1": b"one", "meta": b"{}"})
    assert dict(store) == {"group/0": b"zero", "group/1": b"one", "meta": b"{}"}
    del store["meta"]
    assert sorted(store) == ["group/0", "group/1"]


def test_a_commit_that_a_crash_cut_off_is_not_seen_half(root: Path, watch: Callable[[Path], Path]) -> None:
    left = watch(root / "left")
    left.mkdir()
    die(left, 1)
    fs = TxFilesFileSystem(left)
    assert {fs.cat(name)[:3] for name in fs.find(left)} == {b"new"}
    assert status(left).clean


# -- names ----------------------------------------------------------------------------------------------------------


def test_other_places_are_refused(fs: TxFilesFileSystem, root: Path, at: Any, tmp_path: Path) -> None:
    for path in (f"{root}x", str(tmp_path / "other"), at("../other"), at(".txfiles/HEAD"), "/"):
        assert not fs.exists(path)
        for call in (fs.cat, fs.ls, fs.touch, fs.mkdir, fs.rm_file):
            with pytest.raises(InvalidPathError):
                call(path)
    assert tree(root) == OLD


def test_paths_are_spelled_as_for_local_files(
    fs: TxFilesFileSystem, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root / "sub")
    for path in (f"txfiles://{root}/sub/b", root / "sub/b", "b", "./b", f"{root}//sub/b", f"{root}/sub/../sub/b"):
        assert fs.cat_file(path) == b"old b"
    assert fs.unstrip_protocol(f"{root}/a") == f"txfiles://{root}/a"
    assert fs.ls(f"txfiles://{root}/sub/", detail=False) == [f"{root}/sub/b"]


def test_a_root_through_a_link(fs: TxFilesFileSystem, root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    alias = TxFilesFileSystem(tmp_path / "alias")
    with fs.transaction:
        alias.pipe(f"{tmp_path}/alias/a", b"new a")
        assert alias.find(tmp_path / "alias") == [f"{tmp_path}/alias/a", f"{tmp_path}/alias/sub/b"]
        assert tree(root) == OLD
    assert tree(root)["a"] == b"new a"


def test_the_root_of_a_url(root: Path, tmp_path: Path) -> None:
    def root_of(path: str, **options: Any) -> str:
        found, stripped = fsspec.url_to_fs(f"txfiles://{root}{path}", **options)
        assert isinstance(found, TxFilesFileSystem)
        assert stripped == (f"{root}{path}".rstrip("/"))
        return str(found.root)

    (root / "sub").mkdir()
    assert root_of("") == root_of("/") == root_of("/a.csv") == root_of("/*.csv") == str(root)
    assert root_of("/sub") == root_of("/sub/a.csv") == f"{root}/sub"
    assert root_of("/sub/a.csv", root=str(root)) == root_of("/sub/a.csv", root=f"{root}/") == str(root)
    with FileTransaction(root) as tx:
        tx.write("x", "")
    assert root_of("/sub") == root_of("/sub/new/a.csv") == root_of("/s*/a.csv") == str(root)
    (root / "x").unlink()


def test_without_a_root_each_call_finds_its_own(root: Path, tmp_path: Path, watch: Callable[[Path], Path]) -> None:
    fs = fsspec.filesystem("txfiles", durability="process")
    other = watch(tmp_path / "other")
    (root / "sub").mkdir()
    other.mkdir()
    fs.pipe({f"{root}/a": b"1", f"{root}/sub/b": b"2"})
    fs.copy(f"{root}/a", f"{other}/a")
    fs.copy(f"{root}/sub", str(other), recursive=True)
    fs.put(str(root / "a"), f"{other}/put")
    assert fs.cat(f"{other}/sub/b") == b"2"
    assert fs.ls(str(other), detail=False) == [f"{other}/a", f"{other}/put", f"{other}/sub"]
    fs.mv(f"{other}/put", f"{root}/moved")
    fs.mv(path1=f"{root}/moved", path2=f"{root}/sub/moved")
    assert tree(root) == {"a": b"1", "sub": None, "sub/b": b"2", "sub/moved": b"1"}
    assert tree(other) == {"a": b"1", "sub": None, "sub/b": b"2"}
    assert {path.name for path in (root / "sub").iterdir()} == {"b", "moved"}, "no root below a root"
    assert pickle.loads(pickle.dumps(fs)).cat(f"{root}/a") == b"1"


def test_without_a_root_nothing_of_several_roots_is_half_done(root: Path, tmp_path: Path) -> None:
    fs = fsspec.filesystem("txfiles")
    (tmp_path / "other").mkdir()
    with pytest.raises(InvalidPathError, match="other/b"):
        fs.pipe({f"{root}/a": b"1", f"{tmp_path}/other/b": b"2"})
    assert tree(root) == {}
    assert not list((tmp_path / "other").iterdir())
    with pytest.raises(ValueError, match="of which directory"), fs.transaction:
        pass
    with pytest.raises(ValueError, match=r"root='s3://"):
        fs.exists("s3://bucket/a")


def test_what_root(root: Path) -> None:
    with pytest.raises(ValueError, match="absolute"):
        fsspec.filesystem("txfiles", root="data")
    with pytest.raises(ValueError, match="durability"):
        fsspec.filesystem("txfiles", root=root, durability="some")
    missing = fsspec.filesystem("txfiles", root=root / "missing")
    assert not missing.exists(root / "missing/a")
    with pytest.raises(FileNotFoundError, match="create=True"):
        missing.pipe(f"{root}/missing/a", b"x")
    fsspec.filesystem("txfiles", root=root / "missing", create=True).pipe(f"{root}/missing/a", b"x")
    assert missing.cat(root / "missing/a") == b"x"


def test_instances(fs: TxFilesFileSystem, root: Path, at: Any) -> None:
    again = pickle.loads(pickle.dumps(fs))
    assert again == fs
    assert again.root == str(root)
    assert fs.fsid == f"txfiles:{root}"
    made = TxFilesFileSystem(root=str(root), timeout=1)
    assert json.loads(made.to_json())["root"] == str(root)
    assert fsspec.AbstractFileSystem.from_json(made.to_json()).cat(at("a")) == b"old a"


def test_fsspec_knows_the_protocol(root: Path) -> None:
    code = "import fsspec; fsspec.filesystem('txfiles', root=sys.argv[1]).pipe(sys.argv[1] + '/a', b'x')"
    run_python(code, root).check()
    assert tree(root) == {"a": b"x"}


def test_the_extra_is_named_where_it_is_missing() -> None:
    done = run_python("sys.modules['fsspec'] = None\nimport txfiles.integrations.fsspec")
    assert done.returncode == 1
    assert "ImportError: the package `fsspec` is missing: pip install 'txfiles[fsspec]'" in done.stderr


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("mode", ["r", "rb", "w", "wb"])
@pytest.mark.parametrize("joined", [True, False])
def test_a_closed_file_object_answers_nothing(root: Path, mode: str, compression: str | None, joined: bool) -> None:
    fs = fsspec.filesystem("txfiles", root=root)
    with fs.open(f"{root}/f", "wb", compression=compression) as file:
        file.write(b"0123456789")
    with fs.transaction if joined else nullcontext():
        file = fs.open(f"{root}/f", mode, compression=compression)
        file.close()
        calls = ["read", "readline", "flush", "tell", "__enter__"]
        calls += [] if compression and "r" in mode else ["readable", "writable", "seekable"]  # those are gzip's own
        for name in calls:
            with pytest.raises(ValueError):
                print(name, "gave", getattr(file, name)())
