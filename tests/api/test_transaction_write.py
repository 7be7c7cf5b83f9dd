"""`write` and `write_json`: what they take, when they take it, and what a refused call leaves."""

from __future__ import annotations

import array
import ctypes
import errno
import io
import json
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import killed, nth_call, tree
from tests.support.mounts import tmpfs
from txfiles import FileTransaction, recover
from txfiles.errors import DocumentError, InvalidPathError

TEXT = "Grüße\r\nzweite\nZeile\0 \N{SNOWMAN}"
CONTENT = TEXT.encode()


class OddReader:
    """Gives what it has in pieces of its own choice, whatever was asked for."""

    def __init__(self, *pieces: bytes | None) -> None:
        self.pieces = list(pieces)

    def read(self, size: int = -1) -> bytes | None:
        return self.pieces.pop(0) if self.pieces else b""


def _mapped(content: bytes) -> mmap.mmap:
    mapped = mmap.mmap(-1, len(content))
    mapped.write(content)
    return mapped


FORMS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "reversed memoryview": lambda content: memoryview(content[::-1])[::-1],
    "typed memoryview": lambda content: memoryview(content).cast("b"),
    "array": lambda content: array.array("B", content),
    "mmap": _mapped,
    "ctypes": lambda content: (ctypes.c_char * len(content)).from_buffer_copy(content),
    "str": lambda content: content.decode(),
    "BytesIO": io.BytesIO,
    "buffered reader": lambda content: io.BufferedReader(io.BytesIO(content)),  # type: ignore[arg-type]
    "odd reader": lambda content: OddReader(content[:1], content[1:7], content[7:]),
    "list": lambda content: [content[:3], bytearray(content[3:5]), memoryview(content[5:])],
    "generator": lambda content: (bytes([byte]) for byte in content),
    "empty pieces": lambda content: [b"", content, b""],
}


def _private(root: Path) -> list[str]:
    return sorted(os.listdir(root / ".txfiles"))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data(root: Path, form: str) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", FORMS[form](CONTENT))
        assert tx.read("a") == CONTENT
        assert tx.read_text("a") == TEXT
    assert tree(root) == {"a": CONTENT}


@pytest.mark.parametrize("form", ["bytes", "bytearray", "str", "BytesIO", "list", "generator"])
def test_nothing_is_content_too(root: Path, form: str) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", FORMS[form](b""))
    assert tree(root) == {"a": b""}


@pytest.mark.parametrize("form", ["bytearray", "memoryview", "mmap", "array", "BytesIO", "list"])
def test_what_is_handed_over_is_taken_at_the_call(root: Path, form: str) -> None:
    buffer = bytearray(CONTENT)
    data: Any = memoryview(buffer) if form == "memoryview" else FORMS[form](CONTENT)
    with FileTransaction(root) as tx:
        tx.write("a", data)
        if form == "BytesIO":
            data.seek(0)
            data.write(b"later")
        elif form == "list":
            data[0] = b"later"
            data[1][:] = b"later"
        else:
            (buffer if form == "memoryview" else data)[0] = ord("X")
    assert tree(root) == {"a": CONTENT}


@pytest.mark.parametrize(
    "data",
    [(ctypes.c_int32 * 2)(1, 2), (ctypes.c_int16.__ctype_be__ * 2)(1, 2), (ctypes.c_int * 3 * 0)(), array.array("d")],
    ids=["numbers", "big-endian numbers", "nothing in two dimensions", "no numbers"],
)
def test_any_buffer_is_taken_as_its_bytes(root: Path, data: Any) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", data)
    assert (root / "a").read_bytes() == bytes(memoryview(data).tobytes())


@pytest.mark.parametrize("form", ["bytearray", "memoryview", "mmap"])
def test_a_change_while_it_is_being_written_does_no_harm(root: Path, form: str) -> None:
    """By another thread, or by another process when it is a mapped file: content and digest stay together."""
    buffer = bytearray(CONTENT)
    data: Any = memoryview(buffer) if form == "memoryview" else FORMS[form](CONTENT)

    def change() -> None:
        (buffer if form == "memoryview" else data)[0] = ord("X")

    FileTransaction(root).begin().rollback()
    fs: Any = nth_call("write", 1, change)

    def work() -> None:
        with FileTransaction(root) as tx:
            tx.write("a", data)

    killed(work, "rename", 2, inner=fs)
    assert recover(root).rolled_forward
    assert tree(root) == {"a": CONTENT}


