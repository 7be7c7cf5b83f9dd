"""`tx.open`: its modes, streams that end badly, and streams that outlive their transaction."""

from __future__ import annotations

import errno
import gc
import io
import os
import threading
from pathlib import Path

import pytest

from tests.support.boundary import tree
from txfiles import FileTransaction
from txfiles.errors import CommitError, InvalidPathError, TransactionClosedError

WRITING = ["w", "wb", "a", "ab", "x", "xb"]
PLACES = {"new": "a", "in a new directory": "new/deep/a", "there": "old"}


def _private(root: Path) -> list[str]:
    return sorted(os.listdir(root / ".txfiles"))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["w", "wb", "a", "ab"])
def test_what_is_written_is_staged_at_the_close(root: Path, mode: str, place: str) -> None:
    (root / "old").write_text("old ", encoding="utf-8")
    path = PLACES[place]
    begins = b"old " if place == "there" and mode[0] == "a" else b""
    with FileTransaction(root) as tx:
        stream = tx.open(path, mode)
        stream.write(b"one" if mode.endswith("b") else "one")
        stream.write(b"\ntwo" if mode.endswith("b") else "\ntwo")
        assert tx.exists(path) == (place == "there")
        stream.close()
        assert tx.read(path) == begins + b"one\ntwo"
        assert (root / "old").read_text(encoding="utf-8") == "old "
    assert tree(root)[path] == begins + b"one\ntwo"


@pytest.mark.parametrize("mode", ["x", "xb"])
def test_exclusive_creation(root: Path, mode: str) -> None:
    (root / "there").write_text("old", encoding="utf-8")
    (root / "link").symlink_to("there")
    with FileTransaction(root) as tx:
        tx.write("staged", "old")
        for path in ("there", "staged", "link"):
            with pytest.raises(FileExistsError) as caught:
                tx.open(path, mode)
            assert caught.value.filename in (path, "there")
        tx.delete("there")
        tx.open("there", mode).close()
        tx.open("new", mode).close()
    assert tree(root) == {"there": b"", "new": b"", "staged": b"old", "link": "-> there"}


@pytest.mark.parametrize("mode", ["", "rw", "r++", "b", "U", "xw", "q", "rbt", "+", "rU"])
def test_other_modes_are_refused(root: Path, mode: str) -> None:
    with FileTransaction(root) as tx, pytest.raises(ValueError, match="mode"):
        tx.open("a", mode)


def test_text_is_utf_8_and_newlines_are_as_they_are(root: Path) -> None:
    with FileTransaction(root) as tx:
        with tx.open("a", "w") as stream:
            stream.write("ä\r\nö\nü\r")
        with tx.open("a") as stream:
            assert stream.read() == "ä\r\nö\nü\r"
        with tx.open("a") as stream:
            assert list(stream) == ["ä\r\n", "ö\n", "ü\r"]
    assert (root / "a").read_bytes() == "ä\r\nö\nü\r".encode()


@pytest.mark.parametrize("staged", [True, False])
def test_reading(root: Path, staged: bool) -> None:
    (root / "a").write_bytes(b"0123456789")
    with FileTransaction(root) as tx:
        if staged:
            tx.write("a", b"0123456789")
        with tx.open("a", "rb") as stream:
            assert stream.seekable()
            assert stream.read(3) == b"012"
            assert stream.seek(-2, io.SEEK_END) == 8
            assert stream.read() == b"89"
            with pytest.raises(io.UnsupportedOperation):
                stream.write(b"x")
        assert tree(root) == {"a": b"0123456789"}


