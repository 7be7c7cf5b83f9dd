"""A task board: a dispatcher and workers in processes of their own, workers killed at random, and no task is lost.

The board is a handful of JSON files: a task is in `todo.json`, `doing.json` or `done.json`, `counts.json` says how many
are where, `beats.json` has the heartbeats of the workers, and `events.json` everything that ever happened. Each step of
anybody is one transaction over all of them. The dispatcher adds tasks and takes those back whose worker has no heart
any more; a worker claims a task, beats while it works, and finishes it, if it is still its own.

    TASK_BOARD_DURABILITY=process python examples/task_board.py [directory] [--naive] [--kills 8]
    AWS_ENDPOINT=... python examples/task_board.py s3://bucket/prefix

With a URL the processes have nothing in common but the bucket, as on machines of their own.

The variable is the application's: "full" (the default) also survives power loss, "process" only kills, and is faster.
With `--naive` the files are read, changed, and replaced one after another, each with a careful temp-and-rename.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from _show import fork, is_url, parser, replace, spawn, workplace

from txfiles import JsonDocuments

WORKERS = 3
EVENTS = 50  # each process makes at least so many
SILENCE = 0.5  # seconds without a heartbeat after which a worker counts as dead
EMPTY: dict[str, Any] = {"todo": [], "doing": {}, "done": [], "counts": {}, "beats": {}, "events": []}

Tables = dict[str, Any]


class Board:
    """The board in a directory, or at a URL."""

    def __init__(self, place: Path | str) -> None:
        self.place = place
        durability: Any = os.environ.get("TASK_BOARD_DURABILITY", "full")
        self.documents = JsonDocuments(place, EMPTY, durability=durability, timeout=60, create=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.place,)

    def load(self) -> Tables:
        return self.documents.load()

    def update(self, change: Callable[[Tables], None]) -> None:
        """Change the tables; again, where somebody else was faster."""
        self.documents.update(change, retries=1000)


class NaiveBoard(Board):
    """The usual cure: each file is whole, the set is not, and two processes overwrite each other's steps."""

    def __init__(self, place: Path | str) -> None:
        self.place = self.directory = Path(place)
        self._replace_all(EMPTY)

    def load(self) -> Tables:
        return {name: json.loads((self.directory / f"{name}.json").read_text(encoding="utf-8")) for name in EMPTY}

    def update(self, change: Callable[[Tables], None]) -> None:
        tables = self.load()
        change(tables)
        self._replace_all(tables)

    def _replace_all(self, tables: Tables) -> None:
        for name, table in tables.items():
            replace(self.directory / f"{name}.json", json.dumps(table))


class Actor:
    """Somebody who makes steps. Each is an event with a number; `made`, shared with the parent, counts them."""

    def __init__(self, board: Board, name: str, made: Any) -> None:
        self.board = board
        self.name = name
        self.made = made

    def step(self, change: Callable[[Tables], str]) -> None:
        """Change the tables and note what `change` says it did; all of it is on the board, or nothing."""

        def noted(tables: Tables) -> None:
            what = change(tables)
            tables["counts"] = {name: len(tables[name]) for name in ("todo", "doing", "done")}
            tables["beats"][self.name] = self.made.value + 1
            tables["events"].append([self.name, self.made.value + 1, what])

        self.board.update(noted)
        self.made.value += 1


class Dispatcher(Actor):
    def run(self, closing: Any, added: Any) -> None:
        """Keep some tasks in stock until `closing`, then see that all are done; `added` counts them."""
        heard: dict[str, tuple[int, float]] = {}  # the last beat of each worker, and when it was new
        while True:
            tables = self.board.load()
            now = time.monotonic()
            for worker in tables["doing"].values():
                beat = tables["beats"].get(worker, 0)
                if worker not in heard or heard[worker][0] != beat:
                    heard[worker] = (beat, now)
            dead = [worker for worker in tables["doing"].values() if now - heard[worker][1] > SILENCE]
            if dead:
                self.step(partial(self._take_back, dead[0]))
            elif not closing.value and len(tables["todo"]) < WORKERS:
                self.step(partial(self._add, f"task-{added.value}"))
                added.value += 1
            elif closing.value and not tables["todo"] and not tables["doing"]:
                return
            else:
                time.sleep(0.01)

    def _add(self, task: str, tables: Tables) -> str:
        tables["todo"].append(task)
        return f"added {task}"

    def _take_back(self, worker: str, tables: Tables) -> str:
        tasks = [task for task, owner in tables["doing"].items() if owner == worker]
        for task in tasks:
            del tables["doing"][task]
        tables["todo"] += tasks
        return f"took {tasks} back from {worker}"


