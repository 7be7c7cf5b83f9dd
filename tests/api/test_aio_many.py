"""Many tasks, several roots, several event loops: in order, without a thread for each, and no update lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import DEEP
from tests.support.boundary import tree
from tests.support.procs import child
from txfiles import AsyncFileTransaction, FileStore, FileTransaction, commit_prepared, recover, status
from txfiles.errors import LockTimeoutError, NestedTransactionError, TransactionClosedError


@pytest.fixture
def store(root: Path) -> FileStore:
    with FileTransaction(root, durability="process") as tx:
        tx.write("count", "0")
    return FileStore(root, durability="process", timeout=None)


async def increment(tx: AsyncFileTransaction) -> int:
    number = int(await tx.read("count")) + 1
    await tx.write("count", str(number))
    return number


def count(store: FileStore) -> int:
    with store.snapshot() as snap:
        return int(snap.read("count"))


class Threads:
    """The most threads that were seen at once."""

    def __init__(self) -> None:
        self.most = 0

    def look(self) -> None:
        found = sum(thread.name == "txfiles transaction" for thread in threading.enumerate())
        self.most = max(self.most, found)


# -- one root -------------------------------------------------------------------------------------------------------


def test_hundreds_of_tasks_have_their_turns_in_order(store: FileStore) -> None:
    """Nobody has a second turn before everybody had one, and there is no thread for those that wait."""
    order: list[int] = []
    seen = Threads()
    tasks, turns = 200, 10 if DEEP else 2

    async def one(number: int) -> None:
        async def change(tx: AsyncFileTransaction) -> None:
            order.append(number)
            seen.look()
            await increment(tx)

        for _ in range(turns):
            await store.async_update(change)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(tasks):
                group.create_task(one(number))

    asyncio.run(main())
    assert order == list(range(tasks)) * turns
    assert count(store) == tasks * turns
    assert seen.most <= 2  # one, and another that ends


def test_a_task_that_gives_up_does_not_disturb_the_order(store: FileStore) -> None:
    order: list[int] = []

    async def one(number: int) -> None:
        async with store.async_transaction() as tx:
            order.append(number)
            await increment(tx)

    async def main() -> None:
        tasks = [asyncio.create_task(one(number)) for number in range(30)]
        await asyncio.sleep(0)
        for number in range(2, 30, 3):
            tasks[number].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [n % 3 == 2 for n in range(30)]

    asyncio.run(main())
    assert order == [number for number in range(30) if number % 3 != 2]
    assert count(store) == 20


def test_one_that_is_closed_when_its_turn_has_come_passes_it_on(store: FileStore) -> None:
    async def main() -> None:
        async def hold() -> None:
            async with store.async_transaction():
                held.set()
                await let_go.wait()

        held, let_go = asyncio.Event(), asyncio.Event()
        holder = asyncio.create_task(hold())
        await held.wait()
        closed = store.async_transaction().begin()
        closed.send(None)
        behind = asyncio.create_task(store.async_update(increment))
        await asyncio.sleep(0)
        let_go.set()
        await holder
        closed.close()
        async with asyncio.timeout(10):
            assert await behind == 1

    asyncio.run(main())


def test_the_timeout_counts_the_wait_for_other_tasks(store: FileStore, root: Path) -> None:
    async def main() -> None:
        async with store.async_transaction():
            for timeout in (0, 0.02):
                other = AsyncFileTransaction(root, timeout=timeout)
                with pytest.raises(LockTimeoutError) as caught:
                    await asyncio.create_task(other.begin())
                assert caught.value.path == str(root)
        async with AsyncFileTransaction(root, timeout=0):
            pass
        await other.begin()  # it can try again
        await other.rollback()

    asyncio.run(main())


def test_a_transaction_in_a_transaction(store: FileStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)

    async def main() -> None:
        async with store.async_transaction() as tx:
            for spelling in (root, tmp_path / "link"):
                with pytest.raises(NestedTransactionError):
                    await AsyncFileTransaction(spelling, timeout=None).begin()
            await increment(tx)
        async with store.async_transaction() as tx:
            await increment(tx)

    asyncio.run(main())
    assert count(store) == 2


@pytest.mark.parametrize("spelling", ["root", "link"])
def test_a_transaction_of_the_thread_in_one_of_the_task(root: Path, tmp_path: Path, spelling: str) -> None:
    (tmp_path / "link").symlink_to(root)
    place = root if spelling == "root" else tmp_path / "link"
    waits_for_itself: list[Callable[[], object]] = [
        FileTransaction(place, timeout=0.2).begin,
        lambda: FileStore(place, timeout=0.2).update(lambda tx: tx.write("x", "")),
        lambda: recover(place, timeout=0.2),
        lambda: commit_prepared(place, "0" * 32, timeout=0.2),
    ]

    async def main() -> None:
        async with AsyncFileTransaction(root) as tx:
            await tx.write("a", "1")
            for call in waits_for_itself:
                with pytest.raises(NestedTransactionError):
                    call()
        assert recover(place).clean
        for call in waits_for_itself[1:3]:  # it is over, in the same task
            call()

    asyncio.run(main())
    assert tree(root) == {"a": b"1", "x": b""}


def test_a_transaction_of_the_task_in_one_of_the_thread(store: FileStore) -> None:
    async def main() -> None:
        with store.transaction() as tx:
            with pytest.raises(NestedTransactionError):
                await FileStore(store.root, timeout=0.2).async_transaction().begin()
            other = asyncio.create_task(store.async_update(increment))  # waits for us, who do not wait for it
            await asyncio.sleep(0.05)
            tx.write("a", "1")
        assert await other == 1
        await store.async_update(increment)

    asyncio.run(main())
    assert count(store) == 2


def test_another_task_of_the_thread_does_not_wait_for_itself(root: Path) -> None:
    async def main() -> None:
        async with AsyncFileTransaction(root):

            async def other() -> None:
                with pytest.raises(LockTimeoutError):
                    FileTransaction(root, timeout=0.02).begin()

            await asyncio.create_task(other())

    asyncio.run(main())


def test_tasks_share_a_transaction(store: FileStore, root: Path) -> None:
    async def main() -> None:
        async with store.async_transaction() as tx:
            await asyncio.gather(*(tx.write(f"f{number}", "x") for number in range(20)))
            inside, outside = asyncio.Event(), asyncio.Event()

            async def other() -> None:
                async with tx.savepoint():
                    inside.set()
                    await outside.wait()

            task = asyncio.create_task(other())
            await inside.wait()
            with pytest.raises(TransactionClosedError, match="another task"):
                async with tx.savepoint():
                    pass
            outside.set()
            await task
            async with tx.savepoint(), tx.savepoint():
                await tx.write("g", "x")

    asyncio.run(main())
    assert len(list(root.glob("f*"))) == 20
    assert (root / "g").exists()


def test_what_other_tasks_change_meanwhile(root: Path) -> None:
    """A value is taken at the call."""
    value = {"a": list(range(100))}
    data = bytearray(b"x" * 100_000)

    async def meddle() -> None:
        for _ in range(3):
            value["a"].append(-1)
            value[f"b{len(value)}"] = []
            data[:] = b"y" * len(data)
            await asyncio.sleep(0)

    async def main() -> None:
        async with AsyncFileTransaction(root) as tx:
            calls = tx.write_json("j", value, indent=None), tx.write("b", data), tx.write("v", memoryview(data))
            await asyncio.gather(*calls, meddle())

    asyncio.run(main())
    assert (root / "j").read_text(encoding="utf-8") == f'{{"a":[{",".join(map(str, range(100)))}]}}\n'
    assert set((root / "b").read_bytes()) == set((root / "v").read_bytes()) == {ord("x")}


# -- several roots, loops, processes --------------------------------------------------------------------------------


def test_several_roots_at_once(tmp_path: Path, watch: Callable[[Path], Path]) -> None:
    roots = [watch(tmp_path / str(number)) for number in range(5)]

    async def main() -> None:
        async with asyncio.timeout(30):
            barrier = asyncio.Barrier(len(roots))

            async def one(root: Path) -> None:
                async with AsyncFileTransaction(root, durability="process", create=True) as tx:
                    await barrier.wait()  # all are open
                    await tx.write("a", "1")

            await asyncio.gather(*map(one, roots))
            async with AsyncFileTransaction(roots[0]) as one_root, AsyncFileTransaction(roots[1]) as other:
                await one_root.write("b", await other.read("a"))

    asyncio.run(main())
    assert [(root / "a").read_text(encoding="utf-8") for root in roots] == ["1"] * 5
    assert (roots[0] / "b").read_text(encoding="utf-8") == "1"


def test_several_event_loops_and_plain_threads(store: FileStore) -> None:
    seen = Threads()

    async def main() -> None:
        async def one() -> None:
            await store.async_update(increment)
            seen.look()

        await asyncio.gather(*(one() for _ in range(40)))

    def plain() -> None:
        for _ in range(40):
            with store.transaction() as tx:
                tx.write("count", str(int(tx.read("count")) + 1))

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(3)]
    threads.append(threading.Thread(target=plain))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(store) == 160
    assert seen.most <= 6  # one of each loop, and another that ends


PROCESS = """
import asyncio
from txfiles import FileStore
store = FileStore(sys.argv[1], durability="process", timeout=None)
async def increment(tx):
    await tx.write("count", str(int(await tx.read("count")) + 1))
