"""Results as text and as JSON, and how they stand to the targets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.rounds import Result, quantile


def heading(environment: Mapping[str, str]) -> str:
    return "\n".join(f"{key:14} {value}" for key, value in environment.items())


def table(result: Result) -> str:
    """10th percentile, median and 95th of each competitor, and how many times its median the reference takes."""
    lines = [
        f"{result.mode}: {result.case}",
        f"  {'':14} {'p10':>11} {'median':>11} {'p95':>11} {'samples':>8} {result.reference + ' / this':>20}",
    ]
    for name in dict.fromkeys([*result.seconds, *result.facts]):
        line = f"  {name:14}"
        if seconds := result.seconds.get(name):
            line += "".join(f" {_shown(quantile(seconds, part))}" for part in (0.1, 0.5, 0.95))
            line += f" {len(seconds):8} {result.ratio(result.reference, name):20.2f}"
        facts = [f"{key.replace('_', ' ')} {value:.4g}" for key, value in result.facts.get(name, {}).items()]
        lines.append("  ".join([line, *facts]))
    return "\n".join(lines)


def _shown(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:8.1f} µs"
    return f"{seconds * 1e3:8.2f} ms" if seconds < 1 else f"{seconds:8.3f} s "


def write_json(path: Path, environment: Mapping[str, str], results: Iterable[Result]) -> None:
    found = {"environment": dict(environment), "results": [result.to_json() for result in results]}
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> tuple[dict[str, str], list[Result]]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found["environment"], [Result(**result) for result in found["results"]]


class Verdict(NamedTuple):
    """A target, what was found, and the same of the 10th percentiles, which busy neighbours change less."""

    target: str
    found: float
    limit: float
    undisturbed: float | None = None

    @property
    def met(self) -> bool:
        return self.found <= self.limit

    def __str__(self) -> str:
        p10 = "" if self.undisturbed is None else f"(p10 {self.undisturbed:.3f})"
        says = "met" if self.met else "NOT MET"
        return f"  {self.target:58} {self.found:8.3f} {p10:>12}  at most {self.limit:<6g} {says}"


_RATIOS = [
    ("save", "4 x 2000 B, rewritten", "txfiles", "sqlite-extra", 1.0),
    ("save", "4 x 2000 B, rewritten", "txfiles", "serial", 0.45),
    ("save", "4 x 2000 B, rewritten", "txfiles", "atomic", 0.4),
    ("save", "4 x 2000 B, rewritten", "journal", "sqlite-extra", 0.35),
    ("save", "4 x 2000 B, rewritten", "journal", "sqlite-wal", 1.5),
    ("save", "32 x 4096 B, rewritten", "journal", "sqlite-extra", 0.8),
    ("save", "32 x 4096 B, rewritten", "journal", "sqlite-wal", 2.8),
    ("save", "32 x 4096 B, rewritten", "txfiles", "sqlite-extra", 1.6),
    ("save", "32 x 4096 B, rewritten", "txfiles", "serial", 0.2),
    ("save", "32 x 4096 B, rewritten", "txfiles", "atomic", 0.2),
    *(("save", f"{files} x 4096 B, rewritten", "txfiles", "atomic", 0.2) for files in (64, 256, 1024, 4096)),
    ("stream", f"{512 << 20} B", "txfiles", "write+fsync", 1.15),
    ("save", "4 x 2000 B, rewritten", "process", "rename", 1.5),
    ("snapshot", "4 x 2000 B", "pinned", "open+read", 1.6),
    ("recovery", "10000 x 100 B", "txfiles", "apply", 1.8),
]


def verdicts(results: Iterable[Result]) -> list[Verdict]:
    """How the results stand to the targets of the project, as far as they were measured."""
    by_case = {(result.mode, result.case): result for result in results}
    out = []
    for mode, case, ours, other, limit in _RATIOS:
        result = by_case.get((mode, case))
        if result is not None and ours in result.seconds and other in result.seconds:
            ratios = result.ratio(ours, other), result.ratio(ours, other, 0.1)
            out.append(Verdict(f"{mode}, {case}: {ours} / {other}", ratios[0], limit, ratios[1]))
    out += _cost_per_file(by_case)
    for (mode, _), result in by_case.items():
        if mode == "opening":
            few, many = (result.median(name) for name in sorted(result.seconds, key=len))
            out.append(Verdict("opening, CPU ms, 100,000 files", many * 1e3, 1.0))
            out.append(Verdict("opening, 100,000 files / 10 files", many / few, 1.1))
        elif mode == "stream" and int(result.case.split()[0]) >= 64 << 20:
            out.append(Verdict(f"stream, {result.case}: MiB of memory", result.facts["txfiles"]["peak_memory_MiB"], 16))
        elif mode == "save" and (counted := result.facts.get("journal")):
            for name, limit in (("flushes", 1), ("journal_commits", 0)):
                if name in counted and int(result.case.split()[0]) <= 32:  # of more the log holds few commits
                    shown = f"save, {result.case}: journal, {name.replace('_', ' ')}"
                    out.append(Verdict(shown, counted[name], limit))
        elif mode == "sustained":
            found, undisturbed = (result.ratio("journal", "journal, begun", part) for part in (0.5, 0.1))
            out.append(Verdict(f"sustained, {result.case}: journal / begun", found, 1.15, undisturbed))
        elif mode == "updates":
            out += _updates(result)
        elif mode == "readers":
            out += _readers(result)
        elif mode == "writers":
            for label, facts in result.facts.items():
                name, count = label.split()
                if name == "txfiles" and count != "1":
                    out.append(Verdict(f"writers, one alone / {count} together", 1 / facts["of_one_writer"], 1.25))
                    out.append(Verdict(f"writers, {count}: fastest / slowest", facts["fastest_over_slowest"], 3))
    return out


def _readers(result: Result) -> list[Verdict]:
    pinned, shown = result.facts["pinned"], f"readers, {', '.join(result.case.split(', ')[:2])}"
    out = [Verdict(f"{shown}: {name} mixed", result.facts[name]["torn"], 0) for name in ("txfiles", "pinned")]
    if "1 readers" in result.case:
        out.append(Verdict(f"{shown}: us for each", 1e6 / pinned["reads_per_second"], 200))
    elif "of_one_alone" in pinned and "without rest" not in result.case:
        out.append(Verdict(f"{shown}: one alone / beside them", 1 / pinned["of_one_alone"], 1 / 0.85))
    return out


def _updates(result: Result) -> list[Verdict]:
    ratios = [
        ("group 8", "sqlite-wal 8", 1 / 2),
        ("group 64", "sqlite-wal 64", 1 / 3),
        ("journal 8", "sqlite-wal 8", 1 / 2),
        ("journal 64", "sqlite-wal 64", 1 / 3),
        ("group 8", "alone 8", 1 / 4),
    ]
    out = [Verdict(f"updates: {ours} / {other}", result.ratio(ours, other), limit) for ours, other, limit in ratios]
    for label, facts in result.facts.items():
        if label.split()[0] in ("group", "tasks", "journal", "journal-tasks"):
            out.append(Verdict(f"updates, {label}: fastest / slowest", facts["fastest_over_slowest"], 3))
        if label in ("tasks 200", "journal-tasks 200"):
            out.append(Verdict(f"updates, {label}: ms for each", result.median(label) * 1e3, 2))
    return out


def _cost_per_file(by_case: Mapping[tuple[str, str], Result]) -> list[Verdict]:
    """The cost of a file must not rise from 64 files on; a tenth is noise."""
    found = [
        (files, result.seconds["txfiles"])
        for files in (64, 256, 1024, 4096)
        if (result := by_case.get(("save", f"{files} x 4096 B, rewritten"))) and "txfiles" in result.seconds
    ]
    out = []
    for (fewer, before), (more, after) in pairwise(found):
        ratios = [quantile(after, part) / more / (quantile(before, part) / fewer) for part in (0.5, 0.1)]
        out.append(Verdict(f"save: cost of one of {more} files / of one of {fewer}", ratios[0], 1.1, ratios[1]))
    return out
