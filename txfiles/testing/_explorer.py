"""Every crash of an operation, every state that it may leave, and every crash of the recoveries from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from txfiles.testing._replay import Replay
from txfiles.testing._scenario import Act, Path, Scenario, line_of, quiet, run
from txfiles.testing._simfs import KILL, SimFS
from txfiles.testing._simtree import Tree


@dataclass
class Explored:
    """`points` are moments of a crash, `states` what they left, `different` those that were not met before."""

    points: int = 0
    states: int = 0
    different: int = 0
    calls: int = 0  # of the steps and of all recoveries

    def __add__(self, other: Explored) -> Explored:
        return Explored(
            *(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )


class Point(NamedTuple):
    """After `number` calls the disk is as in `fs`, and was not so before. `over`: what ran has returned."""

    number: int
    fs: SimFS
    over: bool = False


def explore(scenario: Scenario, caps: Sequence[int] = (64, 8), seed: int = 0) -> Explored:
    """Crash `scenario` after every call, by a process kill and by a power loss, and recover.

    `caps` bounds the states of one power loss: the first number for a crash of the steps, the next one for a crash of
    the recovery from that, and so on; there are as many crashes in a row as there are numbers. Raises
    `AssertionError` with a line for `replay`, the calls, and the trees, when a recovery ends in any other state than
    before or after, or than after once a step has returned, or than the one that an earlier recovery ended in.
    """
    with quiet():
        return _Explorer(scenario, caps, seed).run()


@dataclass
class _Explorer:
    scenario: Scenario
    caps: Sequence[int]
    seed: int
    trees: list[Tree] = field(default_factory=list)
    explored: Explored = field(default_factory=Explored)
    seen: set[tuple[str, int, str, tuple[int, ...], int]] = field(default_factory=set)

    def run(self) -> Explored:
        fs = self.scenario.begin()
        self.trees.append(fs.tree(self.scenario.root))
        steps = []
        for step in self.scenario.steps:
            steps.append(list(recorded(fs, step)))
            self.trees.append(fs.tree(self.scenario.root))
        self.explored.calls += fs.calls
        extra = tuple(range(len(self.trees), len(self.trees) + len(self.scenario.attempted())))
        self.trees += self.scenario.attempted()
        for number, points in enumerate(steps):
            for point in points:
                self._crash(point, (number + 1,) if point.over else (number, number + 1, *extra), ())
        return self.explored

    def _crash(self, point: Point, allowed: tuple[int, ...], path: Path) -> None:
        """The power fails or the process dies at `point`."""
        if self._met("crash", point.fs, allowed, path):
            return
        self.explored.points += 1
        self._check(self.scenario.check_whole, point.fs, allowed, (*path, (point.number, KILL)))
        for token, state in self._left(point, self.caps[len(path)]):
            self.explored.states += 1
            self._recover(state, allowed, (*path, (point.number, token)))

    def _left(self, point: Point, cap: int) -> Iterator[tuple[str, SimFS]]:
        yield KILL, point.fs.after_kill()
        if self.scenario.power_loss:
            yield from point.fs.surviving_states(cap, self.seed * 7919 + point.number)

    def _recover(self, fs: SimFS, allowed: tuple[int, ...], path: Path) -> None:
        if self._met("recover", fs, allowed, path):
            return
        self.explored.different += 1
        self._check(self.scenario.check_whole, fs, allowed, path)
        points: list[Point] = []
        try:
            if len(path) < len(self.caps):
                points = list(recorded(fs, self.scenario.run_recovery))
            else:
                self.scenario.run_recovery(fs)
        except AssertionError as error:
            self._fail(path, error)
        self.explored.calls += fs.calls
        self._check(self.scenario.check_recovered, fs, allowed, path)
        for point in points:
            settled = tuple(index for index in allowed if self.trees[index] == fs.tree(self.scenario.root))
            self._crash(point, settled if point.over and settled else allowed, path)

    def _met(self, what: str, fs: SimFS, allowed: tuple[int, ...], path: Path) -> bool:
        """What follows depends on nothing else, and was explored before."""
        key = what, fs.fingerprint(), fs.boot_id(), allowed, len(path)
        if key in self.seen:
            return True
        self.seen.add(key)
        return False

    def _check(
        self, check: Callable[[SimFS, Sequence[Tree]], None], fs: SimFS, allowed: tuple[int, ...], path: Path
    ) -> None:
        try:
            check(fs, [self.trees[index] for index in allowed])
        except AssertionError as error:
            self._fail(path, error)

    def _fail(self, path: Path, error: AssertionError) -> NoReturn:
        line = line_of(self.scenario, path)
        why: Exception = error
        try:
            Replay(self.scenario, path).run()
        except AssertionError as told:
            raise told from error.__cause__
        except ValueError as misfit:
            why = misfit
        raise AssertionError(f"{error}, but not again; the scenario is not deterministic\n{line}") from why


def recorded(fs: SimFS, act: Act) -> Iterator[Point]:
    """Run `act` to its end; the moments at which the disk was different."""
    points: list[Point] = []
    version = -1

    def watch(now: SimFS) -> None:
        nonlocal version
        if now.disk.version != version:
            version = now.disk.version
            points.append(Point(now.calls, now.after_kill()))

    fs.watch = watch
    try:
        run(fs, act)
    finally:
        fs.watch = None
    yield from points
    yield Point(fs.calls, fs.after_kill(), over=True)
