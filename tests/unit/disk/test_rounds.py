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
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.boundary import doing
from tests.support.inject import Fault, traced
from tests.support.procs import run_python
from txfiles import recover, status
from txfiles._disk import fsyncs, rounds, system

if TYPE_CHECKING:
    from txfiles._disk.rounds import Steps

fs = system.KernelFS()
FEW, MANY = rounds.PARALLEL_FROM - 1, rounds.PARALLEL_FROM
COUNTS = [1, 3, FEW, MANY, 100]


@pytest.fixture(params=["by the kernel", "without"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without":
        monkeypatch.setattr(fsyncs, "take_context", lambda: None)
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


@pytest.mark.parametrize("count", [*COUNTS, 2 * fsyncs.AT_ONCE + 1])
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
    class Other(system.KernelFS):
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
    monkeypatch.setattr(rounds, "descriptors", lambda: 64)
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
    monkeypatch.setattr(fsyncs, "take_context", lambda: None)
    together = threading.Barrier(rounds.THREADS, timeout=20)
    fs.run_all([doing(together.wait)] * (rounds.THREADS * 3))


@pytest.mark.parametrize("allowed", [0, 1])
def test_with_fewer_threads(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsyncs, "take_context", lambda: None)
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
        from txfiles._disk import fsyncs
        from txfiles._disk.system import KernelFS
        fsyncs._refused = {refused}
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
    context = fsyncs.take_context()
    assert context is not None
    batch = fsyncs.Batch(fds, context)
    interrupts: list[BaseException] = []
    batch.run(interrupts)
    fsyncs.give_context(context, batch)
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
    assert fsync_here(tmp_path, fsyncs.AT_ONCE) == [0] * fsyncs.AT_ONCE


def test_a_context_is_used_again(tmp_path: Path) -> None:
    fsync_here(tmp_path, 1)
    before = list(fsyncs._idle)
    for _ in range(20):
        fsync_here(tmp_path, 2)
    assert before == fsyncs._idle != []


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
    """Raises at each line or call in the two modules whose number is given."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers
        self.seen = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.endswith(("/rounds.py", "/fsyncs.py")):
            return None
        self.seen += event in ("call", "line")
        if event in ("call", "line") and self.seen in self.numbers:
            raise KeyboardInterrupt
        return self


def interrupted(work: Callable[[], object], *numbers: int) -> tuple[bool, BaseException | None]:
    """Whether there was an event of the first number, and what was raised."""
    tracer = Interrupt(*numbers)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        work()
    except BaseException as error:
        return tracer.seen >= numbers[0], error
    finally:
        sys.settrace(before)
    return tracer.seen >= numbers[0], None


@pytest.mark.parametrize("more", [(), (1,), (2,), (1, 2, 3)])
def test_no_interrupt_makes_a_sync_done_that_is_not(tmp_path: Path, pipe: int, more: tuple[int, ...]) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        for number in itertools.count(1):
            context = fsyncs.take_context()
            assert context is not None
            batch = fsyncs.Batch([directory, pipe, directory], context)
            happened, _ = interrupted(lambda batch=batch: batch.run([]), number, *(number + n for n in more))  # type: ignore[misc]
            made = {*batch._alone, *(number for number, *_ in batch._ended())}
            assert {n for n, code in enumerate(batch.codes()) if code == 0} <= made, f"event {number}"
            if not more:
                assert batch.codes() in ([None] * 3, [0, errno.EINVAL, 0]), f"event {number}"
            fsyncs.give_context(context, batch)
            assert fsync_here(tmp_path, 2) == [0, 0]
            if not happened:
                break
        assert number > 10
    finally:
        os.close(directory)


def test_no_interrupt_hides_a_failure(tmp_path: Path, pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of it once. Only in the line that raises what was found can an interrupt come before it."""
    asked: list[int] = []

    def fsync(fd: int) -> int:
        asked.append(fd)
        return errno.EIO if len(asked) == 1 else 0

    def job(fd: int) -> Steps:
        yield fs.sync_dir, fd

    monkeypatch.setattr(fsyncs, "_fsync", fsync)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        for number in itertools.count(1):
            asked.clear()
            jobs = [partial(job, fd) for fd in (directory, pipe, directory)]
            happened, error = interrupted(lambda jobs=jobs: fs.run_all(jobs), number)  # type: ignore[misc]
            if asked and not isinstance(error, OSError):
                assert isinstance(error, KeyboardInterrupt)
                lines = [summary.line for summary in traceback.extract_tb(error.__traceback__)]
                assert "_raise_first(errors, outer)" in lines, f"event {number}: {lines}"
            if not happened:
                assert isinstance(error, OSError)
                break
        assert number > 50
    finally:
        os.close(directory)


def test_what_a_worker_may_not_do_is_done_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EOVERFLOW of FUSE in a user namespace, say: it is no answer of the disk."""
    real = fsyncs.Batch._ended
    here: list[int] = []
    monkeypatch.setattr(
        fsyncs.Batch, "_ended", lambda batch: [(n, at, -errno.EOVERFLOW, 0) for n, at, _, _ in real(batch)]
    )

    def fsync(fd: int) -> int:
        here.append(fd)
        return errno.EIO if len(here) == 2 else 0

    monkeypatch.setattr(fsyncs, "_fsync", fsync)
    assert sorted(code or 0 for code in fsync_here(tmp_path, 3)) == [0, 0, errno.EIO]


def test_jobs_wait_while_there_are_no_more_descriptors(tmp_path: Path) -> None:
    opened: set[int] = set()
    done = []

    def job() -> Steps:
        if len(opened) == 3:
            raise OSError(errno.EMFILE, "Too many open files")
        opened.add(fd := os.open(tmp_path, os.O_RDONLY))
        try:
            yield fs.sync_dir, fd
        finally:
            os.close(fd)
            opened.discard(fd)
        done.append(1)

    fs.run_all([job] * 20)
    assert len(done) == 20


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
    from txfiles._disk.system import KernelFS
    fsyncs._refused = False
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
def test_a_filter_that_comes_later_forbids_only_what_is_a_hint(tmp_path: Path) -> None:
    fault = Fault("sync_file_range", error="EPERM", when="2+")
    done = traced(_TOGETHER, tmp_path, faults=[fault], calls=("io_submit", "fsync"))
    done.check()
    assert [call.name for call in done.calls if call.name != fault.call] == ["io_submit"]


@pytest.mark.needs("strace")
def test_where_no_answer_is_to_be_had_it_is_a_failure(tmp_path: Path) -> None:
    done = traced(_TOGETHER, tmp_path, faults=[Fault("io_getevents", error="EINVAL", when="2+")])
    assert "[Errno 5]" in done.stderr


@pytest.mark.needs("strace")
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_write_is_raised_because_fsync_does_not_tell_of_it_again(tmp_path: Path, error: str) -> None:
    """The kernel tells of a failed write once for each open descriptor, by whichever call asks first (fsync(2))."""
    done = traced(_TOGETHER, tmp_path, faults=[Fault("sync_file_range", error=error, when=4)])
    assert f"[Errno {getattr(errno, error)}]" in done.stderr


_COMMIT = """
    from txfiles import FileTransaction
    fsyncs._refused = False
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
