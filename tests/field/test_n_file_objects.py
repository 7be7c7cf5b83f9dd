"""N30: file objects as the built-in `open` has them, for whatever wants a file."""

from __future__ import annotations

import asyncio
import io
import itertools
import mmap
import os
import stat
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import scratch
from tests.support.boundary import tree
from txfiles import AsyncFileTransaction, FileTransaction, commit_prepared
from txfiles.recovery import verify
from txfiles.testing import survives_power_loss

MODES = [how + form for how in "rwax" for form in ("", "b", "t", "+", "b+", "+b", "+t", "t+")]
CONTENT = b"first\r\nsecond\nthird \xc3\xa4\r\n"

# -- the same as `open` ---------------------------------------------------------------------------------------------

Call = tuple[Any, ...]


def _data(mode: str, text: str) -> Any:
    return text.encode() if "b" in mode else text


CALLS = st.one_of(
    st.tuples(st.just("read"), st.integers(-1, 9)),
    st.tuples(
        st.sampled_from(["readline", "tell", "flush", "readlines", "readable", "writable", "seekable", "isatty"])
    ),
    st.tuples(st.just("write"), st.text("ab\n\r\N{LATIN SMALL LETTER A WITH DIAERESIS}", max_size=12)),
    st.tuples(st.just("seek"), st.integers(-3, 40), st.sampled_from([0, 1, 2])),
    st.tuples(st.just("truncate"), st.one_of(st.none(), st.integers(0, 40))),
)


def _answer(file: IO[Any], mode: str, call: Call) -> object:
    name, *arguments = call
    if name == "write":
        arguments = [_data(mode, arguments[0])]
    try:
        return getattr(file, name)(*arguments)
    except Exception as error:
        return type(error).__mro__[:2]


@contextmanager
def _roots() -> Iterator[tuple[Path, Path]]:
    with scratch.held() as above:
        for name in ("theirs", "ours"):
            (above / name).mkdir()
        yield above / "theirs", above / "ours"


@pytest.mark.parametrize("mode", MODES)
@given(
    calls=st.lists(CALLS, max_size=12),
    buffering=st.sampled_from([-1, 0, 1, 5, 4096]),
    newline=st.sampled_from(["", None, "\n", "\r\n"]),
)
def test_n30_each_call_answers_as_those_of_open(
    mode: str, calls: list[Call], buffering: int, newline: str | None
) -> None:
    text = "b" not in mode
    form: dict[str, Any] = {"encoding": "utf-8", "newline": newline} if text else {}
    if text and buffering in (0, 5):
        buffering = -1
    if not text and buffering == 1:
        buffering = -1
    with _roots() as (theirs, ours):
        if mode[0] != "x":
            for root in (theirs, ours):
                (root / "f").write_bytes(CONTENT)
        with FileTransaction(ours, durability="process") as tx:
            with open(theirs / "f", mode, buffering, **form) as one, tx.open("f", mode, buffering, **form) as two:
                for call in calls:
                    assert _answer(two, mode, call) == _answer(one, mode, call), call
                assert (two.mode, two.name) == (one.mode, "f")
                for name in ("encoding", "errors", "line_buffering"):
                    assert getattr(two, name, None) == getattr(one, name, None)
            assert tx.read("f") == (theirs / "f").read_bytes()
            tx.move("f", "g")
            transaction_id = tx.prepare()
        assert verify(ours).sound  # the digests are those of the contents
        commit_prepared(ours, transaction_id)
        assert tree(ours) == {"g": (theirs / "f").read_bytes()}


BAD: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("f", mode), {}) for mode in ("", "q", "rw", "b", "r++", "rbt", "U", "rr", "wa")
]
BAD += [
    (("f", "rb"), {"encoding": "utf-8"}),
    (("f", "wb"), {"errors": "strict"}),
    (("f", "w", 0), {}),
    (("f", "w"), {"encoding": "utf-8", "newline": "x"}),
    (("f", "w"), {"encoding": "no such"}),
    (("no", "r+"), {}),
    (("f", "x"), {}),
    (("d", "r+b"), {}),
]


