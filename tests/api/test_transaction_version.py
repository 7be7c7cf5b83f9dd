"""Versions, and writes under the condition of one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import tree
from txfiles import FileTransaction
from txfiles.errors import ConflictError, InvalidPathError, TxFilesError


def _write(root: Path, content: str, **options: Any) -> None:
    with FileTransaction(root, **options) as tx:
        tx.write("a", content)


def _version(root: Path, path: str = "a") -> str | None:
    with FileTransaction(root) as tx:
        return tx.version(path)


def test_a_version_is_a_plain_string_that_stays(root: Path) -> None:
    _write(root, "1")
    one = _version(root)
    assert type(one) is str
    assert json.loads(json.dumps(one)) == one
    assert one == _version(root) == _version(root, "./x/../a")
    with FileTransaction(root) as tx:
        tx.write("other", "x")
        tx.move("a", "b")
        assert tx.version("b") == one
    assert _version(root, "b") == one


def test_what_is_no_file_has_no_version(root: Path) -> None:
    (root / "d").mkdir()
    (root / "dangling").symlink_to("nowhere")
    with FileTransaction(root) as tx:
        assert [tx.version(path) for path in ("missing", "x/y", "d", "dangling")] == [None] * 4
        tx.write("a", "x")
        tx.delete("a")
        assert tx.version("a") is None
        with pytest.raises(InvalidPathError):
            tx.version("../a")


@pytest.mark.parametrize("durability", ["full", "process"])
def test_every_replacement_has_a_new_one(root: Path, durability: str) -> None:
    """Also of the same length and within one tick of the clock."""
    seen = set()
    for _ in range(60):
        _write(root, "same", durability=durability)
        seen.add(_version(root))
    with FileTransaction(root) as tx:
        for _ in range(60):
            tx.write("a", "same")
            seen.add(tx.version("a"))
    assert len(seen) == 120
    assert _version(root) in seen


def test_a_version_of_what_is_staged_is_that_of_what_is_committed(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "x")
        staged = tx.version("a")
    assert _version(root) == staged


def test_the_link_has_the_version_of_its_target(root: Path) -> None:
    _write(root, "1")
    (root / "link").symlink_to("a")
    assert _version(root, "link") == _version(root)


def _to_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


OTHERS: dict[str, Callable[[Path], object]] = {
    "written in place": lambda path: path.write_text("theirs", encoding="utf-8"),
    "same length": lambda path: path.write_text("1", encoding="utf-8"),
    "appended": lambda path: os.truncate(path, 5),
    "replaced": lambda path: (path.with_name("t").write_text("1", encoding="utf-8"), path.with_name("t").rename(path)),
    "removed": lambda path: path.unlink(),
    "a directory": _to_directory,
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("when", ["before the call", "after the call"])
def test_a_stale_version_is_a_conflict(root: Path, other: str, when: str) -> None:
    _write(root, "1")
    version = _version(root)
    tx = FileTransaction(root).begin()
    tx.write("b", "x")
    if when == "before the call":
        OTHERS[other](root / "a")
        with pytest.raises((ConflictError, IsADirectoryError)) as caught:
            tx.write("a", "2", if_version=version)
        tx.write("c", "goes on")
        tx.commit()
    else:
        tx.write("a", "2", if_version=version)
        OTHERS[other](root / "a")
        with pytest.raises(TxFilesError) as caught:  # type: ignore[assignment]
            tx.commit()
    if other != "a directory":
        assert isinstance(caught.value, ConflictError)
        assert (caught.value.path, caught.value.outcome) == ("a", "before")
    assert ("b" in tree(root)) == (when == "before the call")
    assert (root / "a").is_file() == (other not in ("removed", "a directory"))


def test_none_means_that_there_must_be_no_file(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "1", if_version=None)
        with pytest.raises(ConflictError):
            tx.write("a", "2", if_version=None)
    with FileTransaction(root) as tx:
        with pytest.raises(ConflictError, match="expected that it is missing"):
            tx.write("a", "2", if_version=None)
        tx.delete("a")
        tx.write("a", "3", if_version=None)
    assert tree(root) == {"a": b"3"}


def test_none_and_a_file_of_another_program(root: Path) -> None:
    tx = FileTransaction(root).begin()
    tx.write("a", "1", if_version=None)
    (root / "a").write_text("theirs", encoding="utf-8")
    with pytest.raises(ConflictError):
        tx.commit()
    assert tree(root) == {"a": b"theirs"}


def test_conditions_on_what_is_staged(root: Path) -> None:
    """They are met or not at once; the disk is asked again for the first one only."""
    _write(root, "1")
    with FileTransaction(root) as tx:
        one = tx.version("a")
        tx.write("a", "2", if_version=one)
        with pytest.raises(ConflictError):
            tx.write("a", "3", if_version=one)
        two = tx.version("a")
        tx.write("a", "3", if_version=two)
        assert tx.version("a") not in (one, two)
    assert tree(root) == {"a": b"3"}


@pytest.mark.parametrize("version", ["", "nonsense", "0-0-0", "é"])
def test_any_other_string_is_a_conflict(root: Path, version: str) -> None:
    _write(root, "1")
    with FileTransaction(root) as tx:
        for path in ("a", "missing"):
            with pytest.raises(ConflictError) as caught:
                tx.write_json(path, 1, if_version=version)
            assert caught.value.path == path
    assert tree(root) == {"a": b"1"}


def test_a_conflict_leaves_nothing(root: Path) -> None:
    with FileTransaction(root) as tx:
        with pytest.raises(ConflictError):
            tx.write("new/deep/a", "x", if_version="stale")
        assert sorted(os.listdir(root / ".txfiles")) == ["format", "lock"]
        assert tx.listdir() == []
    assert tree(root) == {}


def test_optimistic_counting_by_hand(root: Path) -> None:
    """What a web form does: read, let somebody else write, write under the condition that nobody did."""
    _write(root, "0")
    first = second = _version(root)
    with FileTransaction(root) as tx:
        tx.write("a", "1", if_version=first)
    with pytest.raises(ConflictError), FileTransaction(root) as tx:
        tx.write("a", "also 1", if_version=second)
    assert tree(root) == {"a": b"1"}
