"""Somebody changed directories after a crash: nothing is touched until `on_conflict` decides, and then it works."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txfiles import FileTransaction, recover
from txfiles._disk import system
from txfiles.errors import RecoveryConflictError
from txfiles.testing._faults import FaultyFS


class _Stop(BaseException):
    pass


def _die_after(root: Path, change: Callable[[FileTransaction], Any], renames: int) -> None:
    """Run `change` and stop, like a killed process, after so many renames (the first is the commit point)."""
    with FileTransaction(root, durability="process") as tx:
        tx.write("settled", "once")
    done = 0
    dead = False

    def plan(_: int, name: str) -> None:
        nonlocal done, dead
        dead = dead or (done == renames and (name == "rename" or (done > 0 and name in ("unlink", "mkdir"))))
        if dead and name != "close":
            raise _Stop
        done += name == "rename"

    fs: Any = FaultyFS(system.KernelFS(), plan)
    with pytest.raises(_Stop), system.use(fs), FileTransaction(root) as tx:
        change(tx)


def _files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for path in root.rglob("*")
        if ".txfiles" not in path.parts and path.is_file() and path.name != "settled"
    }


def _write_into(tx: FileTransaction) -> None:
    tx.write("a", "1")
    tx.write("d/n", "2")
    tx.write("zero", "9")


def _write_new_directory(tx: FileTransaction) -> None:
    tx.write("new/n", "2")
    tx.write("zero", "9")


def _delete_tree(tx: FileTransaction) -> None:
    tx.delete_tree("z")
    tx.write("zero", "9")


def _file_for_directory(tx: FileTransaction) -> None:
    tx.delete_tree("d")
    tx.write("d", "file")


def _delete_and_write(tx: FileTransaction) -> None:
    tx.delete("x")
    tx.write("w", "1")


def _parent_removed(root: Path) -> None:
    (root / "d").mkdir()
    (root / "zero").write_text("0", encoding="utf-8")
    _die_after(root, _write_into, 2)
    (root / "d").rmdir()


def _parent_became_a_file(root: Path) -> None:
    (root / "zero").write_text("0", encoding="utf-8")
    _die_after(root, _write_new_directory, 1)
    shutil.rmtree(root / "new", ignore_errors=True)
    (root / "new").write_text("F", encoding="utf-8")


def _file_put_into_what_goes(root: Path) -> None:
    (root / "z" / "q" / "r").mkdir(parents=True)
    (root / "zero").write_text("0", encoding="utf-8")
    _die_after(root, _delete_tree, 1)
    (root / "z" / "q").mkdir(parents=True, exist_ok=True)
    (root / "z" / "q" / "foreign").write_text("x", encoding="utf-8")


def _file_put_where_a_file_comes(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "x").write_text("0", encoding="utf-8")
    _die_after(root, _file_for_directory, 2)
    (root / "d").mkdir(exist_ok=True)
    (root / "d" / "foreign").write_text("x", encoding="utf-8")


CASES: dict[str, tuple[Callable[[Path], None], dict[str, dict[str, str] | None]]] = {
    "the parent of a new file was removed": (
        _parent_removed,
        {
            "keep-theirs": {"a": "1", "zero": "9"},
            "roll-forward": {"a": "1", "d/n": "2", "zero": "9"},
            "roll-back": {"zero": "0"},
        },
    ),
    "the parent of a new file became a file": (
        _parent_became_a_file,
        {"keep-theirs": {"new": "F", "zero": "9"}, "roll-forward": None, "roll-back": {"new": "F", "zero": "0"}},
    ),
    "a file was put into a directory that goes": (
        _file_put_into_what_goes,
        {
            "keep-theirs": {"z/q/foreign": "x", "zero": "9"},
            "roll-forward": {"z/q/foreign": "x", "zero": "9"},
            "roll-back": {"z/q/foreign": "x", "zero": "0"},
        },
    ),
    "a file was put into a directory that a file replaces": (
        _file_put_where_a_file_comes,
        {
            "keep-theirs": {"d/foreign": "x"},
            "roll-forward": None,
            "roll-back": {"d/foreign": "x", "d/x": "0"},
        },
    ),
}


@pytest.mark.parametrize("decision", ["keep-theirs", "roll-forward", "roll-back"])
@pytest.mark.parametrize("case", CASES)
def test_a_decision_is_asked_for_and_obeyed(root: Path, case: str, decision: Any) -> None:
    crash, outcomes = CASES[case]
    crash(root)
    before, private = _files(root), sorted(os.listdir(root / ".txfiles"))
    for _ in range(2):
        with pytest.raises(RecoveryConflictError) as refused:
            recover(root)
        assert refused.value.paths
        with pytest.raises(RecoveryConflictError), FileTransaction(root):
            pass
        assert (_files(root), sorted(os.listdir(root / ".txfiles"))) == (before, private)
    wanted = outcomes[decision]
    if wanted is None:
        with pytest.raises(RecoveryConflictError, match="by hand"):
            recover(root, on_conflict=decision)
        assert (_files(root), sorted(os.listdir(root / ".txfiles"))) == (before, private)
        wanted = outcomes["keep-theirs"]
        decision = "keep-theirs"
    recover(root, on_conflict=decision)
    assert _files(root) == wanted
    with FileTransaction(root, timeout=0) as tx:
        tx.write("next", "works")
