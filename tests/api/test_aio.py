"""`AsyncFileTransaction`: the methods of `FileTransaction` as coroutines, and nothing of them in the event loop."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, assert_type

import pytest

import txfiles
from tests.support.boundary import tree
from tests.support.procs import run_python
from txfiles import AsyncFileTransaction, FileStore, FileTransaction, Snapshot, status
from txfiles._disk import lock, system
from txfiles.aio import AsyncFile, AsyncSnapshot
from txfiles.errors import (
    CommitError,
    ConflictError,
    DocumentError,
    InvalidPathError,
    LockTimeoutError,
    TransactionClosedError,
)
from txfiles.testing import survives_kills, survives_power_loss
from txfiles.testing._faults import FaultyFS


def at_rest(root: Path) -> bool:
    """The lock is free now, and nothing is left."""
    with FileTransaction(root, timeout=0) as tx:
        tx.write("next", "works")
    with FileTransaction(root, timeout=0) as tx:
        tx.delete("next")
    return sorted(os.listdir(root / ".txfiles")) == ["HEAD", "format", "lock", "spare"] and status(root).clean


def outcome(tx: AsyncFileTransaction) -> str:
    return tx.outcome


# -- the same methods -----------------------------------------------------------------------------------------------


def public(cls: type) -> dict[str, Any]:
    members = [vars(base) for base in reversed(cls.__mro__) if base.__module__.startswith("txfiles.")]
    return {name: value for own in members for name, value in own.items() if not name.startswith("_")}


@pytest.mark.parametrize(
    ("one", "twin"),
    [(FileTransaction, AsyncFileTransaction), (Snapshot, AsyncSnapshot)],
    ids=["transaction", "snapshot"],
)
def test_no_method_is_forgotten(one: type, twin: type) -> None:
    mine, theirs = public(twin), public(one)
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        if isinstance(value, property):
            assert isinstance(mine[name], property)
            continue
        assert inspect.signature(mine[name]).parameters == inspect.signature(value).parameters, name
        assert inspect.iscoroutinefunction(mine[name]) or name in ("open", "savepoint"), name


def test_the_arguments_are_the_same() -> None:
    assert inspect.signature(AsyncFileTransaction).parameters == inspect.signature(FileTransaction).parameters
    for name in ("durability", "timeout"):
        with pytest.raises(ValueError, match=name):
            AsyncFileTransaction("x", **{name: "much"})  # type: ignore[arg-type]


async def types(tx: AsyncFileTransaction, store: FileStore) -> None:
    """For the type checker only."""
    assert_type(await tx.begin(), AsyncFileTransaction)
    assert_type(await tx.read("a"), bytes)
    assert_type(await tx.listdir(), list[str])
    assert_type(await tx.version("a"), str | None)
    assert_type(await tx.prepare(), str)
    assert_type(tx.open("a"), AsyncFile[str])
    assert_type(await tx.open("a", "wb"), AsyncFile[bytes])
    async with tx.open("a", "rb") as file, tx.savepoint():
        assert_type(file, AsyncFile[bytes])
        assert_type(await file.read(), bytes)
        assert_type([line async for line in file], list[bytes])
    async with store.async_transaction() as same, store.async_snapshot("a") as snap:
        assert_type(same, AsyncFileTransaction)
        assert_type(snap, AsyncSnapshot)
        assert_type(await snap.glob("*"), list[str])

    async def change(tx: AsyncFileTransaction) -> int:
        return len(await tx.read("a"))

    assert_type(await store.async_update(change), int)
    assert_type(await store.async_wait_for_change("", timeout=1.0), str)


# Each step is made with both classes; `call` gets the result of a method of either.
STEPS: dict[str, Callable[[Any], Any]] = {
    "write": lambda tx: tx.write("new/deep", "text"),
    "write a file object": lambda tx: tx.write("o", io.BytesIO(b"object")),
    "write a generator": lambda tx: tx.write("g", (b"x" for _ in range(3))),
    "write a buffer": lambda tx: tx.write("b", bytearray(b"buffer")),
    "write what cannot be": lambda tx: tx.write("t", io.StringIO("text")),
    "write this version": lambda tx: tx.write("a", "2", if_version="no such"),
    "write where nothing is": lambda tx: tx.write("n", "2", if_version=None),
    "write outside": lambda tx: tx.write("../x", ""),
    "write_json": lambda tx: tx.write_json("j", {"a": [1, "é"]}),
    "write_json compact": lambda tx: tx.write_json("j", [1, 2], indent=None),
    "write_json this version": lambda tx: tx.write_json("a", 2, if_version="no such"),
    "write_json what cannot be": lambda tx: tx.write_json("j", float("nan")),
    "read": lambda tx: tx.read("a"),
    "read missing": lambda tx: tx.read("no"),
    "read_text": lambda tx: tx.read_text("a"),
    "read_json": lambda tx: tx.read_json("d/x.json"),
    "read_json damaged": lambda tx: tx.read_json("a"),
    "exists": lambda tx: tx.exists("a"),
    "listdir": lambda tx: tx.listdir(),
    "listdir of": lambda tx: tx.listdir("d"),
    "glob": lambda tx: tx.glob("**/*.json"),
    "version": lambda tx: tx.version("a"),
    "version missing": lambda tx: tx.version("no"),
    "delete": lambda tx: tx.delete("a"),
    "delete missing": lambda tx: tx.delete("no"),
    "delete missing_ok": lambda tx: tx.delete("no", missing_ok=True),
    "delete_tree": lambda tx: tx.delete_tree("d"),
    "move": lambda tx: tx.move("a", "z"),
    "copy": lambda tx: tx.copy("d", "e"),
    "mkdir": lambda tx: tx.mkdir("m/n"),
    "mkdir that is there": lambda tx: tx.mkdir("d", exist_ok=False),
    "copy over": lambda tx: tx.copy("d/x.json", "a", overwrite=False),
    "move over": lambda tx: tx.move("d/x.json", "a", overwrite=False),
    "write with a mode": lambda tx: tx.write("a", b"1", mode=0o600),
    "write_json with a mode": lambda tx: tx.write_json("a", 1, mode=0o600),
    "write_text": lambda tx: tx.write_text("t", "ä\n", "latin-1", "strict", "\r\n", mode=0o600, if_version=None),
    "write_text of what is none": lambda tx: tx.write_text("t", b"bytes"),
    "append": lambda tx: tx.append("a", bytearray(b"more"), mode=0o600),
    "chmod": lambda tx: tx.chmod("a", 0o600),
    "symlink": lambda tx: tx.symlink("a", "link"),
    "symlink that is there": lambda tx: tx.symlink("d", "a"),
    "read_text of another encoding": lambda tx: tx.read_text("a", "utf-16", "replace"),
    "is_dir": lambda tx: tx.is_dir("d"),
    "is_file": lambda tx: tx.is_file("d"),
    "stat missing": lambda tx: tx.stat("no", follow_symlinks=False),
    "readlink": lambda tx: tx.readlink("a"),
    "iterdir": lambda tx: tx.iterdir("d"),
    "walk": lambda tx: tx.walk(exclude=["a"]),
}


def fresh(path: Path) -> Path:
    (path / "d").mkdir(parents=True)
    (path / "a").write_text("{1", encoding="utf-8")
    os.utime(path / "a", ns=(1, 1))
    (path / "d/x.json").write_text('{"x": 1}', encoding="utf-8")
    return path


def failure(error: Exception) -> object:
    return type(error), getattr(error, "path", getattr(error, "filename", None))


@pytest.mark.parametrize("step", STEPS)
def test_the_result_is_the_same(tmp_path: Path, step: str) -> None:
    def here(root: Path) -> object:
        with FileTransaction(root) as tx:
            try:
                return STEPS[step](tx)
            except Exception as error:
                return failure(error)

    async def there(root: Path) -> object:
        async with AsyncFileTransaction(root) as tx:
            try:
                return await STEPS[step](tx)
            except Exception as error:
                return failure(error)

    one, two = fresh(tmp_path / "one"), fresh(tmp_path / "two")
    results = here(one), asyncio.run(there(two))
    if step == "version":
        assert all(isinstance(result, str) for result in results)
    else:
        assert results[0] == results[1]
    assert tree(one) == tree(two)
    assert (
        os.stat(one / "a").st_mode == os.stat(two / "a").st_mode if (one / "a").exists() else not (two / "a").exists()
    )


# -- begin and end --------------------------------------------------------------------------------------------------


def test_the_block_and_the_explicit_form(root: Path) -> None:
    async def main() -> None:
        transaction = AsyncFileTransaction(root)
        with pytest.raises(TransactionClosedError, match="not begun"):
            await transaction.read("a")
        with pytest.raises(TransactionClosedError, match="not begun"):
            _ = transaction.transaction_id
        assert repr(transaction) == f"<AsyncFileTransaction {str(root)!r} new>"
        async with transaction as tx:
            assert tx is transaction
            await tx.write("a", "1")
            assert tree(root) == {}
            assert outcome(tx) == "before"
            assert repr(tx).endswith(" open>")
            with pytest.raises(TransactionClosedError, match="begun already"):
                await tx.begin()
        assert outcome(tx) == "after"
        assert tree(root) == {"a": b"1"}
        assert repr(tx).endswith(" ended>")
        assert len(tx.transaction_id) == 32
        for call in (tx.begin, tx.commit, tx.rollback, tx.prepare, tx.listdir):
            with pytest.raises(TransactionClosedError):
                await call()

        tx = await AsyncFileTransaction(root).begin()
        await tx.write("a", "2")
        await tx.rollback()
        assert outcome(tx) == "before"
        tx = await AsyncFileTransaction(root, timeout=0).begin()
        await tx.write("a", "3")
        await tx.commit()
        async with AsyncFileTransaction(root, timeout=0) as tx:
            await tx.write("a", "4")
            await tx.rollback()

    asyncio.run(main())
    assert tree(root) == {"a": b"3"}
    assert at_rest(root)


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit, asyncio.CancelledError, BaseException])
def test_an_exception_rolls_back_and_propagates_as_it_is(root: Path, error: type[BaseException]) -> None:
    raised = error("why")

    async def main() -> None:
        with pytest.raises(error) as caught:
            async with AsyncFileTransaction(root) as tx:
                await tx.write("a", "1")
                raise raised
        assert caught.value is raised
        assert at_rest(root)

    asyncio.run(main())
    assert tree(root) == {}


def test_the_root_is_fixed_when_the_object_is_made(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(tx: AsyncFileTransaction) -> None:
        async with tx:
            await tx.write("a", "1")

    monkeypatch.chdir(tmp_path)
    tx = AsyncFileTransaction(b"root")
    monkeypatch.chdir("/")
    asyncio.run(main(tx))
    assert tree(root) == {"a": b"1"}


@pytest.mark.parametrize("bad", ["", "a\0b", "missing"])
def test_a_root_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        tx = AsyncFileTransaction(bad)
        for _ in range(2):  # a failed begin can be tried again
            with pytest.raises((InvalidPathError, FileNotFoundError)):
                await tx.begin()

    asyncio.run(main())
    assert os.listdir(tmp_path) == []


def test_create(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncFileTransaction(tmp_path / "new/root", create=True) as tx:
            await tx.write("a", "1")

    asyncio.run(main())
    assert tree(tmp_path / "new/root") == {"a": b"1"}


def test_a_failed_commit_says_what_is_on_disk(root: Path) -> None:
    async def main() -> None:
        tx = await AsyncFileTransaction(root).begin()
        await tx.write("a", "1")
        file = await tx.open("b", "w")
        await file.write("unfinished")
        with pytest.raises(CommitError, match="still open"):
            await tx.commit()
        assert outcome(tx) == "before"
        await file.close()

    asyncio.run(main())
    assert tree(root) == {}
    assert at_rest(root)


def test_an_unexpected_failure_ends_it_too(root: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConflictError):
            async with AsyncFileTransaction(root) as tx:
                await tx.write("a", "1")
                (root / ".txfiles/lock").unlink()
        assert outcome(tx) == "before"
        assert at_rest(root)

    asyncio.run(main())


def test_files_end_with_the_transaction(root: Path) -> None:
    async def main() -> None:
        async with AsyncFileTransaction(root) as tx:
            await tx.write("a", "one\ntwo\n")
            file = tx.open("a", "rb")
            with pytest.raises(ValueError, match="not opened"):
                await file.read()
            assert await file is file
            with pytest.raises(ValueError, match="opened already"):
                await file
            assert await file.readline() == b"one\n"
            with pytest.raises(ValueError, match="mode"):
                await tx.open("a", "rw")
            with pytest.raises(FileNotFoundError):
                async with tx.open("missing"):
                    pass
        for _ in range(2):
            with pytest.raises(TransactionClosedError):
                await file.read()
            while any(thread.name == "txfiles transaction" for thread in threading.enumerate()):
                await asyncio.sleep(0.001)
        await file.close()
        with pytest.raises(KeyError):
            async with AsyncFileTransaction(root) as tx, tx.open("a", "a") as text:
                await text.write("three\n")
                raise KeyError
        async with AsyncFileTransaction(root) as tx:
            with pytest.raises(KeyError):
                async with tx.open("a", "w") as text:
                    await text.write("lost")
                    raise KeyError
            text = await tx.open("b", "x")
            await text.write("é")
            await text.close()
            await text.close()
            assert await tx.read("b") == "é".encode()
            unfinished = await tx.open("c", "w")
            await unfinished.write("x" * 1_000_000)
            await tx.rollback()
        assert at_rest(root)

    asyncio.run(main())
    assert tree(root) == {"a": b"one\ntwo\n"}


def test_savepoints(root: Path) -> None:
    async def main() -> None:
        async with AsyncFileTransaction(root) as tx:
            async with tx.savepoint():
                await tx.write("a", "1")
                with pytest.raises(TransactionClosedError, match="savepoint"):
                    await tx.commit()
                with pytest.raises(KeyError) as caught:
                    async with tx.savepoint():
                        await tx.write("b", "1")
                        async with tx.savepoint():
                            await tx.write("c", "1")
                        raise KeyError
                assert caught.traceback[-1].name == "main"
            assert await tx.listdir() == ["a"]
        async with AsyncFileTransaction(root) as tx, tx.savepoint():
            await tx.write("a", "2")
            await tx.rollback()
        assert at_rest(root)

    asyncio.run(main())
    assert tree(root) == {"a": b"1"}


def test_two_phases(root: Path) -> None:
    async def main() -> None:
        async with AsyncFileTransaction(root) as tx:
            await tx.write("a", "1")
            assert await tx.prepare() == tx.transaction_id
            assert outcome(tx) == "before"
            await tx.commit()
        assert outcome(tx) == "after"
        async with AsyncFileTransaction(root) as tx:
            await tx.write("a", "2")
            await tx.prepare()
            await tx.rollback()
        async with AsyncFileTransaction(root) as tx:
            await tx.write("a", "3")
            waiting = await tx.prepare()
        with pytest.raises(LockTimeoutError, match="waits for a decision"):
            await AsyncFileTransaction(root, timeout=0).begin()
        await asyncio.to_thread(txfiles.commit_prepared, root, waiting)

    asyncio.run(main())
    assert tree(root) == {"a": b"3"}
    assert at_rest(root)


def test_dropped_while_open(root: Path) -> None:
    async def main() -> None:
        tx = await AsyncFileTransaction(root).begin()
        await tx.write("a", "1")
        dropped = [tx]
        del tx
        with pytest.warns(ResourceWarning, match="dropped while open"):
            dropped.clear()
        async with AsyncFileTransaction(root, timeout=5) as tx:
            assert not await tx.exists("a")

    asyncio.run(main())
    assert at_rest(root)


def test_in_a_forked_child_it_is_not_there(root: Path) -> None:
    async def main() -> None:
        async with AsyncFileTransaction(root) as tx:
            await tx.write("a", "1")
            child = os.fork()
            if child == 0:
                with pytest.raises(TransactionClosedError, match="process that began it"):
                    await tx.read("a")
                with pytest.raises(TransactionClosedError, match="process that began it"):
                    await tx.commit()
                await tx.__aexit__(None, None, None)
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            await tx.write("b", "2")

    asyncio.run(main())
    assert tree(root) == {"a": b"1", "b": b"2"}


ABANDONED = """
import asyncio
from txfiles import AsyncFileTransaction
loop = asyncio.new_event_loop()
tx = AsyncFileTransaction(sys.argv[1], timeout=None)
async def main():
    await tx.begin()
    await tx.write("a", "1")
    async with tx.savepoint(), tx.open("b", "w") as file:
        await file.write("1")
        loop.stop()
        await asyncio.sleep(3600)
