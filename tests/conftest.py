"""Roots, the check after every test that nothing is left, hypothesis profiles, and what is deselected where."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import DEEP, debris, loop, mounts, needs, rows, scratch

settings.register_profile(
    "default",
    deadline=None,
    max_examples=60,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("deep", parent=settings.get_profile("default"), max_examples=3000, derandomize=False)
settings.load_profile("deep" if DEEP else "default")

_failed = pytest.StashKey[bool]()
_left_out = pytest.StashKey[Counter[str]]()
_covered: set[str] = set()
_PATIENCE = 30  # seconds for threads that are about to end


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell has it for a command in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # and so in every child
    config.stash[_left_out] = Counter()
    scratch.sweep()
    needs.mode()
    mounts.isolate()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: twice as many as there are cores, because half of the time a test waits for a disk or a process."""
    return 2 * (os.cpu_count() or 1)


def pytest_report_header() -> str:
    return f"txfiles: TXFILES_DEEP={int(DEEP)} {needs.SETTING}={needs.mode()}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        reason = _reason_to_leave_out(item)
        if reason:
            config.stash[_left_out][reason] += 1
        (dropped if reason else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _reason_to_leave_out(item: pytest.Item) -> str | None:
    if not DEEP and item.get_closest_marker("deep"):
        return "only in the deep run (TXFILES_DEEP=1)"
    things = _things(item)
    if things and needs.mode() == "off":
        return f"{needs.SETTING}=off"
    if needs.mode() == "auto":
        return next(filter(None, map(needs.missing, things)), None)
    return None


def _things(item: pytest.Item) -> list[str]:
    return [thing for marker in item.iter_markers("needs") for thing in marker.args]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for thing in _things(item):
        if lacking := needs.missing(thing):
            pytest.fail(f"needs {lacking}; {needs.SETTING}=auto leaves such tests out", pytrace=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.nodeid.startswith("tests/field/"):
        _covered.update(rows.named_by(report.location[2]))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:  # with -n, one process of several
        counted: Counter[str] = session.config.stash[_left_out]
        output["left_out"] = {**counted}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    left_out: dict[str, int] = getattr(node, "workeroutput", {}).get("left_out", {})
    counted: Counter[str] = Counter(left_out)
    node.config.stash[_left_out] = counted


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _covered:
        terminalreporter.write_line(rows.summary(_covered))
    for reason, count in sorted(config.stash[_left_out].items()):
        terminalreporter.write_line(f"left out {count:4d}: {reason}", yellow=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture
def watch(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[Path], Path]]:
    """Register a root for the check after the test; returns it."""
    roots: list[Path] = []

    def register(path: Path) -> Path:
        roots.append(path)
        return path

    yield register
    if request.node.stash.get(_failed, False) or request.node.get_closest_marker("leaves_debris"):
        return
    found = [problem for path in roots for problem in debris.problems(path)]
    assert not found, "left in the tree: " + ", ".join(found)


@pytest.fixture
def root(tmp_path: Path, watch: Callable[[Path], Path]) -> Path:
    """An empty directory; after the test nothing of a transaction may be left in it."""
    path = tmp_path / "root"
    path.mkdir()
    return watch(path)


@pytest.fixture(autouse=True)
def _nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    descriptors, threads = _descriptors(), set(threading.enumerate())
    yield
    if (idle := sys.modules.get("txfiles._commit.idle")) is not None:
        idle.forget()
    if request.node.stash.get(_failed, False):
        return
    if leaked := _descriptors() - descriptors:
        gc.collect()
        leaked = _descriptors() - descriptors
        assert not leaked, f"descriptors left open: {sorted(leaked)}"
    until = time.monotonic() + _PATIENCE
    while running := set(threading.enumerate()) - threads:
        assert time.monotonic() < until, f"threads left running: {running}"
        time.sleep(0.01)


def _descriptors() -> set[tuple[int, str]]:
    """The open descriptors and what they lead to; nothing where there is no /proc."""
    tracker = sys.modules.get("multiprocessing.resource_tracker")  # it keeps a pipe for the rest of the run
    lasting = tracker._resource_tracker._fd if tracker else None
    found = set()
    if os.path.isdir("/proc/self/fd"):
        for name in os.listdir("/proc/self/fd"):
            if int(name) == lasting or int(name) in loop.HELD:
                continue
            try:
                found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
            except FileNotFoundError:  # the descriptor of the listing itself
                continue
    return found
