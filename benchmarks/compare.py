"""Two revisions against each other, in interleaved rounds: each in a process of its own that imports it.

A revision is a name that git knows, or a directory with a package `txfiles` in it. The harness is the present one. In a
case `writers COUNTxSECONDS` so many processes commit 4 files of 2,000 B to one root, for so long.
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

from benchmarks.rounds import Result, Task, rotated, sample, settle_down

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
    """A result for each case; the first revision is the reference. Cases are `WHAT FILESxBYTES`, or of writers."""
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
            crowded = case.startswith("writers ")
            for turn in range(0 if crowded else -2, max(1, rounds // 15) if crowded else few):
                for label in rotated(labels, turn):
                    seconds, facts = _ask(workers[label], case, turn)
                    if turn >= 0:
                        result.seconds[label].append(seconds)
                        for what, amount in facts.items():
                            have = result.facts.setdefault(label, {})
                            have[what] = have.get(what, 0.0) + amount
            if crowded:
                _tell(result)
            yield result


def _tell(result: Result) -> None:
    """Of all rounds together: what the processes of each revision had of one another."""
    for label, facts in result.facts.items():
        result.facts[label] = {
            "commits_per_second": facts["commits"] / facts["duration"],
            "fastest_over_slowest": facts["fastest"] / max(1, facts["slowest"]),
            "refused_per_commit": facts["refused"] / facts["commits"],
            "cpu_ms_per_commit": facts["cpu"] / facts["commits"] * 1e3,
        }


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


def _ask(worker: subprocess.Popen[str], case: str, turn: int) -> tuple[float, dict[str, float]]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(json.dumps([case, turn]), file=worker.stdin, flush=True)
    answer = worker.stdout.readline()
    if not answer:
        raise RuntimeError(f"{case}: the process of this revision ended")
    seconds, facts = json.loads(answer)
    return seconds, facts


def serve(folder: str) -> None:
    """In the process of a revision: read a case and a turn from each line, do it, and print its seconds."""
    base, tasks = Path(folder), dict[str, Task]()
    with ExitStack() as stack:
        for line in sys.stdin:
            case, turn = json.loads(line)
            if case.startswith("writers "):
                answer = _crowd(base, *case.split()[1].split("x"))
            else:
                if case not in tasks:
                    tasks[case] = _task(case, base, stack)
                answer = sample(tasks[case], turn, base, repeat=_REPEAT.get(case.split()[0], 1)), {}
            print(json.dumps(answer), flush=True)


def _crowd(base: Path, count: str, duration: str) -> tuple[float, dict[str, float]]:
    from benchmarks import crowd

    settle_down(base)
    before = sum(os.times()[2:4])
    tallies = crowd.together("txfiles", base / "crowd", int(count), files=4, size=2000, duration=float(duration))
    made = sorted(len(tally.waits) for tally in tallies)
    return float(duration) / sum(made), {
        "commits": sum(made),
        "duration": float(duration),
        "fastest": made[-1],
        "slowest": made[0],
        "refused": sum(tally.refused for tally in tallies),
        "cpu": sum(os.times()[2:4]) - before,
    }


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
