"""Two revisions against each other, in interleaved rounds: each in a process of its own that imports it.

A revision is a name that git knows, or a directory with a package `txfiles` in it. The harness is the present one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.rounds import Result, Task, rotated, sample

CHECKOUT = Path(__file__).resolve().parents[1]
CASES = (
    "txfiles 4x2000",
    "process 4x2000",
    "txfiles 32x4096",
    "txfiles 1024x4096",
    "snapshot 4x2000",
    "recovery 1000x100",
)
_REPEAT = {"snapshot": 50}


def compare(base: Path, revisions: Sequence[str], rounds: int, cases: Sequence[str] = CASES) -> Iterator[Result]:
    """A result for each case; the first revision is the reference. Cases are `WHAT FILESxBYTES`."""
    with ExitStack() as stack:
        labels = [f"{number}: {revision}" for number, revision in enumerate(revisions, 1)]
        workers = {}
        for number, (label, revision) in enumerate(zip(labels, revisions, strict=True)):
            tree = stack.enter_context(_source(revision))
            (folder := base / f"{number}").mkdir()
            workers[label] = stack.enter_context(_worker(tree, folder))
        for case in cases:
            result = Result("compare", case, reference=labels[0], seconds={label: [] for label in labels})
            few = max(3, min(rounds, rounds * 128 // int(case.split()[1].split("x")[0])))
            for turn in range(-2, few):
                for label in rotated(labels, turn):
                    seconds = _ask(workers[label], case, turn)
                    if turn >= 0:
                        result.seconds[label].append(seconds)
            yield result


@contextmanager
def _source(revision: str) -> Iterator[Path]:
    """A directory that holds the package `txfiles` of this revision and nothing else."""
    with TemporaryDirectory() as name:
        tree = Path(name)
        if Path(revision, "txfiles").is_dir():
            (tree / "txfiles").symlink_to(Path(revision, "txfiles").resolve())
        else:
            git = ["git", "-C", str(CHECKOUT), "archive", revision, "txfiles"]
            packed = subprocess.run(git, check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x", "-C", name], check=True, input=packed)
        yield tree


@contextmanager
def _worker(tree: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    code = "import sys; from benchmarks.compare import serve; serve(sys.argv[1])"
    argv = [sys.executable, "-c", code, str(folder)]
    # The working directory comes first where modules are looked for.
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, cwd=tree, env=environment, stdin=pipe, stdout=pipe, text=True, encoding="utf-8"
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def _ask(worker: subprocess.Popen[str], case: str, turn: int) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(json.dumps([case, turn]), file=worker.stdin, flush=True)
    answer = worker.stdout.readline()
    if not answer:
        raise RuntimeError(f"{case}: the process of this revision ended")
    return float(answer)


def serve(folder: str) -> None:
    """In the process of a revision: read a case and a turn from each line, do it, and print its seconds."""
    base, tasks = Path(folder), dict[str, Task]()
    with ExitStack() as stack:
        for line in sys.stdin:
            case, turn = json.loads(line)
            if case not in tasks:
                tasks[case] = _task(case, base, stack)
            print(sample(tasks[case], turn, base, repeat=_REPEAT.get(case.split()[0], 1)), flush=True)


def _task(case: str, base: Path, stack: ExitStack) -> Task:
    from benchmarks import modes
    from benchmarks.competitors import SAVES

    what, shape = case.split()
    files, size = (int(number) for number in shape.split("x"))
    if what == "snapshot":
        return modes.snapshot_tasks(base, files, size)["txfiles"]
    if what == "recovery":
        return modes.recovery_tasks(base, files, size)["txfiles"]
    return modes.save_task(stack.enter_context(SAVES[what](modes.fresh(base) / "root")), files, size)
