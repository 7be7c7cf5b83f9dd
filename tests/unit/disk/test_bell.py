"""Who waits for the lock is woken by whoever frees it, in the order of arrival, and nobody depends on that."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.procs import Child, child
from txfiles import FileTransaction
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
HEAR = """
from txfiles._disk import bell, system
one = bell.Bell(system.current().open_dir(None, os.fsencode(sys.argv[1]) + b"/.txfiles"))
print("waiting")
print(one.wait(int(sys.argv[2]), 600))
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


@pytest.fixture
def other_fd(home: Path) -> Iterator[int]:
    fd = FS.open_dir(None, os.fsencode(home / ".txfiles"))
    yield fd
    FS.close(fd)


def _lock_of(home: Path, private_fd: int) -> _lock.RootLock:
    return _lock.RootLock(FS, private_fd, os.fsencode(home))


def _rings(private_fd: int, monkeypatch: pytest.MonkeyPatch) -> tuple[bell.Bell, list[int]]:
    """A bell that somebody always hears, and where it was rung."""
    rung: list[int] = []
    monkeypatch.setattr(bell.Bell, "is_heard", lambda _: True)
    monkeypatch.setattr(bell.Bell, "ring", lambda _, place: rung.append(place) or place == bell.ROW)  # type: ignore[func-returns-value]
    return bell.Bell(private_fd), rung


def _sleeps(process: Child, *, said: bool = False) -> None:
    """Wait until its main thread sleeps in the kernel until the bell rings."""
    if not said:
        process.expect("waiting")
    until, place = time.monotonic() + 60, Path(f"/proc/{process.pid}")
    asleep = re.compile(rf"{bell._FUTEX} 0x[0-9a-f]+ {bell._WAIT:#x} {bell._EXPECTED:#x} ")

    def is_in_the_call() -> bool:
        return asleep.match((place / "syscall").read_text(encoding="ascii")) is not None

    # Off its processor twice, and asleep between: first it may wait for the page, or be about to stand in the row.
    while not (is_in_the_call() and ") S " in (place / "stat").read_text(encoding="ascii") and is_in_the_call()):
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
    monkeypatch.setattr(pace, "_COMES", 600)
    first, second = _lock_of(home, private_fd), _lock_of(home, private_fd)
    code = LOCK + "print('waiting'); lock.acquire(None, 1); open(sys.argv[2], 'x'); lock.release(); lock = None"
    with child(code, home, home / "was there") as process:
        first.acquire(0, 1)
        _sleeps(process)
        first.release()
        second.acquire(20, 1)
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


class _Heard(bell.Bell):
    """Tells where somebody has slept and for how long, and whether he was woken."""

    def __init__(self, *woken: bool | None) -> None:
        super().__init__(-1)
        self.slept: list[tuple[int, float]] = []
        self._woken = list(woken)

    def wait(self, place: int, seconds: float) -> bool | None:
        self.slept.append((place, seconds))
        return self._woken.pop(0)


def test_nobody_sleeps_for_longer_than_twice_as_long_as_he_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 5000.0)
    wait, heard = pace.Wait(None, "lock"), _Heard(False, False, False)
    for waited in (0, 0.1, 1000):
        wait._began = time.monotonic() - waited
        wait.sleep(heard)
    (_, first), (_, second), (_, third) = heard.slept
    assert 0 < first <= pace._ASLEEP[0]
    assert 0.1 < second < 0.3
    assert 0.5 < third <= pace._ASLEEP[1]


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


def _is_mapped() -> bool:
    return "/.txfiles/format" in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_it_keeps_no_page(home: Path, private_fd: int) -> None:
    """That would keep the file system from being unmounted."""
    with closing(bell.Bell(private_fd)) as one:
        assert not one.ring(bell.ROW)
        assert one.wait(bell.ROW, 0) is False
        assert _is_mapped()
        one.close()
        assert not _is_mapped()
        assert one.wait(bell.DOOR, 0) is False
    assert not _is_mapped()
    lock = _lock_of(home, private_fd)
    for _ in range(3):
        lock.acquire(0, 1)
        lock.release()
        assert not _is_mapped()


