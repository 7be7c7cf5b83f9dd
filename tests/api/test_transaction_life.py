"""Begin, commit, rollback, and every other way in which a transaction ends."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import tree
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, status
from txfiles.errors import InvalidPathError, LockTimeoutError, NestedTransactionError, TransactionClosedError


def _private(root: Path) -> list[str]:
    return sorted(os.listdir(root / ".txfiles"))


def _at_rest(root: Path) -> bool:
    """Nothing is left, the lock is free, and the next transaction works."""
    with FileTransaction(root, timeout=0) as tx:
        tx.write("next", "works")
    with FileTransaction(root, timeout=0) as tx:
        tx.delete("next")
    return _private(root) == ["HEAD", "format", "lock", "spare"] and status(root).clean


def test_the_explicit_form(root: Path) -> None:
    tx = FileTransaction(root)
    assert tx.begin() is tx
    tx.write("a", "x")
    assert tree(root) == {}
    tx.commit()
    assert tree(root) == {"a": b"x"}
    assert _at_rest(root)


def test_the_block(root: Path) -> None:
    transaction = FileTransaction(root)
    with transaction as tx:
        assert tx is transaction
        tx.write("a", "x")
    assert tree(root) == {"a": b"x"}
    assert _at_rest(root)


class Error(Exception):
    pass


@pytest.mark.parametrize("error", [Error, KeyboardInterrupt, SystemExit, GeneratorExit, BaseException])
def test_an_exception_rolls_back_and_propagates_as_it_is(root: Path, error: type[BaseException]) -> None:
    (root / "a").write_text("old", encoding="utf-8")
    raised = error("why")
    with pytest.raises(error) as caught, FileTransaction(root) as tx:
        tx.write("a", "new")
        tx.write("n/b", "new")
        raise raised
    assert caught.value is raised
    assert caught.value.__cause__ is None
    assert not hasattr(raised, "__notes__")
    assert tree(root) == {"a": b"old"}
    assert _private(root) == ["format", "lock"]
    assert _at_rest(root)


def test_a_generator_that_is_closed_in_the_block(root: Path) -> None:
    def work() -> Iterator[None]:
        with FileTransaction(root) as tx:
            tx.write("a", "x")
            yield

    generator = work()
    next(generator)
    generator.close()  # type: ignore[attr-defined]
    assert tree(root) == {}
    assert _at_rest(root)


@pytest.mark.parametrize("way", ["return", "break", "continue"])
def test_leaving_the_block_early_commits(root: Path, way: str) -> None:
    def work() -> None:
        for _ in range(1):
            with FileTransaction(root) as tx:
                tx.write("a", "x")
                if way == "return":
                    return
                if way == "break":
                    break
                continue

    work()
    assert tree(root) == {"a": b"x"}


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_end_inside_the_block(root: Path, end: str) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "x")
        getattr(tx, end)()
        with pytest.raises(TransactionClosedError):
            tx.write("b", "x")
    assert tree(root) == ({"a": b"x"} if end == "commit" else {})
    assert _at_rest(root)


CALLS: dict[str, Callable[[FileTransaction], object]] = {
    "read": lambda tx: tx.read("a"),
    "read_text": lambda tx: tx.read_text("a"),
    "read_json": lambda tx: tx.read_json("a"),
    "write": lambda tx: tx.write("a", "x"),
    "write_json": lambda tx: tx.write_json("a", 1),
    "open r": lambda tx: tx.open("a"),
    "open w": lambda tx: tx.open("a", "w"),
    "exists": lambda tx: tx.exists("a"),
    "listdir": lambda tx: tx.listdir(),
    "glob": lambda tx: tx.glob("*"),
    "version": lambda tx: tx.version("a"),
    "delete": lambda tx: tx.delete("a"),
    "delete missing_ok": lambda tx: tx.delete("a", missing_ok=True),
    "delete_tree": lambda tx: tx.delete_tree("d"),
    "move": lambda tx: tx.move("a", "b"),
    "copy": lambda tx: tx.copy("a", "b"),
    "mkdir": lambda tx: tx.mkdir("d"),
    "savepoint": lambda tx: tx.savepoint().__enter__(),
    "commit": lambda tx: tx.commit(),
    "rollback": lambda tx: tx.rollback(),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_needs_an_open_transaction(root: Path, call: str) -> None:
    never, ended = FileTransaction(root), FileTransaction(root).begin()
    ended.rollback()
    for tx, told in ((never, "has not begun"), (ended, "has ended")):
        with pytest.raises(TransactionClosedError, match=told) as caught:
            CALLS[call](tx)
        assert caught.value.outcome == "before"
    assert _private(root) == ["format", "lock"]


def test_a_transaction_begins_once(root: Path) -> None:
    tx = FileTransaction(root).begin()
    for _ in range(2):
        with pytest.raises(TransactionClosedError, match="begun already"):
            tx.begin()
    with pytest.raises(TransactionClosedError), tx:
        pass
    tx.write("a", "the second begin did no harm")
    tx.commit()
    for again in (tx.begin, tx.__enter__):
        with pytest.raises(TransactionClosedError):
            again()
    assert sorted(tree(root)) == ["a"]


def test_one_that_could_not_begin_may_try_again(root: Path) -> None:
    later = FileTransaction(root, timeout=0)
    with FileTransaction(root), pytest.raises(NestedTransactionError):
        later.begin()
    with later:
        later.write("a", "x")
    assert tree(root) == {"a": b"x"}


def test_a_transaction_dropped_while_open_is_rolled_back(root: Path) -> None:
    tx = FileTransaction(root).begin()
    tx.write("a", "x")
    alive = weakref.ref(tx)
    with pytest.warns(ResourceWarning, match=r"FileTransaction .*dropped while open"):
        del tx
    gc.collect()
    assert alive() is None
    assert tree(root) == {}
    assert _private(root) == ["format", "lock"]
    assert _at_rest(root)


@pytest.mark.parametrize("below", [".txfiles", ".txfiles/x", ".TxFiles/x/y"])
def test_a_root_is_not_in_a_private_directory(root: Path, below: str) -> None:
    FileTransaction(root).begin().rollback()
    with pytest.raises(InvalidPathError, match="private directory"):
        FileTransaction(root / below, create=True)
    assert _private(root) == ["format", "lock"]


def test_a_timeout_beyond_all_clocks(root: Path) -> None:
    with pytest.raises(ValueError, match="timeout"):
        FileTransaction(root, timeout=10**400)
    FileTransaction(root, timeout=float("inf")).begin().rollback()


def test_a_dropped_transaction_is_rolled_back_also_where_warnings_are_errors(root: Path) -> None:
    code = """
        import warnings
        from txfiles import FileTransaction
        warnings.simplefilter("error")
        tx = FileTransaction(sys.argv[1]).begin()
        tx.write("a", "x")
        del tx
        print(sorted(os.listdir(sys.argv[1] + "/.txfiles")))
    """
    done = run_python(code, root)
    assert done.stdout == "['format', 'lock']\n"
    assert "dropped while open" in done.stderr


def test_one_that_was_never_begun_or_has_ended_is_dropped_in_silence(root: Path) -> None:
    FileTransaction(root)
    with FileTransaction(root):
        pass
    FileTransaction(root).begin().rollback()
    with pytest.raises(ValueError, match="durability"):
        FileTransaction(root, durability="maybe")  # type: ignore[arg-type]
    gc.collect()


def test_an_interpreter_that_ends_with_an_open_transaction(root: Path) -> None:
    code = """
        from txfiles import FileTransaction
        tx = FileTransaction(sys.argv[1]).begin()
        tx.write("a", "x")
    """
    done = run_python(code, root)
    assert done.returncode == 0
    assert tree(root) == {}
    assert _at_rest(root)


def test_the_repr_tells_root_and_state(root: Path) -> None:
    tx = FileTransaction(root)
    assert repr(tx) == f"<FileTransaction {str(root)!r} new>"
    tx.begin()
    assert repr(tx).endswith("open>")
    tx.commit()
    assert repr(tx).endswith("ended>")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"durability": "none"}, "durability"),
        ({"durability": None}, "durability"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": "10"}, "timeout"),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [FileTransaction, FileStore])
def test_settings_are_checked_when_the_object_is_made(root: Path, make: Any, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(root, **settings)
    with pytest.raises(TypeError):
        make(root, "full")
    assert not (root / ".txfiles").exists()


# -- threads --------------------------------------------------------------------------------------------------------


def _in_thread(work: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_handed_from_thread_to_thread(root: Path, end: str) -> None:
    tx = FileTransaction(root)
    _in_thread(tx.begin)
    tx.write("a", "x")
    _in_thread(lambda: tx.write("b", "x"))
    _in_thread(getattr(tx, end))
    assert tree(root) == ({"a": b"x", "b": b"x"} if end == "commit" else {})
    assert _at_rest(root)


def test_sixteen_threads_on_one_transaction(root: Path) -> None:
    together = threading.Barrier(16)

    def work(tx: FileTransaction, number: int) -> None:
        together.wait()
        for again in range(10):
            tx.write(f"shared/{again}", str(number))
            tx.write(f"{number}/{again}", (part for part in (b"a", b"b")))
            assert tx.read(f"{number}/{again}") == b"ab"
            with pytest.raises(Error), tx.savepoint():
                tx.write(f"{number}/{again}", "undone")
                raise Error
            tx.move(f"{number}/{again}", f"{number}/moved {again}")
            assert len(tx.listdir(str(number))) == again + 1

    with FileTransaction(root) as tx:
        threads = [threading.Thread(target=work, args=(tx, number)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(tx.glob("**")) == 170
    found = tree(root)
    assert {found[f"{number}/moved {again}"] for number in range(16) for again in range(10)} == {b"ab"}
    assert _at_rest(root)


def test_a_commit_waits_for_a_call_of_another_thread(root: Path) -> None:
    half, rest = threading.Event(), threading.Event()

    def data() -> Iterator[bytes]:
        yield b"one "
        half.set()
        rest.wait(60)
        yield b"two"

    tx = FileTransaction(root).begin()
    writing = threading.Thread(target=tx.write, args=("a", data()))
    writing.start()
    half.wait(60)
    committing = threading.Thread(target=tx.commit)
    committing.start()
    committing.join(0.05)
    assert committing.is_alive()
    rest.set()
    writing.join()
    committing.join()
    assert tree(root) == {"a": b"one two"}


def test_two_threads_that_commit(root: Path) -> None:
    """One does, and the other is told that it is over."""
    for _ in range(20):
        tx = FileTransaction(root).begin()
        tx.write("a", "x")
        ends: list[object] = []
        together = threading.Barrier(2)

        def end(tx: FileTransaction = tx, ends: list[object] = ends, together: threading.Barrier = together) -> None:
            together.wait()
            try:
                ends.append(tx.commit())  # type: ignore[func-returns-value]
            except TransactionClosedError:
                ends.append("closed")

        threads = [threading.Thread(target=end) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(str, ends)) == ["None", "closed"]


def test_writers_in_threads_take_turns(root: Path) -> None:
    def work() -> None:
        for _ in range(10):
            with FileTransaction(root, durability="process") as tx:
                tx.write("n", str(int(tx.read("n")) + 1))

    with FileTransaction(root) as tx:
        tx.write("n", "0")
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (root / "n").read_text(encoding="utf-8") == "80"


# -- waiting --------------------------------------------------------------------------------------------------------


def test_no_time_to_wait(root: Path) -> None:
    with FileTransaction(root):

        def second() -> None:
            with pytest.raises(LockTimeoutError) as caught:
                FileTransaction(root, timeout=0).begin()
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.outcome == "before"
            assert caught.value.path is not None
            with pytest.raises(LockTimeoutError):
                FileTransaction(root, timeout=0.05).begin()

        _in_thread(second)
    assert _at_rest(root)


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_waiting_until_it_is_free(root: Path, timeout: float | None) -> None:
    tx = FileTransaction(root).begin()
    tx.write("a", "1")

    def second() -> None:
        with FileTransaction(root, timeout=timeout) as later:
            later.write("a", later.read("a") + b"2")

    thread = threading.Thread(target=second)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    tx.commit()
    thread.join()
    assert tree(root) == {"a": b"12"}


# -- fork -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_a_forked_child_is_refused(root: Path, call: str) -> None:
    (root / "a").write_text("old", encoding="utf-8")
    with FileTransaction(root) as tx:
        tx.write("a", "new")
        before = _private(root)
        child = os.fork()
        if child == 0:
            try:
                CALLS[call](tx)
            except TransactionClosedError as error:
                os._exit(0 if "process that began it" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert _private(root) == before
    assert tree(root) == {"a": b"new"}
    assert _at_rest(root)


def test_a_stream_in_a_forked_child_writes_nothing(root: Path) -> None:
    with FileTransaction(root) as tx, tx.open("a", "wb") as stream:
        stream.write(b"parent")
        child = os.fork()
        if child == 0:
            try:
                stream.write(b"child")
                stream.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    assert tree(root) == {"a": b"parent"}
