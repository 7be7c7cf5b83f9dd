"""The explorations, each with the bounds of the default run and of the deep one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.objects.explore import Bounds, explore
from tests.objects.scenarios import (
    BIG,
    Counting,
    Files,
    Settling,
    Snapshotting,
    collector,
    compactor,
    copier,
    everything_referenced_is_readable,
    half_dead,
    replacer,
    tagging,
    with_old_files,
)


class Exploration(NamedTuple):
    scenario: Callable[[], Any]
    quick: Bounds
    deep: Bounds
    prepare: Callable[[Any], None] = lambda requests: None

    def run(self, *, deep: bool = False) -> int:
        return explore(self.scenario, self.deep if deep else self.quick, prepare=self.prepare)


def _two_writers() -> Any:
    counting = Counting()
    return [counting.writer(b"a"), counting.writer(b"b")], counting.check


def _three_writers() -> Any:
    counting = Counting()
    return [counting.writer(b"a"), counting.writer(b"b"), counting.writer(b"c")], counting.check


def _in_a_hurry() -> Any:
    counting = Counting(timeout=0.004)
    return [counting.writer(b"a"), counting.writer(b"b")], counting.check


def _settled() -> Any:
    settling = Settling()
    return [settling.settler(b"a"), settling.writer(b"b")], settling.check


def _slow_writer() -> Any:
    counting = Counting(size=BIG)

    def check(requests: Any) -> None:
        counting.check(requests)
        everything_referenced_is_readable(requests)

    return [counting.writer(b"a"), collector(5)], check


def _slow_reader() -> Any:
    return [Snapshotting().reader(), replacer(b"2"), collector(5)], everything_referenced_is_readable


def _tagger() -> Any:
    acts = [tagging("v1", lambda root: root.newest()), replacer(b"2"), collector(5)]
    return acts, everything_referenced_is_readable


HALF = {b"old/0": b"1", b"old/1": b"2"}


def _compact_and_writer() -> Any:
    files = Files(HALF)
    return [compactor(1), files.made(dict.fromkeys(HALF, b"3"), replacer(b"3")), collector(4)], files.check


def _compact_and_copier() -> Any:
    files = Files(HALF)
    return [compactor(1), files.made({b"copy": b"1"}, copier(b"old/0", b"copy")), collector(4)], files.check


def _compact_and_reader() -> Any:
    return [compactor(1), Snapshotting(mixed=True).reader(), collector(4)], Files(HALF).check


def _two_compactors() -> Any:
    return [compactor(2), compactor(1)], Files(HALF).check


EXPLORATIONS = {
    "two writers": Exploration(_two_writers, Bounds(2, 1), Bounds(3, 2)),
    "three writers": Exploration(_three_writers, Bounds(1, 1), Bounds(3, 1)),
    "two writers in a hurry": Exploration(_in_a_hurry, Bounds(2, 1), Bounds(3, 2)),
    "an unknown outcome settled beside a writer": Exploration(_settled, Bounds(1, 1), Bounds(2, 2)),
    "a slow writer and gc": Exploration(_slow_writer, Bounds(2, 0), Bounds(2, 1), with_old_files(1)),
    "a slow reader and gc": Exploration(_slow_reader, Bounds(1, 0), Bounds(1, 1), with_old_files(1)),
    "compacting, a writer and gc": Exploration(_compact_and_writer, Bounds(1, 0), Bounds(1, 1), half_dead),
    "compacting, a copy and gc": Exploration(_compact_and_copier, Bounds(1, 0), Bounds(1, 1), half_dead),
    "compacting, a slow reader and gc": Exploration(_compact_and_reader, Bounds(1, 0), Bounds(1, 1), half_dead),
    "two who compact": Exploration(_two_compactors, Bounds(1, 1), Bounds(2, 1), half_dead),
    "a tag and gc": Exploration(_tagger, Bounds(1, 0), Bounds(1, 1), with_old_files(1)),
}
