"""Who waits for the lock is woken by whoever frees it, in the order of arrival, and nobody depends on that."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.procs import Child, child
from txfiles._disk import bell, pace, system
from txfiles._disk import lock as _lock
from txfiles._format import layout
from txfiles.errors import LockTimeoutError

FS = system.KernelFS()

LOCK = """
from txfiles._disk import lock as _lock, pace, system
fs, root = system.current(), os.fsencode(sys.argv[1])
private_fd = fs.open_dir(None, root + b"/.txfiles")
lock = _lock.make_lock(fs, private_fd, root)
pace._ASLEEP = 600, 600  # only the bell wakes
"""
WAIT = LOCK + "print('waiting'); lock.acquire(None, 1); print('held'); input(); lock.release(); print('released')"


@pytest.fixture
def home(root: Path) -> Path:
    (root / ".txfiles").mkdir(mode=0o700)
    (root / ".txfiles" / "format").write_bytes(layout.FORMAT_TEXT)
    return root


@pytest.fixture
def private_fd(home: Path) -> Iterator[int]:
    fd = FS.open_dir(None, os.fsencode(home / ".txfiles"))
    yield fd
    FS.close(fd)


def _lock_of(home: Path, private_fd: int) -> _lock.RootLock:
    return _lock.RootLock(FS, private_fd, os.fsencode(home))


def _sleeps(process: Child) -> None:
    """Wait until its main thread sleeps in the kernel until the bell rings."""
    process.expect("waiting")
    until = time.monotonic() + 30
    while not Path(f"/proc/{process.pid}/syscall").read_text(encoding="ascii").startswith(f"{bell._FUTEX} "):
        assert time.monotonic() < until
        time.sleep(0.001)


def test_waiting_processes_are_woken_in_the_order_of_their_arrival(home: Path, private_fd: int) -> None:
    lock = _lock_of(home, private_fd)
    lock.acquire(0, 1)
    with ExitStack() as stack:
        waiting = []
        for _ in range(3):
            waiting.append(stack.enter_context(child(WAIT, home)))
            _sleeps(waiting[-1])
        lock.release()
        for process in waiting:
            process.expect("held")
            process.send()
            process.expect("released")
            process.finish().check()


def test_who_has_woken_somebody_comes_after_him(home: Path, private_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_ASLEEP", (600, 600))
    first, second = _lock_of(home, private_fd), _lock_of(home, private_fd)
    code = LOCK + "print('waiting'); lock.acquire(None, 1); open(sys.argv[2], 'x'); lock.release(); lock = None"
    with child(code, home, home / "was there") as process:
        first.acquire(0, 1)
        _sleeps(process)
        first.release()
        second.acquire(60, 1)
        assert (home / "was there").exists()
        process.finish().check()
    second.release()


def test_a_holder_that_is_killed_rings_no_bell(home: Path, private_fd: int) -> None:
    with child(LOCK + "lock.acquire(0, 1); print('held'); input()", home) as process:
        process.expect("held")
        code = LOCK + "pace._ASLEEP = 0.01, 0.01; print('waiting'); lock.acquire(60, 1); print('held')"
        with child(code, home) as waiting:
            _sleeps(waiting)
            process.kill()
            waiting.expect("held")
            waiting.finish().check()


def test_nobody_sleeps_for_longer_than_twice_as_long_as_he_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 5000.0)
    wait = pace.Wait(None, "lock")
    slept: list[float] = []

    def sleep(seconds: float) -> bool:
        slept.append(seconds)
        return False

    for waited in (0, 0.1, 1000):
        wait._began = 5000.0 - waited
        wait.sleep(sleep)
    assert 0 < slept[0] <= pace._ASLEEP[0]
    assert 0.1 < slept[1] < 0.3
    assert 0.5 < slept[2] <= pace._ASLEEP[1]


def test_the_timeout_ends_a_sleep(home: Path, private_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_ASLEEP", (600, 600))
    with child(LOCK + "lock.acquire(0, 1); print('held'); input()", home) as process:
        process.expect("held")
        with pytest.raises(LockTimeoutError):
            _lock_of(home, private_fd).acquire(0.05, 1)


def test_a_sleep_is_given_up(home: Path, private_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_ASLEEP", (600, 600))
    with child(LOCK + "lock.acquire(0, 1); print('held'); input()", home) as process:
        process.expect("held")
        lock = _lock_of(home, private_fd)
        caught: list[Exception] = []

        def wait() -> None:
            try:
                lock.acquire(None, 1)
            except LockTimeoutError as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        while thread.is_alive():
            lock.stop_waiting()
            thread.join(0.01)
        assert len(caught) == 1


@pytest.mark.parametrize("lacking", ["system", "format", "other content"])
def test_without_a_bell_all_poll(home: Path, private_fd: int, lacking: str) -> None:
    if lacking == "format":
        (home / ".txfiles" / "format").unlink()
    if lacking == "other content":
        (home / ".txfiles" / "format").write_bytes(b"torn")
    none = "from txfiles._disk import bell; bell._FUTEX = -1\n" if lacking == "system" else ""
    with child(LOCK + "lock.acquire(0, 1); print('held'); input(); lock.release()", home) as process:
        process.expect("held")
        with child(none + LOCK + "print('waiting'); lock.acquire(60, 1); print('held')", home) as waiting:
            waiting.expect("waiting")
            process.send()
            waiting.expect("held")
            waiting.finish().check()
    (home / ".txfiles" / "format").write_bytes(layout.FORMAT_TEXT)


def test_it_keeps_no_page(home: Path, private_fd: int) -> None:
    """That would keep the file system from being unmounted."""
    assert bell.ring(private_fd) == 0
    assert bell.wait(private_fd, 0) is False
    assert "/.txfiles/format" not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_there_is_none_where_the_file_is_another(home: Path, private_fd: int) -> None:
    (home / ".txfiles" / "format").write_bytes(b"torn")
    assert bell.wait(private_fd, 60) is None
    (home / ".txfiles" / "format").write_bytes(b"")
    assert bell.wait(private_fd, 60) is None
    (home / ".txfiles" / "format").unlink()
    assert bell.wait(private_fd, 60) is None
    assert bell.ring(private_fd) == 0


def test_a_turn_goes_on_for_a_moment_and_wakes_the_next_once(
    home: Path, private_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While he asks: after it another is woken, should he have fallen asleep again."""
    queue, wait = pace.Pace(), pace.Wait(None, "lock")
    rings: list[int] = []
    now = [100.0]
    monkeypatch.setattr(bell, "ring", lambda *_: rings.append(1) or 1)  # type: ignore[func-returns-value]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    queue.met_others()
    for _ in range(3):
        queue.freed(private_fd)
        queue.begin(wait, lambda _: pytest.fail("the turn is not over"))
    assert len(rings) == 1
    now[0] += 2 * pace._TURN
    queue.freed(private_fd)
    assert len(rings) == 2
    slept: list[float] = []
    queue.begin(wait, lambda seconds: slept.append(seconds) or True)  # type: ignore[func-returns-value]
    assert len(slept) == 1
    queue.freed(private_fd)
    assert len(rings) == 3


def test_nobody_is_looked_for_again_at_once(home: Path, private_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pace._ASLEEP[0] / 2 > pace._TURN, "who comes meanwhile has not begun a long sleep"
    queue, now, rings = pace.Pace(), [100.0], list[float]()
    monkeypatch.setattr(bell, "ring", lambda *_: rings.append(now[0]) or 0)  # type: ignore[func-returns-value]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for _ in range(9):
        queue.freed(private_fd)
        now[0] += pace._TURN / 3
    assert len(rings) == 3
    queue.met_others()
    queue.freed(private_fd)
    queue.met_others()
    queue.freed(private_fd)
    assert len(rings) == 5


def test_who_was_woken_asks_every_moment_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    wait = pace.Wait(None, "lock")
    heard: list[float] = []

    def listen(seconds: float) -> bool:
        heard.append(seconds)
        return True

    wait.sleep(listen)
    for _ in range(3):
        wait.sleep(listen)
    assert (len(heard), len(naps)) == (1, 3)
    assert all(nap <= pace._POLL for nap in naps)
    now[0] += pace._NEXT
    wait.sleep(listen)
    assert (len(heard), len(naps)) == (2, 3)
