"""A deterministic scheduler: the real code in threads that run one at a time, switched at every request.

A run is the list of choices that were made in it, so that a failure prints what replays it. `explore` makes every run
within its bounds: so many switches away from an actor that could have gone on, so many faults.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.objects.faulty import FastClock, Wrapped, apply_fault, fresh, made, memory
from txfiles.objects.requests import Raced, Token
from txfiles.objects.root import Root

PUT_FAULTS = ("before", "after", "twice", "late", "kill")
OTHER_FAULTS = ("before", "kill")


class Killed(BaseException):
    """The process of this actor is gone."""


class _Actor(Wrapped):
    """A thread that waits before each request until it is chosen."""

    def __init__(self, run: Run, inner: Any, number: int, act: Callable[[Root], None]) -> None:
        super().__init__(inner)
        self.number = number
        self._run = run
        self._act = act
        self._go = threading.Semaphore(0)
        self.parked = threading.Semaphore(0)
        self.at: tuple[str, str] | None = None
        self.failure: BaseException | None = None
        self._fault: str | None = None
        self.dead = False
        self.thread = threading.Thread(target=self._main, daemon=True)

    def _main(self) -> None:
        self._go.acquire()
        try:
            if self._fault != "kill":
                self._act(fresh(self, FastClock()))
        except Killed:
            pass
        except BaseException as error:
            self.failure = error
        self.at = None
        self.dead = True
        self.parked.release()

    def call(self, name: str, key: str, run: Callable[[], Any]) -> Any:
        if self._fault == "kill":
            raise Killed
        self.at = name, key
        self.parked.release()
        self._go.acquire()
        fault = self._fault
        if fault is None:
            return run()
        if fault == "kill":
            raise Killed
        return apply_fault(fault, run, self._run.late.append)

    def step(self, fault: str | None) -> None:
        """Let it make its request, and go on to the next."""
        self._fault = fault
        self._go.release()
        self.parked.acquire()


@dataclass
class Bounds:
    switches: int = 2
    faults: int = 1
    kinds: tuple[str, ...] = PUT_FAULTS
    steps: int = 300


@dataclass
class Run:
    """One schedule: choices are numbers into the options of each step, 0 where the list has ended."""

    choices: list[int]
    bounds: Bounds
    taken: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    late: list[Callable[[], Any]] = field(default_factory=list)

    def go(self, inner: Any, acts: list[Callable[[Root], None]]) -> None:
        actors = [_Actor(self, inner, number, act) for number, act in enumerate(acts)]
        for actor in actors:
            actor.thread.start()
        switches, faults, last = self.bounds.switches, self.bounds.faults, None
        while any(not actor.dead for actor in actors) or self.late:
            options = list(self._options(actors, last, switches, faults))
            who, fault = options[self._choose(len(options))]
            if isinstance(who, int):
                self.told.append(f"late request {who} lands")
                self._land(who)
                continue
            self.told.append(f"{who.number} {who.at or 'begins'}{f' {fault}' if fault else ''}")
            if last is not None and who is not last and not last.dead:
                switches -= 1
            faults -= fault is not None
            last = who
            who.step(fault)
            assert len(self.taken) < self.bounds.steps, "it does not end"
        for actor in actors:
            actor.thread.join()
            if actor.failure is not None:
                raise actor.failure

    def _options(
        self, actors: list[_Actor], last: _Actor | None, switches: int, faults: int
    ) -> Iterator[tuple[_Actor | int, str | None]]:
        live = [actor for actor in actors if not actor.dead]
        if last is not None and not last.dead:
            live = [last, *(actor for actor in live if actor is not last and switches)]
        for actor in live:
            yield actor, None
            if faults and actor.at is not None:
                kinds = PUT_FAULTS if actor.at[0] == "put" and actor.at[1] == "HEAD" else OTHER_FAULTS
                for kind in kinds:
                    if kind in self.bounds.kinds:
                        yield actor, kind
        for number in range(len(self.late)):
            yield number, None

    def _land(self, number: int) -> None:
        with contextlib.suppress(Raced):
            self.late.pop(number)()

    def _choose(self, width: int) -> int:
        at = len(self.taken)
        choice = self.choices[at] if at < len(self.choices) else 0
        self.taken.append(choice)
        self.widths.append(width)
        return choice

    def next(self) -> list[int] | None:
        """The choices of the next schedule, depth first."""
        for at in reversed(range(len(self.taken))):
            if self.taken[at] + 1 < self.widths[at]:
                return [*self.taken[:at], self.taken[at] + 1]
        return None


def explore(
    scenario: Callable[[], tuple[list[Callable[[Root], None]], Callable[[Any], None]]],
    bounds: Bounds,
    *,
    prepare: Callable[[Any], None] = lambda requests: None,
    at_most: int | None = None,
) -> int:
    """Every schedule within the bounds; returns how many. `scenario` makes actors and the check that follows them."""
    choices: list[int] | None = []
    count = 0
    while choices is not None and (at_most is None or count < at_most):
        inner = made(memory(""))
        prepare(inner)
        acts, check = scenario()
        run = Run(choices, bounds)
        try:
            run.go(inner, acts)
            check(inner)
        except BaseException as error:
            error.add_note(f"choices: {run.taken}")
            error.add_note("\n".join(run.told))
            raise
        count += 1
        choices = run.next()
    return count


__all__ = ["Bounds", "Killed", "Run", "Token", "explore"]
