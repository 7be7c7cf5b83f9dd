"""Recovery of many files: what it asks of each, and that none of those that are read together is taken for another."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.boundary import killed, nth_call, tree
from txfiles import FileTransaction, recover
from txfiles._disk import system
from txfiles.errors import RecoveryConflictError, RecoveryError

FILES = 230
LARGE = 150  # the number of a file that is not read with others


def _save(root: Path, word: str, files: int = FILES) -> None:
    with FileTransaction(root, create=True) as tx:
        for number in range(files):
            tx.write(f"f{number:03}", f"{number} {word}".encode() * (20_000 if number == LARGE else 1))


def _die(root: Path, files: int = FILES, renames: int = 1) -> dict[str, object]:
    """Killed after so many renames of a commit."""
    _save(root, "old", files)
    killed(lambda: _save(root, "new", files), "rename", renames + 1)
    return tree(root)


def _token(root: Path, number: int) -> Path:
    (found,) = (root / ".txfiles").glob(f"*.{number}")
    return found


@pytest.mark.parametrize("renames", [1, 31])
@pytest.mark.parametrize("number", [40, 99, 100, LARGE, FILES - 1])
def test_one_of_many_that_is_damaged_stops_all(root: Path, number: int, renames: int) -> None:
    found = _die(root, renames=renames)
    token = _token(root, number)
    times = token.stat()
    content = token.read_bytes()
    token.write_bytes(content.replace(b"new", b"nex"))
    os.utime(token, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(RecoveryError, match=f"'f{number:03}' is damaged"):
        recover(root)
    assert tree(root) == found
    token.write_bytes(content)
    recover(root)
    assert {str(content).split()[1][:3] for content in tree(root).values()} == {"new"}


def test_one_of_many_that_is_missing_stops_all(root: Path, tmp_path: Path) -> None:
    found = _die(root)
    token = _token(root, 120)
    token.rename(tmp_path / "aside")
    with pytest.raises(RecoveryError, match="'f120' is missing"):
        recover(root)
    assert tree(root) == found
    (tmp_path / "aside").rename(token)
    assert len(recover(root).rolled_forward[0].paths) == FILES


class _Changed(system.KernelFS):
    """Every file was changed at one time, as on a file system whose clock ticks seldom."""

    def __init__(self, ctime_ns: int) -> None:
        self._ctime_ns = ctime_ns

    def stat(self, at: int | None, name: bytes) -> Any:
        found = super().stat(at, name)
        names = [name for name in dir(found) if name.startswith("st_")]
        return SimpleNamespace(**{name: getattr(found, name) for name in names} | {"st_ctime_ns": self._ctime_ns})


@pytest.mark.parametrize("inner", [system.KernelFS(), _Changed(1 << 62)], ids=["a fine clock", "a coarse clock"])
def test_attributes_that_change_between_the_look_and_the_deed(root: Path, inner: system.FileSystem) -> None:
    found = _die(root)
    with system.use(nth_call("rename", 41, lambda: (root / "f200").chmod(0o600), inner)):
        with pytest.raises(RecoveryConflictError, match="'f200' was changed by somebody else") as caught:
            recover(root)
        assert tree(root)["f200"] == found["f200"]
    recover(root, on_conflict="keep-theirs")
    assert (root / "f200").stat().st_mode & 0o777 == 0o600
    assert caught.value.paths == ("f200",)


def test_the_calls_for_a_further_file(root: Path) -> None:
    """What the look takes: token and target once, the token's content, the target's attributes; then the deed."""
    counted = []
    for files in (20, 120):
        _die(root, files)
        fs = nth_call("read", 0, lambda: None, _Changed(1))
        with system.use(fs):
            recover(root)
        counted.append(Counter(fs.trace))
    more = counted[1] - counted[0]
    allowed = {"stat": 2, "xattrs": 1, "rename": 1, "unlink": 1}
    assert Counter({call: -(-count // 100) for call, count in more.items() if count > 5}) <= Counter(allowed)
    assert counted[1]["read_small"] == 2
