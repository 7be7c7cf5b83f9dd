"""P03, P04: file objects that were closed, and files that are to be new; what a library promises by its names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.boundary import tree
from txfiles import FileTransaction
from txfiles.errors import ConflictError

CALLS: dict[str, Callable[[IO[Any]], object]] = {
    "read": lambda file: file.read(),
    "read(1)": lambda file: file.read(1),
    "readline": lambda file: file.readline(),
    "readlines": lambda file: file.readlines(),
    "next": next,
    "iter": iter,
    "write": lambda file: file.write("x" if hasattr(file, "encoding") else b"x"),  # type: ignore[arg-type]
    "writelines": lambda file: file.writelines([]),
    "seek": lambda file: file.seek(0),
    "tell": lambda file: file.tell(),
    "flush": lambda file: file.flush(),
    "truncate": lambda file: file.truncate(0),
    "fileno": lambda file: file.fileno(),
    "isatty": lambda file: file.isatty(),
    "readable": lambda file: file.readable(),
    "writable": lambda file: file.writable(),
    "seekable": lambda file: file.seekable(),
    "with": lambda file: file.__enter__(),
}


def _layers(file: Any) -> list[Any]:
    """The file object and those below it, as they can be reached."""
    found = [file]
    for name in ("buffer", "raw"):
        if hasattr(found[-1], name):
            found.append(getattr(found[-1], name))
    return found


@pytest.mark.parametrize("mode", ["r", "rb", "w", "wb", "a", "ab", "x", "xb"])
def test_p03_a_closed_file_object_answers_nothing(root: Path, mode: str) -> None:
    (root / "f").write_bytes(b"0123456789")
    with FileTransaction(root) as tx:
        file = tx.open("new" if mode[0] == "x" else "f", mode)
        layers = _layers(file)
        file.close()
        assert len(layers) > 1
        for layer in layers:
            for name, call in CALLS.items():
                with pytest.raises(ValueError):  # or its kind `io.UnsupportedOperation`
                    print(f"{type(layer).__name__}.{name} gave", call(layer))
            layer.close()  # that may be done again


def test_p03_the_number_of_a_closed_descriptor_may_be_another_files(root: Path, tmp_path: Path) -> None:
    (root / "f").write_bytes(b"0123456789")
    other = tmp_path / "other"
    other.write_bytes(b"abcdefghij")
    with FileTransaction(root) as tx:
        before = set(os.listdir("/proc/self/fd"))
        file = tx.open("f", "rb")
        (number,) = set(os.listdir("/proc/self/fd")) - before
        raw = file.raw  # type: ignore[attr-defined]
        file.close()
        with other.open("rb") as theirs:
            os.dup2(theirs.fileno(), int(number))
            try:
                os.lseek(theirs.fileno(), 4, os.SEEK_SET)
                for call in (file.tell, raw.read, lambda: raw.seek(0), lambda: raw.readinto(bytearray(3)), raw.tell):
                    with pytest.raises(ValueError, match="closed"):
                        call()
                assert os.lseek(int(number), 0, os.SEEK_CUR) == 4
            finally:
                os.close(int(number))
        raw.close()
        raw.__del__()


@pytest.mark.parametrize("when", ["while it is open", "after its close"])
@pytest.mark.parametrize("mode", ["x", "xb"])
def test_p04_a_new_file_is_still_new_at_the_commit(root: Path, mode: str, when: str) -> None:
    with pytest.raises(ConflictError) as caught, FileTransaction(root) as tx:
        tx.write("other", b"1")
        with tx.open("sub/new", mode) as file:
            file.write("ours" if mode == "x" else b"ours")
            if when == "while it is open":
                (root / "sub").mkdir()
                (root / "sub/new").write_bytes(b"theirs")
        if when == "after its close":
            (root / "sub").mkdir()
            (root / "sub/new").write_bytes(b"theirs")
    assert (caught.value.path, caught.value.outcome) == ("sub/new", "before")
    assert tree(root) == {"sub/new": b"theirs", "sub": None}


def test_p04_only_what_was_staged_is_expected_to_be_new(root: Path) -> None:
    (root / "there").write_bytes(b"old")
    with FileTransaction(root) as tx:
        with pytest.raises(ZeroDivisionError), tx.open("given up", "x") as file:
            raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError), tx.savepoint():
            tx.open("undone", "x").close()
            raise ZeroDivisionError
        assert file.closed
        tx.delete("there")
        tx.open("there", "x").close()  # new in the transaction, and not on disk
        for name in ("given up", "undone"):
            (root / name).write_bytes(b"theirs")
        tx.write("other", b"1")
    assert tree(root) == {"there": b"", "given up": b"theirs", "undone": b"theirs", "other": b"1"}
