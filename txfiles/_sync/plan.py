"""Two listings compared: what has to be done to the target."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from txfiles._sync.sides import Entry, Listing

_SECOND = 1_000_000_000  # ns


class Wishes(NamedTuple):
    """What is to be kept of the source besides contents, and what becomes of the rest of the target."""

    delete: bool = False
    perms: bool = True
    times: bool = False
    checksum: bool = False


@dataclass(slots=True)
class Plan:
    """Names, sorted. Removals come first, deepest first; `doubtful` files have to be read to tell if they differ.

    `modes` are those that files get which are written, or `None` for what they have or would have. `skipped` are
    neither files nor directories nor links; whatever the target has in their place stays.
    """

    delete: list[str] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)
    make: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    write: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    modes: dict[str, int | None] = field(default_factory=dict)


def compare(source: Listing, target: Listing, wishes: Wishes) -> Plan:
    """How to make the target like the source. Raises `IsADirectoryError` for a directory that is in the way."""
    plan = Plan()
    for name, entry in source.entries.items():
        there = target.entries.get(name)
        if entry.kind == "special":
            plan.skipped.append(name)
        elif entry.kind == "dir":
            if there is None or there.kind != "dir":
                plan.make.append(name)
        elif there is not None and there.kind == "dir" and (not wishes.delete or name in target.kept):
            message = "is a directory; only --delete replaces it, and only if nothing in it is excluded"
            raise IsADirectoryError(errno.EISDIR, message, name)
        elif entry.kind == "link":
            if there is None or there.link != entry.link:
                plan.links.append(name)
        else:
            _compare_file(plan, name, entry, there, wishes)
    skipped = set(plan.skipped)
    for name, there in reversed(target.entries.items()):
        ours = source.entries.get(name)
        if ours is None:
            stays = not wishes.delete or (skipped and _is_below(name, skipped)) or name in target.kept
        else:
            stays = ours.kind in (there.kind, "special") or (ours.kind == "link" and there.kind == "file")
        if not stays:
            (plan.remove if there.kind == "dir" else plan.delete).append(name)
    return plan


def _compare_file(plan: Plan, name: str, entry: Entry, there: Entry | None, wishes: Wishes) -> None:
    if there is None or there.kind != "file":
        plan.modes[name] = entry.mode & 0o777 if wishes.perms else None
        plan.write.append(name)
        return
    mode = _mode_of_replaced(entry.mode, there.mode) if wishes.perms else there.mode
    plan.modes[name] = mode
    if entry.size != there.size or mode != there.mode or (wishes.times and _is_later_or_earlier(entry, there)):
        plan.write.append(name)
    elif wishes.checksum or not _looks_the_same(entry, there):
        plan.doubtful.append(name)


def _mode_of_replaced(mode: int, there: int) -> int:
    """The target's own mode, which may be closer than the source's; whether it is executable comes from the source."""
    if mode & 0o111:
        return there if there & 0o111 else there | (there & 0o444) >> 2
    return there & ~0o111


def _looks_the_same(entry: Entry, there: Entry) -> bool:
    """Of one time (and size), and the source was not touched since the target was written: times can be set."""
    return entry.mtime_ns == there.mtime_ns and entry.changed_ns < there.changed_ns


def _is_later_or_earlier(entry: Entry, there: Entry) -> bool:
    """Of another time than the source's; in a place that keeps whole seconds, by a second or more."""
    if there.mtime_ns % _SECOND == 0:
        return abs(entry.mtime_ns - there.mtime_ns) >= _SECOND
    return entry.mtime_ns != there.mtime_ns


def _is_below(name: str, names: set[str]) -> bool:
    while "/" in name:
        name = name.rpartition("/")[0]
        if name in names:
            return True
    return False
