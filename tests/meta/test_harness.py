"""The checks that follow every test can fail, and what is left out is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.procs import CHECKOUT

SAMPLE = """
import os, pytest, signal, threading, time, warnings
import tests.conftest

tests.conftest._PATIENCE = 1

LEFT = {
    "token": ".txfiles/" + "0" * 32 + ".0",
    "journal": ".txfiles/" + "0" * 32 + ".intent",
    "unknown": ".txfiles/x",
    "nested": "sub/.txfiles/" + "0" * 32 + ".0",
    "beside": "0" * 32 + ".0.old",
    "format": ".txfiles/format",
}

def leave(root, what):
    path = root / LEFT[what]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()

@pytest.mark.parametrize("what", list(LEFT))
def test_left(root, what):
    leave(root, what)

def test_left_in_another(watch, tmp_path):
    leave(watch(tmp_path / "other"), "token")

@pytest.mark.leaves_debris
def test_allowed(root):
    leave(root, "token")

def test_resting(root):
    (root / ".txfiles").mkdir()
    (root / ".txfiles" / "lock").touch()
    (root / ".txfiles" / "format").write_bytes(b"txfiles 1 flock\\n")

def test_descriptor():
    os.open(".", os.O_RDONLY)

def test_thread():
    threading.Thread(target=time.sleep, args=(3,)).start()

def test_warning():
    warnings.warn("careful")

def test_interrupt():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

def test_plain():
    pass

@pytest.mark.needs("no-such-program")
def test_needs():
    pass

@pytest.mark.needs("sh")
def test_has():
    pass

@pytest.mark.deep
def test_deep():
    pass
"""


def outcome(tmp_path: Path, *words: str, **env: str) -> str:
    """The output of a run over the sample, with this project's settings."""
    test = tmp_path / "test_sample.py"
    test.write_text(SAMPLE, encoding="utf-8")
    argv = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    done = subprocess.run(
        [*argv, "-c", CHECKOUT / "pyproject.toml", "--rootdir", CHECKOUT, *words, test],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TXFILES_DEEP": "0", "COLUMNS": "300", **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> str:
    return outcome(tmp_path_factory.mktemp("usual"), TXFILES_SYSTEM_TESTS="auto")


@pytest.mark.parametrize("what", ["token", "journal", "unknown", "nested", "beside", "format"])
def test_what_is_left_in_a_root_is_an_error(usual: str, what: str) -> None:
    assert f"::test_left[{what}] - AssertionError: left in the tree" in usual


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ERROR", "test_left_in_another - AssertionError: left in the tree"),
        ("ERROR", "test_descriptor - AssertionError: descriptors left open"),
        ("ERROR", "test_thread - AssertionError: threads left running"),
        ("FAILED", "test_warning - UserWarning: careful"),
        ("PASSED", "test_allowed"),
        ("PASSED", "test_resting"),
        ("PASSED", "test_has"),
        ("PASSED", "test_plain"),
    ],
)
def test_what_a_test_leaves_behind_is_an_error(usual: str, name: str, said: str) -> None:
    (line,) = [line for line in usual.split("\n") if line.startswith(name) and f"::{said}" in line]
    assert line


def test_what_is_left_out_is_said(usual: str) -> None:
    assert "left out    1: no-such-program: not installed" in usual
    assert "left out    1: only in the deep run (TXFILES_DEEP=1)" in usual
    assert "2 deselected" in usual


def test_what_cannot_run_fails_where_it_is_required(tmp_path: Path) -> None:
    output = outcome(tmp_path, "-k", "needs or deep", TXFILES_SYSTEM_TESTS="require", TXFILES_DEEP="1")
    assert "::test_needs - Failed: needs no-such-program: not installed" in output
    assert "2 passed" in output


def test_all_that_need_something_can_be_left_out(tmp_path: Path) -> None:
    assert "left out    2: TXFILES_SYSTEM_TESTS=off" in outcome(tmp_path, "-k", "plain", TXFILES_SYSTEM_TESTS="off")


def test_a_run_in_the_background_of_a_shell_is_as_any_other(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a child inherits
    try:
        assert "1 passed" in outcome(tmp_path, "-k", "interrupt")
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_setting_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support import needs

    monkeypatch.setenv(needs.SETTING, "no")
    with pytest.raises(ValueError, match="must be one of auto, require, off"):
        needs.mode()