def test_a_stream_that_writes_cannot_read(root: Path) -> None:
    with FileTransaction(root) as tx:
        with tx.open("a", "wb") as stream:
            stream.write(b"123")
            assert stream.tell() == 3
            assert (stream.readable(), stream.seekable(), stream.writable()) == (False, True, True)
            with pytest.raises(io.UnsupportedOperation, match="read"):
                stream.read()
        assert tx.read("a") == b"123"


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("mode", WRITING)
def test_a_block_that_raises_stages_nothing(root: Path, mode: str, error: type[BaseException]) -> None:
    (root / "old").write_text("old", encoding="utf-8")
    path = "new/a" if mode[0] == "x" else "old"
    with FileTransaction(root) as tx:
        before = _private(root)
        with pytest.raises(error), tx.open(path, mode) as stream:
            stream.write(b"half" if mode.endswith("b") else "half")
            stream.flush()
            raise error
        assert stream.closed
        assert _private(root) == before
        assert tx.glob("**") == ["old"]
        with tx.open(path, mode) as stream:
            stream.write(b"x" if mode.endswith("b") else "x")
    assert tree(root)[path] == (b"oldx" if mode[0] == "a" else b"x")


def test_text_that_cannot_be_encoded_spoils_only_its_file(root: Path) -> None:
    with FileTransaction(root) as tx:
        with pytest.raises(UnicodeEncodeError), tx.open("a", "w") as stream:
            stream.write("good")
            stream.write("\ud800")
        tx.write("b", "x")
    assert tree(root) == {"b": b"x"}


def test_a_file_can_be_read_while_its_successor_is_written(root: Path) -> None:
    (root / "a").write_bytes(b"line\n" * 1000)
    with FileTransaction(root) as tx:
        with tx.open("a", "rb") as old, tx.open("a", "wb") as new:
            for line in old:
                new.write(line.upper())
        assert tx.read("a") == b"LINE\n" * 1000
    assert tree(root) == {"a": b"LINE\n" * 1000}


def test_one_writer_at_a_time(root: Path) -> None:
    (root / "link").symlink_to("a")
    with FileTransaction(root) as tx:
        with tx.open("a", "wb") as stream:
            for path in ("a", "./a", "link"):
                with pytest.raises(OSError, match="open for writing already") as caught:
                    tx.open(path, "ab")
                assert (caught.value.errno, caught.value.filename) == (errno.EBUSY, "a")
            stream.write(b"1")
        with tx.open("a", "ab") as stream:
            stream.write(b"2")
    assert tree(root)["a"] == b"12"


def test_several_files_at_a_time(root: Path) -> None:
    with FileTransaction(root) as tx:
        streams = [tx.open(str(number), "wb") for number in range(20)]
        for _ in range(3):
            for number, stream in enumerate(streams):
                stream.write(b"%d." % number)
        for stream in streams:
            stream.close()
    assert tree(root) == {str(number): b"%d." % number * 3 for number in range(20)}


def test_closing_twice_is_closing_once(root: Path) -> None:
    with FileTransaction(root) as tx:
        stream = tx.open("a", "wb")
        stream.write(b"1")
        stream.close()
        tx.write("a", "2")
        stream.close()
    assert tree(root) == {"a": b"2"}


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("missing", FileNotFoundError),
        ("d", IsADirectoryError),
        ("fifo", InvalidPathError),
        ("file/x", NotADirectoryError),
    ],
)
@pytest.mark.parametrize("mode", ["r", "rb"])
def test_what_cannot_be_read(root: Path, mode: str, path: str, error: type[Exception]) -> None:
    _odd_things(root)
    with FileTransaction(root) as tx, pytest.raises(error) as caught:
        tx.open(path, mode)
    assert path in (getattr(caught.value, "filename", None), getattr(caught.value, "path", None))


@pytest.mark.parametrize(
    ("path", "error"), [("d", IsADirectoryError), ("fifo", InvalidPathError), ("file/x", NotADirectoryError)]
)
@pytest.mark.parametrize("mode", WRITING)
def test_what_cannot_be_written(root: Path, mode: str, path: str, error: type[Exception]) -> None:
    _odd_things(root)
    with FileTransaction(root) as tx:
        with pytest.raises(error) as caught:
            tx.open(path, mode)
        assert path in (getattr(caught.value, "filename", None), getattr(caught.value, "path", None))
        assert _private(root) == ["format", "lock"]


