"""`FileStore.update(group=True)`: threads that wait for one another share a commit."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import nth_call, tree
from tests.support.procs import child
from txfiles import AsyncDocuments, FileStore, FileTransaction, JsonDocuments
from txfiles._commit.home import Home
from txfiles._commit.inventory import read_head
from txfiles._disk import system
from txfiles._format.journal import Durability
from txfiles._groups import threads
from txfiles._groups.update import AT_MOST
from txfiles.errors import (
    CommitError,
    ConflictError,
    LockTimeoutError,
    NestedTransactionError,
    TransactionClosedError,
)

Change = Callable[[FileTransaction], Any]


@pytest.fixture
def store(root: Path) -> FileStore:
    store = FileStore(root, durability="process", timeout=60)
    with store.transaction():
        pass  # so that there is a private directory
    return store


def commits(store: FileStore) -> int:
    home = Home.find(system.current(), store.root.encode())
    assert home is not None
    try:
        head = read_head(home)
        return 0 if head is None else head.seq
    finally:
        home.close()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def waiting() -> int:
    return sum(len(gathering._waiting) for gathering in list(threads._gatherings.values()))


class Callers:
    """Threads that update together: all of them wait before the first of them has the lock."""

    def __init__(self, store: FileStore) -> None:
        self.store = store
        self.results: dict[str, Any] = {}
        self.threads: list[threading.Thread] = []

    def add(self, name: str, change: Change, *, after: Callable[[], object] = lambda: None, **options: Any) -> None:
        """One more, which is in the queue when this returns."""

        def call() -> None:
            after()
            try:
                self.results[name] = self.store.update(change, group=True, **options)
            except BaseException as error:
                self.results[name] = error

        before = waiting()
        self.threads.append(threading.Thread(target=call, name=name))
        self.threads[-1].start()
        until(lambda: waiting() > before)

    def together(self, **changes: Change) -> dict[str, Any]:
        with self.store.transaction():
            for name, change in changes.items():
                self.add(name, change)
        return self.join()

    def join(self) -> dict[str, Any]:
        for thread in self.threads:
            thread.join()
        return self.results


def write(name: str, text: str = "1") -> Change:
    return lambda tx: tx.write(name, text)


def test_one_alone_is_a_group(root: Path, store: FileStore) -> None:
    def change(tx: FileTransaction) -> int:
        tx.write("a", "1")
        return 42

    assert store.update(change, group=True) == 42
    assert tree(root) == {"a": b"1"}
    assert commits(store) == 1


@pytest.mark.parametrize("durability", ["full", "process"])
def test_those_who_wait_share_a_commit_in_their_order(root: Path, durability: Durability) -> None:
    store = FileStore(root, durability=durability, timeout=60)

    def append(letter: str) -> Change:
        def change(tx: FileTransaction) -> str:
            text = (tx.read_text("log") if tx.exists("log") else "") + letter
            tx.write("log", text)
            return text

        return change

    results = Callers(store).together(**{letter: append(letter) for letter in "abcdefg"})
    assert results == {"abcdefg"[n]: "abcdefg"[: n + 1] for n in range(7)}
    assert tree(root) == {"log": b"abcdefg"}
    assert commits(store) == 1


def test_a_group_is_at_most_64(store: FileStore) -> None:
    results = Callers(store).together(**{str(n): write(str(n)) for n in range(AT_MOST + 3)})
    assert set(results.values()) == {None}
    assert commits(store) == 2


def test_those_who_come_during_a_commit_are_the_next_group(store: FileStore) -> None:
    callers = Callers(store)

    def others() -> None:
        for name in "bcd":
            callers.add(name, write(name))

    fs: Any = nth_call("rename", 1, others)
    with system.use(fs):
        store.update(write("a"), group=True)
        assert callers.join() == {"b": None, "c": None, "d": None}
    assert commits(store) == 2


def test_an_exception_undoes_its_own_part_and_reaches_its_own_caller(root: Path, store: FileStore) -> None:
    def fail(tx: FileTransaction) -> None:
        tx.write("a", "lost")
        tx.write("b", "lost")
        raise KeyError("mine")

    def close(tx: FileTransaction) -> None:
        tx.write("b", "2")

    results = Callers(store).together(one=write("a"), fails=fail, two=close)
    assert isinstance(results.pop("fails"), KeyError)
    assert results == {"one": None, "two": None}
    assert tree(root) == {"a": b"1", "b": b"2"}
    assert commits(store) == 1


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_in_a_thread_what_is_no_exception_is_the_callers_own_too(
    root: Path, store: FileStore, kind: type[BaseException]
) -> None:
    def leave(tx: FileTransaction) -> None:
        tx.write("b", "lost")
        raise kind

    results = Callers(store).together(one=write("a"), leaves=leave, two=write("c"))
    assert type(results.pop("leaves")) is kind
    assert results == {"one": None, "two": None}
    assert tree(root) == {"a": b"1", "c": b"1"}


def test_a_failed_commit_reaches_all_each_with_an_error_of_its_own(root: Path, store: FileStore) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fs: Any = nth_call("rename", 1, full)
    with system.use(fs):
        results = Callers(store).together(one=write("a"), two=write("b"), own=lambda tx: 1 / 0, three=write("c"))
    assert isinstance(results.pop("own"), ZeroDivisionError)
    errors = list(results.values())
    assert [type(error) for error in errors] == [CommitError] * 3
    assert len(set(map(id, errors))) == 3
    assert tree(root) == {}


def test_the_value_of_who_has_committed_is_not_lost_to_one_who_conflicts(root: Path, store: FileStore) -> None:
    attempts: list[int] = []

    def conflicts(tx: FileTransaction) -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConflictError("again")
        tx.write("b", "2")
        return "at last"

    results = Callers(store).together(one=write("a"), two=conflicts)
    assert results == {"one": None, "two": "at last"}
    assert tree(root) == {"a": b"1", "b": b"2"}


def test_a_function_runs_in_the_context_of_its_caller(store: FileStore) -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who")
    callers = Callers(store)
    with store.transaction():
        for name in "abc":
            callers.add(name, lambda tx: who.get(), after=lambda name=name: who.set(name))  # type: ignore[misc]
    assert callers.join() == {"a": "a", "b": "b", "c": "c"}


def test_callbacks_are_their_callers_own(store: FileStore) -> None:
    called: list[tuple[str, str]] = []

    def named(name: str) -> Change:
        def change(tx: FileTransaction) -> None:
            tx.write(name, "1")
            tx.on_commit(lambda: called.append((name, threading.current_thread().name)))
            tx.on_rollback(lambda: called.append(("no " + name, threading.current_thread().name)))
            if name == "b":
                raise KeyError
            if name == "c":
                tx.on_commit(lambda: 1 / 0)

        return change

    results = Callers(store).together(**{name: named(name) for name in "abcd"})
    assert [type(results[name]) for name in "abcd"] == [type(None), KeyError, ZeroDivisionError, type(None)]
    assert sorted(called) == [("a", "a"), ("c", "c"), ("d", "d"), ("no b", "b")]


def test_a_file_left_open_is_its_callers_own_fault(root: Path, store: FileStore) -> None:
    left: list[Any] = []

    def leave_open(tx: FileTransaction) -> None:
        left.append(tx.open("b", "w"))
        left[0].write("lost")

    def close_it(tx: FileTransaction) -> None:
        with pytest.raises(OSError, match="descriptor"):
            left[0].close()
        tx.write("c", "1")

    results = Callers(store).together(one=write("a"), leaves=leave_open, two=close_it)
    assert isinstance(results.pop("leaves"), CommitError)
    assert results == {"one": None, "two": None}
    assert tree(root) == {"a": b"1", "c": b"1"}


def leave(tx: FileTransaction) -> None:
    tx.write("c", "1")
    tx.__exit__(None, None, None)


def leave_with_an_error(tx: FileTransaction) -> None:
    tx.__exit__(ValueError, ValueError(), None)


ENDS = [FileTransaction.rollback, FileTransaction.commit, FileTransaction.prepare, leave, leave_with_an_error]


@pytest.mark.parametrize("end", ENDS)
def test_nobody_ends_what_others_share(root: Path, store: FileStore, end: Change) -> None:
    results = Callers(store).together(one=write("a"), ends=end, two=write("b"))
    assert isinstance(results.pop("ends"), TransactionClosedError)
    assert results == {"one": None, "two": None}
    assert tree(root) == {"a": b"1", "b": b"1"}


@pytest.mark.parametrize("when", ["in its function", "in that of another"])
def test_nor_does_a_thread_of_one_of_them(root: Path, store: FileStore, when: str) -> None:
    go, raised = threading.Event(), []

    def end(tx: FileTransaction) -> None:
        go.wait()
        try:
            tx.rollback()
        except TransactionClosedError as error:
            raised.append(error)

    ending: list[threading.Thread] = []

    def let_end() -> None:
        go.set()
        ending[0].join()

    def begins(tx: FileTransaction) -> None:
        ending.append(threading.Thread(target=end, args=(tx,)))
        ending[0].start()
        if when == "in its function":
            let_end()
        tx.write("a", "1")

    def other(tx: FileTransaction) -> None:
        let_end()
        tx.write("b", "1")

    assert Callers(store).together(begins=begins, other=other) == {"begins": None, "other": None}
    assert len(raised) == 1
    assert tree(root) == {"a": b"1", "b": b"1"}


def test_a_function_may_have_threads_help_it(root: Path, store: FileStore) -> None:
    def change(tx: FileTransaction) -> None:
        helpers = [threading.Thread(target=tx.write, args=(name, "1"), daemon=True) for name in "ab"]
        for helper in helpers:
            helper.start()
        for helper in helpers:
            helper.join(60)
            assert not helper.is_alive()

    def undone(tx: FileTransaction) -> None:
        change(tx)
        raise KeyError

    results = Callers(store).together(one=write("c"), helped=change, two=write("d"))
    assert results == {"one": None, "helped": None, "two": None}
    assert tree(root) == dict.fromkeys("abcd", b"1")
    with store.transaction() as tx:
        tx.delete("a")
        tx.delete("b")
    results = Callers(store).together(undone=undone, other=write("e"))
    assert isinstance(results["undone"], KeyError)
    assert tree(root) == dict.fromkeys("cde", b"1")


def test_a_savepoint_left_open_is_its_callers_own_fault(root: Path, store: FileStore) -> None:
    kept: list[Generator[int, None, None]] = []

    def steps(tx: FileTransaction) -> Generator[int, None, None]:
        with tx.savepoint():
            tx.write("b", "1")
            with tx.savepoint():
                yield 1

    def suspends(tx: FileTransaction) -> None:
        kept.append(steps(tx))
        next(kept[0])

    results = Callers(store).together(one=write("a"), suspends=suspends, two=write("c"))
    assert isinstance(results.pop("suspends"), TransactionClosedError)
    assert results == {"one": None, "two": None}
    assert tree(root) == {"a": b"1", "c": b"1"}
    kept[0].close()


def test_what_progress_raises_is_its_callers_own(root: Path, store: FileStore) -> None:
    def shown(tx: FileTransaction) -> None:
        tx.on_progress(lambda done, total: 1 // 0)
        tx.write("b", "1")

    results = Callers(store).together(one=write("a"), shown=shown, two=write("c"))
    assert isinstance(results.pop("shown"), ZeroDivisionError)
    assert results == {"one": None, "two": None}
    assert tree(root) == {"a": b"1", "b": b"1", "c": b"1"}


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_handler_that_updates_where_its_thread_does_is_refused(
    root: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch, is_locked: bool
) -> None:
    """Also while that waits, or has what all of them need."""
    refused: list[BaseException] = []

    def handler(*_: object) -> None:
        try:
            store.update(write("never"), group=True)
        except NestedTransactionError as error:
            refused.append(error)

    class Signalled(threads.Gathering):
        def _signal(self) -> None:
            with self._mutex if is_locked else nullcontext():
                signal.raise_signal(signal.SIGUSR1)

        def _take(self, group: list[Any]) -> Any:
            self._signal()
            return super()._take(group)

        def _wait(self, me: Any) -> None:
            self._signal()
            super()._wait(me)

    monkeypatch.setattr(threads, "Gathering", Signalled)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        store.update(write("a"), group=True)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert refused
    assert tree(root) == {"a": b"1"}


def test_who_was_interrupted_while_leaving_updates_again(
    root: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []  # that others wait in the same one keeps it

    class Interrupting(threads.Gathering):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

        def _leave(self, me: Any) -> None:
            super()._leave(me)
            if not interrupted:
                interrupted.append(me)
                raise KeyboardInterrupt

    interrupted: list[Any] = []
    monkeypatch.setattr(threads, "Gathering", Interrupting)
    with pytest.raises(KeyboardInterrupt):
        store.update(write("a"), group=True)
    store.update(write("b"), group=True)
    assert tree(root) == {"a": b"1", "b": b"1"}


def test_a_coroutine_function_is_refused(store: FileStore) -> None:
    async def change(tx: FileTransaction) -> None:
        tx.write("a", "never")

    update: Any = store.update
    with pytest.raises(TypeError, match="async_update"):
        update(change, group=True)


def test_nested_updates_are_refused_at_once(root: Path, store: FileStore) -> None:
    def nested(tx: FileTransaction) -> None:
        tx.write("a", "1")
        with pytest.raises(NestedTransactionError):
            store.update(write("b"), group=True)

    store.update(nested, group=True)
    with store.transaction(), pytest.raises(NestedTransactionError):
        store.update(write("c"), group=True)
    callers = Callers(store)
    with store.transaction():
        callers.add("other", write("d"))
        with pytest.raises(NestedTransactionError):
            store.update(write("c"), group=True)  # behind another who waits for this very thread
    assert callers.join() == {"other": None}
    assert tree(root) == {"a": b"1", "d": b"1"}


def test_who_waits_too_long_leaves_alone(root: Path) -> None:
    """Behind a function that takes its time, in a group that has begun already."""
    store = FileStore(root, durability="process", timeout=0.2)
    running, go_on = threading.Event(), threading.Event()

    def slow(tx: FileTransaction) -> None:
        running.set()
        go_on.wait()
        tx.write("a", "1")

    callers = Callers(store)
    with store.transaction():
        callers.add("slow", slow)
    running.wait()
    with pytest.raises(LockTimeoutError, match=r"waited 0\.2 s"):
        store.update(write("b"), group=True)
    go_on.set()
    assert callers.join() == {"slow": None}
    assert tree(root) == {"a": b"1"}


class Deadline(Exception):
    """What a handler raises."""


@pytest.fixture(params=[KeyboardInterrupt, Deadline, TimeoutError, SystemExit])
def raised(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    """What a handler of SIGUSR1 raises."""

    def handler(*_: object) -> None:
        raise request.param

    before = signal.signal(signal.SIGUSR1, handler)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


@contextmanager
def followed(store: FileStore, **works: Change) -> Iterator[Callers]:
    """Whoever updates in the block is the leader of these."""
    callers, holds = Callers(store), threading.Event()

    def others() -> None:
        with store.transaction():
            holds.set()
            until(lambda: waiting() == 1)
            for name, work in works.items():
                callers.add(name, work)

    helper = threading.Thread(target=others)
    helper.start()
    holds.wait()
    yield callers
    helper.join()


@pytest.mark.parametrize("how", ["not caught", "caught"])
def test_a_handler_raises_in_the_leader_alone(
    root: Path, store: FileStore, raised: type[BaseException], how: str
) -> None:
    """Also in the function of another; those whose work is undone with it are led by the next one."""
    runs: list[str] = []
    seen: list[BaseException] = []

    def interrupted_once(tx: FileTransaction) -> None:
        runs.append(threading.current_thread().name)
        tx.write("b", "1")
        try:
            if len(runs) == 1:
                signal.raise_signal(signal.SIGUSR1)
        except Exception as error:
            seen.append(error)
        except BaseException:
            if how == "not caught":
                raise

    with followed(store, b=interrupted_once, c=write("c")) as callers, pytest.raises(raised):
        store.update(write("a"), group=True)
    assert callers.join() == {"b": None, "c": None}
    assert seen == []
    assert runs == ["MainThread", "b"]
    assert tree(root) == {"b": b"1", "c": b"1"}


def test_a_handler_raises_while_the_leader_commits(root: Path, store: FileStore, raised: type[BaseException]) -> None:
    """The others have the outcome, and the leader what was raised, with it as a note."""

    def act() -> None:
        assert threading.current_thread() is threading.main_thread()
        signal.raise_signal(signal.SIGUSR1)

    def mine(tx: FileTransaction) -> None:
        tx.write("a", "1")
        tx.on_commit(lambda: told.append("committed"))

    told: list[str] = []
    in_place: Any = nth_call("rename", 2, act)  # the first passes the commit point
    with followed(store, b=write("b")) as callers, system.use(in_place), pytest.raises(raised) as caught:
        store.update(mine, group=True)
    assert callers.join() == {"b": None}
    assert told == ["committed"]
    assert any("the state on disk: 'after'" in note for note in caught.value.__notes__)
    assert tree(root) == {"a": b"1", "b": b"1"}


def test_a_handler_raises_in_the_function_of_the_leader(
    root: Path, store: FileStore, raised: type[BaseException]
) -> None:
    """There it can be caught; where it is not, that part is undone."""

    def mine(tx: FileTransaction) -> None:
        with pytest.raises(raised):
            signal.raise_signal(signal.SIGUSR1)
        tx.write("a", "1")
        signal.raise_signal(signal.SIGUSR1)

    with followed(store, b=write("b")) as callers, pytest.raises(raised):
        store.update(mine, group=True)
    assert callers.join() == {"b": None}
    assert tree(root) == {"b": b"1"}


def test_ctrl_c_while_waiting_leaves_alone(root: Path, store: FileStore) -> None:
    running, go_on = threading.Event(), threading.Event()

    def slow(tx: FileTransaction) -> None:
        running.set()
        until(lambda: waiting() == 1)
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait()

    callers = Callers(store)
    with store.transaction():
        callers.add("slow", slow)
    running.wait()
    with pytest.raises(KeyboardInterrupt):
        store.update(write("b"), group=True)
    go_on.set()
    assert callers.join() == {"slow": None}
    assert tree(root) == {}


def test_a_forked_child_has_groups_of_its_own(root: Path) -> None:
    with child(FORK, root) as process:
        assert process.finish(60).check().stdout == "1 2\n"


FORK = """
from txfiles import FileStore
store = FileStore(sys.argv[1], durability="process", timeout=30)
def add(tx):
    tx.write("n", str(int(tx.read("n")) + 1 if tx.exists("n") else 1))
    return int(tx.read("n"))
