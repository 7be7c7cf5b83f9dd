"""A scenario: what is done to a simulated file system, and what must be there after a crash and a recovery."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from txfiles._disk import system
from txfiles._format.layout import LASTING, PRIVATE
from txfiles.recovery import recover
from txfiles.testing._simfs import SimFS
from txfiles.testing._simtree import Options, Tree

Act = Callable[[SimFS], object]
Path = tuple[tuple[int, str], ...]  # crashes: after which call, and the token of what survived

_ORDINARY = Options()


@dataclass(frozen=True)
class Scenario:
    """A state before, and steps that each happen as a whole and are durable when they return.

    `setup` makes the state before, all of it durable unless it says otherwise. `recover` is what runs after a crash;
    `txfiles.recover(root)` by default. `check(fs, allowed)` raises `AssertionError` when what recovery made is none of
    the allowed trees; by default they are compared, and the private directory must be at rest. With
    `power_loss=False` only process kills are tried, for steps with `"process"` durability. `attempt`, for a single step
    that fails and is undone: what it attempts; a crash in the middle may also end in the tree that this makes.
    """

    name: str
    setup: Act
    steps: Sequence[Act]
    recover: Act | None = None
    check: Callable[[SimFS, Sequence[Tree]], None] | None = None
    root: str = "/sim"
    options: Options = _ORDINARY
    power_loss: bool = True
    attempt: Act | None = None

    def begin(self) -> SimFS:
        """A file system in the state before."""
        fs = SimFS(self.options, root=self.root.encode())
        run(fs, self.setup)
        fs.calls = 0
        return fs

    def attempted(self) -> list[Tree]:
        """The tree that `attempt` makes, if there is one."""
        if self.attempt is None:
            return []
        fs = self.begin()
        run(fs, self.attempt)
        return [fs.tree(self.root)]

    def run_recovery(self, fs: SimFS) -> None:
        """Raises `AssertionError` when recovery fails."""
        try:
            run(fs, self.recover or (lambda _: recover(self.root)))
        except Exception as error:
            raise AssertionError(f"recovery failed: {error!r}") from error

    def check_recovered(self, fs: SimFS, allowed: Sequence[Tree]) -> None:
        if self.check is not None:
            self.check(fs, allowed)
            return
        if fs.tree(self.root) not in allowed:
            raise AssertionError("the tree after recovery is none of those allowed")
        private = f"{self.root}/{PRIVATE.decode()}"
        left = fs.names(private) - {name.decode() for name in LASTING} if fs.exists(private) else set()
        if left:
            raise AssertionError(f"left in the private directory: {', '.join(sorted(left))}")
        if fs.open_files:
            raise AssertionError(f"left open: {fs.open_files}")

    def check_whole(self, fs: SimFS, allowed: Sequence[Tree]) -> None:
        """Without any recovery: a file that is in all allowed trees is there, and is like in one of them.

        After a power loss it may be missing, until a recovery: A1.
        """
        if self.check is not None:
            return
        found = fs.tree(self.root)
        for path, entry in allowed[0].items():
            versions = [tree.get(path) for tree in allowed]
            lasting = entry.kind == "file" and all(version and version.kind == "file" for version in versions)
            if lasting and found.get(path) not in versions and not (fs.lost_power and path not in found):
                raise AssertionError(f"{path!r} is missing or mixed for those who read it now")


def run(fs: SimFS, act: Act) -> None:
    """Do something on `fs` with the public API."""
    with system.use(fs):
        act(fs)


def line_of(scenario: Scenario, path: Path) -> str:
    """The line that replays these crashes."""
    return " ".join([f"txfiles-replay: scenario={scenario.name}", *(f"crash={n}:{token}" for n, token in path)])


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of a hundred thousand recoveries."""
    logger = logging.getLogger("txfiles")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