@pytest.mark.parametrize(("arguments", "options"), BAD, ids=repr)
def test_n30_what_cannot_be_is_the_same_error(
    root: Path, arguments: tuple[Any, ...], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    for above in (root, tmp_path / "theirs"):
        (above / "f").write_bytes(CONTENT)
        (above / "d").mkdir()
    monkeypatch.chdir(tmp_path / "theirs")
    with pytest.raises(Exception) as theirs:
        open(*arguments, **options).close()
    with FileTransaction(root) as tx:
        with pytest.raises(theirs.type):
            tx.open(*arguments, **options)
        with tx.open("f", "a") as file:  # nothing is left open of the refused one
            file.write("x")
    assert tree(root) == {"f": CONTENT + b"x", "d": None}


def test_n30_line_buffering_of_bytes_is_warned_of(root: Path) -> None:
    with FileTransaction(root) as tx:
        with pytest.warns(RuntimeWarning, match="line buffering") as caught:
            tx.open("f", "wb", 1).close()
        assert caught[0].filename == __file__


def test_n30_nothing_is_staged_by_reading_for_update(root: Path) -> None:
    (root / "f").write_bytes(CONTENT)
    with FileTransaction(root) as tx:
        version = tx.version("f")
        with tx.open("f", "r+b") as file:
            assert file.read() == CONTENT
        assert tx.version("f") == version
        assert not tx.plan()
        with pytest.raises(ZeroDivisionError), tx.open("f", "r+") as text:
            text.truncate(0)
            raise ZeroDivisionError
        assert not tx.plan()
        with tx.open("f", "r+b", 0) as file:
            file.write(b"F")
    assert tree(root) == {"f": b"F" + CONTENT[1:]}


@pytest.mark.parametrize("mode", ["w", "r+b", "a", "x+"])
def test_n30_permissions(root: Path, mode: str) -> None:
    (root / "f").write_bytes(CONTENT)
    name = "new" if mode[0] == "x" else "f"
    with FileTransaction(root) as tx, tx.open(name, mode, permissions=0o600) as file:
        file.write(_data(mode, "x"))
    assert stat.S_IMODE(os.stat(root / name).st_mode) == 0o600
    with FileTransaction(root) as tx, pytest.raises(ValueError, match="mode is a number"):
        tx.open(name, mode, permissions=-1)


# -- the descriptor -------------------------------------------------------------------------------------------------


def _by_mmap(file: IO[bytes]) -> None:
    file.truncate(5000)
    with mmap.mmap(file.fileno(), 0) as map_:
        map_[:4] = b"head"
        map_[4096:4100] = b"page"


def _by_numpy(file: IO[bytes]) -> None:
    file.write(b"head")
    np.arange(1000, dtype="u2").tofile(file)
    file.write(b"tail")


def _by_a_child(file: IO[bytes]) -> None:
    file.write(b"head ")
    file.flush()
    subprocess.run(["sh", "-c", "echo by a child"], check=True, stdout=file)


def _by_pwrite(file: IO[bytes]) -> None:
    os.pwrite(file.fileno(), b"written", 3)


def _by_zipfile(file: IO[bytes]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", b"1" * 1000)
    file.seek(0)
    file.write(b"PK")


FILLED: dict[str, Callable[[IO[bytes]], None]] = {
    "mmap": _by_mmap,
    "numpy": _by_numpy,
    "child": _by_a_child,
    "pwrite": _by_pwrite,
    "zipfile": _by_zipfile,
}


@pytest.mark.parametrize("mode", ["wb", "w+b", "r+b", "xb+"])
@pytest.mark.parametrize("fill", FILLED)
def test_n30_the_staged_file_itself(root: Path, tmp_path: Path, fill: str, mode: str) -> None:
    if fill == "mmap" and mode == "wb":
        mode = "wb+"
    if mode[0] == "r":
        (root / "f").write_bytes(b"old content, " * 1000)
        (tmp_path / "f").write_bytes(b"old content, " * 1000)
    with open(tmp_path / "f", mode) as expected:
        FILLED[fill](expected)
    with FileTransaction(root) as tx:
        with tx.open("f", mode) as file:
            FILLED[fill](file)
            number = os.fstat(file.fileno()).st_ino
        assert tx.read("f") == (tmp_path / "f").read_bytes() or fill == "zipfile"
        transaction_id = tx.prepare()
    assert verify(root).sound
    commit_prepared(root, transaction_id)
    assert os.stat(root / "f").st_ino == number
    if fill != "zipfile":  # that has the time in it
        assert tree(root) == {"f": (tmp_path / "f").read_bytes()}


def test_n30_a_reader_has_a_descriptor_too(root: Path) -> None:
    (root / "f").write_bytes(CONTENT)
    with FileTransaction(root) as tx:
        tx.write("staged", np.arange(9, dtype="u4").tobytes())
        with tx.open("f", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as map_:
            assert map_[:] == CONTENT
        with tx.open("staged", "rb") as file:
            assert np.fromfile(file, dtype="u4").tolist() == list(range(9))
            with pytest.raises(OSError):
                os.write(file.fileno(), b"x")


def test_n30_the_calls_of_asyncio(root: Path) -> None:
    (root / "f").write_bytes(CONTENT)

    async def change() -> None:
        async with AsyncFileTransaction(root) as tx:
            async with tx.open("f", "r+", encoding="utf-8", newline="\r\n") as file:
                assert (file.name, file.mode) == ("f", "r+")
                assert await file.readline() == "first\r\n"
                await file.seek(0)
                await file.write("FIRST")
                await file.flush()
                assert await file.truncate(6) == 6
                assert os.pread(file.fileno(), 9, 0) == b"FIRST\r"
            async with tx.open("new", "xb", 0, permissions=0o600) as raw:
                await raw.write(b"1")

    asyncio.run(change())
    assert tree(root) == {"f": b"FIRST\r", "new": b"1"}
    assert stat.S_IMODE(os.stat(root / "new").st_mode) == 0o600


def test_n30_a_file_that_was_written_in_any_order_survives_a_power_loss() -> None:
    def setup(root: Path) -> None:
        (root / "f").write_bytes(b"old " * 5)

    def save(root: Path) -> None:
        with FileTransaction(root) as tx:
            with tx.open("f", "r+b") as file:
                file.seek(4)
                file.write(b"NEW ")
                file.truncate(12)
            with tx.open("g", "w+") as text:
                text.write("abc")
                text.seek(0)
                text.write("A")
                with pytest.raises(io.UnsupportedOperation):
                    text.fileno()

    def check(root: Path) -> None:
        found = tree(root)
        assert found in ({"f": b"old " * 5}, {"f": b"old NEW old ", "g": b"Abc"})

    assert survives_power_loss(save, check, setup=setup).points


def test_n30_modes_are_parsed_as_by_open(tmp_path: Path, root: Path) -> None:
    for length in (1, 2, 3):
        for mode in map("".join, itertools.product("rwaxbt+", repeat=length)):
            for path in (tmp_path / "f", root / "f"):
                path.unlink(missing_ok=True)
                if mode[:1] != "x" and "x" not in mode:
                    path.write_bytes(b"1")
            try:
                open(tmp_path / "f", mode, encoding=None if "b" in mode else "utf-8").close()
            except ValueError:
                with FileTransaction(root, durability="process") as tx, pytest.raises(ValueError):
                    tx.open("f", mode)
            else:
                with FileTransaction(root, durability="process") as tx:
                    tx.open("f", mode).close()