running = threading.Event()
def slow(tx):
    running.set()
    time.sleep(0.2)
thread = threading.Thread(target=store.update, args=(slow,), kwargs={"group": True})
thread.start()
running.wait()
if (pid := os.fork()) == 0:
    store.update(add, group=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
thread.join()
print(open(sys.argv[1] + "/n").read(), store.update(add, group=True))
"""


def test_the_lock_timeout_of_the_leader_is_its_own(root: Path, store: FileStore) -> None:
    impatient = FileStore(root, durability="process", timeout=0.2)
    callers = Callers(impatient)
    with store.transaction():
        for name in "abc":
            callers.add(name, write(name))
        results = callers.join()
    assert [type(error) for error in results.values()] == [LockTimeoutError] * 3
    impatient.update(write("a"), group=True)
    assert tree(root) == {"a": b"1"}


def test_increments_of_many_threads(root: Path, store: FileStore) -> None:
    def add(tx: FileTransaction) -> None:
        tx.write("count", str(int(tx.read("count")) + 1) if tx.exists("count") else "1")

    def work() -> None:
        for _ in range(25):
            store.update(add, group=True)

    several = [threading.Thread(target=work) for _ in range(8)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    assert tree(root) == {"count": b"200"}
    assert commits(store) < 200, "the threads never met: the test shows nothing"


def test_documents_share_a_commit(root: Path, store: FileStore) -> None:
    docs = JsonDocuments(root, {"state": {"turn": 0}, "tasks/*.json": {}}, durability="process", timeout=60)

    def turn(d: dict[str, Any]) -> int:
        d["state"]["turn"] += 1
        d["tasks/*.json"][str(d["state"]["turn"])] = {"of": threading.current_thread().name}
        if d["state"]["turn"] == 3:
            raise KeyError
        return int(d["state"]["turn"])

    results: list[Any] = []

    def call() -> None:
        try:
            results.append(docs.update(turn, group=True))
        except KeyError as error:
            results.append(error)

    several = [threading.Thread(target=call) for _ in range(3)]
    with store.transaction():
        for number, thread in enumerate(several, 1):
            thread.start()
            until(lambda number=number: waiting() == number)  # type: ignore[misc]
    for thread in several:
        thread.join()
    assert sorted(map(repr, results)) == ["1", "2", "KeyError()"]
    assert docs.load()["state"] == {"turn": 2}
    assert sorted(docs.load()["tasks/*.json"]) == ["1", "2"]
    assert commits(store) == 1


def test_documents_of_an_open_set_share_a_commit(root: Path, store: FileStore) -> None:
    tasks = JsonDocuments(root, {"tasks/*.json": {}}, durability="process", timeout=60).collection("tasks/*.json")
    tasks.set("old", 0)
    before = commits(store)
    failed: list[BaseException] = []

    def delete_another() -> None:
        try:
            tasks.delete("nobody", group=True)
        except KeyError as error:
            failed.append(error)

    calls: list[Callable[[], None]] = [
        lambda: tasks.set("a", 1, group=True),
        lambda: tasks.update({"b": 2, "c": 3}, group=True),
        lambda: tasks.delete("old", group=True),
        delete_another,
    ]
    several = [threading.Thread(target=call) for call in calls]
    with store.transaction():
        for number, thread in enumerate(several, 1):
            thread.start()
            until(lambda number=number: waiting() == number)  # type: ignore[misc]
    for thread in several:
        thread.join()
    assert tasks.load() == {"a": 1, "b": 2, "c": 3}
    assert len(failed) == 1
    assert commits(store) == before + 1


def test_documents_of_an_open_set_share_a_commit_of_tasks(root: Path, store: FileStore) -> None:
    tasks = AsyncDocuments(root, {"n/*.json": {}}, durability="process").collection("n/*.json")

    async def main() -> None:
        await asyncio.gather(*(tasks.set(str(number), number, group=True) for number in range(5)))
        await asyncio.gather(tasks.delete("0", group=True), tasks.update({"1": 10}, group=True))
        assert await tasks.load() == {"1": 10, "2": 2, "3": 3, "4": 4}

    asyncio.run(main())
    assert commits(store) == 2


def test_documents_are_updated_by_coroutines_too(root: Path, store: FileStore) -> None:
    docs = AsyncDocuments(root, {"state": {"turn": 0}}, durability="process")

    async def turn(d: dict[str, Any]) -> int:
        d["state"]["turn"] += 1
        return int(d["state"]["turn"])

    async def main() -> list[int]:
        return await asyncio.gather(*(docs.update(turn, group=True) for _ in range(5)), docs.update(turn))

    assert sorted(asyncio.run(main())) == [1, 2, 3, 4, 5, 6]
    assert commits(store) == 2
