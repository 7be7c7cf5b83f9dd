"""The digest of a content: the same however it is cut, and another for every change."""

from __future__ import annotations

import _thread
import hashlib
import random
import threading
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.procs import run_python
from txfiles._disk import system
from txfiles._format import digest as _digest
from txfiles._format.digest import Digest
from txfiles._tree import tokens
from txfiles._tree.tokens import digest_of_file


def _of(data: bytes, *cuts: int) -> str:
    digest = Digest()
    for start, end in zip((0, *sorted(cuts)), (*sorted(cuts), len(data)), strict=True):
        digest.update(memoryview(data)[start:end])
    return digest.hexdigest()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_digest, "WHOLE", 64)
    monkeypatch.setattr(_digest, "BLOCK", 16)


def test_of_what_is_short_it_is_blake2b_256() -> None:
    data = random.Random(1).randbytes(_digest.WHOLE)
    assert _of(b"abc") == hashlib.blake2b(b"abc", digest_size=32).hexdigest()
    assert _of(data) == hashlib.blake2b(data, digest_size=32).hexdigest()


def test_of_what_is_longer_it_is_that_of_the_sums_of_its_blocks_too() -> None:
    data = random.Random(1).randbytes(_digest.WHOLE + _digest.BLOCK + 5)
    first, block, rest = data[: _digest.WHOLE], data[_digest.WHOLE : -5], data[-5:]
    sums = b"".join(zlib.crc32(part).to_bytes(4, "big") for part in (block, rest))
    assert _of(data) == hashlib.blake2b(first + sums, digest_size=32).hexdigest()


def test_of_a_file_it_is_that_of_all_of_it_also_when_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_STEP", 4)
    fs = system.current()
    at = fs.open_dir(None, bytes(tmp_path))
    try:
        for length in range(14):
            (tmp_path / "file").write_bytes(data := bytes(range(length)))
            for size in range(14):  # what stat(2) said before
                assert digest_of_file(fs, at, b"file", size) == _of(data), (length, size)
    finally:
        fs.close(at)


@pytest.mark.usefixtures("small")
def test_where_it_is_cut_and_when_it_is_asked_changes_nothing() -> None:
    @given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6))
    def run(data: bytes, cuts: list[int]) -> None:
        assert _of(data, *(min(cut, len(data)) for cut in cuts)) == _of(data)
        asked = Digest()
        for byte in data:
            asked.hexdigest()
            asked.update(bytes([byte]))
        assert asked.hexdigest() == _of(data)

    run()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 79, 80, 81, 96, 200])
def test_every_change_is_seen(size: int) -> None:
    data = random.Random(size).randbytes(size)
    others = [data[:n] + bytes([data[n] ^ 1 << n % 8]) + data[n + 1 :] for n in range(size)]  # a bit
    others += [data[:n] for n in range(size)] + [data + bytes(n) for n in range(1, 40)]  # short, long
    others += [data[:n] + bytes(size - n) for n in range(size) if any(data[n:])]  # zeros
    others += [data[:n] + data[n + 16 : n + 32] + data[n : n + 16] + data[n + 32 :] for n in range(0, size - 31, 16)]
    assert _of(data) not in {_of(other) for other in others}


@pytest.mark.parametrize("threads", [True, False])
def test_it_is_the_same_when_it_is_made_beside_the_writing(threads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    if not threads:
        monkeypatch.setattr(_thread, "start_new_thread", refused)
    content = random.Random(0).randbytes(5 << 20)
    digest = Digest()
    for start in range(0, len(content), 1 << 20):
        with digest.updated_beside(content[start : start + (1 << 20)]):
            pass
    assert digest.hexdigest() == _of(content)


def test_beside_is_at_the_same_time_and_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()

    def update(self: Digest, data: bytes) -> None:
        assert written.wait(20)
        self._size = len(data)

    monkeypatch.setattr(Digest, "update", update)
    digest = Digest()
    with pytest.raises(OSError, match="the disk"), digest.updated_beside(b"data"):
        assert digest._size == 0
        written.set()
        raise OSError("the disk")
    assert digest._size == 4


def test_a_failure_beside_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def update(self: Digest, data: bytes) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(Digest, "update", update)
    with pytest.raises(MemoryError, match="no more"), Digest().updated_beside(b"data"):
        pass


def test_it_ends_while_the_interpreter_does() -> None:
    code = """
        from txfiles._format.digest import Digest
        class Late:
            def __init__(self):
                self.digest, self.write = Digest(), os.write
            def __del__(self):
                with self.digest.updated_beside(bytes(1 << 20)):
                    pass
                self.write(1, self.digest.hexdigest().encode())
        late = Late()
    """
    digest = Digest()
    digest.update(bytes(1 << 20))
    assert digest.hexdigest() in run_python(code).check().stdout
