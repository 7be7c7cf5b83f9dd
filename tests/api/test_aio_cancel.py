"""Cancelled at each await and during each file call, closed, timed out: before or after, a free lock, no thread."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import DEEP, scratch
from tests.support.boundary import nth_call, tree
from tests.support.procs import child
from txfiles import AsyncFileTransaction, FileTransaction, rollback_prepared, status
from txfiles._disk import system
from txfiles.aio import ServedTransaction
from txfiles.errors import CommitError, LockTimeoutError
from txfiles.testing._faults import FaultyFS

Work = Callable[[Path, list[Any]], Coroutine[Any, Any, None]]


@pytest.fixture
def memory(watch: Callable[[Path], Path]) -> Iterator[Path]:
    """A root in memory, where there is any: what is slow here is the disk."""
    with scratch.held(scratch.MEMORY) as above:
        root = watch(above / "root")
        root.mkdir()
        yield root
        no_threads()


def threads() -> int:
    return sum(thread.name == "txfiles transaction" for thread in threading.enumerate())


def no_threads(but: int = 0) -> None:
    until = time.monotonic() + 60
    while threads() > but:
        assert time.monotonic() < until, "a thread was left"
        time.sleep(0.0005)
        gc.collect()


def fresh(root: Path) -> dict[str, object]:
    shutil.rmtree(root)
    root.mkdir()
    with FileTransaction(root, durability="process") as tx:
        tx.write("a", "old")
        tx.write("b", "old")
    return tree(root)


AFTER = {"a": b"new", "d": b"new\n", "sub": None, "sub/c": b"new"}


async def blocks(root: Path, kept: list[Any], durability: Any = "process") -> None:
    async with AsyncFileTransaction(root, timeout=None, durability=durability) as tx:
        kept.append(tx)
        await tx.write("a", "new")
        await tx.delete("b")
        async with tx.savepoint():
            await tx.write("sub/c", "new")
        async with tx.open("d", "w") as file:
            await file.write("new\n")
        assert await tx.read("a") == b"new"


async def two_phases(root: Path, kept: list[Any]) -> None:
    async with AsyncFileTransaction(root, timeout=None, durability="process") as tx:
        kept.append(tx)
        await blocks_inside(tx)
        kept.append(await tx.prepare())
        await tx.commit()


async def blocks_inside(tx: AsyncFileTransaction) -> None:
    await asyncio.gather(tx.write("a", "new"), tx.delete("b"), tx.write("sub/c", "new"), tx.write("d", "new\n"))


async def explicit(root: Path, kept: list[Any]) -> None:
    tx = await AsyncFileTransaction(root, timeout=None, durability="process").begin()
    kept.append(tx)
    try:
        await blocks_inside(tx)
    except BaseException:
        await tx.rollback()
        raise
    await tx.commit()


WORKS: dict[str, Work] = {"blocks": blocks, "two phases": two_phases, "explicit": explicit}


def check(root: Path, before: dict[str, object], kept: list[Any], where: str) -> bool:
    """The lock is free at once, nothing is left, and the state is the one that `outcome` tells; whether it is after.

    A transaction whose `prepare` has returned may wait for a decision, as after any end of its block.
    """
    if status(root).pending:
        rollback_prepared(root, kept[1])
    with FileTransaction(root, timeout=0, durability="process"):
        pass
    assert set(os.listdir(root / ".txfiles")) == {"HEAD", "format", "lock", "spare"}, where
    found = tree(root)
    assert found in (before, AFTER), where
    if kept:
        assert kept[0].outcome == ("after" if found == AFTER else "before"), where
    return found == AFTER


# -- at each await --------------------------------------------------------------------------------------------------


class Stepped:
    """Awaits a coroutine, and calls `at(number, future)` whenever that waits for a future, or `None`: a turn."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], at: Callable[[int, Any], None]) -> None:
        self.coroutine = coroutine
        self.at = at
        self.count = 0

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[], Any] = partial(self.coroutine.send, None)
        while True:
            try:
                future = step()
            except StopIteration:
                return
            self.count += 1
            self.at(self.count, future)
            try:
                yield future
            except BaseException as error:
                step = partial(self.coroutine.throw, error)
            else:
                step = partial(self.coroutine.send, None)


