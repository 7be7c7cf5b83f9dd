"""Rounds of syncs, and the fsyncs that the kernel does together."""

from __future__ import annotations

import _thread
import errno
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.boundary import doing
from tests.support.inject import Fault, traced
from tests.support.procs import run_python
from txfiles import _fs, _fsyncs, _rounds, recover, status

if TYPE_CHECKING:
    from txfiles._rounds import Steps

fs = _fs.KernelFS()
FEW, MANY = _rounds.PARALLEL_FROM - 1, _rounds.PARALLEL_FROM
COUNTS = [1, 3, FEW, MANY, 100]


@pytest.fixture(params=["by the kernel", "without"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without":
        monkeypatch.setattr(_fsyncs, "take_context", lambda: None)
    return str(request.param)


@pytest.fixture
def pipe() -> Iterator[int]:
    """A descriptor for which fsync(2) is EINVAL."""
    reader, writer = os.pipe()
    yield reader
    os.close(reader)
    os.close(writer)


# -- all of them, whatever goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", COUNTS)
def test_all_are_done_and_a_failure_is_raised(how: str, count: int) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)
        if number in (0, count - 1):
            raise OSError(errno.EIO, f"job {number}")

    with pytest.raises(OSError, match="job 0" if count < MANY or how == "by the kernel" else "job"):
        fs.run_all([doing(partial(work, number)) for number in range(count)])
    assert sorted(done) == list(range(count))
    fs.run_all(doing(partial(done.append, number)) for number in range(count))
    assert len(done) == 2 * count


def test_of_nothing(how: str) -> None:
    fs.run_all([])


@pytest.mark.parametrize("count", COUNTS)
def test_a_failure_is_never_hidden_by_an_interrupt(how: str, count: int) -> None:
    """Whoever does the jobs again after an interrupt must know that a sync has failed: it is reported once (A4)."""

    def work(number: int) -> None:
        if number == 0:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.02)
        if number == count - 1:
            raise OSError(errno.EIO, "the disk")

    if count > 1:
        with pytest.raises(OSError, match="the disk"):
            fs.run_all([doing(partial(work, number)) for number in range(count)])


def test_nor_by_one_that_comes_while_it_is_on_its_way(how: str) -> None:
    def work() -> None:
        try:
            raise OSError(errno.EIO, "the disk")
        finally:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(OSError, match="the disk"):
        fs.run_all([doing(work)])


@pytest.mark.parametrize("count", COUNTS)
def test_an_interrupt_alone_comes_through_when_all_is_done(how: str, count: int) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 0:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)
        done.append(number)

    try:
        raise ValueError("an error that is being handled is no failure of a job")
    except ValueError:
        with pytest.raises(KeyboardInterrupt):
            fs.run_all([doing(partial(work, number)) for number in range(count)])
    assert set(range(1, count)) <= set(done)


# -- a job and its sync -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [*COUNTS, 2 * _fsyncs.AT_ONCE + 1])
def test_a_job_goes_on_after_its_sync_and_learns_of_its_failure(
    how: str, count: int, tmp_path: Path, pipe: int
) -> None:
    told: list[tuple[int, int]] = []

    def job(number: int) -> Steps:
        fd = pipe if number % 10 == 1 else os.open(tmp_path, os.O_RDONLY)
        try:
            yield fs.sync_dir, fd
        except OSError as error:
            told.append((number, error.errno or 0))
            raise
        else:
            told.append((number, 0))
        finally:
            if fd != pipe:
                os.close(fd)

    jobs = [partial(job, number) for number in range(count)]
    if count > 1:
        with pytest.raises(OSError, match="Invalid argument"):
            fs.run_all(jobs)
    else:
        fs.run_all(jobs)
    assert sorted(told) == [(number, errno.EINVAL if number % 10 == 1 else 0) for number in range(count)]


def test_a_sync_that_is_not_the_kernels_is_called() -> None:
    class Other(_fs.KernelFS):
        def sync_file(self, fd: int) -> None:
            synced.append(fd)

    synced: list[int] = []
    other = Other()

    def job(number: int) -> Steps:
        yield other.sync_file, number
        yield other.sync_file, -number

    other.run_all([partial(job, number) for number in range(1, 30)])
    assert sorted(synced) == [*range(-29, 0), *range(1, 30)]


