"""What a command answers: its exit code, an object for programs, and lines for people."""

from __future__ import annotations

from typing import Any, NamedTuple

DONE, FAILED, USAGE, DECISION, LOCKED, NO_ROOT = range(6)


class Answer(NamedTuple):
    """`lines` are printed, with `--json` `found` is."""

    code: int
    found: dict[str, Any]
    lines: list[str]


def number_of(number: int) -> str:
    """So many files, in words."""
    return "1 file" if number == 1 else f"{number} files"
