"""The programs in examples/: each works with txfiles, and without it goes wrong in just the way that it tells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import scratch
from tests.support.procs import CHECKOUT

EXAMPLES = CHECKOUT / "examples"
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()  # where a sync costs nothing


def run(program: str, *options: object, well: bool = True, **env: str) -> str:
    """The output of an example that works `well`, or shows on purpose what goes wrong."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{program}.py", *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "TMPDIR": MEMORY, **env, "PYTHONPATH": str(CHECKOUT)},
        encoding="utf-8",
    )
    assert done.returncode == (0 if well else 1), f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def memory() -> Iterator[Path]:
    with scratch.held(scratch.MEMORY) as path:
        yield path


def numbers(text: str, pattern: str) -> list[int]:
    """The numbers in the one place that matches, `#` standing for each."""
    [found] = re.findall(pattern.replace("#", r"(\d+)"), text)
    return [int(number) for number in ((found,) if isinstance(found, str) else found)]


# -- context_manager: four files, killed in the middle of saves -------------------------------------------------------


def test_the_four_files_agree_after_every_kill(memory: Path) -> None:
    told = run("context_manager", memory, "--kills", 8)
    assert told.count("the four files agree") == 8
    assert "0 torn" in told


def test_the_usual_way_tears_the_four_files(memory: Path) -> None:
    assert "TORN" in run("context_manager", memory, "--kills", 60, "--naive", well=False)


# -- snapshot_store: killed in the middle of saves, and two processes at once -----------------------------------------


def test_no_snapshot_is_lost() -> None:
    told = run("snapshot_store", "--kills", 8)
    assert "8 kills: 0 of them damaged the tables" in told
    assert "at once: 0 of 120 are lost" in told


def test_the_usual_way_loses_snapshots() -> None:
    told = run("snapshot_store", "--kills", 15, "--naive", well=False)
    assert numbers(told, "15 kills: # of them damaged the tables") > [0]
    assert numbers(told, "at once: # of 120 are lost") > [0]


# -- state_stores: links and a full disk ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["a small disk", "a named directory"])
def test_the_stores_stay_together_on_a_full_disk(tmp_path: Path, where: str) -> None:
    told = run("state_stores", *([tmp_path] if where == "a named directory" else []))
    assert told.count("links that still lead into dotfiles/: 2 of 2") == 3
    assert told.count("left over: nothing") == 3
    assert told.count("items in installed.json: 20, sources.txt: 20, cache/index.json: 20, log.txt: 20") == 2
    assert told.count("items in installed.json: 21, sources.txt: 21, cache/index.json: 21, log.txt: 21") == 1
    assert re.search("No space left on device|File too large", told)


def test_the_usual_way_breaks_links_and_tears_the_stores_on_a_full_disk() -> None:
    told = run("state_stores", "--naive", well=False)
    assert told.count("links that still lead into dotfiles/: 0 of 2") == 3
    assert "installed.json: 21, sources.txt: 21, cache/index.json: 20, log.txt: 20" in told
    assert "left over: cache/index.json." in told


# -- task_board: a dispatcher, and workers that are killed ------------------------------------------------------------


@pytest.mark.parametrize("durability", ["full", "process"])
def test_the_board_holds(durability: str) -> None:
    told = run("task_board", "--kills", 6, TASK_BOARD_DURABILITY=durability)
    [events] = numbers(told, "3 workers and a dispatcher made # events")
    assert events >= 4 * 50
    added, done = numbers(told, "# tasks were added, # are done")
    assert added == done > 30
    assert re.findall(r"^ +(\d+) ", told, re.MULTILINE) == ["0"] * 6


def test_the_durability_is_the_applications() -> None:
    with pytest.raises(AssertionError, match='durability is "full", "journal" or "process"'):
        run("task_board", TASK_BOARD_DURABILITY="none")


def test_the_usual_way_loses_tasks_and_events() -> None:
    told = run("task_board", "--naive", well=False)
    assert numbers(told, "# tasks in no list") > [0]
    assert numbers(told, "# events lost") > [0]


# -- flaky_disk: an error that passes ---------------------------------------------------------------------------------


def test_a_passing_error_is_raised_and_the_neighbour_goes_on() -> None:
    told = run("flaky_disk")
    [failed], [raised] = numbers(told, "# calls of our steps failed"), numbers(told, "raised: # with a path; ")
    assert failed > 40
    # Closing frees the lock, too; who cannot open or see the file by which it is woken looks by itself; and
    # readers wait for a writer that could not show that it lives.
    (listed,) = re.findall(r"not raised: (.*)$", told, re.MULTILINE)
    unnoticed = {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", listed)}
    assert unnoticed.keys() <= {"open", "flock", "unlock", "stat", "fstat"}
    assert all(unnoticed.get(name, 0) <= 4 for name in ("open", "flock", "stat", "fstat"))
    assert raised == failed - sum(unnoticed.values())
    for who in ("our steps", "the neighbour's"):
        made, stored = numbers(told, f"{who}: # made, # in the store")
        assert made == stored > 0


def test_the_usual_way_begins_a_new_store_and_does_without_the_lock() -> None:
    told = run("flaky_disk", "--naive", well=False)
    assert "10 flock, 10 open, 10 read" in told
    made, stored = numbers(told, "our steps: # made, # in the store")
    assert stored < made
