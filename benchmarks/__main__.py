"""The command line; see `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from benchmarks import compare, count, crowd, modes, objects, place, plot, report, updates
from benchmarks.competitors import MEANING, SAVES
from benchmarks.rounds import Result

MODES = {
    "save": "several files in one commit, in each of the --shapes",
    "create": "the same, with new files each time",
    "sustained": "several files again and again, checkpoints included",
    "stream": "one file of each of the --sizes, written in chunks, and the memory that takes",
    "snapshot": "a snapshot of 4 files, beside opening and reading them",
    "writers": "1, 2, 4 and 8 processes that commit to one root",
    "readers": "1 and 2 processes without rest, and 2 with, that read 4 files beside one that replaces them",
    "updates": "8 and 64 threads and 200 tasks that share commits, beside one by one and SQLite",
    "recovery": "10,000 replaces that a kill left pending, beside the apply that recovery finishes",
    "opening": "CPU time of opening a root of 10 files and of 100,000",
    "import": "the import, and a commit with it, in a new interpreter",
}
SHAPES = "1x100,4x2000,32x4096,64x4096,256x4096,1024x4096,4096x4096"
PLOTTED = "4 x 2000 B, rewritten;32 x 4096 B, rewritten"
SIZES = f"1,4096,{1 << 20},{64 << 20},{512 << 20}"


def results(mode: str, base: Path, options: argparse.Namespace) -> Iterator[Result]:
    rounds, only = options.rounds, options.only.split(",") if options.only else []
    match mode:
        case "save" | "create":
            for shape in options.shapes.split(","):
                files, size = (int(number) for number in shape.split("x"))
                fewer = max(min(rounds, 5), min(rounds, rounds * 128 // files))
                yield modes.save(
                    base, files=files, size=size, rounds=fewer, create=mode == "create", only=only or SAVES
                )
        case "sustained":
            for shape in options.shapes.split(",")[:3]:
                files, size = (int(number) for number in shape.split("x"))
                fewer = max(1, rounds // 15)
                yield modes.sustained(base, files=files, size=size, duration=options.seconds, rounds=fewer)
        case "stream":
            for size in map(int, options.sizes.split(",")):
                yield modes.stream(base, size=size, rounds=rounds if size < 16 << 20 else max(1, rounds // 6))
        case "snapshot":
            yield modes.snapshot(base, rounds=rounds)
        case "writers":
            counts = tuple(int(count) for count in options.processes.split(","))
            measured = partial(crowd.writers, base, counts=counts, duration=options.seconds, only=only or crowd.WRITERS)
            yield measured(rounds=max(1, rounds // 15))
        case "readers":
            for writer in ("txfiles", "journal", "process"):
                measured = partial(crowd.readers, base, writer=writer, duration=options.seconds, only=only)
                for count, pause in ((1, 0.0), (2, 0.0), (2, crowd.PAUSE)):
                    yield measured(readers=count, pause=pause, rounds=max(1, rounds // 15))
        case "updates":
            yield updates.updates(base, duration=options.seconds, rounds=max(1, rounds // 15))
        case "recovery":
            yield modes.recovery(base, files=options.pending, rounds=max(1, rounds // 8))
        case "opening":
            yield modes.opening(base, files=options.tree, rounds=rounds)
        case "import":
            yield modes.importing(base, rounds=max(1, rounds // 3))


def run(options: argparse.Namespace) -> int:
    unknown = [mode for mode in options.modes if mode not in MODES]
    if unknown:
        print(f"no such mode: {', '.join(unknown)}", file=sys.stderr)
        return 2
    found: list[Result] = []
    with where(options) as base:
        environment = place.environment(base)
        if options.slow is not None:
            environment["device"] += f", a flush takes {options.slow:g} ms"
        print(report.heading(environment), flush=True)
        for mode in options.modes or MODES:
            for result in results(mode, base, options):
                print(f"\n{report.table(result)}", flush=True)
                found.append(result)
                if options.json:
                    report.write_json(options.json, environment, found)
    if verdicts := report.verdicts(found):
        print("\ntargets:", *verdicts, sep="\n")
    return 0


def where(options: argparse.Namespace) -> AbstractContextManager[Path]:
    if options.on:
        return place.made(options.on, options.at, slow=options.slow)
    return place.in_directory(options.at)


def judge(options: argparse.Namespace) -> int:
    for path in options.files:
        environment, found = report.read_json(path)
        print(report.heading(environment), *report.verdicts(found), sep="\n", end="\n\n")
    return 0


def count_calls(options: argparse.Namespace) -> int:
    with where(options) as base:
        print(report.heading(place.environment(base)), count.counts(base), sep="\n\n")
        for files, size, commits in ((4, 2000, 200), (32, 4096, 40), (1024, 4096, 3)):
            print("", count.profile(base, count.Shape(files, 1), commits, size), sep="\n")
    return 0


def compare_revisions(options: argparse.Namespace) -> int:
    with where(options) as base:
        print(report.heading(place.environment(base)))
        cases = options.cases.split(",") if options.cases else compare.CASES
        for result in compare.compare(base, [options.before, options.after], options.rounds, cases):
            print(f"\n{report.table(result)}", flush=True)
    return 0


def model_objects(options: argparse.Namespace) -> int:
    objects.report(tuple(map(int, options.writers.split(","))), options.seconds, options.files)
    return 0


def draw(options: argparse.Namespace) -> int:
    environment, found = report.read_json(options.results)
    options.picture.write_text(
        plot.draw(environment, [r for r in found if r.case in options.cases.split(";")]), encoding="utf-8"
    )
    return 0


def parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:14} {text}" for name, text in {**MODES, "": "", **MEANING}.items())
    main = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{modes.__doc__}\n\nmodes of `run`, and what is measured:\n\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = main.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("run", help="measure")
    command.add_argument("modes", nargs="*", metavar="MODE", help="all of them if none is named")
    place_options(command)
    command.add_argument("--rounds", type=int, default=60, help="of a short mode; longer ones have fewer (default 60)")
    command.add_argument("--shapes", default=SHAPES, help=f"of `save`, FILESxBYTES (default {SHAPES})")
    command.add_argument("--sizes", default=SIZES, help=f"of `stream`, in bytes (default {SIZES})")
    command.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        help="of each turn of `sustained`, `writers`, `readers`, `updates` (default 2)",
    )
    command.add_argument("--processes", default="1,2,4,8", help="that write together (default 1,2,4,8)")
    command.add_argument("--pending", type=int, default=10_000, help="replaces that are recovered (default 10000)")
    command.add_argument("--tree", type=int, default=100_000, help="files of the root that is opened (default 100000)")
    command.add_argument(
        "--only", default="", help="the competitors of `save`, `writers`, `readers`, separated by commas"
    )
    command.add_argument("--json", type=Path, help="write all samples to this file")
    command.set_defaults(call=run)

    command = commands.add_parser("judge", help="how results stand to the project's targets")
    command.add_argument("files", nargs="+", type=Path, help="files that `run --json` wrote")
    command.set_defaults(call=judge)

    command = commands.add_parser("count", help="what a commit asks of the operating system, and the time of each call")
    place_options(command)
    command.set_defaults(call=count_calls)

    command = commands.add_parser("compare", help="two revisions in interleaved rounds", description=compare.__doc__)
    command.add_argument("before", help="a revision, or a directory with a package txfiles")
    command.add_argument("after", help="the other one; `.` for what is in the working directory")
    place_options(command)
    command.add_argument("--rounds", type=int, default=60)
    command.add_argument("--cases", default="", help=f"separated by commas (default {','.join(compare.CASES)})")
    command.set_defaults(call=compare_revisions)

    command = commands.add_parser("objects", help="object storage in a model", description=objects.__doc__)
    command.add_argument("--writers", default=",".join(map(str, objects.COUNTS)), help="that write at once")
    command.add_argument("--seconds", type=float, default=5.0, help="of each turn of the writers (default 5)")
    command.add_argument("--files", type=int, default=1_000_000, help="of the large root (default 1000000)")
    command.set_defaults(call=model_objects)

    command = commands.add_parser("plot", help="draw saves as an SVG")
    command.add_argument("results", type=Path, help="a file that `run --json` wrote")
    command.add_argument("picture", type=Path, help="the SVG to write")
    command.add_argument("--cases", default=PLOTTED, help=f"separated by semicolons (default {PLOTTED!r})")
    command.set_defaults(call=draw)
    return main


def place_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--at", type=_directory, default=Path.cwd(), help="a directory to work in, or for the image (default .)"
    )
    command.add_argument("--on", choices=place.KINDS, help="make this file system in an image of 2 GiB (needs root)")
    command.add_argument("--slow", type=float, metavar="MS", help="let each flush of that image's device take so long")


def _directory(path: str) -> Path:
    return Path(path).resolve()  # children work elsewhere


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    code: int = options.call(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
