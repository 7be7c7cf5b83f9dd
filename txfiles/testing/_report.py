"""What the explorer prints: trees side by side, and calls with the crash marked."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from txfiles.testing._simtree import Entry, Tree

_READS = (
    "fstat",
    "stat",
    "open_dir",
    "open_read",
    "read",
    "seek",
    "close",
    "listdir",
    "readlink",
    "xattrs",
    "mount_id",
    "born",
    "project",
    "confined",
)
_LAST = 3  # reads that are shown before the crash all the same
_SHOWN = 24  # bytes of content


def side_by_side(trees: dict[str, Tree]) -> str:
    """A table with a column for each tree; `!` marks a path whose last column is like none of the others."""
    paths = sorted({path for tree in trees.values() for path in tree})
    rows = [["", "", *trees]]
    for path in paths:
        *others, last = (tree.get(path) for tree in trees.values())
        mark = "!" if others and last not in others else ""
        rows.append([mark, path, *(show(tree.get(path)) for tree in trees.values())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def show(entry: Entry | None) -> str:
    """An entry in a few words; long content by its size and checksum."""
    if entry is None:
        return "-"
    content = entry.content
    told = repr(content)[1:] if len(content) <= _SHOWN else f"{len(content)} bytes {zlib.crc32(content):08x}"
    owner = f" {entry.uid}:{entry.gid}" if entry.uid or entry.gid else ""
    xattrs = "".join(f" {key}={value!r}" for key, value in entry.xattrs)
    return f"{entry.kind} {entry.mode:04o}{owner}{xattrs} {told if entry.kind != 'dir' else ''}".rstrip()


def calls(trace: Sequence[str]) -> list[str]:
    """The calls that change something or make it durable, and the last ones whatever they are."""
    kept = []
    for index, line in enumerate(trace):
        if line.split()[1] not in _READS or index >= len(trace) - _LAST:
            kept.append(line)
    return kept
