"""Savepoints: an exception inside one undoes what was staged inside, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import tree
from txfiles import FileTransaction
from txfiles._tree.staging import Staging
from txfiles.errors import CommitError, ConflictError, TransactionClosedError


class Undone(Exception):
    pass


def _private(root: Path) -> list[str]:
    return sorted(os.listdir(root / ".txfiles"))


def _undone(tx: FileTransaction, *changes: Callable[[], object]) -> None:
    with pytest.raises(Undone), tx.savepoint():
        for change in changes:
            change()
        raise Undone


def _fill(root: Path) -> None:
    (root / "d/e").mkdir(parents=True)
    for path in ("a", "b", "d/a", "d/e/a"):
        (root / path).write_text(path, encoding="utf-8")


CHANGES: dict[str, Callable[[FileTransaction], object]] = {
    "write": lambda tx: tx.write("a", "x"),
    "write what was staged": lambda tx: tx.write("s", "x"),
    "write new": lambda tx: tx.write("n/o/p", "x"),
    "json": lambda tx: tx.write_json("a", {}),
    "stream": lambda tx: tx.open("a", "ab").close(),
    "delete": lambda tx: tx.delete("a"),
    "delete what was staged": lambda tx: tx.delete("s"),
    "delete_tree": lambda tx: tx.delete_tree("d"),
    "move": lambda tx: tx.move("a", "x"),
    "move over": lambda tx: tx.move("a", "b"),
    "move what was staged": lambda tx: tx.move("s", "b"),
    "move a directory": lambda tx: tx.move("d", "x/y"),
    "copy": lambda tx: tx.copy("a", "x"),
    "copy a directory": lambda tx: tx.copy("d", "x"),
    "mkdir": lambda tx: tx.mkdir("n/o"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_staged_inside_is_undone(root: Path, change: str) -> None:
    _fill(root)
    with FileTransaction(root) as tx:
        tx.write("s", "staged")
        before = _private(root)
        _undone(tx, lambda: CHANGES[change](tx))
        assert _private(root) == before, "its files are gone at once"
        assert tx.read("s") == b"staged"
        assert tx.glob("**") == ["a", "b", "d/a", "d/e/a", "s"]
    assert {path: content for path, content in tree(root).items() if content is not None} == {
        "a": b"a", "b": b"b", "d/a": b"d/a", "d/e/a": b"d/e/a", "s": b"staged",
    }  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_staged_inside_stays_when_nothing_was_raised(root: Path, tmp_path: Path, change: str) -> None:
    (tmp_path / "other").mkdir()
    for place in (root, tmp_path / "other"):
        _fill(place)
    with FileTransaction(root) as tx:
        tx.write("s", "staged")
        with tx.savepoint():
            CHANGES[change](tx)
    with FileTransaction(tmp_path / "other") as tx:
        tx.write("s", "staged")
        CHANGES[change](tx)
    assert tree(root) == tree(tmp_path / "other")


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("outer", [True, False])
def test_savepoints_nest(root: Path, inner: bool, outer: bool) -> None:
    def leave(undo: bool) -> None:
        if undo:
            raise Undone

    with FileTransaction(root) as tx:
        tx.write("a", "0")
        try:
            with tx.savepoint():
                tx.write("a", "1")
                tx.write("b", "1")
                try:
                    with tx.savepoint():
                        tx.write("a", "2")
                        tx.delete("b")
                        leave(inner)
                except Undone:
                    pass
                tx.write("c", "1")
                leave(outer)
        except Undone:
            pass
    expected: dict[str, object] = {"a": b"0"}
    if not outer:
        expected = {"a": b"1", "b": b"1", "c": b"1"} if inner else {"a": b"2", "c": b"1"}
    assert tree(root) == expected


def test_deep_nests_and_many_in_a_row(root: Path) -> None:
    def nest(tx: FileTransaction, depth: int) -> None:
        with tx.savepoint():
            tx.write(str(depth), str(depth))
            if depth:
                nest(tx, depth - 1)

    with FileTransaction(root) as tx:
        nest(tx, 100)
        for number in range(100):
            _undone(tx, lambda n=number: tx.write(str(n), "undone"))
    assert tree(root) == {str(number): str(number).encode() for number in range(101)}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_any_exception_undoes_and_propagates(root: Path, error: type[BaseException]) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "kept")
        with pytest.raises(error), tx.savepoint():
            tx.write("a", "undone")
            raise error
    assert tree(root) == {"a": b"kept"}


def test_an_exception_that_is_caught_inside_undoes_nothing(root: Path) -> None:
    with FileTransaction(root) as tx, tx.savepoint():
        tx.write("a", "x")
        tx.mkdir("d")
        with pytest.raises(IsADirectoryError):
            tx.write("d", "x")
    assert tree(root) == {"a": b"x", "d": None}


def test_one_that_leaves_the_block_rolls_everything_back(root: Path) -> None:
    with pytest.raises(Undone), FileTransaction(root) as tx:
        tx.write("a", "x")
        with tx.savepoint():
            tx.write("b", "x")
            raise Undone
    assert tree(root) == {}


def test_what_was_undone_expects_nothing_of_the_disk(root: Path) -> None:
    """An `if_version` that was undone is no condition of the commit."""
    with FileTransaction(root) as tx:
        _undone(tx, lambda: tx.write("a", "x", if_version=None))
        with pytest.raises(TypeError):
            tx.write("b", 5, if_version=None)  # type: ignore[arg-type]
        (root / "a").write_text("theirs", encoding="utf-8")
        (root / "b").write_text("theirs", encoding="utf-8")
        tx.write("c", "x")
    assert tree(root) == {"a": b"theirs", "b": b"theirs", "c": b"x"}


def test_what_was_expected_before_the_savepoint_stays_expected(root: Path) -> None:
    tx = FileTransaction(root).begin()
    tx.write("a", "x", if_version=None)
    _undone(tx, lambda: tx.delete("a"), lambda: tx.write("a", "y", if_version=None))
    (root / "a").write_text("theirs", encoding="utf-8")
    with pytest.raises(ConflictError) as caught:
        tx.commit()
    assert (caught.value.path, caught.value.outcome) == ("a", "before")
    assert tree(root) == {"a": b"theirs"}


# -- the transaction ends inside ------------------------------------------------------------------------------------


def test_no_commit_inside(root: Path) -> None:
    with FileTransaction(root) as tx:
        with tx.savepoint():
            tx.write("a", "x")
            with pytest.raises(TransactionClosedError, match="savepoint is still open"):
                tx.commit()
        tx.write("b", "x")
    assert tree(root) == {"a": b"x", "b": b"x"}


@pytest.mark.parametrize("leaves", ["normally", "with an exception"])
def test_a_rollback_inside_ends_it_all(root: Path, leaves: str) -> None:
    """Also when the descriptors of the ended transaction belong to somebody else by the time the savepoint ends."""
    tx = FileTransaction(root).begin()
    tx.write("a", "0")
    others: list[int] = []
    try:
        with tx.savepoint():
            tx.write("a", "1")
            tx.write("a", "2")
            tx.rollback()
            others = [os.open(root, os.O_RDONLY) for _ in range(8)]
            if leaves != "normally":
                raise Undone
    except Undone:
        assert leaves != "normally"
    finally:
        for fd in others:
            os.close(fd)
    with pytest.raises(TransactionClosedError):
        tx.read("a")
    assert tree(root) == {}
    assert _private(root) == ["format", "lock"]


def test_a_stream_opened_inside_and_closed_outside(root: Path) -> None:
    """What counts is when it is closed, for then it is staged."""
    with FileTransaction(root) as tx:
        streams = []
        _undone(tx, lambda: streams.append(tx.open("a", "wb")))
        streams[0].write(b"x")
        streams[0].close()
    assert tree(root) == {"a": b"x"}


def test_a_commit_with_a_stream_that_a_savepoint_left_open(root: Path) -> None:
    tx = FileTransaction(root).begin()
    with tx.savepoint():
        stream = tx.open("a", "wb")
    with pytest.raises(CommitError, match="still open"):
        tx.commit()
    stream.close()
    assert tree(root) == {}


def test_a_savepoint_after_the_end_is_refused(root: Path) -> None:
    with FileTransaction(root) as tx:
        pass
    with pytest.raises(TransactionClosedError), tx.savepoint():
        pass
    with pytest.raises(TransactionClosedError), FileTransaction(root).savepoint():
        pass


# -- the files that wait in the private directory ---------------------------------------------------------------------


class _Counting(dict[bytes, object]):
    """Counts the entries that are looked at."""

    looked = 0

    def get(self, key: bytes, default: object = None) -> object:
        self.looked += 1
        return super().get(key, default)

    def values(self) -> Any:
        self.looked += len(self)
        return super().values()

    def __iter__(self) -> Any:
        self.looked += len(self)
        return super().__iter__()


def test_what_is_written_again_is_found_without_a_look_at_the_rest(root: Path) -> None:
    def looks_of_one_write(files: int) -> int:
        with FileTransaction(root, durability="process") as tx:
            for number in range(files):
                tx.write(str(number), "x")
            entries = tx._staging.entries = _Counting(tx._staging.entries)  # type: ignore[assignment,arg-type]
            tx.write("0", "y")
            _undone(tx, lambda: tx.write("1", "y"))
            tx.move("2", "moved")
            tx.rollback()
        return entries.looked

    assert looks_of_one_write(300) == looks_of_one_write(3)


def test_an_interrupted_move_leaves_what_was_staged(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay = Staging.lay

    with FileTransaction(root) as tx:
        tx.write("a", "staged")
        tx.write("b", "too")
        for after in (1, 2):
            left = [after]

            def interrupted(staging: Staging, path: bytes, entry: Any, left: list[int] = left) -> None:
                lay(staging, path, entry)
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt

            monkeypatch.setattr(Staging, "lay", interrupted)
            with pytest.raises(KeyboardInterrupt):
                tx.move("a", "b")
            monkeypatch.setattr(Staging, "lay", lay)
            assert (tx.read("a"), tx.read("b")) == (b"staged", b"too")
    assert tree(root) == {"a": b"staged", "b": b"too"}
