"""The pytest plugin: the fixture `crash_test`. The simulator is imported by the first test that uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from txfiles.testing._explorer import Explored

    Act = Callable[[Path], object]

_Result = TypeVar("_Result")
_OPTION = "--txfiles-replay"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("txfiles").addoption(
        _OPTION, metavar="LINE", help="let crash_test run one crash only: the line that its failure has printed"
    )


@pytest.fixture
def crash_test(request: pytest.FixtureRequest, tmp_path: Path) -> CrashTest:
    """Whether a save survives kills, and power losses: see `CrashTest`."""
    return CrashTest(request.node.nodeid, tmp_path, request.config.getoption(_OPTION, default=None))


class CrashTest:
    """Crashes a save at every step, recovers, and calls a check; a failure says how to run that crash alone.

    `save`, `check`, `setup` and `recover` are functions of a directory. What they are called with, and when, is told
    in `txfiles.testing.survives_kills` and `txfiles.testing.survives_power_loss`.
    """

    def __init__(self, test: str, where: Path, line: str | None) -> None:
        self._test = test
        self._where = where
        self._kill = line if line and "scenario=" not in line else None
        self._crash = line if line and "scenario=" in line else None

    def survives_kills(self, save: Act, check: Act, *, setup: Act | None = None, **options: Any) -> int:
        """Kill the save at every step on the real file system, below `tmp_path`; returns the number of kills."""
        from txfiles.testing import survives_kills

        __tracebackhide__ = True
        options = {"setup": setup, "where": self._where, "replay": self._kill, **options}
        return self._tell(lambda: survives_kills(save, check, **options))

    def survives_power_loss(self, save: Act, check: Act, *, setup: Act | None = None, **options: Any) -> Explored:
        """Crash the save after each call in the simulated file system, whatever of it then survives."""
        from txfiles.testing import survives_power_loss

        __tracebackhide__ = True
        options = {"setup": setup, "replay": self._crash, **options}
        return self._tell(lambda: survives_power_loss(save, check, **options))

    def _tell(self, crash: Callable[[], _Result]) -> _Result:
        __tracebackhide__ = True
        try:
            return crash()
        except AssertionError as error:
            for line in str(error).splitlines():
                if line.startswith("txfiles-replay: "):
                    error.add_note(f"this crash alone: pytest '{self._test}' {_OPTION} '{line}'")
            raise error.with_traceback(None) from error.__cause__  # the way through the explorer tells nobody anything