def test_it_is_mapped_once_while_somebody_waits(home: Path, private_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    call = os.open

    def counting(path: bytes, *args: Any, **kwargs: Any) -> int:
        opened.append(path)
        return call(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", counting)
    with closing(bell.Bell(private_fd)) as one:
        for _ in range(9):
            one.wait(bell.ROW, 0.0001)
            one.ring(bell.ROW)
    assert opened == [layout.FORMAT]


def test_a_forked_child_has_no_page(home: Path, private_fd: int) -> None:
    with closing(bell.Bell(private_fd)) as one:
        assert one.wait(bell.ROW, 0) is False
        assert _is_mapped()
        child = os.fork()
        if child == 0:
            code = 2
            with suppress(BaseException):
                one.forget()
                one.close()
                code = int(_is_mapped())
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


def test_a_file_that_was_replaced_is_noticed(home: Path, private_fd: int) -> None:
    """As where a root gets another format: those who come later have the new one."""
    with closing(bell.Bell(private_fd)) as one:
        assert not one.ring(bell.ROW)
        (home / "new").write_bytes(layout.FORMAT_TEXT)
        (home / "new").rename(home / ".txfiles" / "format")
        with child(HEAR, home, bell.ROW) as process:
            _sleeps(process)
            assert one.ring(bell.ROW)
            process.expect("True")
            process.finish().check()


def test_there_is_none_where_the_file_is_another(home: Path, private_fd: int) -> None:
    with closing(bell.Bell(private_fd)) as one:
        (home / ".txfiles" / "format").write_bytes(b"torn")
        assert one.wait(bell.ROW, 60) is None
        (home / ".txfiles" / "format").write_bytes(b"")
        assert one.wait(bell.ROW, 60) is None
        (home / ".txfiles" / "format").unlink()
        assert one.wait(bell.ROW, 60) is None
        assert not one.ring(bell.ROW)


def test_a_turn_goes_on_for_a_moment_and_wakes_the_next_once(
    home: Path, private_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it another is woken, should he have been stopped; first it is rung at the door."""
    queue, wait, now = pace.Pace(), pace.Wait(None, "lock"), [100.0]
    ringing, rung = _rings(private_fd, monkeypatch)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    queue.met_others()
    for _ in range(3):
        queue.freed(ringing)
        queue.begin(wait, _Heard())  # the turn is not over
    assert rung == [bell.DOOR, bell.ROW]
    now[0] += 2 * pace._TURN
    queue.freed(ringing)
    assert rung == [bell.DOOR, bell.ROW] * 2
    heard = _Heard(True)
    queue.begin(wait, heard)
    assert len(heard.slept) == 1
    queue.freed(ringing)
    assert rung == [bell.DOOR, bell.ROW] * 3


def test_if_nobody_comes_there_is_another_turn(private_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, now = pace.Pace(), [100.0]
    ringing, rung = _rings(private_fd, monkeypatch)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    queue.freed(ringing)
    for _ in range(3):
        now[0] += pace._TURN
        heard = _Heard(False)
        queue.begin(pace.Wait(None, "lock"), heard)
        assert heard.slept == [(bell.ROW, pace._COMES)]
        queue.freed(ringing)
        queue.begin(pace.Wait(None, "lock"), _Heard())
    assert rung == [bell.DOOR, bell.ROW]
    now[0] += pace._TURN
    queue.freed(ringing)
    assert rung == [bell.DOOR, bell.ROW] * 2


def test_nothing_is_mapped_where_nobody_sleeps(
    home: Path, private_fd: int, monkeypatch: pytest.MonkeyPatch, other_fd: int
) -> None:
    """Who sleeps is seen from the moment on in which he does, and no longer; by all but himself."""
    mapped: list[object] = []
    call = bell.Bell._page

    def page(self: bell.Bell) -> int:
        mapped.append(self)
        return call(self)

    monkeypatch.setattr(bell.Bell, "_page", page)
    lock = _lock_of(home, private_fd)
    with closing(bell.Bell(other_fd)) as other:
        for sleeps in (False, True, False):
            lock.acquire(0, 1)
            with child(HEAR, home, bell.ROW) if sleeps else nullcontext() as process:
                if process is not None:
                    _sleeps(process)
                assert other.is_heard() is sleeps
                mapped.clear()
                lock.release()
                assert len(mapped) == (2 if sleeps else 0)  # at the door, in the row
                if process is not None:
                    process.expect("True")
                    process.finish().check()
            assert not other.is_heard()
        assert other.wait(bell.ROW, 0) is False
        assert not bell.Bell(private_fd).is_heard()


def test_who_was_woken_stays_at_the_door_and_asks_every_moment() -> None:
    wait, heard = pace.Wait(None, "lock"), _Heard(False, True, False, True, False)
    for _ in range(5):
        wait.sleep(heard)
    assert [place for place, _ in heard.slept] == [bell.ROW] * 2 + [bell.DOOR] * 3
    assert all(seconds <= pace._POLL for _, seconds in heard.slept[2:])


def test_who_is_at_the_door_is_woken_before_those_in_the_row(home: Path, private_fd: int) -> None:
    with child(HEAR, home, bell.ROW) as row, child(HEAR, home, bell.DOOR) as door:
        _sleeps(row)
        _sleeps(door)
        lock = _lock_of(home, private_fd)
        lock.acquire(0, 1)
        lock.release()
        door.expect("True")
        _sleeps(row, said=True)
        _lock._queues.clear()
        lock.acquire(0, 1)
        lock.release()
        row.expect("True")
        row.finish().check()
        door.finish().check()


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_who_was_woken_and_cannot_come_holds_up_nobody(home: Path, private_fd: int, how: signal.Signals) -> None:
    """The one that has woken him goes on, and then wakes another."""
    lame = """
from txfiles._disk import bell
hear = bell.Bell.wait
def wait(self, place, seconds):
    woken = hear(self, place, seconds)
    if woken and not os.path.lexists(sys.argv[3]):
        os.symlink(str(os.getpid()), sys.argv[3])
        os.kill(os.getpid(), int(sys.argv[2]))
    return woken
bell.Bell.wait = wait
"""
    lock, first = _lock_of(home, private_fd), home / "first"
    lock.acquire(0, 1)
    with child(lame + WAIT, home, int(how), first) as one, child(lame + WAIT, home, int(how), first) as other:
        _sleeps(one)
        _sleeps(other)
        lock.release()
        until = time.monotonic() + 60
        while not first.is_symlink():
            assert time.monotonic() < until
            time.sleep(0.001)
        second = other if int(os.readlink(first)) == one.pid else one
        lock.acquire(60, 1)
        time.sleep(pace._TURN)
        lock.release()
        second.expect("held")
        second.send()
        second.expect("released")
        second.finish().check()
        one.kill()
        other.kill()


@pytest.mark.needs("users")
def test_a_member_of_the_group_hears_a_bell_that_he_may_only_read(private_fd: int) -> None:
    with public_directory(0o2770) as root, ExitStack() as stack:
        os.chown(root, -1, 4242)
        with FileTransaction(root) as tx:
            tx.write("a", "")
        (root / ".txfiles" / "format").chmod(0o640)
        fd = FS.open_dir(None, os.fsencode(root / ".txfiles"))
        stack.callback(FS.close, fd)
        one = stack.enter_context(closing(bell.Bell(fd)))
        code = HEAR + "input(); print(one.ring(bell.ROW))"
        with child(code, root, bell.ROW, **as_user(1000, groups=[4242])) as process:
            _sleeps(process)
            assert one.ring(bell.ROW)
            process.expect("True")
            process.send()
            process.expect("False")
            process.finish().check()