def test_a_document_is_taken_at_the_call(root: Path) -> None:
    document = {"list": [1, 2]}
    with FileTransaction(root) as tx:
        tx.write_json("a", document)
        document["list"].append(3)
        assert tx.read_json("a") == {"list": [1, 2]}
    assert json.loads((root / "a").read_bytes()) == {"list": [1, 2]}


def test_a_file_object_is_read_from_its_position_and_left_at_its_end(root: Path, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"0123456789")
    with open(tmp_path / "source", "rb") as source, FileTransaction(root) as tx:
        source.seek(4)
        tx.write("a", source)
        assert source.tell() == 10
        tx.write("b", source)
        assert not source.closed
    assert tree(root) == {"a": b"456789", "b": b""}


def _raising() -> Iterator[bytes]:
    yield b"some"
    raise ZeroDivisionError


def _closed() -> io.BytesIO:
    stream = io.BytesIO(b"x")
    stream.close()
    return stream


REFUSED: dict[str, tuple[Callable[[], Any], type[BaseException]]] = {
    "int": (lambda: 5, TypeError),
    "None": (lambda: None, TypeError),
    "text file": (lambda: io.StringIO("text"), TypeError),
    "empty text file": (io.StringIO, TypeError),
    "a source that has nothing yet": (lambda: OddReader(b"some", None), TypeError),
    "strings": (lambda: ["a", "b"], TypeError),
    "ints": (lambda: [1, 2], TypeError),
    "None after bytes": (lambda: [b"some", None], TypeError),
    "not readable": (lambda: io.BufferedWriter(io.BytesIO()), io.UnsupportedOperation),  # type: ignore[arg-type]
    "closed": (_closed, ValueError),
    "raising": (_raising, ZeroDivisionError),
    "lone surrogate": (lambda: "\udcff", UnicodeEncodeError),
}


@pytest.mark.parametrize("place", ["a", "new/deep/a"])
@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_call_leaves_nothing_and_the_transaction_goes_on(root: Path, what: str, place: str) -> None:
    (root / "a").write_text("old", encoding="utf-8")
    make, error = REFUSED[what]
    with FileTransaction(root) as tx:
        tx.write("other", "kept")
        before = _private(root)
        with pytest.raises(error):
            tx.write(place, make())
        assert _private(root) == before
        assert tx.read("a") == b"old"
        assert not tx.exists("new")
        tx.write("b", "goes on")
    assert tree(root) == {"a": b"old", "other": b"kept", "b": b"goes on"}


def test_a_refused_call_leaves_what_was_staged_before(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "staged")
        with pytest.raises(ZeroDivisionError):
            tx.write("a", _raising())
        assert tx.read("a") == b"staged"
    assert tree(root) == {"a": b"staged"}