async def main():
    await asyncio.gather(*(store.async_update(increment) for _ in range(40)))
asyncio.run(main())
"""


def test_several_processes(store: FileStore, root: Path) -> None:
    with ExitStack() as stack:
        for worker in [stack.enter_context(child(PROCESS, root)) for _ in range(3)]:
            worker.finish(60).check()
    assert count(store) == 120


def test_a_transaction_that_goes_from_loop_to_loop(root: Path) -> None:
    tx = asyncio.run(AsyncFileTransaction(root).begin())
    asyncio.run(tx.write("a", "1"))
    assert asyncio.run(tx.read("a")) == b"1"
    asyncio.run(tx.commit())
    assert (root / "a").read_text(encoding="utf-8") == "1"


# -- cancelled at random --------------------------------------------------------------------------------------------

FILES = ("one", "two", "three")
plans = st.lists(
    st.tuples(st.sampled_from(["update", "explicit", "timeout"]), st.one_of(st.none(), st.integers(0, 60))),
    min_size=2,
    max_size=8,
)


async def add(tx: AsyncFileTransaction) -> None:
    """Each of the files counts the transactions; any mix of two states would show."""
    for name in FILES:
        number = int(await tx.read(name)) if await tx.exists(name) else 0
        async with tx.savepoint():
            await tx.write(name, str(number + 1))


class Attempts:
    """Transactions that are begun, some in vain."""

    def __init__(self, root: Path) -> None:
        self.store = FileStore(root, durability="process", timeout=None)
        self.made: list[AsyncFileTransaction] = []

    def begin(self) -> AsyncFileTransaction:
        self.made.append(self.store.async_transaction())
        return self.made[-1]

    async def update(self, _: float) -> None:
        async with self.begin() as tx:
            await add(tx)

    async def explicit(self, _: float) -> None:
        tx = self.begin()
        await tx.begin()
        try:
            await add(tx)
        except BaseException:
            await tx.rollback()
            raise
        await tx.commit()

    async def timeout(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.update(0)
        except TimeoutError:
            pass

    async def run(self, plan: list[tuple[str, int | None]]) -> None:
        loop = asyncio.get_running_loop()
        tasks = []
        for kind, after in plan:
            task = asyncio.create_task(getattr(self, kind)(0.0 if after is None else after / 3000))
            if after is not None and kind != "timeout":
                loop.call_later(after / 3000, task.cancel)
            tasks.append(task)
        for (_, after), result in zip(plan, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
            assert result is None or (after is not None and isinstance(result, asyncio.CancelledError)), result


@given(plan=plans)
@settings(max_examples=1000 if DEEP else 40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_counters_agree_whatever_is_cancelled(tmp_path_factory: pytest.TempPathFactory, plan: list) -> None:
    root = tmp_path_factory.mktemp("root")
    attempts = Attempts(root)
    asyncio.run(attempts.run(plan))
    with FileTransaction(root, timeout=0, durability="process") as tx:
        counted = [int(tx.read(name)) if tx.exists(name) else 0 for name in FILES]
    successes = sum(tx.outcome == "after" for tx in attempts.made)
    assert counted == [successes] * len(FILES)
    assert not status(root).debris
