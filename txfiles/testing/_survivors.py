"""What a power loss can leave of a disk: every choice that the rules D1 to D6 of `_simdisk` allow.

A choice has one number for each thing that is open: for a name, how many of its pending changes survive; for content
and metadata, which version comes back. 0 is always the old one, the highest number the new one. Written as one string
it is the token that replays the choice.
"""

from __future__ import annotations

import itertools
import math
import operator
import random
from typing import TYPE_CHECKING, NamedTuple

from txfiles.testing._simdisk import Disk
from txfiles.testing._simnode import MTIME, OWNER, ROOT, XATTRS, Node, Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Choice = tuple[int, ...]

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_GARBAGE = bytes(255 - byte for byte in range(256))
_PAGE = 4096
_TRY_ALL = 32  # times the cap: so many choices are tried before samples have to do
_META = ((OWNER, "owner and mode"), (XATTRS, "attributes"), (MTIME, "mtime"))


class _Rename(NamedTuple):
    """D2: if at least `removed` changes of the old name survive, so do at least `added` of the new one."""

    old: int
    removed: int
    new: int
    added: int
    values: tuple[int, ...]  # of the old name, by the number of surviving changes
    inode: int


class Survivors:
    """The states that a power loss can leave of `disk`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._sizes: list[int] = []  # how many options each open thing has
        self._names: dict[Place, int] = {}
        self._contents: dict[int, tuple[int, list[tuple[str, bytes]]]] = {}
        self._metas: dict[int, tuple[int, list[int]]] = {}
        reachable = sorted(disk.reachable())  # in the order of birth
        for serial in reachable:
            self._add(disk.nodes[serial])
        self._renames = [rename for serial in reachable for rename in self._renames_out_of(disk.nodes[serial])]

    def _add(self, node: Node) -> None:
        for name, history in sorted(node.pending.items()):
            self._names[node.serial, name] = len(self._sizes)
            self._sizes.append(len(history.changes) + 1)
        contents = contents_of(node)
        if len(contents) > 1:
            self._contents[node.serial] = len(self._sizes), contents
            self._sizes.append(len(contents))
        if node.stale:
            masks = [mask for mask in range(8) if not mask & ~node.stale]
            self._metas[node.serial] = len(self._sizes), masks
            self._sizes.append(len(masks))

    def _renames_out_of(self, node: Node) -> Iterator[_Rename]:
        for name, history in node.pending.items():
            values = (history.base, *(change.serial for change in history.changes))
            for removed, change in enumerate(history.changes, 1):
                if not change.leaves or change.other not in self._names:
                    continue
                directory, other = change.other
                for added, addition in enumerate(self._disk.nodes[directory].pending[other].changes, 1):
                    if addition.id == change.id:
                        old, new = self._names[node.serial, name], self._names[change.other]
                        yield _Rename(old, removed, new, added, values, change.leaves)

    # -- choosing -------------------------------------------------------------------------------------------------

    def states(self, cap: int, seed: int = 0) -> Iterator[tuple[str, Disk]]:
        """Different choices with the disks that they leave: all of them, or else `cap` of the most telling ones."""
        seen: set[Choice] = set()
        choices: list[Choice] = []
        if math.prod(self._sizes) <= cap * _TRY_ALL:
            choices = [choice for choice in itertools.product(*map(range, self._sizes)) if not self._broken(choice)]
        few = 0 < len(choices) <= cap
        for choice in choices if few else self._telling(cap, seed):
            if len(seen) >= cap:
                return
            built = self.build(choice)
            if built is not None and built[0] not in seen:
                seen.add(built[0])
                yield token_of(built[0]), built[1]

    def _telling(self, cap: int, seed: int) -> Iterator[Choice]:
        """Nothing survives, all survives, all but one thing, one thing alone; then samples."""
        chance = random.Random(seed)
        nothing, everything = tuple(0 for _ in self._sizes), tuple(size - 1 for size in self._sizes)
        yield nothing
        yield everything
        single = []
        for index, size in enumerate(self._sizes):
            single += [(nothing, index, option) for option in range(1, size)]
            single += [(everything, index, option) for option in range(size - 1)]
        chance.shuffle(single)
        for base, index, option in single:
            yield self._repaired((*base[:index], option, *base[index + 1 :]), down=base is everything)
        for _ in range(cap * _TRY_ALL):
            drawn = tuple(
                size - 1 if (dice := chance.random()) < 0.4 else 0 if dice < 0.6 else chance.randrange(size)
                for size in self._sizes
            )
            yield self._repaired(drawn, down=chance.random() < 0.5)

    def _broken(self, choice: Choice) -> list[_Rename]:
        return [
            rename
            for rename in self._renames
            if choice[rename.old] >= rename.removed
            and choice[rename.new] < rename.added
            and rename.values[choice[rename.old]] != rename.inode
        ]

    def _repaired(self, choice: Choice, *, down: bool) -> Choice:
        """The nearest choice that D2 allows, with fewer changes of names or with more."""
        while broken := self._broken(choice):
            changed = list(choice)
            for rename in broken:
                if down:
                    changed[rename.old] = min(changed[rename.old], rename.removed - 1)
                else:
                    changed[rename.new] = max(changed[rename.new], rename.added)
            choice = tuple(changed)
        return choice

    # -- building -------------------------------------------------------------------------------------------------

    def build(self, choice: Choice) -> tuple[Choice, Disk] | None:
        """The disk that a choice leaves, and the choice with zeros where it made no difference.

        `None` for what no disk is like: a directory with two names, or two inodes with one number.
        """
        nodes, links, parents = self._disk.nodes, {ROOT: 1}, {ROOT: 0}
        entries: dict[int, dict[bytes, int]] = {}
        used: set[int] = set()
        todo = [ROOT]
        while todo:
            serial = todo.pop()
            node = nodes[serial]
            here = entries[serial] = node.entries
            if node.pending:
                here = entries[serial] = here.copy()
                for name, history in node.pending.items():
                    index = self._names[serial, name]
                    used.add(index)
                    value = history.value(choice[index])
                    if value:
                        here[name] = value
                    else:
                        here.pop(name, None)
            for below in here.values():
                if below in links:
                    links[below] += 1
                    if nodes[below].kind == "dir":
                        return None
                else:
                    links[below], parents[below] = 1, serial
                    if nodes[below].kind == "dir":
                        todo.append(below)
        if any(rename.old in used and rename.new in used for rename in self._broken(choice)):
            return None
        if len({nodes[serial].ino for serial in links}) < len(links):
            return None
        left = {}
        for serial, count in links.items():
            node = nodes[serial]
            nlink, parent = (2, parents[serial]) if node.kind == "dir" else (count, 0)
            if node.pending or node.saved or node.gone or (node.nlink, node.parent) != (nlink, parent):
                node = node.settled(nlink, parent)
                if serial in entries:
                    node.entries = entries[serial]
                self._choose_version(node, choice, used)
            left[serial] = node
        canonical = tuple(option if index in used else 0 for index, option in enumerate(choice))
        return canonical, self._disk.with_nodes(left)

    def _choose_version(self, node: Node, choice: Choice, used: set[int]) -> None:
        if node.serial in self._contents:
            index, contents = self._contents[node.serial]
            node.data = contents[choice[index]][1]
            used.add(index)
        if node.serial in self._metas:
            index, masks = self._metas[node.serial]
            mask, saved = masks[choice[index]], self._disk.nodes[node.serial].saved
            used.add(index)
            assert saved is not None
            if not mask & OWNER:
                node.mode, node.uid, node.gid = saved.owner
            if not mask & XATTRS:
                node.xattrs = saved.xattrs
            if not mask & MTIME:
                node.mtime = saved.mtime

    # -- telling --------------------------------------------------------------------------------------------------

    def survive(self, token: str) -> Disk:
        """The disk that the choice of this token leaves."""
        built = self.build(self._choice(token))
        if built is None:
            raise self._misfit(token)
        return built[1]

    def _choice(self, token: str) -> Choice:
        choice = choice_of(token)
        if len(choice) != len(self._sizes) or any(map(operator.ge, choice, self._sizes)):
            raise self._misfit(token)
        return choice

    def _misfit(self, token: str) -> ValueError:
        return ValueError(f"no power loss here leaves {token!r}")

    def describe(self, token: str) -> list[str]:
        """What the choice of a token is about, a line each."""
        choice, paths = self._choice(token), self._paths()
        lines = []
        for (directory, name), index in self._names.items():
            history = self._disk.nodes[directory].pending[name]
            path = f"{paths[directory]}/{name.decode(errors='backslashreplace')}"
            lines.append(f"{path}: {choice[index]} of {len(history.changes)} changes survive")
        for serial, (index, contents) in self._contents.items():
            lines.append(f"content of {paths[serial]}: {contents[choice[index]][0]}")
        for serial, (index, masks) in self._metas.items():
            lost = [text for bit, text in _META if self._disk.nodes[serial].stale & ~masks[choice[index]] & bit]
            lines.append(f"metadata of {paths[serial]}: {', '.join(lost) or 'nothing'} lost")
        return lines

    def _paths(self) -> dict[int, str]:
        """Of every inode that can survive, the first path that it can have."""
        paths, todo = {ROOT: ""}, [ROOT]
        while todo:
            node = self._disk.nodes[todo.pop()]
            found = list(node.entries.items())
            for name, history in node.pending.items():
                found += [(name, history.value(count)) for count in range(len(history.changes) + 1)]
            for name, serial in found:
                if serial and serial not in paths:
                    paths[serial] = f"{paths[node.serial]}/{name.decode(errors='backslashreplace')}"
                    todo.append(serial)
        return paths


def contents_of(node: Node) -> list[tuple[str, bytes]]:
    """The versions of its content that may come back, with what they are called; the last is what can be read."""
    if node.saved is None or not node.spans:
        return [("new", node.data)]
    old, new = node.saved.data, node.data
    spans = [(min(start, len(new)), min(end, len(new))) for start, end in node.spans]
    after = [new[start:end] for start, end in spans]
    before = [old[start:end].ljust(end - start, b"\0") for start, end in spans]

    def put(parts: Sequence[bytes]) -> bytes:
        out, at = [], 0
        for (start, end), part in zip(spans, parts, strict=True):
            out += [new[at:start], part]
            at = end
        return b"".join([*out, new[at:]])

    halves = [len(part) // 2 for part in after]
    torn = [one[:half] + other[half:] for one, other, half in zip(after, before, halves, strict=True)]
    versions = [
        ("zeroed", put([bytes(len(part)) for part in after])),
        ("garbage", put([part.translate(_GARBAGE) for part in after])),
        ("torn", put(torn)),
    ]
    for count in range(1, len(spans)):
        versions.append(("new up to a place", put(after[:count] + before[count:])))
        versions.append(("new behind a place", put(before[:count] + after[count:])))
    (start, end), half = max(zip(spans, halves, strict=True), key=lambda one: one[1])
    page = (start + half) // _PAGE * _PAGE
    if start < page and page + _PAGE < end:
        lost = old[page : page + _PAGE].ljust(_PAGE, b"\0")
        versions.append(("without a page in its middle", new[:page] + lost + new[page + _PAGE :]))
    if spans[-1][1] == len(new):
        *first, last = after
        shorter = (("empty", b""), ("short", last[: halves[-1]]), ("short by one", last[:-1]))
        versions += [(called, put([*first, part])) for called, part in shorter]
    others = {data: called for called, data in reversed(versions) if data not in (old, new)}
    return [("old", old), *((called, data) for data, called in others.items()), ("new", new)]


def token_of(choice: Choice) -> str:
    if max(choice, default=0) < len(_DIGITS):
        return "".join(_DIGITS[option] for option in choice) or "-"
    return ".".join(map(str, choice))


def choice_of(token: str) -> Choice:
    if "." in token:
        return tuple(map(int, token.split(".")))
    return tuple(_DIGITS.index(digit) for digit in token if digit != "-")
