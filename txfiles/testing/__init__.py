"""A simulated file system that loses what a power loss may lose, and an explorer of every crash on it."""

from txfiles.testing._explorer import Explored, explore
from txfiles.testing._faults import killed_at_call
from txfiles.testing._replay import replay
from txfiles.testing._scenario import Scenario
from txfiles.testing._simfs import Crash, SimFS, crash_at
from txfiles.testing._simtree import Entry, Options, Tree

__all__ = [
    "Crash",
    "Entry",
    "Explored",
    "Options",
    "Scenario",
    "SimFS",
    "Tree",
    "crash_at",
    "explore",
    "killed_at_call",
    "replay",
]