def test_no_more_descriptors_than_a_part_of_those_that_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_rounds, "_descriptors", lambda: 64)
    opened: set[int] = set()
    most = 0

    def job() -> Steps:
        nonlocal most
        opened.add(fd := os.open(tmp_path, os.O_RDONLY))
        most = max(most, len(opened))
        try:
            yield fs.sync_dir, fd
        finally:
            os.close(fd)
            opened.discard(fd)

    fs.run_all([job] * 100)
    assert most == 8


# -- by threads -------------------------------------------------------------------------------------------------------


def test_without_the_kernel_many_jobs_are_done_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fsyncs, "take_context", lambda: None)
    together = threading.Barrier(_rounds.THREADS, timeout=20)
    fs.run_all([doing(together.wait)] * (_rounds.THREADS * 3))


@pytest.mark.parametrize("allowed", [0, 1])
def test_with_fewer_threads(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fsyncs, "take_context", lambda: None)
    start, started = _thread.start_new_thread, itertools.count()

    def limited(*args: Any) -> int:
        if next(started) >= allowed:
            raise RuntimeError("can't start new thread")
        return start(*args)

    monkeypatch.setattr(_thread, "start_new_thread", limited)
    done: list[int] = []
    fs.run_all([doing(partial(done.append, number)) for number in range(50)])
    assert sorted(done) == list(range(50))


@pytest.mark.parametrize("refused", [True, False])
def test_while_the_interpreter_ends(refused: bool) -> None:
    code = f"""
        import atexit
        from txfiles import _fsyncs
        from txfiles._fs import KernelFS
        _fsyncs._refused = {refused}
        done = []
        def job():
            done.append(1)
            yield from ()
        atexit.register(lambda: print(len(done)))
        atexit.register(lambda: KernelFS().run_all([job] * 100))
    """
    assert run_python(code).check().stdout == "100\n"


# -- the kernel's fsyncs ----------------------------------------------------------------------------------------------


def fsync_all(fds: list[int]) -> Sequence[int | None]:
    context = _fsyncs.take_context()
    assert context is not None
    batch = _fsyncs.Batch(fds, context)
    interrupts: list[BaseException] = []
    batch.run(interrupts)
    _fsyncs.give_context(context)
    assert interrupts == []
    return batch.codes()


def fsync_here(path: Path, count: int) -> Sequence[int | None]:
    fds = [os.open(path, os.O_RDONLY) for _ in range(count)]
    try:
        return fsync_all(fds)
    finally:
        for fd in fds:
            os.close(fd)


def test_every_fsync_has_its_own_result(tmp_path: Path, pipe: int) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert fsync_all([fd, fd, pipe, fd]) == [0, 0, errno.EINVAL, 0]
        assert fsync_all([pipe, fd]) == [errno.EINVAL, 0]
    finally:
        os.close(fd)
    assert fsync_here(tmp_path, _fsyncs.AT_ONCE) == [0] * _fsyncs.AT_ONCE


def test_a_context_is_used_again(tmp_path: Path) -> None:
    fsync_here(tmp_path, 1)
    before = list(_fsyncs._idle)
    for _ in range(20):
        fsync_here(tmp_path, 2)
    assert before == _fsyncs._idle != []


