"""The settings that stores and transactions share."""

from __future__ import annotations

import math

_AGES = 1e12  # seconds; more than clocks can add


class Unset:
    """An argument that was not given."""

    def __repr__(self) -> str:
        return "<not given>"


UNSET = Unset()


def check_settings(durability: str, timeout: float | None) -> None:
    if durability not in ("full", "process"):
        raise ValueError(f'durability is "full" or "process", not {durability!r}')
    if timeout is not None and not (
        isinstance(timeout, (int, float)) and (0 <= timeout < _AGES or timeout == math.inf)
    ):
        raise ValueError(f"timeout is a number of seconds, 0 or more, or None; not {timeout!r}")
