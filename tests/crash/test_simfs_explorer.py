"""The explorer finds what is wrong with small hand-written protocols, says how, and lets right ones pass."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from txfiles.testing import Crash, Scenario, SimFS, Tree, explore, replay
from txfiles.testing._explorer import recorded


@contextmanager
def directory(fs: SimFS, path: bytes = b"/sim") -> Iterator[int]:
    at = fs.open_dir(None, path)
    try:
        yield at
    finally:
        fs.close(at)


def write(fs: SimFS, at: int, name: bytes, data: bytes, *, sync: bool = True) -> None:
    fd = fs.create(at, name)
    try:
        fs.write(fd, data)
        if sync:
            fs.sync_file(fd)
    finally:
        fs.close(fd)


def replace(fs: SimFS, name: bytes, data: bytes, *, sync_file: bool = True, sync_dir: bool = True) -> None:
    """Write a temp beside the target and rename it."""
    with directory(fs) as at:
        write(fs, at, b"temp", data, sync=sync_file)
        fs.rename(at, b"temp", at, name)
        if sync_dir:
            fs.sync_dir(at)


def remove_temp(fs: SimFS) -> None:
    with directory(fs) as at:
        with suppress(FileNotFoundError):
            fs.unlink(at, b"temp")
        fs.sync_dir(at)


def old_files(fs: SimFS) -> None:
    for name in "ab":
        fs.put(f"/sim/{name}", f"old {name}", mode=0o600)


def scenario(*steps: Callable[[SimFS], object], recover: Callable[[SimFS], object] = remove_temp) -> Scenario:
    return Scenario("test", old_files, steps, recover=recover)


def failure_of(wrong: Scenario, caps: Sequence[int] = (64,)) -> str:
    """What the explorer says; its line fails again when replayed."""
    with pytest.raises(AssertionError) as raised:
        explore(wrong, caps)
    told = str(raised.value)
    (line,) = [line for line in told.splitlines() if line.startswith("txfiles-replay: ")]
    with pytest.raises(AssertionError) as again:
        replay(line, [wrong])
    assert str(again.value) == told
    return told


def right(fs: SimFS) -> None:
    replace(fs, b"a", b"new")


def test_a_right_protocol_passes() -> None:
    explored = explore(scenario(right), (64, 16, 4))
    assert explored.points > 20
    assert explored.states > explored.different > 20


def test_two_right_steps_pass() -> None:
    explore(scenario(right, lambda fs: replace(fs, b"a", b"newer")), (64, 8))


def test_without_a_sync_of_the_file_the_content_is_lost() -> None:
    told = failure_of(scenario(lambda fs: replace(fs, b"a", b"new", sync_file=False)))
    assert "the power fails" in told


def test_without_a_sync_of_the_directory_the_change_is_lost() -> None:
    told = failure_of(scenario(lambda fs: replace(fs, b"a", b"new", sync_dir=False)))
    assert "old a" in told.splitlines()[-2]


def test_without_any_sync_process_kills_do_no_harm() -> None:
    unsafe = scenario(lambda fs: replace(fs, b"a", b"new", sync_file=False, sync_dir=False))
    explore(Scenario("kills", unsafe.setup, unsafe.steps, recover=unsafe.recover, power_loss=False), (64, 64))


def test_two_files_one_after_another_are_not_one_change() -> None:
    def save(fs: SimFS) -> None:
        for name in (b"a", b"b"):
            replace(fs, name, b"new")

    told = failure_of(scenario(save))
    assert "none of those allowed" in told
    assert "the process is killed" in told


def test_overwriting_in_place_is_seen_by_readers() -> None:
    def save(fs: SimFS) -> None:
        with directory(fs) as at:
            fd = fs.open_append(at, b"a")
            fs.write(fd, b", new")
            fs.write(fd, b" and more")
            fs.sync_file(fd)
            fs.close(fd)

    assert "missing or mixed" in failure_of(scenario(save))


def test_a_gap_in_which_the_file_is_missing_is_seen_by_readers() -> None:
    """Even when recovery closes it."""

    def save(fs: SimFS) -> None:
        with directory(fs) as at:
            write(fs, at, b"temp", b"new")
            fs.sync_dir(at)
            fs.unlink(at, b"a")
            fs.rename(at, b"temp", at, b"a")
            fs.sync_dir(at)

    def recover(fs: SimFS) -> None:
        with directory(fs) as at:
            if b"a" not in fs.listdir(at):
                fs.rename(at, b"temp", at, b"a")
        remove_temp(fs)

    assert "'a' is missing" in failure_of(scenario(save, recover=recover))


# A protocol for two files: copies of the old ones, made before and put back by recovery while there is a marker.


def with_marker(fs: SimFS) -> None:
    with directory(fs) as at:
        for name in (b"a", b"b"):
            fs.link(at, name, at, name + b".old")
        write(fs, at, b"marker", b"")
        fs.sync_dir(at)
        for name in (b"a", b"b"):
            write(fs, at, b"temp", b"new")
            fs.rename(at, b"temp", at, name)
        fs.sync_dir(at)
        fs.unlink(at, b"marker")
        fs.sync_dir(at)
        for name in (b"a", b"b"):
            fs.unlink(at, name + b".old")


def put_back(fs: SimFS, *, marker_first: bool) -> None:
    with directory(fs) as at:
        fs.sync_dir(at)
        names = fs.listdir(at)
        if marker_first and b"marker" in names:
            fs.unlink(at, b"marker")
            fs.sync_dir(at)
        for name in (b"a", b"b"):
            if b"marker" in names and name + b".old" in names:
                with suppress(FileNotFoundError):
                    fs.unlink(at, b"temp")
                fs.link(at, name + b".old", at, b"temp")
                fs.rename(at, b"temp", at, name)
        fs.sync_dir(at)
        for name in (b"marker", b"temp"):
            with suppress(FileNotFoundError):
                fs.unlink(at, name)
        fs.sync_dir(at)
        for name in (b"a.old", b"b.old"):
            with suppress(FileNotFoundError):
                fs.unlink(at, name)
        fs.sync_dir(at)


def compare(fs: SimFS, allowed: Sequence[Tree]) -> None:
    """`a` and `b` are those of one tree; what is beside them is the protocol's own affair."""
    found = fs.tree()
    if not any(all(found.get(name) == tree[name] for name in "ab") for tree in allowed):
        raise AssertionError("neither before nor after")


