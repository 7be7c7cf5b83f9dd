"""A: power losses on real file systems, seen in copies of what has reached the device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.support import DEEP
from tests.support.boundary import tree
from tests.support.debris import problems
from tests.support.disks import BTRFS, EXT4, EXT4_STRICT, FILESYSTEMS, XFS, Place
from txfiles import FileTransaction, recover
from txfiles._disk import system
from txfiles._format import layout
from txfiles.errors import JournalCorruptError, RecoveryError

Places = Callable[[str], Place]
Tree = dict[str, object]

OLD = {"state.json": "old state", "settings/user.json": "old settings" * 500, "data/deep/index": "old index"}
NEW = {"state.json": "new", "settings/user.json": "new settings" * 9000, "data/deep/index": "new index" * 40}
FRESH = {"fresh": "a new name", "data/fresh": "another" * 2000}
STEPS = ("rename", "sync_file", "sync_dir", *(("create", "link", "unlink", "chmod") if DEEP else ()))


def _pairs(
    filesystems: Sequence[ParameterSet], others: Sequence[object], *usual: tuple[int, int]
) -> list[ParameterSet]:
    """All combinations; those that are not `usual`, by their numbers, only in the deep run."""
    return [
        pytest.param(
            *fs.values,
            other,
            id=f"{fs.id}-{getattr(other, '__name__', other)}",
            marks=[*fs.marks, *(() if (i, k) in usual else (pytest.mark.deep,))],
        )
        for i, fs in enumerate(filesystems)
        for k, other in enumerate(others)
    ]


def _write_old(root: Path) -> None:
    for name, content in OLD.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")


def _save(root: Path, contents: dict[str, str]) -> None:
    with FileTransaction(root) as tx:
        for name, content in contents.items():
            tx.write(name, content)


def _as_tree(root: Path) -> Tree:
    found = tree(root)
    assert b"" not in found.values()
    return found


def _require_whole(copy: Path, where: str, *states: Tree) -> None:
    """Before recovery each file by itself is whole, after it all of them are of one state."""
    for name, content in tree(copy).items():
        if content is not None:
            assert content in [state.get(name) for state in states], f"{where}: {name} is torn: {content!r:.80}"
    _open(copy)
    assert tree(copy) in states, where
    assert problems(copy) == [], where


def _open(root: Path) -> None:
    FileTransaction(root).begin().rollback()


# -- A01: no empty files --------------------------------------------------------------------------------------------


_ORIGINS = ["synced", "not synced by its writer", "from a transaction"]


@pytest.mark.parametrize(
    ("filesystem", "old"), _pairs(FILESYSTEMS, _ORIGINS, (0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0))
)
def test_a01_after_the_commit_every_file_is_whole_and_new(place: Places, filesystem: str, old: str) -> None:
    here = place(filesystem)
    if old == "from a transaction":
        _save(here.root, OLD)
    else:
        _write_old(here.root)
        if old == "synced":
            here.sync()
    _save(here.root, {**NEW, **FRESH})
    expected = _as_tree(here.root)
    with here.after_power_loss() as copy:
        assert tree(copy) == expected
        recover(copy)
        assert tree(copy) == expected
        assert problems(copy) == []


@pytest.mark.parametrize("filesystem", FILESYSTEMS)
def test_a01_at_each_step_every_file_is_whole(place: Places, filesystem: str) -> None:
    here = place(filesystem)
    _write_old(here.root)
    here.sync()
    before = _as_tree(here.root)
    after = before | {name: content.encode() for name, content in {**NEW, **FRESH}.items()}
    seen = []

    def look(copy: Path, where: str) -> None:
        _require_whole(copy, where, before, after)
        seen.append(tree(copy) == after)

    steps = STEPS if "btrfs" not in filesystem or DEEP else ("rename",)
    assert here.after_each(*steps, work=lambda: _save(here.root, {**NEW, **FRESH}), look=look) >= 7
    assert set(seen) == {False, True}


class _NoSync(system.KernelFS):
    """Syncs directories and never a file: how many a program saves."""

    def sync_file(self, fd: int) -> None:
        pass

    def sync_dir(self, fd: int) -> None:
        os.fsync(fd)

    def start_writeback(self, fd: int) -> None:
        pass


@pytest.mark.parametrize("filesystem", [EXT4_STRICT])
def test_a01_the_same_look_finds_what_was_not_synced(place: Places, filesystem: str) -> None:
    here = place(filesystem)
    _write_old(here.root)
    here.sync()
    with system.use(_NoSync()):
        _save(here.root, NEW)
    with here.after_power_loss() as copy:
        assert b"" in tree(copy).values()


# -- A26: large files -----------------------------------------------------------------------------------------------

_BLOCK = bytes(range(256)) * 4096


def _whole(tx: FileTransaction, size: int) -> None:
    tx.write("large", (_BLOCK * (size // len(_BLOCK) + 1))[:size])


def _in_parts(tx: FileTransaction, size: int) -> None:
    tx.write("large", (_BLOCK[: min(len(_BLOCK), size - start)] for start in range(0, size, len(_BLOCK))))


def _streamed(tx: FileTransaction, size: int) -> None:
    with tx.open("large", "wb") as file:
        for start in range(0, size, 50_000):
            file.write((_BLOCK * 2)[start % len(_BLOCK) :][: min(50_000, size - start)])


@pytest.mark.parametrize(
    ("filesystem", "size", "how"),
    [
        pytest.param(*EXT4_STRICT.values, 64 << 20, _whole, id="64 MiB", marks=EXT4_STRICT.marks),
        pytest.param(*XFS.values, (16 << 20) + 1, _in_parts, id="in parts", marks=XFS.marks),
        pytest.param(*BTRFS.values, (9 << 20) - 7, _streamed, id="streamed", marks=BTRFS.marks),
        pytest.param(*EXT4.values, 4097, _streamed, id="a block and a byte", marks=EXT4.marks),
    ],
)
def test_a26_a_large_file_is_never_partial(
    place: Places, filesystem: str, size: int, how: Callable[[FileTransaction, int], None]
) -> None:
    here = place(filesystem)
    (here.root / "large").write_text("old", encoding="utf-8")
    (here.root / "index").write_text("old", encoding="utf-8")
    here.sync()
    found = []

    def work() -> None:
        with FileTransaction(here.root) as tx:
            how(tx, size)
            tx.write("index", f"large has {size} bytes")

    def look(copy: Path, where: str) -> None:
        recover(copy)
        index, large = (copy / "index").read_text(encoding="utf-8"), copy / "large"
        if index == "old":
            assert large.read_text(encoding="utf-8") == "old", where
        else:
            assert large.stat().st_size == size, where
            whole = (_BLOCK * (size // len(_BLOCK) + 1))[:size]
            assert large.read_bytes() == whole, where
        found.append(index)

    here.after_each("rename", work=work, look=look)
    with here.after_power_loss() as copy:
        look(copy, "after the commit")
    assert found[-1] == f"large has {size} bytes"


# -- A03: the order of the steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filesystem", "synced_by_others"),
    _pairs([EXT4, XFS], ["settings", "data", "data/deep", "."], (0, 0), (0, 3), (1, 1), (1, 2)),
)
def test_a03_whatever_reaches_the_disk_first_the_set_is_whole(
    place: Places, filesystem: str, synced_by_others: str
) -> None:
    """Another program syncs one of the directories after each rename, among them the second of four."""
    here = place(filesystem)
    _write_old(here.root)
    here.sync()
    before = _as_tree(here.root)
    after = before | {name: content.encode() for name, content in {**NEW, **FRESH}.items()}

    def sync(_: str) -> None:
        fd = os.open(here.root / synced_by_others, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    here.after_each(
        "rename",
        work=lambda: _save(here.root, {**NEW, **FRESH}),
        look=lambda copy, where: _require_whole(copy, where, before, after),
        first=sync,
    )


class _ForgetsJournal(system.KernelFS):
    """Never syncs the journal."""

    def _is_journal(self, fd: int) -> bool:
        return os.readlink(f"/proc/self/fd/{fd}").endswith(".intent")

    def sync_file(self, fd: int) -> None:
        if not self._is_journal(fd):
            super().sync_file(fd)

    def start_writeback(self, fd: int) -> None:
        if not self._is_journal(fd):
            super().start_writeback(fd)


@pytest.mark.parametrize("filesystem", [EXT4_STRICT, XFS])
def test_a03_a_journal_that_is_not_whole_is_a_loud_error_and_no_mix(place: Places, filesystem: str) -> None:
    """What the order of the syncs prevents, made by hand: two of four files renamed, the journal not on disk."""
    here = place(filesystem)
    _write_old(here.root)
    _save(here.root, {"settled": "once"})
    here.sync()
    before = _as_tree(here.root)
    after = before | {name: content.encode() for name, content in NEW.items()}
    outcomes = []

    def sync(_: str) -> None:
        fd = os.open(here.root / "settings", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def look(copy: Path, where: str) -> None:
        found = tree(copy)
        try:
            recover(copy)
        except JournalCorruptError:
            assert tree(copy) == found, where
            outcomes.append("loud")
        else:
            assert tree(copy) in (before, after), where
            outcomes.append("whole")

    here.after_each("rename", work=lambda: _save(here.root, NEW), look=look, first=sync, inner=_ForgetsJournal())
    assert "loud" in outcomes


# -- A04: content that never reached the disk -----------------------------------------------------------------------


class _ForgetsTokens(system.KernelFS):
    """Syncs the journal and directories, and not the staged files."""

    def sync_file(self, fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2]
        if layout.parse(os.fsencode(name)).kind != "token":
            os.fsync(fd)

    def sync_dir(self, fd: int) -> None:
        os.fsync(fd)

    def start_writeback(self, fd: int) -> None:
        pass


class _Died(BaseException):
    pass


@contextmanager
def _dying_after_rename(number: int, inner: system.FileSystem) -> Iterator[None]:
    """Every call after the `number`-th rename fails: to the disk this is a death."""
    renames = 0

    class Dying(type(inner)):  # type: ignore[misc]
        def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
            nonlocal renames
            renames += 1
            if renames > number:
                raise _Died
            super().rename(at, name, to, new)
            if renames == number:
                os.fsync(at)
                os.fsync(to)

    with system.use(Dying()), pytest.raises(_Died):
        yield


@pytest.mark.parametrize("applied", [0, 1, 2, 3])
@pytest.mark.parametrize("filesystem", [EXT4_STRICT, XFS, BTRFS])
@pytest.mark.leaves_debris
def test_a04_a_staged_file_that_is_empty_on_disk_is_not_published(place: Places, filesystem: str, applied: int) -> None:
    """`applied` renames are durable: none, that of the journal, that of the first file, of the second file."""
    here = place(filesystem)
    _save(here.root, OLD)
    here.sync()
    with _dying_after_rename(applied, _ForgetsTokens()):
        _save(here.root, NEW)
    with here.after_power_loss() as copy:
        found = tree(copy)
        staged = [p.stat().st_size for p in (copy / ".txfiles").iterdir() if _is_token(p)]
        if applied == 0:
            recover(copy)
            assert tree(copy) == found
            assert found["state.json"] == OLD["state.json"].encode()
            assert problems(copy) == []
        else:
            assert 0 in staged
            with pytest.raises(RecoveryError, match="damaged"):
                recover(copy)
            with pytest.raises(RecoveryError, match="damaged"):
                FileTransaction(copy).begin()
            assert tree(copy) == found


def _is_token(path: Path) -> bool:
    return layout.parse(os.fsencode(path.name)).kind == "token"


# -- A05, A06: what was reported is there ---------------------------------------------------------------------------


def _nested(tx: FileTransaction) -> None:
    tx.write("new/deep/er/file", "nested")
    tx.write("new/side", "beside")
    tx.mkdir("empty/dir")


def _delete_and_write(tx: FileTransaction) -> None:
    tx.delete("data/one")
    tx.write("data/two", "written beside a delete")


def _reorganise(tx: FileTransaction) -> None:
    tx.move("data", "moved/data")
    tx.write("data", "a file where the directory was")
    tx.delete_tree("old")


def _through_links(tx: FileTransaction) -> None:
    tx.write("link", "through a link")
    with tx.open("log", "a") as file:
        file.write("one line more\n")
    tx.copy("data", "copy")
    with tx.savepoint():
        tx.write("data/one", "in a savepoint")


CHANGES = [_nested, _delete_and_write, _reorganise, _through_links]


def _furnish(root: Path) -> None:
    for name in ("data/one", "data/two", "old/a", "old/b/c", "log", "target"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"old {name}\n", encoding="utf-8")
    (root / "link").symlink_to("target")


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("filesystem", FILESYSTEMS)
def test_a05_what_commit_reported_is_there_after_a_hard_cut(
    place: Places, filesystem: str, change: Callable[[FileTransaction], None]
) -> None:
    here = place(filesystem)
    _furnish(here.root)
    here.sync()
    with FileTransaction(here.root) as tx:
        change(tx)
    expected = tree(here.root)
    if "btrfs" in filesystem:  # it has no such call
        with here.after_power_loss() as copy:
            assert tree(copy) == expected
        return
    here.fs.power_cut()
    assert tree(here.root) == expected
    recover(here.root)
    assert tree(here.root) == expected


@pytest.mark.parametrize("filesystem", [EXT4, XFS])
def test_a05_directories_above_a_new_root_are_there_too(place: Places, filesystem: str) -> None:
    here = place(filesystem)
    here.sync()
    with FileTransaction(here.root / "a/b/root", create=True) as tx:
        tx.write("c/file", "deep down")
    here.fs.power_cut()
    recover(here.root / "a/b/root")
    assert (here.root / "a/b/root/c/file").read_text(encoding="utf-8") == "deep down"


@pytest.mark.parametrize("filesystem", [EXT4, XFS])
def test_a05_ten_commits_then_the_cut(place: Places, filesystem: str) -> None:
    """What HEAD vouches for is not synced again, and is there nevertheless."""
    here = place(filesystem)
    for number in range(10):
        _save(here.root, {"same": f"{number}", f"d{number % 3}/file": f"{number}", f"only{number}": "x"})
    expected = tree(here.root)
    here.fs.power_cut()
    assert tree(here.root) == expected
    recover(here.root)
    assert tree(here.root) == expected


def _delete_write(tx: FileTransaction) -> None:
    tx.delete("data/one")
    tx.write("data/two", "new two")


def _swap(tx: FileTransaction) -> None:
    tx.move("data/one", "data/aside")
    tx.move("data/two", "data/one")
    tx.move("data/aside", "data/two")


def _rename_over(tx: FileTransaction) -> None:
    tx.write("data/new", "new one")
    tx.move("data/new", "data/one")
    tx.delete("data/two")
    tx.write("data/three", "three")


@pytest.mark.parametrize(
    ("filesystem", "change"),
    _pairs(FILESYSTEMS, [_delete_write, _swap, _rename_over], (0, 0), (1, 0), (1, 1), (2, 0), (2, 2), (3, 0)),
)
def test_a06_deletes_and_writes_appear_together(
    place: Places, filesystem: str, change: Callable[[FileTransaction], None]
) -> None:
    here, twin = place(filesystem), place(filesystem)
    for root in (here.root, twin.root):
        (root / "data").mkdir()
        (root / "data/one").write_text("old one", encoding="utf-8")
        (root / "data/two").write_text("old two", encoding="utf-8")
    with FileTransaction(twin.root) as tx:
        change(tx)
    here.sync()
    before, after = tree(here.root), tree(twin.root)

    def work() -> None:
        with FileTransaction(here.root) as tx:
            change(tx)

    def look(copy: Path, where: str) -> None:
        _open(copy)
        assert tree(copy) in (before, after), where
        assert problems(copy) == [], where

    steps = ("rename", "sync_dir") if "btrfs" not in filesystem or DEEP else ("rename",)
    here.after_each(*steps, work=work, look=look)
    if "btrfs" not in filesystem:
        here.fs.power_cut()
        assert tree(here.root) == after
        recover(here.root)
