"""C: names and paths."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import DEEP
from tests.support.boundary import CaseFolding, killed, tree
from txfiles import FileTransaction, recover, status
from txfiles._disk import system
from txfiles.errors import CommitError, InvalidPathError, RecoveryConflictError, RecoveryError


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory beside the root with one file; nothing in it may change."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "victim").write_text("precious", encoding="utf-8")
    yield path
    assert tree(path) == {"victim": b"precious"}


# -- C01, C02, H04: long names and paths ----------------------------------------------------------------------------

LONG = ["a" * 255, "é" * 127, "a" * 243, "s" * 250 + ".json", "d" * 255 + "/" + "f" * 255, os.fsdecode(b"\xff" * 255)]


@pytest.mark.parametrize("name", LONG, ids=range(len(LONG)))
def test_c01_names_of_the_full_length(root: Path, name: str) -> None:
    for content in ("new", "replaced"):
        with FileTransaction(root) as tx:
            tx.write(name, content)
            assert tx.read_text(name) == content
    killed(lambda: _write(root, name, "recovered"), "rename", 2)
    assert recover(root).rolled_forward[0].paths == [name]
    assert (root / name).read_text(encoding="utf-8") == "recovered"
    with FileTransaction(root) as tx:
        tx.delete(name)
    assert not (root / name).exists()


def _write(root: Path, *names_and_contents: str) -> None:
    with FileTransaction(root) as tx:
        for name, content in zip(names_and_contents[::2], names_and_contents[1::2], strict=True):
            tx.write(name, content)


@pytest.mark.parametrize("name", ["a" * 256, "é" * 128, "x" * 300 + "/y"], ids=range(3))
def test_c01_a_name_too_long_for_the_file_system_is_refused_at_the_call(root: Path, name: str) -> None:
    with FileTransaction(root) as tx:
        with pytest.raises(OSError, match="too long") as caught:
            tx.write(name, "x")
        assert caught.value.errno == errno.ENAMETOOLONG
        assert caught.value.filename == name.removesuffix("/y")
        tx.write("b", "the transaction can go on")
    assert tree(root) == {"b": b"the transaction can go on"}


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Makes a directory whose absolute path has the given length."""
    top = tmp_path / "deep"
    top.mkdir()

    def make(length: int) -> Path:
        path, fd = str(top), os.open(top, os.O_DIRECTORY)
        while len(path) < length:
            name = "d" * min(100, max(1, length - len(path) - 1))
            if length - len(path) - 1 - len(name) == 1:
                name = name[:-1]
            os.mkdir(name, dir_fd=fd)
            below = os.open(name, os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            path, fd = f"{path}/{name}", below
        os.close(fd)
        assert len(path) == length
        return Path(path)

    yield make
    _remove_deep(top)


def _remove_deep(top: Path) -> None:
    """As `rmtree`, which stops at PATH_MAX."""
    fds = [os.open(top, os.O_DIRECTORY)]
    while below := [entry.name for entry in os.scandir(fds[-1]) if entry.is_dir() and entry.name[0] == "d"]:
        fds.append(os.open(below[0], os.O_DIRECTORY, dir_fd=fds[-1]))
    for fd, parent in zip(reversed(fds), [*reversed(fds[:-1]), None], strict=True):
        for name in os.listdir(fd):
            shutil.rmtree(name, dir_fd=fd) if name == ".txfiles" else _remove_entry(name, fd)
        os.close(fd)
        if parent is None:
            top.rmdir()


def _remove_entry(name: str, fd: int) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except IsADirectoryError:
        os.rmdir(name, dir_fd=fd)


@pytest.mark.parametrize("length", [4000, 4080, 4086, 4090, 4095])
def test_c02_a_root_near_path_max(deep: Callable[[int], Path], length: int) -> None:
    root = deep(length)
    _write(root, "a" * 255, "one", "b", "two")
    _write(root, "a" * 255, "three", "b", "four")
    killed(lambda: _write(root, "a" * 255, "five", "b", "six"), "rename", 2)
    assert len(recover(root).rolled_forward) == 1
    fd = os.open(root, os.O_DIRECTORY)
    try:
        assert sorted(os.listdir(fd)) == [".txfiles", "a" * 255, "b"]
        assert os.stat("b", dir_fd=fd).st_size == 3
    finally:
        os.close(fd)


@pytest.mark.parametrize("length", [4096, 4097, 5000])
def test_c02_a_root_beyond_path_max_is_refused_at_once(deep: Callable[[int], Path], length: int) -> None:
    root = deep(length)
    for call in (lambda: FileTransaction(root).begin(), lambda: recover(root), lambda: status(root)):
        with pytest.raises(OSError, match="too long") as caught:
            call()
        assert caught.value.errno == errno.ENAMETOOLONG


# -- C04: no directory part -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", [".", "./", b".", Path(), "sub/..", "../root"], ids=repr)
def test_c04_the_working_directory_as_the_root(root: Path, monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    (root / "sub").mkdir()
    monkeypatch.chdir(root)
    with FileTransaction(spelling) as tx:
        tx.write("foo", "1")
        monkeypatch.chdir("/")
        tx.write("bar", "2")
    assert tree(root) == {"foo": b"1", "bar": b"2", "sub": None}


def test_c04_an_empty_root_is_an_error_and_not_the_working_directory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    for empty in ("", b""):
        for call in (lambda e=empty: FileTransaction(e), lambda e=empty: recover(e), lambda e=empty: status(e)):
            with pytest.raises(ValueError, match="empty"):
                call()
    with pytest.raises(InvalidPathError, match="NUL"):
        FileTransaction("a\0b")
    assert os.listdir(root) == []


# -- C06: names that differ in case only ----------------------------------------------------------------------------

Change = Callable[[FileTransaction], None]


def _each(*changes: Change) -> Change:
    def change(tx: FileTransaction) -> None:
        for one in changes:
            one(tx)

    return change


def _both(one: str, other: str) -> Change:
    return _each(lambda tx: tx.write(one, "one"), lambda tx: tx.write(other, "other"))


COLLIDE: dict[str, Change] = {
    "two new": _both("N.json", "n.json"),
    "two new, not ASCII": _both("Straße", "STRASSE"),
    "two new in a new directory": _both("new/N", "new/n"),
    "two new through a directory": _both("Sub/x", "sub/x"),
    "two new through new directories": _both("New/x", "new/x"),
    "one exists": _both("A.json", "a.json"),
    "one exists, the other spelling first": _both("a.JSON", "A.json"),
    "rename of the case": lambda tx: tx.move("A.json", "a.json"),
    "delete and write": _each(lambda tx: tx.delete("A.json"), lambda tx: tx.write("a.json", "x")),
    "write and delete": _each(lambda tx: tx.write("a.json", "x"), lambda tx: tx.delete("A.json")),
    "delete the directory under another name": _each(
        lambda tx: tx.delete_tree("Sub"), lambda tx: tx.write("sub/y", "y")
    ),
}


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("name", COLLIDE)
def test_c06_names_that_are_one_name_on_this_file_system_are_refused(root: Path, name: str, durability: str) -> None:
    before = _with_old_files(root)
    with system.use(CaseFolding()):
        tx = FileTransaction(root, durability=durability).begin()  # type: ignore[arg-type]
        COLLIDE[name](tx)
        with pytest.raises(InvalidPathError, match="are one name") as caught:
            tx.commit()
        assert caught.value.outcome == "before"
        assert tree(root) == before
        assert status(root).clean


def _with_old_files(root: Path) -> dict[str, object]:
    found: dict[str, object] = {"A.json": b"old", "Sub": None, "Sub/y": b"old"}
    for path, content in found.items():
        (root / path).mkdir() if content is None else (root / path).write_bytes(b"old")
    return found


@pytest.mark.parametrize("name", [name for name in COLLIDE if "new" in name and name != "two new through a directory"])
def test_c06_killed_on_the_way_to_being_refused(root: Path, name: str) -> None:
    before = _with_old_files(root)
    FileTransaction(root).begin().rollback()
    with system.use(CaseFolding()):
        killed(lambda: _change(root, COLLIDE[name]), "rename", 3, inner=CaseFolding())
        with pytest.raises(RecoveryConflictError):
            recover(root)
        assert len(recover(root, on_conflict="roll-back").rolled_back) == 1
        assert tree(root) == before


def _change(root: Path, change: Change) -> None:
    with FileTransaction(root) as tx:
        change(tx)


def test_c06_another_spelling_of_one_file_replaces_it_as_open_does(root: Path) -> None:
    (root / "A.json").write_text("old", encoding="utf-8")
    with system.use(CaseFolding()), FileTransaction(root) as tx:
        assert tx.read_text("a.json") == "old"
        tx.write("a.json", "new")
    assert tree(root) == {"A.json": b"new"}
    with system.use(CaseFolding()), FileTransaction(root) as tx:
        tx.copy("A.json", "a.json")
    assert tree(root) == {"A.json": b"new"}


# -- C08: names that are no text ------------------------------------------------------------------------------------

ODD = [b"caf\xe9", b"\xff\xfe/\x80", b"new\nline", b"%41", b"100%", b"%FF", b'"\\', b"\x7f\x01", "e\u0301".encode()]


@pytest.mark.parametrize("raw", ODD)
def test_c08_any_bytes_round_trip_through_journal_and_recovery(root: Path, raw: bytes) -> None:
    name = os.fsdecode(raw)
    _write(root, name, "old", "keep", "1")
    assert set(status(root).head.paths) >= {name, "keep"}  # type: ignore[union-attr]
    with FileTransaction(root) as tx:
        assert tx.glob("**") == sorted([name, "keep"])
        assert tx.read(raw) == b"old"
    killed(lambda: _write(root, name, "new", "keep", "2"), "rename", 3)
    assert recover(root).rolled_forward[0].paths == sorted([name, "keep"])
    assert Path(os.fsdecode(os.path.join(os.fsencode(root), raw))).read_bytes() == b"new"
    killed(lambda: _move(root, name, "sub/moved"), "rename", 2)
    recover(root)
    with FileTransaction(root) as tx:
        assert tx.read_text("sub/moved") == "new"
        tx.move("sub/moved", raw)
    killed(lambda: _delete(root, raw), "rename", 2)
    assert recover(root).rolled_forward[0].paths == [name]
    assert not (root / name).exists()


def _move(root: Path, source: str, target: str) -> None:
    with FileTransaction(root) as tx:
        tx.move(source, target)


def _delete(root: Path, path: str | bytes) -> None:
    with FileTransaction(root) as tx:
        tx.delete(path)


@pytest.mark.parametrize("name", ["\ud800", "a\udfff", "x/\ud8ff/y"], ids=ascii)
def test_c08_what_no_file_can_be_called_is_refused_at_the_call(root: Path, name: str) -> None:
    with FileTransaction(root) as tx:
        for call in (lambda: tx.write(name, "x"), lambda: tx.delete(name), lambda: tx.read(name)):
            with pytest.raises(ValueError, match="encoded"):
                call()
    assert tree(root) == {}


# -- C09: planted journals ------------------------------------------------------------------------------------------


def _plant(root: Path, kind: str, change: Callable[[dict[str, object]], None], **more: object) -> Path:
    """A journal of one operation that was really committed, changed, and with the right checksum again."""
    _write(root, "inside", "old")
    killed(lambda: _write(root, "inside", "planted") if kind == "write" else _delete(root, "inside"), "rename", 2)
    (path,) = (root / ".txfiles").glob("*.committed")
    body = json.loads(path.read_bytes().split(b"\n", 1)[1])
    change(body["ops"][0])
    body.update(more)
    _rewrite(path, json.dumps(body).encode())
    return path


def _rewrite(path: Path, body: bytes) -> None:
    checksum = hashlib.blake2b(body, digest_size=32).hexdigest()
    path.write_bytes(b"txfiles journal 1 %d %s\n%s" % (len(body), checksum.encode(), body))


EVIL = ["../outside/victim", "/etc/hostname", "sub/../../outside/victim", "..", ".", "", ".txfiles/HEAD", "a//b"]


@pytest.mark.leaves_debris
@pytest.mark.parametrize("kind", ["write", "delete"])
@pytest.mark.parametrize("path", [*EVIL, "ABSOLUTE"], ids=lambda path: path or "empty")
def test_c09_a_planted_journal_cannot_name_a_path_outside(root: Path, outside: Path, kind: str, path: str) -> None:
    evil = str(outside / "victim") if path == "ABSOLUTE" else path
    parents = [os.path.dirname(evil), ""] if os.path.dirname(evil) else [""]
    planted = _plant(root, kind, lambda op: op.update(path=evil), dirs=[[parent, 0] for parent in parents])
    _is_refused(root, planted)


def _is_refused(root: Path, planted: Path) -> None:
    before, raw = tree(root), planted.read_bytes()
    for call in (lambda: recover(root), lambda: FileTransaction(root).begin()):
        with pytest.raises((RecoveryError, OSError)) as caught:
            call()
        assert not isinstance(caught.value, FileNotFoundError)
    assert tree(root) == before
    assert planted.read_bytes() == raw
    assert not status(root).clean


@pytest.mark.leaves_debris
@pytest.mark.parametrize("kind", ["write", "delete"])
def test_c09_a_planted_journal_does_not_follow_a_link_out(root: Path, outside: Path, kind: str) -> None:
    (root / "link").symlink_to(outside)
    dirs = [["", root.stat().st_ino], ["link", outside.stat().st_ino]]
    planted = _plant(root, kind, lambda op: op.update(path="link/victim"), dirs=dirs)
    if kind == "write":
        _is_refused(root, planted)
    else:  # below a link there is nothing of the root's: so what was to be deleted is gone
        recover(root)
    assert (root / "link").is_symlink()


@pytest.mark.leaves_debris
@pytest.mark.parametrize("how", ["symlink", "hard link", "directory", "FIFO"])
def test_c09_a_planted_token_is_not_taken_for_content(root: Path, outside: Path, how: str) -> None:
    planted = _plant(root, "write", lambda op: None)
    (token,) = (path for path in (root / ".txfiles").iterdir() if re.fullmatch(r"[0-9a-f]{32}\.\d+", path.name))
    token.unlink()
    if how == "symlink":
        token.symlink_to(outside / "victim")
    elif how == "hard link":
        token.hardlink_to(outside / "victim")
    elif how == "directory":
        token.mkdir()
    else:
        os.mkfifo(token)
    _is_refused(root, planted)


@pytest.mark.parametrize("state", ["intent", "committed", "aborting", "prepared"])
def test_c09_a_planted_journal_that_is_a_link_is_not_followed(root: Path, outside: Path, state: str) -> None:
    _write(root, "inside", "old")
    link = root / ".txfiles" / f"{'0' * 32}.{state}"
    link.symlink_to(outside / "victim")
    assert status(root).unknown == recover(root).unknown == [link.name]
    _write(root, "inside", "new")
    assert os.readlink(link) == str(outside / "victim")
    link.unlink()


@pytest.mark.parametrize("target", ["outside", "root/elsewhere", "missing"])
def test_c09_a_planted_private_directory_is_not_followed(
    tmp_path: Path, root: Path, outside: Path, target: str
) -> None:
    (root / "elsewhere").mkdir()
    (root / ".txfiles").symlink_to(tmp_path / target)
    for call in (lambda: FileTransaction(root).begin(), lambda: recover(root), lambda: status(root)):
        with pytest.raises(NotADirectoryError) as caught:
            call()
        assert caught.value.filename == str(root / ".txfiles")
    assert os.listdir(root / "elsewhere") == []
    (root / ".txfiles").unlink()


# -- C10, C11: symbolic links ---------------------------------------------------------------------------------------

WAYS: dict[str, Callable[[FileTransaction, str], object]] = {
    "write": lambda tx, path: tx.write(path, "escaped"),
    "open": lambda tx, path: tx.open(path, "w"),
    "append": lambda tx, path: tx.open(path, "a"),
    "read": lambda tx, path: tx.read(path),
    "version": lambda tx, path: tx.version(path),
    "copy from": lambda tx, path: tx.copy(path, "copied"),
    "copy to": lambda tx, path: tx.copy("plain", path),
    "exists": lambda tx, path: tx.exists(path),
    "listdir": lambda tx, path: tx.listdir(path),
    "mkdir": lambda tx, path: tx.mkdir(path),
}


@pytest.mark.parametrize("path", ["link/x", "final", "dangling", "up", "sub/absolute"])
def test_c10_a_link_out_of_the_root_is_refused_at_the_call(root: Path, outside: Path, path: str) -> None:
    _make_links(root, outside)
    before = tree(root)
    with FileTransaction(root) as tx:
        for way, call in WAYS.items():
            with pytest.raises(InvalidPathError, match="leaves the root"):
                call(tx, path)
                pytest.fail(f"{way} was allowed")
    assert tree(root) == before


def _make_links(root: Path, outside: Path) -> None:
    (root / "plain").write_text("plain", encoding="utf-8")
    (root / "sub").mkdir()
    (root / "link").symlink_to("../outside")
    (root / "final").symlink_to(outside / "victim")
    (root / "dangling").symlink_to("sub/hop")
    (root / "sub/hop").symlink_to("../../outside/missing")
    (root / "up").symlink_to("..")
    (root / "sub/absolute").symlink_to("/etc/hostname")


@pytest.mark.parametrize("path", ["loop", "loop/x", "one", "self"])
def test_c10_a_loop_is_an_error(root: Path, path: str) -> None:
    (root / "loop").symlink_to("loop")
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("./one")
    (root / "self").symlink_to("self/../self")
    with FileTransaction(root) as tx:
        for call in (lambda: tx.write(path, "x"), lambda: tx.read(path), lambda: tx.exists(path)):
            with pytest.raises(OSError, match="symbolic links") as caught:
                call()
            assert caught.value.errno == errno.ELOOP


def test_c10_links_are_themselves_deleted_and_moved_wherever_they_lead(root: Path, outside: Path) -> None:
    _make_links(root, outside)
    with FileTransaction(root) as tx:
        assert tx.glob("**/victim") == []
        tx.delete("final")
        tx.delete("link")
        tx.move("up", "sub/moved")
        tx.delete_tree("sub")
    assert sorted(tree(root)) == ["dangling", "plain"]


@pytest.mark.parametrize("what", ["parent", "grandparent", "target"])
def test_c10_a_link_that_appears_after_staging_is_not_followed(root: Path, outside: Path, what: str) -> None:
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/victim").write_text("old", encoding="utf-8")
    (outside.parent / "b").symlink_to(outside)
    tx = FileTransaction(root).begin()
    tx.write("a/b/victim", "escaped")
    tx.write("other", "x")
    swapped = {"parent": "a/b", "grandparent": "a", "target": "a/b/victim"}[what]
    (root / swapped).rename(root / "aside")
    (root / swapped).symlink_to({"parent": outside, "grandparent": outside.parent, "target": outside / "victim"}[what])
    before = tree(root)
    if what == "target":  # the last rename wins: the link is replaced, not followed
        tx.commit()
        assert (root / "a/b/victim").read_text(encoding="utf-8") == "escaped"
        return
    with pytest.raises(CommitError, match=f"'{swapped}'") as caught:
        tx.commit()
    assert caught.value.outcome == "before"
    assert tree(root) == before


LINKS = {
    "relative": ("a.json", "real/a.json"),
    "absolute": ("a.json", "{root}/real/a.json"),
    "two hops": ("a.json", "hop"),
    "through a linked directory": ("d/a.json", None),
    "dangling": ("a.json", "real/new.json"),
    "dangling, two hops": ("a.json", "hop2"),
}


@pytest.mark.parametrize("end", ["commit", "abort", "recovery"])
@pytest.mark.parametrize("kind", LINKS)
def test_c11_a_link_inside_the_root_stays_a_link(root: Path, kind: str, end: str) -> None:
    path, text = LINKS[kind]
    (root / "real").mkdir()
    (root / "real/a.json").write_text("old", encoding="utf-8")
    (root / "hop").symlink_to("real/a.json")
    (root / "hop2").symlink_to("real/new.json")
    (root / "d").symlink_to("real")
    if text is not None:
        (root / path).symlink_to(text.format(root=root))
    real = "real/new.json" if "dangling" in kind else "real/a.json"
    before = tree(root)
    if end == "abort":
        with pytest.raises(ZeroDivisionError), FileTransaction(root) as tx:
            tx.write(path, "new")
            raise ZeroDivisionError
        assert tree(root) == before
        return
    if end == "recovery":
        _write(root, "other", "old")
        killed(lambda: _write(root, path, "new", "other", "new"), "rename", 2)
        assert len(recover(root).rolled_forward) == 1
    else:
        _write(root, path, "new", "other", "new")
    assert tree(root) == {**before, real: b"new", "other": b"new"}


@pytest.mark.parametrize("text", ["../outside/victim", "../outside/new", "/etc/hostname"])
def test_c11_a_link_out_of_the_root_is_refused_and_stays(root: Path, outside: Path, text: str) -> None:
    (root / "a.json").symlink_to(text)
    with pytest.raises(InvalidPathError, match="leaves the root"), FileTransaction(root) as tx:
        tx.write("other", "x")
        tx.write("a.json", "new")
    assert tree(root) == {"a.json": f"-> {text}"}


# -- C12: the private directory -------------------------------------------------------------------------------------

PRIVATE = [
    ".txfiles",
    ".txfiles/lock",
    ".txfiles/x",
    "./.txfiles/x",
    ".txfiles/" + "0" * 32 + ".0",
    ".TXFILES",
    ".TxFiles/HEAD",
    "sub/.txfiles",
    "sub/../.txfiles/lock",
    ".txfile\u017f/format",
    "to-private/lock",
]
CALLS: dict[str, Callable[[FileTransaction, str], object]] = {
    **WAYS,
    "write_json": lambda tx, path: tx.write_json(path, 1),
    "delete": lambda tx, path: tx.delete(path),
    "delete, missing_ok": lambda tx, path: tx.delete(path, missing_ok=True),
    "delete_tree": lambda tx, path: tx.delete_tree(path),
    "move from": lambda tx, path: tx.move(path, "stolen"),
    "move to": lambda tx, path: tx.move("plain", path),
}


@pytest.mark.parametrize("path", PRIVATE, ids=ascii)
def test_c12_the_private_directory_is_nobodys_business(root: Path, path: str) -> None:
    (root / "plain").write_text("plain", encoding="utf-8")
    (root / "to-private").symlink_to(".txfiles")
    before = tree(root)
    with FileTransaction(root) as tx:
        for name, call in CALLS.items():
            with pytest.raises(ValueError, match="private"):
                call(tx, path)
                pytest.fail(f"{name} was allowed")
    assert tree(root) == before


def test_c12_names_like_ours_are_ordinary_names_in_the_users_directories(root: Path) -> None:
    names = [
        "lock",
        "format",
        "HEAD",
        "0" * 32 + ".0",
        "0" * 32 + ".0.old",
        "0" * 32 + ".intent",
        ".txfiles.lock",
        ".tx",
    ]
    _write(root, *(word for name in names for word in (name, name)))
    killed(lambda: _write(root, *(word for name in names for word in (name, "new"))), "rename", 4)
    recover(root)
    assert tree(root) == dict.fromkeys(names, b"new")
    with FileTransaction(root) as tx:
        assert tx.listdir() == sorted(names)
        assert tx.glob("**") == sorted(names)
        assert tx.glob(".txfiles/*") == []
    shutil.rmtree(root)
    root.mkdir()


# -- C16: our own leftovers -----------------------------------------------------------------------------------------


ROUNDS = 1000 if DEEP else 100


@pytest.mark.parametrize("removed", ["private directory", "lock", "format", "HEAD", "nothing"])
def test_c16_never_blocked_by_its_own_files(root: Path, removed: str) -> None:
    private = root / ".txfiles"
    for number in range(ROUNDS):
        with FileTransaction(root, timeout=0, durability="process") as tx:
            tx.write("a", str(number))
        if removed == "private directory":
            shutil.rmtree(private)
        elif removed != "nothing":
            (private / removed).unlink()
    with FileTransaction(root, timeout=0) as tx:
        assert tx.read_text("a") == str(ROUNDS - 1)
