"""G: JSON and serialisation."""

from __future__ import annotations

import copy
import dataclasses
import enum
import hashlib
import json
import math
import os
import pickle
import sys
import threading
import traceback
import tracemalloc
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.boundary import tree
from txfiles import FileStore, FileTransaction, recover, status
from txfiles.errors import DocumentError, JournalCorruptError


class Text(str):
    __slots__ = ()


class Number(float):
    __slots__ = ()


class Pair(NamedTuple):
    one: float
    two: float


class Colour(enum.Enum):
    RED = "red"
    NOTHING = float("nan")


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


@dataclasses.dataclass(slots=True)
class Slotted:
    inner: Point


def _circle() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


def _deep(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


NAN, INF = float("nan"), float("inf")

# -- G01, G02, G04, G05: what cannot be written ---------------------------------------------------------------------

UNKNOWN: dict[str, Any] = {
    "a set": {"x": {1}},
    "an object": object(),
    "bytes": {"x": b"bytes"},
    "a function": [len],
    "complex": 1j,
    "an exception": ValueError("x"),
    "late in a long document": [*range(100_000), {1}],
    "itself": _circle(),
    "too deep": _deep(300),
    "a very deep one": _deep(100_000),
    "a named tuple": Pair(1, 2),
    "a subclass of float": Number(1),
}
NOT_FINITE: dict[str, Any] = {
    "nan": NAN,
    "inf": [INF],
    "-inf": {"v": -INF},
    "nested": {"a": [{"b": (1, [NAN])}], "c": None},
    "in a dataclass": Point(1, NAN),
    "in two dataclasses": {"s": Slotted(Point(NAN))},
    "in an enum": [Colour.NOTHING],
    "in a dict of another kind": defaultdict(list, v=[INF]),
    "in an ordered dict": OrderedDict(a=None, b=NAN),
    "a subclass of float": Number("nan"),
    "overflow": 1e308 * 10,
}
KEYS: dict[str, Any] = {
    "1 and '1'": {1: "a", "1": "b"},
    "a number": {1: "a"},
    "None": {None: "a"},
    "a bool": {True: "a"},
    "a float": {"x": {1.5: "a"}},
    "bytes": {b"k": "a"},
    "a tuple": {(1, 2): "a"},
    "a subclass of str": {Text("k"): "a", "k": "b"},
    "an enum": {Colour.RED: 1},
}
SURROGATES: dict[str, Any] = {
    "alone": "\ud800",
    "in a list": ["x", "a\udfff"],
    "in a key": {"\ud800": 1},
    "from a file name": "caf\udce9",
    "the wrong way round": "\udc00\ud800",
}
INTEGERS: dict[str, Any] = {
    "2 ** 64": 2**64,
    "-2 ** 63 - 1": [-(2**63) - 1],
    "10 ** 400": {"v": 10**400},
}
REFUSED = {
    f"{kind}: {name}": value
    for kind, values in (
        ("g01", UNKNOWN),
        ("g02", NOT_FINITE),
        ("g04", KEYS),
        ("g05", SURROGATES),
        ("integer", INTEGERS),
    )
    for name, value in values.items()
}


@pytest.mark.parametrize("name", REFUSED)
def test_g01_g02_g04_g05_g08_what_json_cannot_hold_is_refused_at_the_call(root: Path, name: str) -> None:
    (root / "b").write_text("old", encoding="utf-8")
    with FileTransaction(root) as tx:
        tx.write_json("a", {"fine": 1})
        private = len(list((root / ".txfiles").iterdir()))
        for indent in (2, None):
            with pytest.raises(DocumentError, match="'b' cannot be written as JSON") as caught:
                tx.write_json("b", REFUSED[name], indent=indent)
            assert caught.value.path == "b"
            assert caught.value.outcome == "before"
            _require_good_error(caught.value)
            assert tx.read("b") == b"old"
            assert len(list((root / ".txfiles").iterdir())) == private
        tx.write_json("c", {"fine": 3}, indent=None)
    assert tree(root) == {"a": b'{\n  "fine": 1\n}\n', "b": b"old", "c": b'{"fine":3}\n'}


def _require_good_error(error: BaseException) -> None:
    """G08: it can be printed with all its causes, pickled and copied."""
    assert error.__class__.__name__ in "".join(traceback.format_exception(error))
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)
    cause = error.__cause__
    assert cause is None or isinstance(cause, BaseException)