def marked(*, marker_first: bool) -> Scenario:
    return Scenario(
        "test",
        old_files,
        [with_marker],
        recover=lambda fs: put_back(fs, marker_first=marker_first),
        check=compare,
    )


def test_a_recovery_that_can_be_killed_passes() -> None:
    explore(marked(marker_first=False), (64, 16, 4))


def test_a_recovery_that_cannot_be_killed_is_found_by_a_second_crash() -> None:
    wrong = marked(marker_first=True)
    explore(wrong, (64,))
    told = failure_of(wrong, (64, 16))
    (line,) = [line for line in told.splitlines() if line.startswith("txfiles-replay: ")]
    assert line.count("crash=") == 2
    replay(line, [marked(marker_first=False)])


def test_an_outcome_that_recovery_reported_must_not_change() -> None:
    """A recovery that finds everything done, and does not make it durable."""

    def lazy(fs: SimFS) -> None:
        with directory(fs) as at, suppress(FileNotFoundError):
            fs.unlink(at, b"temp")

    told = failure_of(scenario(right, recover=lazy), (64, 8))
    assert told.count("---- crash") == 2


def test_a_recovery_that_fails_is_a_failure() -> None:
    def recover(fs: SimFS) -> None:
        with directory(fs) as at:
            fs.stat(at, b"nothing")

    assert "recovery failed: FileNotFoundError" in failure_of(scenario(right, recover=recover))


def test_descriptors_left_open_are_a_failure() -> None:
    def recover(fs: SimFS) -> None:
        remove_temp(fs)
        fs.open_dir(None, b"/sim")

    assert "left open: [b'/sim']" in failure_of(scenario(right, recover=recover))


def test_leftovers_in_the_private_directory_are_a_failure() -> None:
    def save(fs: SimFS) -> None:
        with directory(fs, b"/sim/.txfiles") as at:
            write(fs, at, b"rest", b"")

    wrong = Scenario("test", lambda fs: fs.mkdirs("/sim/.txfiles"), [save], recover=lambda fs: None)
    assert "left in the private directory: rest" in failure_of(wrong)


