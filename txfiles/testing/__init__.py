"""Crash tests: of a save of yours, and of txfiles itself on a simulated file system.

`survives_kills` and `survives_power_loss`, or the fixture `crash_test` of the pytest plugin, crash a save at each step.
`SimFS` is a file system in memory that loses what a power loss may lose; `explore` tries every crash of a `Scenario` on
it, and `replay` one of them again.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txfiles.testing._explorer import Explored, explore
    from txfiles.testing._faults import killed_at_call
    from txfiles.testing._kit import survives_kills, survives_power_loss
    from txfiles.testing._replay import replay
    from txfiles.testing._scenario import Scenario
    from txfiles.testing._simfs import Crash, SimFS, crash_at
    from txfiles.testing._simtree import Entry, Options, Tree

_HOMES = {
    "_explorer": ("Explored", "explore"),
    "_faults": ("killed_at_call",),
    "_kit": ("survives_kills", "survives_power_loss"),
    "_replay": ("replay",),
    "_scenario": ("Scenario",),
    "_simfs": ("Crash", "SimFS", "crash_at"),
    "_simtree": ("Entry", "Options", "Tree"),
}

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
    "survives_kills",
    "survives_power_loss",
]


def __getattr__(name: str) -> object:
    """Every run of pytest imports this package for its plugin: the rest comes when it is used."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