def test_g01_what_was_staged_before_the_refused_call_stays(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write_json("b", [1])
        with pytest.raises(DocumentError):
            tx.write_json("b", [{1}])
        assert tx.read_json("b") == [1]
    assert json.loads((root / "b").read_bytes()) == [1]


def test_g01_a_generator_that_raises_leaves_nothing(root: Path) -> None:
    def rows() -> Any:
        yield b"["
        raise ZeroDivisionError

    with FileTransaction(root) as tx:
        with pytest.raises(ZeroDivisionError):
            tx.write("b", rows())
        with pytest.raises(TypeError):
            tx.write("b", [b"[", "text"])  # type: ignore[list-item]
        with pytest.raises(ZeroDivisionError), tx.open("b", "w") as file:
            file.write("[")
            raise ZeroDivisionError
        assert not tx.exists("b")
    assert tree(root) == {}


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def module_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json")


@given(value=values, indent=st.sampled_from([2, None]))
def test_g02_what_is_written_is_what_is_read(module_root: Path, value: object, indent: int | None) -> None:
    path = module_root / "v"
    path.unlink(missing_ok=True)
    try:
        with FileTransaction(module_root, durability="process") as tx:
            tx.write_json("v", value, indent=indent)
            staged = tx.read_json("v")
    except DocumentError:
        assert _has_bad_part(value)
        assert not path.exists()
        return
    assert not _has_bad_part(value)
    assert _same(staged, value)
    assert _same(json.loads(path.read_bytes()), value)
    with FileStore(module_root).snapshot() as snap:
        assert _same(snap.read_json("v"), value)


def _has_bad_part(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, str):
        return any(0xD800 <= ord(char) < 0xE000 for char in value)
    if isinstance(value, list):
        return any(map(_has_bad_part, value))
    if isinstance(value, dict):
        return any(_has_bad_part(part) for pair in value.items() for part in pair)
    return False


def _same(one: object, other: object) -> bool:
    """Equal, also in the types: 1, 1.0 and True are three values."""
    return repr(one) == repr(other)


# -- G04, G05, G07: what cannot be read -----------------------------------------------------------------------------

UNREADABLE: dict[str, bytes] = {
    "a lone surrogate": json.dumps("\ud800").encode(),
    "a lone surrogate in a key": json.dumps({"\ud800": 1}).encode(),
    "Latin-1": '"café"'.encode("latin-1"),
    "UTF-16": json.dumps({"a": 1}).encode("utf-16"),
    "NaN": json.dumps([NAN]).encode(),
    "Infinity": json.dumps({"v": -INF}).encode(),
    "empty": b"",
    "white space": b" \n",
    "NULs": b"\0" * 4096,
    "torn": b'{"a": [1, 2',
    "two documents": b"{}{}",
    "a comment": b"{} // yes",
    "1 MB of [": b"[" * 1_000_000,
    '1 MB of {"a":': b'{"a":' * 200_000,
    "deep and with a long number": b"[" * 5000 + b"1" * 30 + b"]" * 5000,
    "one deeper than is read": b"[" * 1025 + b"]" * 1025,
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_g05_g07_what_cannot_be_read_is_named_and_stays(root: Path, name: str) -> None:
    data = UNREADABLE[name]
    (root / "sub").mkdir()
    (root / "sub/bad.json").write_bytes(data)
    (root / "good.json").write_text("{}", encoding="utf-8")

    def read() -> None:
        with FileTransaction(root) as tx:
            assert tx.read_json("good.json") == {}
            with pytest.raises(DocumentError, match=r"'sub/bad\.json' is ") as caught:
                tx.read_json("sub/bad.json")
            assert caught.value.path == "sub/bad.json"
            _require_good_error(caught.value)
        with FileStore(root).snapshot() as snap, pytest.raises(DocumentError, match=r"'sub/bad\.json' is "):
            snap.read_json("sub/bad.json")

    read()
    threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=read)  # whose stack is small
        thread.start()
        thread.join()
    finally:
        threading.stack_size(0)
    assert (root / "sub/bad.json").read_bytes() == data
    with FileTransaction(root) as tx:
        tx.write_json("sub/bad.json", {"new": 1})
    assert json.loads((root / "sub/bad.json").read_bytes()) == {"new": 1}


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30, 12345678901234567890123])
def test_g02_a_long_integer_is_not_read_as_a_float(root: Path, number: int) -> None:
    (root / "a").write_text(json.dumps({"v": [number, 1.5, "1" * 30]}), encoding="utf-8")
    with FileTransaction(root) as tx:
        assert _same(tx.read_json("a"), {"v": [number, 1.5, "1" * 30]})