class Worker(Actor):
    def run(self) -> None:
        while True:
            if not self.board.load()["todo"]:
                time.sleep(0.01)
                continue
            self.step(self._claim)
            if self.task:
                self.step(lambda _: f"beat, at work on {self.task}")
                self.step(self._finish)

    def _claim(self, tables: Tables) -> str:
        self.task = ""
        if not tables["todo"]:
            return "found nothing to do"
        self.task = tables["todo"].pop(0)
        tables["doing"][self.task] = self.name
        return f"claimed {self.task}"

    def _finish(self, tables: Tables) -> str:
        if tables["doing"].get(self.task) != self.name:
            return f"had to leave {self.task} to another"
        del tables["doing"][self.task]
        tables["done"].append(self.task)
        return f"finished {self.task}"


def mismatched(tables: Tables) -> bool:
    return any(count != len(tables[name]) for name, count in tables["counts"].items())


def let_them_work(board: Board, kills: int) -> tuple[int, dict[str, int], int, int]:
    """Run the processes and kill workers until everybody has made enough events.

    How many tasks were added, how many events each process made, and of how many looks how many found wrong counts.
    """
    processes: Any = spawn if is_url(board.place) else fork
    closing, added = processes.RawValue("b", 0), processes.RawValue("i", 0)
    made: dict[str, Any] = {}
    looks = wrong = 0

    def start(actor: type[Any], name: str, *arguments: Any) -> Any:
        made[name] = processes.RawValue("i", 0)
        process = processes.Process(target=actor(board, name, made[name]).run, args=arguments, daemon=True)
        process.start()
        return process

    def fewest() -> int:
        slots = Counter[str]()
        for name, count in made.items():
            slots[name.partition(".")[0]] += count.value
        return min(slots.values())

    dispatcher = start(Dispatcher, "dispatcher", closing, added)
    workers = [start(Worker, f"worker-{slot}.0") for slot in range(WORKERS)]
    killed = 0
    while dispatcher.is_alive():
        time.sleep(random.uniform(0.02, 0.1))
        if any(worker.exitcode is not None for worker in workers):
            raise RuntimeError("a worker gave up")
        looks += 1
        wrong += mismatched(board.load())
        if killed < kills and fewest() > 0:
            slot = random.randrange(WORKERS)
            workers[slot].kill()
            workers[slot].join()
            killed += 1
            workers[slot] = start(Worker, f"worker-{slot}.{killed}")
        elif killed == kills and fewest() >= EVENTS:
            closing.value = 1
    if dispatcher.exitcode:
        raise RuntimeError("the dispatcher gave up")
    for worker in workers:
        worker.kill()
        worker.join()
    return added.value, {name: count.value for name, count in made.items()}, looks, wrong


def judge(tables: Tables, added: int, made: dict[str, int]) -> dict[str, int]:
    """What is wrong with a board to which `added` tasks were added, each process saying how many events it `made`."""
    places = Counter([*tables["todo"], *tables["doing"], *tables["done"]])
    tasks = [f"task-{number}" for number in range(added)]
    events = Counter((who, number) for who, number, _ in tables["events"])
    promised = [(who, number + 1) for who, count in made.items() for number in range(count)]
    finished = Counter(what.removeprefix("finished ") for _, _, what in tables["events"])
    return {
        "tasks in no list": sum(places[task] == 0 for task in tasks),
        "tasks more than once": sum(places[task] > 1 for task in tasks),
        "tasks of which the events tell otherwise": sum(finished[task] != (task in tables["done"]) for task in tasks),
        "events lost": sum(events[event] == 0 for event in promised),
        "events twice": sum(number > 1 for number in events.values()),
    }


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--kills", type=int, default=8, help="how many workers to kill (default: 8)")
    options = arguments.parse_args()
    with workplace(options.directory, "board") as directory:
        board = NaiveBoard(directory) if options.naive else Board(directory)
        began = time.perf_counter()
        added, made, looks, wrong = let_them_work(board, options.kills)
        seconds = time.perf_counter() - began
        tables = board.load()

    problems = judge(tables, added, made) | {"looks, on the way, that found wrong counts": wrong}
    steps = sum(made.values())
    print(f"{WORKERS} workers and a dispatcher made {steps} events in {seconds:.1f} s; {options.kills} were killed")
    taken = sum(what.startswith("took") for _, _, what in tables["events"])
    done = len(set(tables["done"]))
    print(f"{added} tasks were added, {done} are done; {taken} times one was taken back from a dead worker")
    print(f"somebody looked {looks} times while the others worked; found were")
    for what, number in problems.items():
        print(f"  {number:4} {what}")
    return 1 if any(problems.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