class Stop(Exception):
    pass


def stop(*_: object) -> None:
    raise Stop


def cancel_now(_: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def cancel_when_done(future: Any) -> None:
    """In the moment between the end of the call and the task's next step."""
    task = asyncio.current_task()
    assert task is not None
    if future is None:
        task.cancel()
    else:
        future.add_done_callback(lambda _: task.cancel())


HOW: dict[str, tuple[Callable[[Any], None], tuple[int, ...]]] = {
    "at once": (cancel_now, (0,)),
    "when done": (cancel_when_done, (0,)),
    "twice": (cancel_now, (0, 1)),
    "again and again": (cancel_now, tuple(range(40))),
}


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("how", HOW)
def test_cancelled_at_each_await(memory: Path, how: str, work: str) -> None:
    cancel, offsets = HOW[how]
    outcomes = set()
    for number in range(1, 100):
        before = fresh(memory)
        kept: list[Any] = []

        def at(count: int, future: Any, number: int = number) -> None:
            if count - number in offsets:
                cancel(future)

        async def main(at: Any = at, kept: Any = kept) -> int:
            stepped = Stepped(WORKS[work](memory, kept), at)
            with pytest.raises(asyncio.CancelledError):
                await stepped
                raise asyncio.CancelledError("there are not so many awaits")
            return stepped.count

        count = asyncio.run(main())
        outcomes.add(check(memory, before, kept, f"cancelled at await {number} of {count}"))
        if count < number:
            break
    else:
        pytest.fail("no end")
    assert number > (3 if work == "explicit" else 6)
    assert outcomes == {False, True}


def test_cancelled_when_the_lock_was_just_obtained(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `CancelledError` waits for the lock to be free, however long that takes."""

    def slow(tx: ServedTransaction) -> None:
        time.sleep(0.1)
        leave(tx)

    leave = ServedTransaction.leave
    monkeypatch.setattr(ServedTransaction, "leave", slow)
    before = fresh(memory)
    kept: list[Any] = []

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await Stepped(blocks(memory, kept), lambda count, future: cancel_when_done(future) if count == 1 else None)
        assert not check(memory, before, kept, "cancelled")

    asyncio.run(main())


@pytest.mark.parametrize("work", ["blocks", "two phases"])
def test_closed_at_each_await(memory: Path, work: str) -> None:
    """As an abandoned coroutine is: it cannot wait for the end."""
    outcomes = set()
    for number in range(1, 100):
        before = fresh(memory)
        kept: list[Any] = []

        def at(count: int, _: Any, number: int = number) -> None:
            if count == number:
                stop()

        async def main(at: Any = at, kept: Any = kept) -> bool:
            coroutine = WORKS[work](memory, kept)
            try:
                await Stepped(coroutine, at)
            except Stop:
                coroutine.close()
                return True
            return False

        ended = not asyncio.run(main())
        no_threads()
        outcomes.add(check(memory, before, kept, f"closed at await {number}"))
        if ended:
            break
    assert outcomes == {False, True}


@pytest.mark.filterwarnings("ignore:.* was dropped while open:ResourceWarning")  # what is collected first is chance
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("work", ["blocks", "two phases"])
def test_the_loop_is_closed_at_each_await(memory: Path, work: str) -> None:
    outcomes = set()
    for number in range(1, 100):
        before = fresh(memory)
        kept: list[Any] = []
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # that a task is pending

        def at(count: int, _: Any, number: int = number, loop: Any = loop) -> None:
            if count == number:
                loop.stop()

        async def main(at: Any = at, kept: Any = kept, loop: Any = loop) -> None:
            await Stepped(WORKS[work](memory, kept), at)
            loop.stop()

        task = loop.create_task(main())
        loop.run_forever()
        ended = task.done()
        loop.close()
        del task
        gc.collect()
        no_threads()
        outcomes.add(check(memory, before, kept, f"closed at await {number}"))
        if ended:
            break
    assert outcomes == {False, True}


class ClosedMeanwhile(asyncio.SelectorEventLoop):
    """A loop that is closed just after the thread of a transaction saw that it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = threading.Event()
        self.closed = threading.Event()

    def _check_closed(self) -> None:
        super()._check_closed()  # type: ignore[misc]
        if threading.current_thread().name == "txfiles transaction":
            self.seen.set()
            assert self.closed.wait(60)


@pytest.mark.filterwarnings("ignore:.* was dropped while open:ResourceWarning")
def test_the_loop_is_closed_while_it_is_told_the_end_of_a_call(memory: Path) -> None:
    """The loop takes it, and nobody ever hears it: the lock does not wait for the loop to be collected."""
    before = fresh(memory)
    loop = ClosedMeanwhile()
    loop.set_exception_handler(lambda *_: None)  # that a task is pending
    task = loop.create_task(blocks(memory, []))
    loop.run_until_complete(asyncio.to_thread(loop.seen.wait, 60))
    loop.close()
    loop.closed.set()
    no_threads()
    assert not check(memory, before, [], "closed meanwhile")
    assert not task.done()


# -- during each file call ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["process", "full"])
def test_cancelled_during_each_file_call(memory: Path, durability: str) -> None:
    outcomes = []
    calls = 1
    number = 0
    while number < calls:
        number += 1 if DEEP or durability == "process" else 3
        before = fresh(memory)
        kept: list[Any] = []
        loop = asyncio.new_event_loop()
        task = loop.create_task(blocks(memory, kept, durability))

        def plan(call: int, _: str, number: int = number, loop: Any = loop, task: Any = task) -> None:
            if call == number:
                cancelled = threading.Event()
                loop.call_soon_threadsafe(task.cancel)
                loop.call_soon_threadsafe(cancelled.set)
                assert cancelled.wait(60)

        fs: Any = FaultyFS(system.KernelFS(), plan)
        try:
            with system.use(fs), pytest.raises(asyncio.CancelledError):
                loop.run_until_complete(task)
                raise asyncio.CancelledError("there are not so many calls")
        finally:
            loop.close()
        where = f"cancelled during call {number}, {fs.trace[min(number, fs.calls) - 1]}"
        outcomes.append(check(memory, before, kept, where))
        calls = fs.calls
    assert number > 50
    assert outcomes == sorted(outcomes), "a commit that has begun is finished"
    assert set(outcomes) == {False, True}


def test_a_failure_while_it_is_cancelled(memory: Path) -> None:
    """The `CancelledError` says it, and the handler of the loop hears it."""
    before = fresh(memory)
    told: list[dict[str, Any]] = []

    def act() -> None:
        loop.call_soon_threadsafe(task.cancel)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    kept: list[Any] = []
    task = loop.create_task(blocks(memory, kept, "full"))
    fs: Any = nth_call("sync_file", 2, act)
    with system.use(fs), pytest.raises(asyncio.CancelledError) as caught:
        loop.run_until_complete(task)
    loop.close()
    assert isinstance(caught.value.__cause__, CommitError)
    assert [context["exception"] for context in told] == [caught.value.__cause__]
    assert not check(memory, before, kept, "failed")


# -- timeouts -------------------------------------------------------------------------------------------------------


class Gate:
    """The kernel's file system, but the call `name` stands still until the gate is opened."""

    def __init__(self, name: str, nth: int = 1) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.fs: Any = nth_call(name, nth, self._pass)

    def _pass(self) -> None:
        self.reached.set()
        assert self.opened.wait(60)


def test_a_timeout_around_a_commit_waits_for_its_end(memory: Path) -> None:
    before = fresh(memory)
    gate = Gate("rename", 2)  # T.committed is there, the first file is on its way
    kept: list[Any] = []

    async def late() -> None:
        async with asyncio.timeout(None) as timeout:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().create_task(expire(timeout))
            await blocks(memory, kept)

    async def expire(timeout: asyncio.Timeout) -> None:
        await asyncio.to_thread(gate.reached.wait, 60)
        timeout.reschedule(0)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert timeout.expired()
        assert kept[0].outcome == "unknown"
        gate.opened.set()

    with system.use(gate.fs), pytest.raises(TimeoutError):
        asyncio.run(late())
    assert check(memory, before, kept, "timed out")


@pytest.mark.parametrize("safe", [True, False])
def test_a_timeout_inside_the_block_can_be_caught(memory: Path, safe: bool) -> None:
    """The call that has begun is made; a savepoint takes it back."""
    fresh(memory)

    def chunks(timeout: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> Iterator[bytes]:
        yield b"n"
        loop.call_soon_threadsafe(timeout.reschedule, 0)
        while not timeout.expired():
            time.sleep(0.001)
        yield b"ew"

    async def late(tx: AsyncFileTransaction) -> None:
        async with asyncio.timeout(None) as timeout:
            await tx.write("a", chunks(timeout, asyncio.get_running_loop()))

    async def main() -> None:
        async with AsyncFileTransaction(memory) as tx:
            with pytest.raises(TimeoutError):
                if safe:
                    async with tx.savepoint():
                        await late(tx)
                else:
                    await late(tx)
            await tx.write("c", "new")

    asyncio.run(main())
    assert tree(memory) == {"a": b"old" if safe else b"new", "b": b"old", "c": b"new"}


def test_who_is_cancelled_on_the_way_to_the_lock_does_not_wait_for_it(memory: Path) -> None:
    fresh(memory)
    held = FileTransaction(memory).begin()
    gate = Gate("open_dir")

    async def main() -> None:
        with system.use(gate.fs):
            task = asyncio.create_task(AsyncFileTransaction(memory, timeout=None).begin())
            await asyncio.to_thread(gate.reached.wait, 60)
            task.cancel()
            await asyncio.sleep(0)
            gate.opened.set()
            done, _ = await asyncio.wait([task], timeout=60)
            assert done, "it waits"
            assert task.cancelled()

    try:
        asyncio.run(main())
    finally:
        held.rollback()


def test_a_file_whose_opening_was_cancelled_is_not_open(memory: Path) -> None:
    fresh(memory)
    gate = Gate("create")

    async def main() -> None:
        async with AsyncFileTransaction(memory) as tx:
            opening = asyncio.ensure_future(tx.open("a", "w")._open())
            await asyncio.to_thread(gate.reached.wait, 60)
            opening.cancel()
            await asyncio.sleep(0)
            gate.opened.set()
            with pytest.raises(asyncio.CancelledError):
                await opening
            async with tx.open("a", "w") as file:
                await file.write("new")

    with system.use(gate.fs):
        asyncio.run(main())
    assert (memory / "a").read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize("holder", ["task", "thread", "process", "prepared"])
@pytest.mark.parametrize("how", ["timeout", "asyncio.timeout", "cancel", "close"])
def test_who_waits_for_the_lock_stops_at_once(memory: Path, holder: str, how: str) -> None:
    fresh(memory)

    async def waits(timeout: float | None) -> None:
        async with AsyncFileTransaction(memory, timeout=timeout):
            pytest.fail("the lock was free")

    async def main() -> None:
        async with holding(holder, memory):
            held = threads()
            began = time.monotonic()
            if how == "timeout":
                with pytest.raises(LockTimeoutError) as caught:
                    await asyncio.create_task(waits(0.05))
                assert str(memory) in str(caught.value)
            elif how == "asyncio.timeout":
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await asyncio.create_task(waits(None))
            elif how == "cancel":
                task = asyncio.create_task(waits(None))
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await asyncio.create_task(closes(waits(None)))
            assert time.monotonic() - began < 30
            no_threads(held)

    async def closes(waiting: Coroutine[Any, Any, None]) -> None:
        with pytest.raises(Stop):
            await Stepped(waiting, stop)
        await asyncio.sleep(0.05)
        waiting.close()

    asyncio.run(main())


HOLD = """
from txfiles import FileTransaction
tx = FileTransaction(sys.argv[1]).begin()
print("held", flush=True)
input()
"""


@asynccontextmanager
async def holding(holder: str, root: Path) -> AsyncIterator[None]:
    if holder == "task":
        async with AsyncFileTransaction(root):
            yield
    elif holder == "thread":
        tx = FileTransaction(root).begin()
        yield
        tx.rollback()
    elif holder == "prepared":
        with FileTransaction(root) as tx:
            tx.write("a", "new")
            waiting = tx.prepare()
        yield
        rollback_prepared(root, waiting)
    else:
        with child(HOLD, root) as other:
            other.expect("held")
            yield