def test_a_step_that_is_undone_may_be_found_done() -> None:
    def failing(fs: SimFS) -> None:
        right(fs)
        replace(fs, b"a", b"old a")

    undone = scenario(failing)
    assert "file 0600 'new'" in failure_of(undone)
    explore(
        Scenario("test", undone.setup, undone.steps, recover=undone.recover, attempt=right),
        (64, 8),
    )


# What is printed.


def test_a_failure_shows_the_line_the_calls_and_the_trees() -> None:
    told = failure_of(scenario(lambda fs: replace(fs, b"a", b"new", sync_file=False))).splitlines()
    assert told[0] == "the tree after recovery is none of those allowed" or "mixed" in told[0]
    assert told[1].startswith("txfiles-replay: scenario=test crash=")
    assert told[2] == "operation:"
    assert "   2 create /sim/temp" in told
    assert any(line.startswith("---- crash after call ") for line in told)
    assert any("content of /sim/" in line for line in told)
    assert told[-3].split() == ["before", "after", "found"]
    assert told[-2].startswith("!  a")
    assert told[-1].split() == ["b", *["file", "0600", "'old", "b'"] * 3]


def test_lines_to_replay(capsys: pytest.CaptureFixture[str]) -> None:
    replay("  txfiles-replay: scenario=test crash=3:kill", [scenario(right)])
    replay("txfiles-replay: scenario=test", [scenario(right)])
    for line in ("scenario=test crash=3:kill", "txfiles-replay: crash=1:kill"):
        with pytest.raises(ValueError, match="not a line"):
            replay(line, [scenario(right)])
    with pytest.raises(KeyError):
        replay("txfiles-replay: scenario=other", [scenario(right)])
    with pytest.raises(ValueError, match="no power loss"):
        replay("txfiles-replay: scenario=test crash=3:9", [scenario(right)])


def test_a_scenario_that_is_not_deterministic_is_said_to_be() -> None:
    runs: list[None] = []

    def save(fs: SimFS) -> None:
        runs.append(None)
        replace(fs, b"a", b"new", sync_file=len(runs) > 1)

    with pytest.raises(AssertionError, match="not deterministic"):
        explore(scenario(save))


# What it explores.


def test_every_change_is_a_point_and_the_end_is_one() -> None:
    fs = scenario(right).begin()
    points = list(recorded(fs, right))
    assert [point.number for point in points] == [0, 2, 3, 4, 6, 7, 8]
    assert [point.over for point in points] == [False] * 6 + [True]
    assert points[-1].fs.get("/sim/a") == b"new"


@pytest.mark.parametrize("number", range(9))
def test_the_disk_at_a_point_is_that_after_a_real_crash(number: int) -> None:
    recording, crashing = scenario(right).begin(), scenario(right).begin()
    points = [point for point in recorded(recording, right) if point.number <= number]

    def stop(fs: SimFS) -> None:
        if fs.calls == number:
            raise Crash

    crashing.watch = stop
    with suppress(Crash):
        right(crashing)
    assert crashing.after_kill().fingerprint() == points[-1].fs.fingerprint()


def test_states_met_before_are_not_explored_again() -> None:
    explored = explore(scenario(right, right), (64, 64))
    assert explored.different < explored.states / 2


def test_setup_may_leave_something_pending() -> None:
    """Another program's unsynced file, which the step does not touch."""

    def setup(fs: SimFS) -> None:
        old_files(fs)
        fs.put("/sim/c", "unsynced", synced=False)

    pending = Scenario("test", setup, [right], recover=remove_temp)
    assert "the tree after recovery is none of those allowed" in failure_of(pending)
    explore(Scenario("test", setup, [right], recover=remove_temp, check=lambda fs, trees: None), (64, 4))


def test_faults_may_be_part_of_a_step() -> None:
    """A step that meets an error and cleans up leaves the state before."""

    def save(fs: SimFS) -> None:
        def plan(_: int, name: str) -> None:
            if name == "rename":
                raise OSError(errno.EIO, "injected")

        fs.plan = plan
        with suppress(OSError):
            right(fs)
        fs.plan = None
        remove_temp(fs)

    explore(scenario(save), (64, 8))
