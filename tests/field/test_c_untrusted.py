"""What a journal that somebody planted may cost, and whose journals a reader replays."""

from __future__ import annotations

import hashlib
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.halfdone import die, journal_of
from txfiles import FileStore, FileTransaction, recover, status
from txfiles.errors import JournalCorruptError, RecoveryError

MIB = 1 << 20


def _peak(call: Callable[[], object]) -> int:
    """Bytes that the call has at most while it runs."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _change(planted: Path, **more: object) -> None:
    body = json.loads(planted.read_bytes().split(b"\n", 1)[1])
    for key, value in more.pop("op", {}).items():  # type: ignore[attr-defined]
        body["ops"][0][key] = value
    raw = json.dumps(body | more).encode()
    checksum = hashlib.blake2b(raw, digest_size=32).hexdigest()
    planted.write_bytes(b"txfiles journal 1 %d %s\n%s" % (len(raw), checksum.encode(), raw))


@pytest.mark.leaves_debris
def test_c09_a_path_of_many_components_costs_no_more_than_its_length(root: Path) -> None:
    die(root, 0)
    _change(journal_of(root), op={"path": "a/" * 20_000 + "a"})
    assert _peak(lambda: status(root)) < 4 * MIB
    found = status(root).pending[0].error
    assert found is not None
    assert "is not listed" in found
    assert len(found) < 1000
    with pytest.raises(JournalCorruptError):
        recover(root)


@pytest.mark.leaves_debris
def test_c09_a_directory_that_is_listed_without_the_one_above_it(root: Path) -> None:
    die(root, 0)
    planted = journal_of(root)
    body = json.loads(planted.read_bytes().split(b"\n", 1)[1])
    _change(planted, dirs=[*body["dirs"], ["far/away", 0]])
    with pytest.raises(JournalCorruptError, match="above b'far/away' is not listed"):
        recover(root)


@pytest.mark.leaves_debris
@pytest.mark.parametrize("name", ["HEAD", "format", f"{'0' * 32}.committed"])
def test_c09_a_hole_is_not_read_into_memory(root: Path, name: str) -> None:
    """A sparse file has cost whoever planted it nothing, whatever its size says."""
    with FileTransaction(root) as tx:
        tx.write("a", "x")
    path = root / ".txfiles" / name
    raw = path.read_bytes() if path.exists() else b"txfiles journal 1 %d %s\n" % (900 * MIB, b"0" * 64)
    path.write_bytes(raw)
    os.truncate(path, 900 * MIB if name != "format" else 4000)

    def look() -> None:
        status(root)
        with FileStore(root).snapshot() as snap:
            snap.version("a")

    def guarded() -> None:
        try:
            look()
        except RecoveryError:
            assert name != "HEAD"

    assert _peak(guarded) < 4 * MIB
    path.unlink()


@pytest.mark.parametrize("depth", [20_000])
def test_c09_a_name_of_many_components_costs_no_more_than_its_length(root: Path, depth: int) -> None:
    name = "a/" * depth + "a"
    with FileTransaction(root) as tx:
        assert _peak(lambda: tx.exists(name)) < 16 * MIB
        assert not tx.exists(name)
        assert not tx.exists("missing/" + "../missing/" * depth + "a")
    with FileStore(root).snapshot() as snap:
        assert _peak(lambda: snap.exists(name)) < 16 * MIB
        with pytest.raises(FileNotFoundError):
            snap.read(name)


def test_c09_a_link_whose_target_is_not_there_leads_on(root: Path) -> None:
    (root / "there").mkdir()
    (root / "there/file").write_text("x", encoding="utf-8")
    (root / "link").symlink_to("gone/and/../../there")
    with FileTransaction(root) as tx:
        assert tx.read_text("link/file") == "x"
        assert not tx.exists("link/other")