def _odd_things(root: Path) -> None:
    (root / "d").mkdir()
    (root / "file").touch()
    os.mkfifo(root / "fifo")


# -- streams that are not closed in time ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", WRITING)
def test_a_commit_with_an_open_stream_changes_nothing(root: Path, mode: str) -> None:
    (root / "b").write_text("old", encoding="utf-8")
    tx = FileTransaction(root).begin()
    tx.write("b", "new")
    stream = tx.open("a", mode)
    with pytest.raises(CommitError, match="'a' is still open for writing") as caught:
        tx.commit()
    assert (caught.value.path, caught.value.outcome) == ("a", "before")
    stream.write(b"late" if mode.endswith("b") else "late")
    stream.close()
    assert tree(root) == {"b": b"old"}
    assert _private(root) == ["format", "lock"]
    with FileTransaction(root, timeout=0) as tx:
        tx.write("b", "next")
    assert tree(root) == {"b": b"next"}


@pytest.mark.parametrize("closed", ["by hand", "by its block", "by the collector"])
def test_a_stream_that_outlives_its_transaction_writes_nothing_and_holds_nothing(root: Path, closed: str) -> None:
    tx = FileTransaction(root).begin()
    stream = tx.open("a", "wb")
    stream.write(b"late")
    tx.rollback()
    if closed == "by hand":
        stream.close()
    elif closed == "by its block":
        with stream:
            stream.write(b"later")
    del stream, tx
    gc.collect()
    assert tree(root) == {}
    assert _private(root) == ["format", "lock"]


def test_a_stream_that_was_opened_for_reading_stays_readable(root: Path) -> None:
    (root / "disk").write_text("old", encoding="utf-8")
    with FileTransaction(root) as tx:
        tx.write("staged", "new")
        disk, staged = tx.open("disk"), tx.open("staged")
        tx.write("disk", "new")
        tx.delete("staged")
    with disk, staged:
        assert (disk.read(), staged.read()) == ("old", "new")


def test_a_savepoint_undoes_a_stream_that_was_closed_in_it(root: Path) -> None:
    (root / "a").write_text("old", encoding="utf-8")
    with FileTransaction(root) as tx:
        with pytest.raises(ZeroDivisionError), tx.savepoint():
            with tx.open("a", "ab") as stream:
                stream.write(b" and new")
            assert tx.read("a") == b"old and new"
            raise ZeroDivisionError
        assert tx.read("a") == b"old"
    assert tree(root) == {"a": b"old"}


def test_the_directory_is_made_again_when_it_went_before_the_close(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.mkdir("d")
        stream = tx.open("d/a", "wb")
        tx.delete_tree("d")
        stream.close()
    assert tree(root) == {"d": None, "d/a": b""}


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_a_stream_whose_place_is_taken_at_the_close_says_so(root: Path, mode: str) -> None:
    with FileTransaction(root) as tx:
        stream = tx.open("d/a", mode)
        tx.write("d", "a file now")
        with pytest.raises(NotADirectoryError):
            stream.close()
        tx.write("b", "goes on")
    assert tree(root) == {"d": b"a file now", "b": b"goes on"}


def test_open_after_the_end_is_refused(root: Path) -> None:
    with FileTransaction(root) as tx:
        pass
    for mode in ("r", "w"):
        with pytest.raises(TransactionClosedError):
            tx.open("a", mode)


def test_streams_of_several_threads(root: Path) -> None:
    with FileTransaction(root) as tx:

        def work(number: int) -> None:
            for again in range(5):
                with tx.open(f"{number}/{again}", "w") as stream:
                    for _ in range(20):
                        stream.write(f"{number} ")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = tree(root)
    assert {content for content in found.values() if content} == {f"{n} ".encode() * 20 for n in range(8)}
    assert len(found) == 8 * 6
