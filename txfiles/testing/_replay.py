"""One way through crashes and recoveries once more, with what is to be seen on it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from txfiles.testing import _report
from txfiles.testing._scenario import Path, Scenario, line_of, quiet, run
from txfiles.testing._simfs import KILL, Crash, SimFS
from txfiles.testing._simtree import Tree

_LINE = re.compile(r"txfiles-replay: scenario=(\S+)((?: crash=\d+:\S+)*)")


def replay(line: str, scenarios: Iterable[Scenario]) -> None:
    """Run again what a failed exploration printed, with real crashes; raises `AssertionError` if it fails again."""
    match = _LINE.search(line)
    if match is None:
        raise ValueError(f"not a line to replay: {line!r}")
    scenario = {scenario.name: scenario for scenario in scenarios}[match[1]]
    crashes = [word.removeprefix("crash=").split(":", 1) for word in match[2].split()]
    with quiet():
        Replay(scenario, tuple((int(number), token) for number, token in crashes)).run()


class Replay:
    """One way through crashes and recoveries, this time with processes that really end there."""

    def __init__(self, scenario: Scenario, path: Path) -> None:
        self.scenario = scenario
        self.path = path
        self.trees: list[Tree] = []
        self.ends: list[int] = []  # calls so far, by the number of steps
        self.told: list[str] = []

    def run(self) -> None:
        whole = self.scenario.begin()
        self.trees, self.ends = [whole.tree(self.scenario.root)], [0]
        for step in self.scenario.steps:
            run(whole, step)
            self.trees.append(whole.tree(self.scenario.root))
            self.ends.append(whole.calls)
        fs = self.scenario.begin()
        allowed = self.trees
        try:
            for level, (number, token) in enumerate(self.path):
                over = self._run_until(fs, number, first=not level)
                if not level:
                    allowed = self._allowed(number)
                elif over:
                    allowed = [tree for tree in allowed if tree == fs.tree(self.scenario.root)] or allowed
                self.scenario.check_whole(fs, allowed)
                fs = self._crash(fs, number, token)
                self.scenario.check_whole(fs, allowed)
            fs.trace = []
            try:
                self.scenario.run_recovery(fs)
            finally:
                self._tell("recovery", fs)
            self.scenario.check_recovered(fs, allowed)
        except AssertionError as error:
            raise AssertionError(self._report(fs, error, allowed)) from error.__cause__

    def _allowed(self, number: int) -> list[Tree]:
        if number in self.ends[1:]:
            return [self.trees[self.ends.index(number)]]
        done = max(index for index, end in enumerate(self.ends) if end <= number)
        return self.trees[done : done + 2] + self.scenario.attempted()

    def _run_until(self, fs: SimFS, number: int, *, first: bool) -> bool:
        """Run the steps, or a recovery, until `number` calls were made; whether it came to its end."""

        def stop(now: SimFS) -> None:
            if now.calls == number:
                raise Crash

        fs.watch, fs.trace = stop, []
        try:
            for act in self.scenario.steps if first else [self.scenario.run_recovery]:
                run(fs, act)
        except BaseException:  # what was cleaning up may have made something else of the crash
            if not fs.crashed:
                raise
            return False
        finally:
            fs.watch = None
            self._tell("operation" if first else "recovery", fs)
        return True

    def _crash(self, fs: SimFS, number: int, token: str) -> SimFS:
        what = "the process is killed" if token == KILL else f"the power fails, {token} survives"
        self.told += [f"---- crash after call {number}: {what}", *(f"     {line}" for line in fs.describe(token))]
        return fs.survive(token)

    def _tell(self, what: str, fs: SimFS) -> None:
        self.told += [f"{what}:", *_report.calls(fs.trace or [])]
        fs.trace = None

    def _report(self, fs: SimFS, error: AssertionError, allowed: list[Tree]) -> str:
        names = ["before", "after"] if len(self.trees) == 2 else [f"state {n}" for n in range(len(self.trees))]
        columns = {name: tree for name, tree in zip(names, self.trees, strict=True) if tree in allowed}
        for tree in self.scenario.attempted():
            columns["attempted"] = tree
        found = fs.tree(self.scenario.root)
        table = _report.side_by_side({**columns, "found": found})
        return "\n".join([str(error), line_of(self.scenario, self.path), *self.told, table])
