"""Where in a document something is: `$.entries[1].data`."""

from __future__ import annotations

import json
from typing import Any


class Misfit(ValueError):
    """A value does not fit what was declared for its place."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place}: {why}")
        self.place = place


def below(place: str, key: Any) -> str:
    """The place of an item of a list, or of a key of an object."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    return f"{place}.{key}" if str(key).isidentifier() else f"{place}[{json.dumps(str(key), ensure_ascii=False)}]"