@pytest.mark.leaves_debris
@pytest.mark.parametrize("state", ["committed", "aborting", "prepared", "intent", "HEAD"])
@pytest.mark.parametrize("body", [b"[" * 1_000_000, b'{"a":' * 200_000, b'{"ops":' + b"[" * 100_000, b"1" * 100_000])
def test_g07_a_deep_journal_is_an_error_and_no_crash(root: Path, state: str, body: bytes) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "x")
    name = "HEAD" if state == "HEAD" else f"{'0' * 32}.{state}"
    checksum = hashlib.blake2b(body, digest_size=32).hexdigest().encode()
    (root / ".txfiles" / name).write_bytes(b"txfiles journal 1 %d %s\n%s" % (len(body), checksum, body))
    if state in ("intent", "HEAD"):
        recover(root)
        with FileTransaction(root) as tx:
            tx.write("a", "y")
        assert (root / "a").read_text(encoding="utf-8") == "y"
        return
    for call in (lambda: recover(root), lambda: FileTransaction(root).begin()):
        with pytest.raises(JournalCorruptError) as caught:
            call()
        _require_good_error(caught.value)
    assert status(root).pending[0].error is not None
    assert (root / "a").read_text(encoding="utf-8") == "x"


@pytest.mark.leaves_debris
@pytest.mark.parametrize("name", [f"{'0' * 32}.{end}" for end in ("committed", "aborting")] + ["HEAD", "format"])
@pytest.mark.parametrize("size", [1 << 30, 1 << 40], ids=["1 GiB", "1 TiB"])
def test_g07_an_endless_journal_is_not_read_into_memory(root: Path, name: str, size: int) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "x")
    path = root / ".txfiles" / name
    head = path.read_bytes() if path.exists() else b"txfiles journal 1 %d %s\n" % (size, b"0" * 64)
    path.write_bytes(head)
    os.truncate(path, len(head) + size)
    tracemalloc.start()
    try:
        with pytest.raises(JournalCorruptError, match="too large"), FileTransaction(root) as tx:
            tx.write("a", "y")
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()
    assert (root / "a").read_text(encoding="utf-8") == "x"
    path.unlink()


# -- G08 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [120, 1000])
def test_g08_json_errors_near_the_end_of_the_stack(root: Path, limit: int) -> None:
    (root / "bad").write_bytes(b"[" * 2000)
    before = sys.getrecursionlimit()
    tx = FileTransaction(root).begin()
    calls: list[Callable[[], object]] = [lambda: tx.read_json("bad"), lambda: tx.write_json("b", _deep(300))]
    sys.setrecursionlimit(limit + len(traceback.extract_stack()))
    try:
        for call in calls:
            with pytest.raises(DocumentError) as caught:
                call()
            _require_good_error(caught.value)
    finally:
        sys.setrecursionlimit(before)
    tx.rollback()
