"""A table of sandbox snapshots that survives kills in the middle of a save and two processes that add at once.

A service takes snapshots of sandboxes and notes their ids in two files: `snapshots.json`, all there are, and
`latest.json`, the newest of each sandbox. A lost id is a snapshot that nobody finds again.

    python examples/snapshot_store.py [directory] [--naive] [--kills 10]

First a process that adds snapshots is killed again and again, each time at a random moment; then two processes add
snapshots at the same time. With `--naive` the files are read, changed and written back, as is often done.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from _show import fork, parser, workplace

from txfiles import JsonDocuments

SANDBOXES = 7
EACH = 60  # snapshots that each of the two processes adds


class SnapshotStore:
    """The tables in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.documents = JsonDocuments(directory, {"snapshots": {}, "latest": {}}, create=True)

    def load(self) -> dict[str, Any]:
        return self.documents.load()

    def add(self, *ids: str) -> None:
        with self.documents.edit() as tables:  # read, changed and replaced under one lock, both files or none
            enter(tables, ids)

    def recovered(self) -> str:
        """Finish or undo what a crash left, and say which."""
        report = self.documents.store.recover()
        return "finished" if report.rolled_forward else "nothing to do" if report.clean else "undone"


class NaiveSnapshotStore:
    """The same with plain files: no lock, and a file that cannot be read counts as not there yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def load(self) -> dict[str, Any]:
        tables: dict[str, Any] = {"snapshots": {}, "latest": {}}
        for name in tables:
            with suppress(FileNotFoundError, ValueError):
                tables[name] = json.loads((self.directory / f"{name}.json").read_text(encoding="utf-8"))
        return tables

    def add(self, *ids: str) -> None:
        tables = self.load()
        enter(tables, ids)
        for name, table in tables.items():
            with (self.directory / f"{name}.json").open("w", encoding="utf-8") as file:
                json.dump(table, file, indent=2)

    def recovered(self) -> str:
        return "none"


def enter(tables: dict[str, Any], ids: tuple[str, ...]) -> None:
    for snapshot in ids:
        sandbox = f"sandbox-{int(snapshot.rpartition('-')[2]) % SANDBOXES}"
        tables["snapshots"][snapshot] = {"sandbox": sandbox, "taken": time.time()}
        tables["latest"][sandbox] = snapshot


def wrong(store: SnapshotStore | NaiveSnapshotStore, expected: list[str]) -> tuple[int, int]:
    """How many expected ids are lost, and how many of the latest ones are not in the table."""
    tables = store.load()
    lost = sum(snapshot not in tables["snapshots"] for snapshot in expected)
    return lost, sum(latest not in tables["snapshots"] for latest in tables["latest"].values())


def killed_again_and_again(store: SnapshotStore | NaiveSnapshotStore, kills: int) -> int:
    """How many kills left something wrong."""
    added = fork.RawValue("i", 500)  # shared with the children: so many were added and reported to their caller
    store.add(*(f"snap-{number}" for number in range(added.value)))

    def add_for_ever() -> None:
        for number in count(added.value):
            store.add(f"snap-{number}")
            added.value = number + 1

    bad = 0
    for kill in range(1, kills + 1):
        before = added.value
        child = fork.Process(target=add_for_ever)
        child.start()
        while added.value == before:
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.03))
        child.kill()
        child.join()
        recovered = store.recovered()
        lost, dangling = wrong(store, [f"snap-{number}" for number in range(added.value)])
        bad += bool(lost or dangling)
        print(f"kill {kill:2}, recovery: {recovered:13} {added.value} added, {lost} lost, {dangling} dangling")
        if lost or dangling:
            store.add(*(f"snap-{number}" for number in range(added.value)))  # somebody repairs it by hand
    return bad


def two_at_once(store: SnapshotStore | NaiveSnapshotStore) -> int:
    """How many of the snapshots that two processes add at once are lost."""
    names = [[f"{who}-{number}" for number in range(EACH)] for who in ("left", "right")]
    children = [fork.Process(target=lambda mine=mine: [store.add(snapshot) for snapshot in mine]) for mine in names]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return wrong(store, [snapshot for mine in names for snapshot in mine])[0]


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--kills", type=int, default=10, help="how many processes to kill (default: 10)")
    options = arguments.parse_args()
    with workplace(options.directory, "snapshots") as directory:
        store = NaiveSnapshotStore(directory) if options.naive else SnapshotStore(directory)
        bad = killed_again_and_again(store, options.kills)
        print(f"{options.kills} kills: {bad} of them damaged the tables")
        lost = two_at_once(store)
        print(f"two processes added {EACH} snapshots each, at once: {lost} of {2 * EACH} are lost")
    return 1 if bad or lost else 0


if __name__ == "__main__":
    sys.exit(main())