def test_data_that_uses_the_transaction_while_it_is_read(root: Path) -> None:
    def joined(tx: FileTransaction) -> Iterator[bytes]:
        for name in "ab":
            tx.write(f"{name}.seen", name)
            yield tx.read(name)

    (root / "a").write_text("1", encoding="utf-8")
    (root / "b").write_text("2", encoding="utf-8")
    with FileTransaction(root) as tx:
        tx.write("a", joined(tx))
    assert tree(root) == {"a": b"12", "b": b"2", "a.seen": b"a", "b.seen": b"b"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_in_the_data_ends_the_block(root: Path, error: type[BaseException]) -> None:
    def interrupted() -> Iterator[bytes]:
        yield b"some"
        raise error

    with pytest.raises(error), FileTransaction(root) as tx:
        tx.write("a", interrupted())
    assert tree(root) == {}
    assert _private(root) == ["format", "lock"]


@pytest.mark.needs("mount")
def test_a_full_disk_while_staging_is_a_plain_error_and_the_transaction_goes_on(root: Path) -> None:
    with tmpfs(root, size="256k"):
        with FileTransaction(root) as tx:
            tx.write("a", "kept")
            with pytest.raises(OSError, match="No space left") as caught:
                tx.write("b", bytes(1 << 20))
            assert caught.value.errno == errno.ENOSPC
            with pytest.raises(OSError, match="No space left"), tx.open("c", "wb") as stream:
                stream.write(bytes(1 << 20))
            assert len(_private(root)) == 3
            tx.write("b", bytes(1 << 16))
        assert tree(root) == {"a": b"kept", "b": bytes(1 << 16)}


def test_write_makes_missing_parents_and_only_those(root: Path) -> None:
    (root / "there").mkdir()
    with FileTransaction(root) as tx:
        tx.write("there/new/deep/a", "x")
    assert tree(root) == {"there": None, "there/new": None, "there/new/deep": None, "there/new/deep/a": b"x"}


def test_a_write_of_the_same_bytes_is_a_change(root: Path) -> None:
    (root / "a").write_text("same", encoding="utf-8")
    inode = (root / "a").stat().st_ino
    with FileTransaction(root) as tx:
        before = tx.version("a")
        tx.write("a", "same")
        assert tx.version("a") != before
    assert (root / "a").stat().st_ino != inode


def test_the_last_write_wins(root: Path) -> None:
    with FileTransaction(root) as tx:
        for number in range(50):
            tx.write("a", str(number))
            assert tx.read_text("a") == str(number)
        assert len(_private(root)) == 3, "what was overwritten is gone at once"
    assert tree(root) == {"a": b"49"}


# -- JSON -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("indent", "text"), [(2, '{\n  "k": [\n    1,\n    "ü"\n  ]\n}\n'), (None, '{"k":[1,"ü"]}\n')])
def test_a_document_looks_as_expected(root: Path, indent: Any, text: str) -> None:
    with FileTransaction(root) as tx:
        tx.write_json("a", {"k": [1, "ü"]}, indent=indent)
        tx.write_json("default", {"k": [1, "ü"]})
    assert (root / "a").read_bytes() == text.encode()
    assert (root / "default").read_bytes().startswith(b'{\n  "k"')


@pytest.mark.parametrize("indent", [-1, True, 2.0, "  x"])
def test_what_is_no_indent(root: Path, indent: Any) -> None:
    with FileTransaction(root) as tx, pytest.raises(ValueError, match="indent is a number of spaces"):
        tx.write_json("a", {}, indent=indent)
    assert tree(root) == {}


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [float("inf")],
        {"a": {"b": -float("inf")}},
        1 << 64,
        -(1 << 63) - 1,
        {1: 2},
        "\ud800",
        {"\udfff": 1},
        {1, 2},
        pytest.param(object(), id="object"),
    ],
    ids=repr,
)
def test_a_document_that_json_cannot_hold(root: Path, value: object) -> None:
    (root / "a").write_text("old", encoding="utf-8")
    with FileTransaction(root) as tx:
        with pytest.raises(DocumentError, match="cannot be written as JSON") as caught:
            tx.write_json("a", value)
        assert (caught.value.path, caught.value.outcome) == ("a", "before")
        assert isinstance(caught.value, ValueError)
        assert _private(root) == ["format", "lock"]
        tx.write_json("b", [(1 << 64) - 1, -(1 << 63), 1.5, True, None, ""])
    assert sorted(tree(root)) == ["a", "b"]
    assert (root / "a").read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("content", [b"", b" \n", b"{", b"[1,]", b"nan", b'"\xff"', b"{} {}", b"\xef\xbb\xbf{"])
def test_a_document_that_cannot_be_read(root: Path, content: bytes) -> None:
    (root / "a").write_bytes(content)
    with FileTransaction(root) as tx:
        with pytest.raises(DocumentError) as caught:
            tx.read_json("./a")
        assert caught.value.outcome == "before"
        assert caught.value.path is not None
        tx.write_json("a", 1)
    assert tree(root) == {"a": b"1\n"}


@pytest.mark.parametrize("number", [10**30, -(10**30), 1 << 64, (1 << 63) - 1, 12345678901234567890123])
def test_integers_stay_exact_on_reading(root: Path, number: int) -> None:
    (root / "a").write_text(json.dumps({"n": number}), encoding="utf-8")
    with FileTransaction(root) as tx:
        assert tx.read_json("a") == {"n": number}
        assert type(tx.read_json("a")["n"]) is int


def test_a_bad_path_is_said_before_the_data_is_touched(root: Path) -> None:
    data = io.BytesIO(b"untouched")
    with FileTransaction(root) as tx, pytest.raises(InvalidPathError):
        tx.write("../a", data)
    assert data.tell() == 0
