"""The read-only check after every test: a private directory at rest holds its permanent files and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from txfiles._format import journal, layout

PRIVATE = os.fsdecode(layout.PRIVATE)


def problems(root: str | os.PathLike[str]) -> list[str]:
    """What is not as it should be at rest, in every private directory at or below `root`."""
    found: list[str] = []
    for folder, directories, files in os.walk(os.fsencode(root)):
        if os.path.basename(folder) == layout.PRIVATE:
            found += _private(folder, [*directories, *files])
            directories.clear()
        else:
            found += [_shown(folder, name) for name in files if layout.parse(name).kind not in ("permanent", "unknown")]
    return found


def _private(folder: bytes, names: list[bytes]) -> list[str]:
    found = [_shown(folder, name) for name in names if name not in layout.LASTING]
    if layout.FORMAT in names and _content(folder, layout.FORMAT) not in (layout.FORMAT_TEXT, layout.FORMAT_WITH_LOG):
        found.append(f"{_shown(folder, layout.FORMAT)} has another text")
    if layout.HEAD in names and journal.decode_head(_content(folder, layout.HEAD)) is None:
        found.append(f"{_shown(folder, layout.HEAD)} cannot be read")
    return found


def _content(folder: bytes, name: bytes) -> bytes:
    return Path(os.fsdecode(folder), os.fsdecode(name)).read_bytes()


def _shown(folder: bytes, name: bytes) -> str:
    return os.fsdecode(os.path.join(folder, name))
