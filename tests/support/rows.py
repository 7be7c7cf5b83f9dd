"""The rows of the field, and those that the name of a test claims to show."""

from __future__ import annotations

import re

_NUMBERS = {
    "A": "01 03 04 05 06 07 08 10 12 13 14 15 16 19 21 22 23 24 25 26 27",
    "B": "01 02 03 05 06 07 08 09 10 11 12 13 16 17 19 20 21 22 23 24 25 26 28 29 31 33 34",
    "C": "01 02 04 06 08 09 10 11 12 16",
    "D": "01 02 03 04 06 08 10 12 13 14 15 16",
    "E": "01 02 04 05 07 08 09 10 12 13 15 16 18 20 21 23 24",
    "F": "01 02 03 04 05 07 09 10 12 13 14 16 17",
    "G": "01 02 04 05 07 08",
    "H": "01 02 04 05",
    "I": "01 03",
    "N": "01 02 04 05 06 07 08 09 11 12 13 18 22 23 24 25 26 27 29 30 31 32 36",
    "P": "01 02 03 04 05",
}
ALL = [section + number for section, numbers in _NUMBERS.items() for number in numbers.split()]
_IDS = re.compile(r"test_((?:[a-inp]\d\d_)+)")


def named_by(test: str) -> list[str]:
    """The rows that a test shows: all ids that its name begins with."""
    match = _IDS.match(test)
    return [row.upper() for row in match[1].split("_") if row] if match else []


def summary(covered: set[str]) -> str:
    done = [row for row in ALL if row in covered]
    return f"field cases covered: {' '.join(done)} ({len(done)} of {len(ALL)})"
