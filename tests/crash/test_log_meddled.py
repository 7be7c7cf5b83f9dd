"""Somebody comes between the look at a file and the exchange of its name, in a commit through the log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.test_journal_level import records
from tests.support.boundary import tree
from txfiles import FileStore, recover
from txfiles._disk import system
from txfiles.errors import CommitError, ConflictError

PATHS = ["a", "b", "gone", "new", "other"]


class Meddled(system.KernelFS):
    """Does something before a file of this name is exchanged, or moved, for the first time."""

    def __init__(self, name: str, deed: Callable[[], None]) -> None:
        self._name = name.encode()
        self._deed: Callable[[], None] | None = deed

    def _before(self, *names: bytes) -> None:
        if self._deed is not None and self._name in names:
            deed, self._deed = self._deed, None
            deed()

    def exchange(self, at: int, name: bytes, to: int, new: bytes) -> None:
        self._before(name, new)
        super().exchange(at, name, to, new)

    def rename_new(self, at: int, name: bytes, to: int, new: bytes) -> None:
        self._before(name, new)
        super().rename_new(at, name, to, new)


def theirs(root: Path, name: str) -> None:
    (root / "temporary").write_text(f"their {name}", encoding="utf-8")
    os.replace(root / "temporary", root / name)


@pytest.fixture
def store(root: Path) -> FileStore:
    store = FileStore(root, durability="journal")
    with store.transaction() as tx:
        for name in ("a", "b", "gone"):
            tx.write(name, f"old {name}")
    return store


def save(store: FileStore, names: list[str]) -> None:
    with store.transaction() as tx:
        for name in names:
            tx.write(name, f"my {name}")


def change(store: FileStore) -> None:
    with store.transaction() as tx:
        for name in ("a", "b", "new", "other"):
            tx.write(name, f"my {name}")
        tx.delete("gone")


@pytest.mark.parametrize("name", PATHS)
def test_nothing_of_it_is_done_and_their_file_stays(root: Path, store: FileStore, name: str) -> None:
    before = tree(root)
    with (
        pytest.raises(ConflictError, match=f"'{name}' was changed") as caught,
        system.use(Meddled(name, lambda: theirs(root, name))),
    ):
        change(store)
    assert caught.value.__cause__ is not caught.value
    assert (root / name).read_text(encoding="utf-8") == f"their {name}"
    (root / name).unlink()
    assert tree(root) == {path: found for path, found in before.items() if path != name}
    assert records(root) == 0
    with store.transaction() as tx:
        tx.write("gone", "there")
    change(store)
    assert [(root / path).exists() for path in PATHS] == [True, True, False, True, True]


@pytest.mark.parametrize("name", ["a", "b", "gone"])
def test_what_they_remove_stays_away(root: Path, store: FileStore, name: str) -> None:
    before = tree(root)
    with pytest.raises(ConflictError, match=f"'{name}' was changed"), system.use(Meddled(name, (root / name).unlink)):
        change(store)
    assert tree(root) == {path: found for path, found in before.items() if path != name}


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("deed", ["chmod", "chown"])
def test_nor_is_a_mode_or_an_owner_that_they_change_lost(root: Path, store: FileStore, name: str, deed: str) -> None:
    def meddle() -> None:
        (root / name).chmod(0o600) if deed == "chmod" else os.chown(root / name, 1, 1)

    before = tree(root)
    with pytest.raises(ConflictError, match=f"'{name}' was changed"), system.use(Meddled(name, meddle)):
        change(store)
    assert tree(root) == before
    found = (root / name).stat()
    assert (found.st_mode & 0o777 == 0o600) == (deed == "chmod")
    assert (found.st_uid == 1) == (deed == "chown")


def test_one_that_was_done_and_changed_since_stays_and_is_told(root: Path, store: FileStore) -> None:
    def meddle() -> None:
        (root / "a").chmod(0o600)
        (root / "b").unlink()
        theirs(root, "other")

    with pytest.raises(ConflictError, match="'other'") as caught, system.use(Meddled("other", meddle)):
        change(store)
    (note,) = caught.value.__notes__
    assert "left as it is: 'b', 'a'" in note
    assert ((root / "a").read_text(encoding="utf-8"), (root / "a").stat().st_mode & 0o777) == ("my a", 0o600)
    assert not (root / "b").exists()
    assert not (root / "new").exists()


@pytest.mark.parametrize("deed", ["removed", "moved", "replaced"])
@pytest.mark.parametrize("when", ["d/w", "other"])
def test_their_directory_goes_in_the_midst_of_it(root: Path, store: FileStore, when: str, deed: str) -> None:
    """Before its own files are exchanged, or after."""
    (root / "d").mkdir()
    names = ["a", "d/v", "d/w", "other"]
    with store.transaction() as tx:
        for name in ("d/v", "d/w"):
            tx.write(name, f"old {name}")

    def meddle() -> None:
        if deed == "moved":
            (root / "d").rename(root / "elsewhere")
        else:
            shutil.rmtree(root / "d")
        if deed == "replaced":
            (root / "d").write_text("theirs", encoding="utf-8")
        if when == "other":
            theirs(root, "other")

    if (when, deed) == ("d/w", "moved"):
        with system.use(Meddled("w", meddle)):
            save(store, names)
        assert [(root / "elsewhere" / name).read_text(encoding="utf-8") for name in "vw"] == ["my d/v", "my d/w"]
        return
    with pytest.raises((CommitError, ConflictError), match="'d/w'" if when == "d/w" else "'other'") as caught:  # noqa: SIM117
        with system.use(Meddled(when.rpartition("/")[2], meddle)):
            save(store, names)
    assert caught.value.outcome == "before"
    assert (root / "a").read_text(encoding="utf-8") == "old a"
    assert (root / "d").is_file() == (deed == "replaced")
    assert recover(root).clean
    with store.transaction() as tx:
        tx.write("a", "goes on")


@pytest.mark.parametrize("late", ["a", "gone", "new"])
def test_who_comes_before_the_undoing_keeps_his_file_too(root: Path, store: FileStore, late: str) -> None:
    """The last name is in the way, and meanwhile there is another file in the place of one that was changed."""
    found: list[str] = []
    with pytest.raises(ConflictError), system.use(Meddled("other", lambda: found.extend(both(root, late)))):
        change(store)
    assert found == [f"my {late}" if late != "gone" else ""]
    assert (root / late).read_text(encoding="utf-8") == f"their {late}"
    rest = {
        path: (root / path).read_text(encoding="utf-8") for path in PATHS if path != late and (root / path).exists()
    }
    expected = {"a": "old a", "b": "old b", "gone": "old gone", "other": "their other"}
    assert rest == {path: content for path, content in expected.items() if path != late}


def both(root: Path, late: str) -> list[str]:
    """What is there of the one that was done already; then both are theirs."""
    found = (root / late).read_text(encoding="utf-8") if (root / late).exists() else ""
    theirs(root, late)
    theirs(root, "other")
    return [found]
