"""Every mode of `python -m benchmarks` once, at tiny size, and the formula of the cost model."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import count, modes
from benchmarks.__main__ import MODES, main
from benchmarks.competitors import MEANING, SAVES
from benchmarks.report import read_json, verdicts
from tests.support import scratch
from tests.support.procs import CHECKOUT, run_python
from txfiles import FileTransaction
from txfiles._disk import system

TINY = ["--rounds=1", "--shapes=3x10", "--sizes=100", "--seconds=0.05", "--processes=1,2", "--pending=3", "--tree=20"]
BASE = {name for name in SAVES if name not in ("lmdb", "atomicwrites")}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory whose file system has no disk to wait for, where there is one: each sample begins with a syncfs."""
    with scratch.held(scratch.MEMORY or str(tmp_path)) as path:
        yield path


def test_every_mode_runs_and_writes_what_it_found(tmp_path: Path, memory: Path) -> None:
    out = tmp_path / "out.json"
    code = "import sys; from benchmarks.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = run_python(code, "run", f"--at={memory}", f"--json={out}", *TINY, cwd=CHECKOUT).check()
    environment, results = read_json(out)
    assert {"machine", "kernel", "file system", "mount options", "versions"} <= set(environment)
    assert list(dict.fromkeys(result.mode for result in results)) == list(MODES)
    for result in results:
        assert f"{result.mode}: {result.case}" in done.stdout
        assert result.reference in result.seconds
        assert all(seconds > 0 for samples in result.seconds.values() for seconds in samples)
    save = next(result for result in results if result.mode == "save")
    assert set(save.seconds) >= BASE
    readers = next(result for result in results if result.mode == "readers")
    assert readers.facts["txfiles"]["torn"] == readers.facts["pinned"]["torn"] == 0
    assert verdicts(results)
    assert not list(memory.iterdir())


def test_the_peak_of_memory_is_that_of_the_sample() -> None:
    before = modes.reset_peak()
    block = bytearray(64 << 20)
    del block
    assert modes.peak() - before > 48 << 20
    before = modes.reset_peak()
    assert modes.peak() - before < 16 << 20


def test_all_competitors_are_explained() -> None:
    assert set(MEANING) == set(SAVES)


@pytest.mark.parametrize("kind", list(count.KINDS))
def test_the_syncs_of_a_commit_are_those_of_the_cost_model(memory: Path, kind: str) -> None:
    for shape in (count.Shape(1), count.Shape(4), count.Shape(13, 3)):
        root = memory / f"{shape.files}"
        assert count.counted(root, shape, count.KINDS[kind]).syncs == count.KINDS[kind].syncs(shape, root), str(shape)


@pytest.mark.parametrize(
    ("formula", "syncs"), [("n + d + 3", 9), ("2n + 2d + 6", 18), ("d + 3", 5), ("n + a + 10", 17)]
)
def test_formulas_are_read(formula: str, syncs: int) -> None:
    assert count.Kind(print, print, formula).syncs(count.Shape(4, 2), Path("/proc/self/fd")) == syncs


def test_a_process_commit_makes_none(tmp_path: Path) -> None:
    for fs in (count.MeasuredFS(), count.MeasuredFS()):
        with system.use(fs), FileTransaction(tmp_path, durability="process") as tx:
            tx.write("a", b"a")
        assert fs.syncs == 0
        assert fs.calls["write"] > 0


def test_each_further_file_costs_the_same_calls(memory: Path) -> None:
    few, more, most = (count.counted(memory / f"{n}", count.Shape(n)).calls for n in (2, 5, 8))
    assert most.total() - more.total() == more.total() - few.total()


@pytest.mark.needs("strace")
def test_system_calls_are_counted(memory: Path) -> None:
    found = count.system_calls(memory / "root", count.Shape(1))
    assert found is not None
    assert 20 < found < 300


def test_two_revisions_are_compared(memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = str(CHECKOUT)
    cases = "process 2x10,snapshot 2x10"
    assert main(["compare", here, here, f"--at={memory}", "--rounds=2", f"--cases={cases}"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"^compare: (.*)$", printed, re.MULTILINE) == cases.split(",")
    assert f"2: {here}" in printed


def test_saves_are_drawn(tmp_path: Path) -> None:
    result = {
        "mode": "save",
        "case": "4 x 2000 B, rewritten",
        "reference": "txfiles",
        "seconds": {"txfiles": [0.003, 0.004], "sqlite-extra": [0.002, 0.002]},
        "facts": {},
    }
    environment = dict.fromkeys(("file system", "device", "kernel", "machine"), "<x>")
    found, picture = tmp_path / "found.json", tmp_path / "picture.svg"
    found.write_text(json.dumps({"environment": environment, "results": [result]}), encoding="utf-8")
    assert main(["plot", str(found), str(picture)]) == 0
    drawn = ElementTree.parse(picture).getroot()
    texts = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert {"txfiles", "3.5", "2"} <= set(texts)


def test_verdicts_say_what_is_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {
        "txfiles": [1.0],
        "sqlite-extra": [2.0],
        "serial": [2.0],
        "atomic": [3.0],
        "process": [1.0],
        "rename": [1.0],
    }
    result = {"mode": "save", "case": "4 x 2000 B, rewritten", "reference": "txfiles", "seconds": seconds, "facts": {}}
    found = tmp_path / "found.json"
    found.write_text(json.dumps({"environment": {"machine": "x"}, "results": [result]}), encoding="utf-8")
    assert main(["judge", str(found)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "at most" in line]
    assert [" ".join(line[line.index("most") + 2 :]) for line in lines] == ["met", "NOT MET", "met", "met"]


@pytest.mark.needs("loop", "ext4")
@pytest.mark.parametrize("how", [["--on=tmpfs"], ["--on=ext4"], ["--on=ext4", "--slow=1"]], ids=" ".join)
def test_a_file_system_is_made_for_it_and_taken_away(tmp_path: Path, how: list[str]) -> None:
    code = "import sys; from benchmarks.__main__ import main; sys.exit(main(sys.argv[1:]))"
    words = ["run", "save", f"--at={tmp_path}", "--only=txfiles,floor", *TINY, *how]
    done = run_python(code, *words, cwd=CHECKOUT).check()
    assert re.search(rf"^file system +{how[0].partition('=')[2]}$", done.stdout, re.MULTILINE)
    assert not list(tmp_path.iterdir())