task = loop.create_task(main())
loop.call_later(float(sys.argv[2]), loop.stop)
loop.run_forever()
print(tx)
"""


def test_a_program_that_ends_with_it_open(root: Path) -> None:
    done = run_python(ABANDONED, root, 20, timeout=30)
    assert done.returncode == 0
    assert "open>" in done.stdout
    assert "Traceback" not in done.stderr
    assert tree(root) == {}
    assert sorted(os.listdir(root / ".txfiles")) == ["format", "lock"]


def test_a_program_that_ends_while_it_waits_for_the_lock(root: Path) -> None:
    with FileTransaction(root) as tx:
        done = run_python(ABANDONED, root, 0.3, timeout=30)
        tx.write("a", "1")
    assert done.returncode == 0
    assert tree(root) == {"a": b"1"}


def test_it_is_not_imported_before_it_is_used() -> None:
    code = "import txfiles, sys; txfiles.FileStore; print('asyncio' in sys.modules); txfiles.AsyncFileTransaction"
    done = run_python(code, timeout=30)
    assert done.stdout.split() == ["False"], done.stderr


def test_it_survives_kills_and_power_losses_like_any_save() -> None:
    async def change(root: Path) -> None:
        async with AsyncFileTransaction(root) as tx:
            numbers = [*await tx.read_json("numbers.json"), 1]
            await tx.write_json("numbers.json", numbers)
            await tx.write_json("count.json", len(numbers))

    def setup(root: Path) -> None:
        (root / "numbers.json").write_text("[0]", encoding="utf-8")
        (root / "count.json").write_text("1", encoding="utf-8")

    def save(root: Path) -> None:
        asyncio.run(change(root))

    def check(root: Path) -> None:
        assert len(json.loads((root / "numbers.json").read_text(encoding="utf-8"))) == int(
            (root / "count.json").read_text(encoding="utf-8")
        )

    assert survives_power_loss(save, check, setup=setup, caps=(8,)).states > 100
    assert survives_kills(save, check, setup=setup) > 10


# -- nothing in the loop --------------------------------------------------------------------------------------------


class Watching(system.KernelFS):
    """Notes the threads of all its calls, those that only ask for the process apart."""


def _note(name: str) -> None:
    def noted(self: Watching, *args: Any, **kwargs: Any) -> Any:
        seen.add((name, threading.get_ident()))
        return getattr(system.KernelFS, name)(self, *args, **kwargs)

    setattr(Watching, name, noted)


seen: set[tuple[str, int]] = set()
_HARMLESS = {"pid", "on_fork"}
for _name in vars(system.KernelFS):
    if not _name.startswith("_") and callable(getattr(system.KernelFS, _name)) and _name not in _HARMLESS:
        _note(_name)


async def everything(root: Path) -> None:
    """All that can be done, once."""
    for step in STEPS.values():
        async with AsyncFileTransaction(root, create=True) as tx:
            with suppress(OSError, TypeError, ConflictError, DocumentError, InvalidPathError):
                await step(tx)
            await tx.rollback()
    async with AsyncFileTransaction(os.path.relpath(root)) as tx:
        async with tx.open("f", "w") as file, tx.savepoint():
            await file.write("one\n")
            await file.writelines(["two\n", "three\n"])
        async with tx.open("f") as file:
            await file.seek(0)
            await file.readline()
            await file.tell()
            assert [line async for line in file] == ["two\n", "three\n"]
        reader = await tx.open("f", "rb")
        await reader.read(2)
    with pytest.raises(KeyError):
        async with AsyncFileTransaction(root) as tx:
            await tx.open("g", "w")
            await tx.write("h", "1")
            raise KeyError
    async with AsyncFileTransaction(root) as tx:
        await tx.write("p", "1")
        await tx.prepare()
        await tx.commit()
    async with AsyncFileTransaction(root):
        with pytest.raises(LockTimeoutError):
            await asyncio.create_task(AsyncFileTransaction(root, timeout=0.01).begin())
    tx = await AsyncFileTransaction(root).begin()
    await tx.write("q", "1")
    dropped = [tx]
    del tx
    with pytest.warns(ResourceWarning):
        dropped.clear()
    async with AsyncFileTransaction(root):
        pass


def test_no_file_call_in_the_thread_of_the_loop(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("acquire", "release", "check"):
        call = getattr(lock.RootLock, name)

        def noted(self: Any, *args: Any, call: Any = call, name: str = name) -> Any:
            if name != "release" or self.held:
                seen.add((f"lock.{name}", threading.get_ident()))
            return call(self, *args)

        monkeypatch.setattr(lock.RootLock, name, noted)
    (root / "a").write_text("1", encoding="utf-8")
    (root / "d").mkdir()
    seen.clear()
    with system.use(Watching()):
        asyncio.run(everything(root))
    mine = threading.get_ident()
    assert {name for name, thread in seen if thread == mine} == set()
    assert {"absolute", "open_dir", "rename", "sync_file", "lock.acquire", "lock.release"} <= {name for name, _ in seen}


def test_the_loop_goes_on_during_each_file_call(root: Path) -> None:
    """A disk so slow that each call waits until the loop has come round once more."""
    rounds = 0

    def plan(_: int, name: str) -> None:
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        assert turned.wait(60), f"the loop stood still during {name}"
        nonlocal rounds
        rounds += 1

    async def main() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        async with AsyncFileTransaction(root, timeout=None) as tx:
            await tx.write("a", "1")
            await tx.write_json("b", [])
            assert await tx.listdir() == ["a", "b"]

    loop: asyncio.AbstractEventLoop
    fs: Any = FaultyFS(system.KernelFS(), plan)
    with system.use(fs):
        asyncio.run(main())
    assert tree(root) == {"a": b"1", "b": b"[]\n"}
    assert rounds > 30
