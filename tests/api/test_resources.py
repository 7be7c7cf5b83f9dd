"""What a process has for a while is given back, also after interrupts, and one that has no more of it hears of it."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.inject import Fault, traced
from tests.support.procs import run_python
from txfiles import Durability, FileTransaction
from txfiles._disk import fsyncs, system

_INTERRUPTED = """
    import gc
    from txfiles import FileStore, FileTransaction
    from txfiles.errors import TxFilesError
    root, interrupts = sys.argv[1], 0

    def descriptors():
        gc.collect()
        return {(name, os.readlink(f"/proc/self/fd/{name}")) for name in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{name}")}

    def work(number):
        with FileTransaction(root, durability=("full", "process")[number % 4 > 0]) as tx:
            for name in ("a", "sub/b", "sub/deep/c"):
                tx.write(name, str(number))
            tx.read("a"), tx.listdir("sub")
        with FileStore(root).snapshot() as snap:
            snap.read("sub/b"), snap.glob("**")

    def interrupt(*_):
        raise KeyboardInterrupt

    work(0)
    before = descriptors()
    signal.signal(signal.SIGALRM, interrupt)
    number = 0
    while interrupts < 500:
        number += 1
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + number % 89 * 0.00005)
                work(number)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
        except KeyboardInterrupt:
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(sorted(descriptors() - before))
    work(-1)
"""


def test_interrupts_leave_no_descriptor_open(root: Path) -> None:
    assert run_python(_INTERRUPTED, root, timeout=200).check().stdout == "[]\n"


def test_a_descriptor_that_nobody_has_is_closed(root: Path) -> None:
    fs = system.KernelFS()
    fd = fs.open_dir(None, os.fsencode(root))
    number = int(fd)
    os.fstat(number)
    del fd
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_one_that_was_closed_closes_nothing_else(root: Path) -> None:
    fs = system.KernelFS()
    fd = fs.open_dir(None, os.fsencode(root))
    fs.close(fd)
    again = os.open(root, os.O_RDONLY)
    assert again == fd
    del fd
    os.fstat(again)
    os.close(again)


@pytest.mark.parametrize("durability", ["process", "journal"])
def test_no_descriptor_waits_for_a_sync_that_does_not_come(root: Path, durability: Durability) -> None:
    with FileTransaction(root, durability=durability) as tx:
        tx.write("0", b"")
        before = os.listdir("/proc/self/fd")
        for number in range(1, 20):
            tx.write(str(number), b"some")
        assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_forked_child_closes_nothing_by_itself(root: Path) -> None:
    """There the number may be closed by other means, and be used again."""
    code = """
        from txfiles._disk import system
        fs = system.KernelFS()
        for generation in range(2):
            fd = fs.open_dir(None, os.fsencode(sys.argv[1]))
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0
                fs.close(fd)
                break
            number = int(fd)
            del fd
            os.fstat(number)
            os.close(number)
    """
    run_python(code, root).check()


@pytest.fixture
def _contexts() -> Iterator[None]:
    kept, fsyncs._idle[:] = list(fsyncs._idle), []
    yield
    fsyncs._idle[:] = kept


@pytest.mark.usefixtures("_contexts")
def test_a_process_takes_a_few_contexts_of_those_that_all_share() -> None:
    before = len(fsyncs._all)
    taken = [fsyncs.take_context() for _ in range(40)]
    assert sum(context is not None for context in taken) == fsyncs.CONTEXTS - before
    context = taken[0]
    assert context is not None
    fsyncs.give_context(context, None)
    assert fsyncs.take_context() is context


@pytest.mark.needs("strace")
def test_a_context_ends_with_its_last_reference(root: Path) -> None:
    code = """
        with region():
            fsyncs._refused = False
            context = fsyncs.take_context()
            del context
    """
    done = traced(code, calls=("io_setup", "io_destroy"))
    done.check()
    assert [call.name for call in done.calls] == ["io_setup", "io_destroy"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EIO])
def test_a_umask_that_cannot_be_read_now_is_not_guessed(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with FileTransaction(root) as tx:
        monkeypatch.setattr(system, "open", fail, raising=False)
        with pytest.raises(OSError) as caught:
            tx.write("a", "x")
        monkeypatch.undo()
        assert caught.value.errno == number
        assert not tx.exists("a")


@pytest.mark.parametrize("state", ["open", "prepared", "snapshot"])
def test_what_is_held_when_the_interpreter_ends(root: Path, state: str) -> None:
    code = """
        from txfiles import FileStore, FileTransaction
        tx = FileTransaction(sys.argv[1]).begin()
        tx.write("a", "x")
        if sys.argv[2] == "prepared":
            tx.prepare()
        if sys.argv[2] == "snapshot":
            tx.commit()
            tx = FileStore(sys.argv[1]).snapshot()
            tx.__enter__()
        class Cycle: pass
        held = Cycle()
        held.it, held.tx = held, tx
    """
    quiet = {"PYTHONDEVMODE": "", "PYTHONWARNINGS": "ignore"}  # which would tell of what is held
    done = run_python(code, root, state, env=quiet).check()
    assert done.stderr == ""
    from txfiles import recover, rollback_prepared

    for waiting in recover(root).waiting:
        rollback_prepared(root, waiting.transaction_id)
    gc.collect()


@pytest.mark.needs("strace")
@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
def test_a_filter_of_system_calls_that_does_not_know_statx(root: Path, error: str) -> None:
    code = """
        from txfiles import FileTransaction
        def save(text):
            with FileTransaction(sys.argv[1]) as tx:
                tx.write("a", text)
                tx.write("sub/b", text)
        save("x")
        with region():
            save("y")
    """
    traced(code, root, faults=[Fault("statx", error=error, when="1+")]).check()
    assert (root / "sub/b").read_text(encoding="utf-8") == "y"
