"""Children talk, stop, die and are reaped."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.support.procs import child, killed_at_random, run_python


def test_output_input_and_arguments() -> None:
    with child("print('ready'); print(input() + sys.argv[1], file=sys.stderr); sys.exit(3)", "b") as process:
        assert process.expect("read") == "ready"
        process.send("a")
        result = process.finish()
    assert (result.returncode, result.stdout, result.stderr) == (3, "ready\n", "ab\n")
    with pytest.raises(AssertionError, match="ended with 3"):
        result.check()


def test_output_beyond_a_pipe_does_not_block() -> None:
    assert len(run_python("print('x' * 1_000_000)").check().stdout) == 1_000_001


def test_a_stopped_child_does_nothing_until_it_is_resumed() -> None:
    with child("while True: print(time.monotonic()); time.sleep(0.001)") as process:
        process.expect("")
        process.stop()
        with open(f"/proc/{process.pid}/stat", encoding="utf-8") as file:
            assert file.read().split()[2] == "T"
        process.resume()
        process.kill()
        assert process.finish().returncode == -signal.SIGKILL


def test_no_child_outlives_its_block_and_no_grandchild_either() -> None:
    with child("print(os.fork() or os.getpid()); time.sleep(60)") as process:
        pids = {int(process.expect("")), int(process.expect(""))}
    until = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}/cwd") for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_one_that_takes_too_long_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"did not end in 0\.2 s"):
        run_python("print('here'); time.sleep(60)", timeout=0.2)
    with child("time.sleep(60)") as process, pytest.raises(AssertionError, match="expected for"):
        process.expect("something", timeout=0.2)
    with child("print('one')") as process, pytest.raises(AssertionError, match="'two' expected"):
        process.expect("two")
    with child("pass") as process, pytest.raises(AssertionError, match="ended"):
        process.expect("anything")


def test_killed_at_random_times() -> None:
    results = list(killed_at_random("print('go'); time.sleep(60)", rounds=3, longest=0.02))
    assert [result.returncode for result in results] == [-signal.SIGKILL] * 3


def test_settings_of_a_child() -> None:
    code = "print(os.getcwd(), os.environ['K'], oct(os.umask(0)))"
    assert run_python(code, cwd="/", env={"K": "v"}, umask=0o27).stdout == "/ v 0o27\n"