def test_a_forked_child_and_threads_have_contexts_of_their_own(tmp_path: Path) -> None:
    assert fsync_here(tmp_path, 3) == [0] * 3
    child = os.fork()
    if child == 0:
        os._exit(0 if fsync_here(tmp_path, 20) == [0] * 20 else 1)
    assert os.waitpid(child, 0)[1] == 0
    results: list[Sequence[int | None]] = []
    threads = [threading.Thread(target=lambda: results.append(fsync_here(tmp_path, 20))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[0] * 20] * 5


class Interrupt:
    """Raises at the `number`-th event in the two modules."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.endswith(("/_rounds.py", "/_fsyncs.py")):
            return None
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self


def test_no_interrupt_between_two_lines_hides_what_the_kernel_said(tmp_path: Path, pipe: int) -> None:
    """A sync that has been made has told its job of the failure, or raises it, wherever the interrupt comes."""
    directory = os.open(tmp_path, os.O_RDONLY)
    context = _fsyncs.take_context()
    assert context is not None
    try:
        for number in itertools.count(1):
            batch = _fsyncs.Batch([directory, pipe, directory], context)
            interrupts: list[BaseException] = []
            tracer = Interrupt(number)
            sys.settrace(tracer)
            try:
                batch.run(interrupts)
            except KeyboardInterrupt:
                assert batch.codes() in ([None] * 3, [0, errno.EINVAL, 0]), f"event {number}"
                continue
            finally:
                sys.settrace(None)
            assert batch.codes() == [0, errno.EINVAL, 0], f"event {number}"
            if tracer.left > 0:
                assert number > 10
                assert interrupts == []
                break
            assert [type(interrupt) for interrupt in interrupts] == [KeyboardInterrupt]
    finally:
        os.close(directory)


@pytest.mark.needs("strace")
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("io_setup", "ENOSYS"),
        ("io_setup", "EAGAIN"),
        ("io_submit", "EAGAIN"),
        ("io_getevents", "EPERM"),
        ("sync_file_range", "ENOSYS"),
    ],
)
def test_what_the_kernel_does_not_do_together_is_done_one_by_one(tmp_path: Path, call: str, error: str) -> None:
    done = traced(_TOGETHER, tmp_path, faults=[Fault(call, error=error, when="1+")])
    done.check()
    assert len(done.named("fsync")) == 5
    done = traced(_TOGETHER, tmp_path, calls=("fsync", "io_submit"))
    done.check()
    assert [call.name for call in done.calls] == ["io_submit"]


_TOGETHER = """
    from txfiles._fs import KernelFS
    _fsyncs._refused = False
    fs = KernelFS()
    at = os.open(sys.argv[1], os.O_RDONLY)
    fds = [os.open(f"{sys.argv[1]}/{name}", os.O_CREAT | os.O_WRONLY) for name in "abcde"]
    for fd in fds:
        os.write(fd, b"x")
    def job(fd):
        yield fs.sync_file, fd
    from functools import partial
    with region():
        fs.run_all([partial(job, fd) for fd in fds])
"""


@pytest.mark.needs("strace")
def test_all_data_is_written_before_the_first_fsync(tmp_path: Path) -> None:
    done = traced(_TOGETHER, tmp_path, calls=("sync_file_range", "io_submit", "fsync"))
    done.check()
    assert [call.name for call in done.calls if call.args.split(",")[0] != "-1"] == [
        *["sync_file_range"] * 5,
        "io_submit",
    ]


@pytest.mark.needs("strace")
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_write_is_raised_because_fsync_does_not_tell_of_it_again(tmp_path: Path, error: str) -> None:
    """The kernel tells of a failed write once for each open descriptor, by whichever call asks first (fsync(2))."""
    done = traced(_TOGETHER, tmp_path, faults=[Fault("sync_file_range", error=error, when=4)])
    assert f"[Errno {getattr(errno, error)}]" in done.stderr


_COMMIT = """
    from txfiles import FileTransaction
    _fsyncs._refused = False
    with FileTransaction(sys.argv[1]) as tx:
        for name in "abcd":
            tx.write(name, b"before")
    tx = FileTransaction(sys.argv[1]).begin()
    for name in "abcd":
        tx.write(name, b"after")
    with region():
        tx.commit()
"""


@pytest.mark.needs("strace")
def test_a_commit_issues_its_first_round_together(tmp_path: Path) -> None:
    done = traced(_COMMIT, tmp_path, calls=("io_submit", "fsync"))
    done.check()
    assert [call.name for call in done.calls] == ["io_submit", "fsync", "fsync"]
    assert done.calls[0].result == "6"  # four files, the journal, the private directory


@pytest.mark.needs("strace")
@pytest.mark.parametrize("call", ["io_submit", "io_getevents"])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_killed_or_interrupted_in_a_round(tmp_path: Path, call: str, name: str) -> None:
    done = traced(_COMMIT, tmp_path, faults=[Fault(call, signal=name)])
    assert done.returncode != 0
    assert ("KeyboardInterrupt" in done.stderr) == (name == "SIGINT")
    if name == "SIGINT":
        assert status(tmp_path).clean
    recover(tmp_path)
    assert {(tmp_path / letter).read_bytes() for letter in "abcd"} == {b"before"}
