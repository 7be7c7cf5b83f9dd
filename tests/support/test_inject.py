"""Faults come at the call that they were meant for, and nowhere else."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.inject import RENAME, SYNC, Fault, each_call, traced

pytestmark = pytest.mark.needs("strace")

_SAVE = """
    os.fsync(os.open(sys.argv[1], os.O_RDONLY))          # before the region: neither counted nor disturbed
    folder = os.open(sys.argv[1], os.O_RDONLY)
    with region():
        for name in "ab":
            try:
                fd = os.open(name + ".new", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
                os.write(fd, name.encode())
                os.fsync(fd)
                os.close(fd)
                os.rename(name + ".new", name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                failed = error
    os.fsync(folder)
    print(sorted(os.listdir(folder)))
"""


def test_the_calls_of_the_region_with_their_paths(tmp_path: Path) -> None:
    done = traced(_SAVE, tmp_path)
    assert done.check().stdout == "['a', 'b']\n"
    assert [call.name for call in done.calls] == ["openat", "write", "fsync", "close", "renameat"] * 2
    opened, written, synced, _, renamed = done.calls[:5]
    assert opened.paths == written.paths == synced.paths == [f"{tmp_path}/a.new"]
    assert renamed.paths == [f"{tmp_path}/a.new", f"{tmp_path}/a"]
    assert [call.nth for call in done.named("fsync")] == [1, 2]
    assert not any(call.error or call.injected for call in done.calls)


def test_an_error_at_the_second_call(tmp_path: Path) -> None:
    done = traced(_SAVE, tmp_path, faults=[Fault("fsync", error="EIO", when=2)])
    assert done.check().stdout == "['a', 'b.new']\n"
    assert [(call.nth, call.error) for call in done.calls if call.injected] == [(2, "EIO")]


def test_an_error_for_ever_ends_with_the_region(tmp_path: Path) -> None:
    done = traced(_SAVE, tmp_path, faults=[Fault(SYNC, error="ENOSPC", when="1+")])
    assert done.check().stdout == "['a.new', 'b.new']\n"
    assert [call.error for call in done.named("fsync")] == ["ENOSPC", "ENOSPC"]


def test_several_faults_at_once(tmp_path: Path) -> None:
    faults = [Fault("fsync", error="EIO"), Fault(RENAME, error="EXDEV")]
    assert [c.error for c in traced(_SAVE, tmp_path, faults=faults).calls if c.injected] == ["EIO", "EXDEV"]


def test_a_process_killed_at_a_call_has_not_made_it(tmp_path: Path) -> None:
    done = traced(_SAVE, tmp_path, faults=[Fault(RENAME, signal="SIGKILL", when=2)])
    assert done.returncode == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b.new"]


def test_every_call_can_be_reached(tmp_path: Path) -> None:
    ends = []
    for call in each_call(_SAVE, tmp_path, calls=("openat", "renameat", "rename", "renameat2")):
        for path in tmp_path.iterdir():
            path.unlink()
        assert traced(_SAVE, tmp_path, faults=[Fault(call.name, signal="SIGKILL", when=call.nth)]).returncode < 0
        ends.append(sorted(path.name for path in tmp_path.iterdir()))
    assert ends == [[], ["a.new"], ["a"], ["a", "b.new"]]


def test_a_signal_that_is_not_the_end(tmp_path: Path) -> None:
    code = """
        with region():
            try:
                os.stat(sys.argv[1])
                time.sleep(5)
            except KeyboardInterrupt:
                print("interrupted")
    """
    done = traced(code, tmp_path, faults=[Fault("?stat,newfstatat,statx", signal="SIGINT")])
    assert done.check().stdout == "interrupted\n"


def test_calls_of_several_threads(tmp_path: Path) -> None:
    code = """
        def work(n):
            for _ in range(50):
                fd = os.open(f"{sys.argv[1]}/{n}", os.O_CREAT | os.O_WRONLY); os.fsync(fd); os.close(fd)
        with region():
            threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
    """
    done = traced(code, tmp_path)
    done.check()
    assert sorted(p for c in done.named("fsync") for p in c.paths) == sorted([f"{tmp_path}/{n}" for n in range(4)] * 50)
    assert max(call.nth for call in done.named("fsync")) == 50


@pytest.mark.parametrize("name", ["caf\udce9", 'quote"\\', "new\nline", "a, b) = 0"])
def test_odd_names(tmp_path: Path, name: str) -> None:
    code = "with region(): os.rename(os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2]))"
    (tmp_path / name).touch()
    done = traced(code, tmp_path / name, tmp_path / "plain")
    done.check()
    assert done.calls[0].paths == [f"{tmp_path}/{name}", f"{tmp_path}/plain"]


def test_a_child_that_fails_before_its_region_is_an_error() -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        traced("1 / 0")


def test_a_fault_is_one_thing() -> None:
    with pytest.raises(ValueError, match="an error or a signal"):
        Fault("fsync").option()
