"""D: modes, owners, links, metadata."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.boundary import Refusing, killed, tree
from tests.support.inject import META, OPEN, RENAME, Fault, each_call, traced
from tests.support.loop import loop_fs
from tests.support.mounts import run
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, recover
from txfiles._disk import system
from txfiles.errors import CommitError, ConflictError, TxFilesError

UMASKS = [0o002, 0o022, 0o027, 0o077]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def _write(root: Path, *names: str, durability: Any = "full") -> None:
    with FileTransaction(root, durability=durability) as tx:
        for name in names:
            tx.write(name, "new")


# -- D01, D02, D03, D16: modes --------------------------------------------------------------------------------------


EXISTING = [0o600, 0o640, 0o664, 0o755, 0o400, 0o4755, 0o2644, 0o1666, 0o000]


@pytest.mark.parametrize("mask", UMASKS, ids=oct)
@pytest.mark.parametrize("existing", EXISTING, ids=oct)
def test_d01_a_replaced_file_keeps_its_mode(root: Path, existing: int, mask: int) -> None:
    (root / "a").write_text("old", encoding="utf-8")
    (root / "a").chmod(existing)
    with umask(mask):
        _write(root, "a", "new")
    assert (root / "a").read_text(encoding="utf-8") == "new"
    assert mode(root / "a") == existing
    assert mode(root / "new") == 0o666 & ~mask


@pytest.mark.parametrize("mask", UMASKS, ids=oct)
def test_d01_a_file_that_recovery_puts_in_place_has_its_mode(root: Path, mask: int) -> None:
    names = [f"{existing:o}" for existing in EXISTING]
    for name in names:
        (root / name).write_text("old", encoding="utf-8")
        (root / name).chmod(int(name, 8))
    with umask(mask):
        FileTransaction(root).begin().rollback()
        killed(lambda: _write(root, *names, "new"), "rename", len(names) // 2)
    recover(root)
    assert set(tree(root).values()) == {b"new"}
    assert [mode(root / name) for name in names] == EXISTING
    assert mode(root / "new") == 0o666 & ~mask


NEW: dict[str, Callable[[FileTransaction, str], object]] = {
    "write": lambda tx, name: tx.write(name, "x"),
    "write_json": lambda tx, name: tx.write_json(name, {}),
    "open": lambda tx, name: tx.open(name, "xb").close(),
    "append": lambda tx, name: tx.open(name, "a").close(),
}


@pytest.mark.needs("setfacl")
@pytest.mark.parametrize("place", ["plain", "setgid", "default ACL"])
@pytest.mark.parametrize("mask", UMASKS, ids=oct)
def test_d02_a_new_file_gets_what_a_plain_open_gives(root: Path, mask: int, place: str) -> None:
    """With umask 027 that is 0640, not the 0600 of a temporary file."""
    (root / "d").mkdir()
    if place == "setgid":
        os.chown(root / "d", -1, 4321)
        (root / "d").chmod(0o2775)
    if place == "default ACL":
        run("setfacl", "-d", "-m", "user:1234:rwx,group::r-x,other::---", root / "d")
    with umask(mask):
        (root / "plain").write_text("x", encoding="utf-8")
        (root / "d/plain").write_text("x", encoding="utf-8")
        (root / "d/sub").mkdir()
        with FileTransaction(root) as tx:
            for name, change in NEW.items():
                change(tx, f"d/{name}")
            tx.mkdir("d/newsub")
    for name in NEW:
        assert _access(root / "d" / name) == _access(root / "d/plain")
    assert _access(root / "d/newsub") == _access(root / "d/sub")
    with FileTransaction(root) as tx:
        tx.copy("plain", "d/copied")
    assert mode(root / "d/copied") == mode(root / "plain")


def _access(path: Path) -> tuple[object, ...]:
    found = path.stat()
    acl = run("getfacl", "--absolute-names", "--omit-header", "--numeric", path)
    return stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, acl


@pytest.mark.parametrize("mask", [0o077, 0o177, 0o007, 0o777], ids=oct)
def test_d03_a_strict_umask_is_never_widened(root: Path, mask: int) -> None:
    """Neither for the file nor for its directories, and nothing in the private directory is open to others."""
    with umask(mask):
        tx = FileTransaction(root).begin()
        tx.write("new", "secret")
        tx.write("deep/er/new", "secret")
        staged = [path for path in (root / ".txfiles").iterdir() if path.name != "lock"]
        assert all(not mode(path) & mask & 0o077 for path in staged)
        tx.commit()
    assert mode(root / "new") == 0o666 & ~mask
    assert mode(root / "deep/er/new") == 0o666 & ~mask
    assert mode(root / "deep") == mode(root / "deep/er") == 0o777 & ~mask
    assert mode(root / ".txfiles") == 0o700


TWICE = """
    from txfiles import FileTransaction, recover
    for turn in "12":
        recover(sys.argv[1])
        with FileTransaction(sys.argv[1], durability=sys.argv[2]) as tx:
            tx.write("a", turn)
            tx.write(f"new {time.time_ns()}", turn)
"""


@pytest.mark.needs("users")
@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("bits", [0o755, 0o2775], ids=oct)
@pytest.mark.parametrize("mask", [0o777, 0o477, 0o277], ids=oct)
def test_d03_a_umask_that_takes_from_the_owner_closes_no_root(mask: int, bits: int, durability: str) -> None:
    with public_directory() as root:
        (root / "a").write_text("old", encoding="utf-8")
        for path in (root, root / "a"):
            os.chown(path, 1000, 1000)
        root.chmod(bits)
        run_python(TWICE, root, durability, **as_user(1000)).check()
        for path in (root / ".txfiles").iterdir():
            path.unlink()
        for now in (mask, 0o022):
            run_python(TWICE, root, durability, **as_user(1000, umask=now)).check()
            wanted = dict.fromkeys(("format", "lock", "spare"), 0o600)
            wanted["HEAD"] = 0o600 if durability == "full" else 0o400
            if bits & 0o020:
                wanted = {name: own | own >> 3 for name, own in wanted.items()}
            assert {path.name: mode(path) for path in (root / ".txfiles").iterdir()} == wanted
        assert (root / "a").read_text(encoding="utf-8") == "2"


@pytest.mark.needs("users")
@pytest.mark.parametrize("mask", [0o777, 0o477], ids=oct)
def test_d03_where_it_closes_the_private_directory_nothing_is_made(mask: int) -> None:
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        refused = run_python(TWICE, root, "full", **as_user(1000, umask=mask))
        assert "PermissionError" in refused.stderr
        assert list(root.iterdir()) == []
        run_python(TWICE, root, "full", **as_user(1000)).check()


@pytest.mark.parametrize("existing", [0o077, 0o604, 0o660, 0o7777], ids=oct)
@pytest.mark.parametrize("end", ["commit", "recovery", "undo"])
def test_d16_mode_and_group_stay_however_odd(root: Path, existing: int, end: str) -> None:
    for name in ("a", "b"):
        (root / name).write_text("old", encoding="utf-8")
    os.chown(root / "a", -1, 4321)
    (root / "a").chmod(existing)
    before = (mode(root / "a"), (root / "a").stat().st_gid)
    FileTransaction(root).begin().rollback()
    if end == "commit":
        _write(root, "a", "b")
    elif end == "recovery":
        killed(lambda: _write(root, "a", "b"), "rename", 2)
        recover(root)
    else:
        with system.use(Refusing(b"b")), pytest.raises(CommitError):
            _write(root, "a", "b")
    assert (mode(root / "a"), (root / "a").stat().st_gid) == before
    assert (root / "a").read_text(encoding="utf-8") == ("old" if end == "undo" else "new")


@pytest.mark.needs("users")
@pytest.mark.parametrize("existing", [0o077, 0o200, 0o600, 0o664], ids=oct)
def test_d16_as_a_user_with_a_file_of_a_shared_group(existing: int) -> None:
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        (root / "a").write_text("old", encoding="utf-8")
        os.chown(root / "a", 1000, 4321)
        (root / "a").chmod(existing)
        code = """
            from txfiles import FileTransaction
            with FileTransaction(sys.argv[1], accept={"narrowed-modes"}) as tx:
                tx.write("a", "new")
        """
        run_python(code, root, **as_user(1000, groups=[4321])).check()
        found = (root / "a").stat()
        assert (root / "a").read_text(encoding="utf-8") == "new"
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1000, 4321, existing)
        run_python(code, root, **as_user(1000)).check()  # no longer a member: nobody gains access by that
        found = (root / "a").stat()
        assert (found.st_uid, found.st_gid) == (1000, 1000)
        group, other = stat.S_IMODE(found.st_mode) >> 3 & 7, existing & 7
        assert group & ~other == 0


# -- D04: secrets while they are staged -----------------------------------------------------------------------------

STAGE = """
    from txfiles import FileTransaction
    def save(text):
        with FileTransaction(sys.argv[1], durability=sys.argv[2]) as tx:
            tx.write("secret", text)
            tx.write("new", text)
            tx.delete("gone")
    open(sys.argv[1] + "/gone", "w").close()
    save("warm")
    open(sys.argv[1] + "/gone", "w").close()
    with region():
        save("hidden")
"""


@pytest.mark.needs("strace")
@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("shared", [False, True], ids=["private root", "group-writable root"])
def test_d04_what_is_staged_is_created_closed_and_gets_its_mode_before_its_name(
    root: Path, durability: str, shared: bool
) -> None:
    root.chmod(0o2775 if shared else 0o755)
    (root / "secret").write_text("old", encoding="utf-8")
    (root / "secret").chmod(0o600)
    calls = each_call(STAGE, root, durability, calls=(*OPEN, *META, *RENAME, "mkdir", "mkdirat"))
    created = [call for call in calls if "O_CREAT" in call.args]
    assert len(created) == 3  # two tokens, the journal
    for call in created:
        assert os.path.dirname(call.paths[0]) == str(root / ".txfiles")
        assert "O_EXCL" in call.args
        assert "O_NOFOLLOW" in call.args
        assert re.search(r", 0[46]00$", call.args)
    names = [call.paths for call in calls if call.name in RENAME]
    for target in ("secret", "new"):
        (at,) = (n for n, call in enumerate(calls) if call.name in RENAME and call.paths[1] == str(root / target))
        (token,) = {paths[0] for paths in names if paths[1] == str(root / target)}
        changes = [n for n, call in enumerate(calls) if call.name in META and token in call.paths]
        assert all(n < at for n in changes)
        assert not [call for call in calls[at:] if call.name in META and str(root / target) in call.paths]
    assert mode(root / ".txfiles") == (0o770 if shared else 0o700)
    assert mode(root / "secret") == 0o600


GUESSES = ["{0}.tmp", ".{0}.tmp", "{0}~", "{0}.bak", "{0}.new", ".{0}.swp", "{0}.lock", "tmp{0}", ".txfiles/0", "{pid}"]


def test_d04_a_symlink_planted_at_a_guessable_name_gets_nothing(root: Path, tmp_path: Path) -> None:
    thief = tmp_path / "thief"
    thief.write_text("", encoding="utf-8")
    _write(root, "secret")
    (root / "secret").chmod(0o600)
    planted = [root / guess.format("secret", pid=os.getpid()) for guess in GUESSES]
    planted += [root / ".txfiles" / f"{'0' * 32}.{end}" for end in ("0", "1", "0.old")]
    for path in planted:
        path.symlink_to(thief)
    try:
        with FileTransaction(root) as tx:
            tx.write("secret", "hidden")
            tx.write("other", "hidden")
    finally:
        for path in planted:
            path.unlink(missing_ok=True)
    assert thief.read_text(encoding="utf-8") == ""
    assert (root / "secret").read_text(encoding="utf-8") == "hidden"


@pytest.mark.needs("users")
def test_d04_nobody_else_can_look_at_what_is_staged(tmp_path: Path) -> None:
    with public_directory() as root:
        (root / "secret").write_text("old", encoding="utf-8")
        (root / "secret").chmod(0o600)
        with FileTransaction(root) as tx:
            tx.write("secret", "hidden")
            tx.write("public", "not yet")
            look = "import glob; print(glob.glob(sys.argv[1] + '/*'), os.listdir(sys.argv[1] + '/.txfiles'))"
            assert "PermissionError" in run_python(look, root, **as_user(1000)).stderr


# -- D06: owners ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit", "recovery", "undo", "append", "copy onto", "move"])
@pytest.mark.parametrize("owner", [(1234, 5678, 0o640), (1234, 0, 0o4755), (0, 5678, 0o2755), (4294967294, 1, 0o600)])
def test_d06_root_keeps_the_owner_of_what_it_replaces(root: Path, owner: tuple[int, int, int], end: str) -> None:
    uid, gid, bits = owner
    for name in ("a", "b"):
        (root / name).write_text("old", encoding="utf-8")
        os.chown(root / name, uid, gid)
        (root / name).chmod(bits)
    FileTransaction(root).begin().rollback()
    name = "a"
    if end == "commit":
        _write(root, "a", "b")
    elif end == "recovery":
        killed(lambda: _write(root, "a", "b"), "rename", 2)
        recover(root)
    elif end == "undo":
        with system.use(Refusing(b"b")), pytest.raises(CommitError):
            _write(root, "a", "b")
    else:
        (root / "plain").write_text("new", encoding="utf-8")
        with FileTransaction(root) as tx:
            if end == "append":
                with tx.open("a", "a") as file:
                    file.write("new")
            elif end == "move":
                name = "moved"
                tx.move("a", name)
            else:
                tx.copy("plain", "a")
    found = (root / name).stat()
    assert (found.st_uid, found.st_gid) == (uid, gid)
    if end != "copy onto":
        assert mode(root / name) == bits


def test_d06_a_new_file_belongs_to_whoever_makes_it(root: Path) -> None:
    os.chown(root, 1234, 5678)
    _write(root, "new")
    assert ((root / "new").stat().st_uid, (root / "new").stat().st_gid) == (os.geteuid(), os.getegid())


SAVE = """
    from txfiles import FileStore, recover
    store = FileStore(sys.argv[1])
    print(recover(sys.argv[1]).clean)
    with store.transaction() as tx:
        tx.write("a", tx.read("a") + b"u" if tx.exists("a") else b"u")
    with store.snapshot() as snap:
        print(snap.read_text("a"))
"""


@pytest.mark.needs("users")
@pytest.mark.parametrize("bits", [0o755, 0o2775], ids=oct)
@pytest.mark.parametrize("what", ["first", "later", "killed", "killed first", "status"])
def test_d06_one_run_as_root_does_not_lock_the_owner_out(what: str, bits: int) -> None:
    with public_directory() as top:
        root = top / "root"
        root.mkdir()
        os.chown(root, 1000, 1000)
        root.chmod(bits)
        if what in ("later", "killed"):
            run_python(SAVE, root, **as_user(1000)).check()
        else:
            (root / "a").write_text("u", encoding="utf-8")
            os.chown(root / "a", 1000, 1000)
        if what.startswith("killed"):
            killed(lambda: _write(root, "a", "b"), "rename", 2 if what == "killed" else 3)
            expected = "False\nnewu\n"
        elif what == "status":
            FileStore(root).status()
            recover(root)
            expected = "True\nuu\n"
        else:
            _write(root, "a")
            expected = "True\nnewu\n"
        assert run_python(SAVE, root, **as_user(1000)).check().stdout == expected
        assert (root / "a").stat().st_uid == 1000


@pytest.mark.needs("users")
@pytest.mark.parametrize("bits", [0o666, 0o606, 0o676], ids=oct)
def test_d06_what_a_user_may_not_give_away_becomes_the_users_and_opens_to_nobody(bits: int) -> None:
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        (root / "a").write_text("old", encoding="utf-8")
        os.chown(root / "a", 1234, 5678)
        (root / "a").chmod(bits)
        accepting = SAVE.replace("argv[1])", "argv[1], accept={'narrowed-modes'})")
        run_python(accepting, root, **as_user(1000)).check()
        found = (root / "a").stat()
        assert (found.st_uid, found.st_gid) == (1000, 1000)
        assert mode(root / "a") == bits & ~(0o070 & ~(bits << 3))


@pytest.mark.needs("users")
@pytest.mark.parametrize("bits", [0o644, 0o664, 0o622, 0o4777], ids=oct)
def test_d06_what_a_user_may_not_read_and_write_is_not_replaced(bits: int) -> None:
    """A rename would, by the right of the directory; the link to the old file is refused (fs.protected_hardlinks)."""
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        (root / "a").write_text("old", encoding="utf-8")
        os.chown(root / "a", 1234, 5678)
        (root / "a").chmod(bits)
        code = """
            from txfiles import FileTransaction
            tx = FileTransaction(sys.argv[1], accept={"narrowed-modes"}).begin()
            tx.write("b", "x")
            tx.write("a", "x")
            try:
                tx.commit()
            except Exception as error:
                print(error.outcome, error.path, error)
        """
        said = run_python(code, root, **as_user(1000)).check().stdout
        assert said.startswith("before a ")
        assert "only who may read and write" in said
        assert tree(root) == {"a": b"old"}
        assert _leftovers(root) == []


# -- D08: ACLs and extended attributes ------------------------------------------------------------------------------


@pytest.mark.needs("loop", "ext4", "setfacl")
@pytest.mark.parametrize("fstype", ["ext4", pytest.param("xfs", marks=pytest.mark.needs("xfs"))])
def test_d08_acls_and_attributes_stay(tmp_path: Path, fstype: str) -> None:
    with loop_fs(tmp_path, fstype) as fs:
        root = fs.path
        for name in ("a", "b"):
            (root / name).write_text("old", encoding="utf-8")
            run("setfacl", "-m", "user:1234:rw-,group:5678:r--,mask::rw-", root / name)
            os.setxattr(root / name, "user.k", b"\0value\xff")
            os.setxattr(root / name, "user.empty", b"")
            os.setxattr(root / name, "trusted.label", b"x")
        (root / "c").write_text("old", encoding="utf-8")
        before = {name: _attributes(root / name) for name in ("a", "b", "c")}
        _write(root, "a", "b", "c")
        assert {name: _attributes(root / name) for name in before} == before
        killed(lambda: _write(root, "a", "b", "c"), "rename", 2)
        recover(root)
        assert {name: _attributes(root / name) for name in before} == before
        with system.use(Refusing(b"b")), pytest.raises(CommitError):
            _write(root, "a", "b", "c")
        assert {name: _attributes(root / name) for name in before} == before
        with FileTransaction(root) as tx:
            tx.copy("a", "copied")
            tx.move("b", "moved")
        assert _attributes(root / "moved") == before["b"]
        assert _attributes(root / "copied") == before["a"]


def _attributes(path: Path) -> object:
    acl = run("getfacl", "--absolute-names", "--omit-header", "--numeric", path)
    return mode(path), acl, {key: os.getxattr(path, key) for key in os.listxattr(path)}


# -- D10: write protection ------------------------------------------------------------------------------------------


@pytest.mark.needs("users")
@pytest.mark.parametrize("bits", [0o444, 0o400, 0o555, 0o000], ids=oct)
def test_d10_a_write_protected_file_is_refused(bits: int) -> None:
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        (root / "a").write_text("old", encoding="utf-8")
        os.chown(root / "a", 1000, 1000)
        (root / "a").chmod(bits)
        code = """
            from txfiles import FileTransaction
            with FileTransaction(sys.argv[1]) as tx:
                tx.write("b", "written")
                for call in (lambda: tx.write("a", "x"), lambda: tx.open("a", "a"), lambda: tx.write_json("a", 1)):
                    try:
                        call()
                    except PermissionError as error:
                        print(error.errno, error.filename)
        """
        assert run_python(code, root, **as_user(1000)).check().stdout == f"{errno.EACCES} a\n" * 3
        assert tree(root) == {"a": b"old", "b": b"written"}
        assert mode(root / "a") == bits


@pytest.mark.needs("users")
def test_d10_directories_decide_about_deletion_and_root_may_write_as_with_open() -> None:
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        for name in ("a", "b", "c"):
            (root / name).write_text("old", encoding="utf-8")
            os.chown(root / name, 1000, 1000)
            (root / name).chmod(0o444)
        code = """
            from txfiles import FileTransaction
            with FileTransaction(sys.argv[1]) as tx:
                tx.delete("a")
                tx.move("b", "moved")
        """
        run_python(code, root, **as_user(1000)).check()
        _write(root, "c")
        assert tree(root) == {"moved": b"old", "c": b"new"}
        assert mode(root / "c") == mode(root / "moved") == 0o444


# -- D12: hard links ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit", "recovery"])
@pytest.mark.parametrize("where", ["in the root", "outside"])
def test_d12_a_write_splits_hard_links(root: Path, tmp_path: Path, where: str, end: str) -> None:
    """The other name keeps the old content, as with every replacement by rename."""
    (root / "a").write_text("old", encoding="utf-8")
    other = root / "b" if where == "in the root" else tmp_path / "b"
    other.hardlink_to(root / "a")
    FileTransaction(root).begin().rollback()
    if end == "commit":
        _write(root, "a", "c")
    else:
        killed(lambda: _write(root, "a", "c"), "rename", 2)
        recover(root)
    assert (root / "a").read_text(encoding="utf-8") == "new"
    assert other.read_text(encoding="utf-8") == "old"
    assert other.stat().st_nlink == (root / "a").stat().st_nlink == 1


CHANGES: dict[str, list[tuple[str, ...]]] = {
    "write one": [("write", "a", "new")],
    "write the other": [("write", "b", "new")],
    "write both": [("write", "a", "new"), ("write", "b", "new")],
    "delete one": [("delete", "a")],
    "move one onto the other": [("move", "a", "b")],
    "move both away": [("move", "a", "aa"), ("move", "b", "bb")],
    "swap": [("move", "a", "t"), ("move", "b", "a"), ("move", "t", "b")],
    "away and back": [("move", "a", "t"), ("move", "t", "a")],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("last", ["z", "0"])
def test_d12_rolling_back_leaves_hard_links_linked(root: Path, change: str, last: str) -> None:
    """A rename between two links of one inode does nothing: whoever restores by one must not count on it."""
    before = _with_hard_links(root)
    with system.use(Refusing(last.encode())), pytest.raises(CommitError):
        _change(root, change)
    assert _leftovers(root) == []
    _require_linked(root, before)
    _change(root, change)
    assert _leftovers(root) == []


@pytest.mark.parametrize("change", CHANGES)
def test_d12_recovery_of_an_undo_leaves_hard_links_linked(root: Path, change: str) -> None:
    before = _with_hard_links(root)
    killed(lambda: _change(root, change), "never", inner=Refusing(b"z", then_die_undoing=True))
    assert recover(root).rolled_back
    _require_linked(root, before)


def _with_hard_links(root: Path) -> dict[str, object]:
    for name in ("a", "0", "z"):
        (root / name).write_text("old", encoding="utf-8")
    (root / "b").hardlink_to(root / "a")
    return tree(root)


def _change(root: Path, change: str) -> None:
    with FileTransaction(root) as tx:
        for call, *arguments in CHANGES[change]:
            getattr(tx, call)(*arguments)
        tx.write("z", "new")
        tx.write("0", "new")


def _require_linked(root: Path, before: dict[str, object]) -> None:
    assert tree(root) == before
    assert (root / "a").stat().st_ino == (root / "b").stat().st_ino
    assert (root / "a").stat().st_nlink == 2


# -- D13: is it another one? ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["full", "process"])
def test_d13_saves_of_one_length_within_one_tick_have_different_versions(root: Path, durability: Any) -> None:
    store = FileStore(root, durability=durability)
    versions, states = [], []
    saves = 100 if durability == "process" else 25
    for number in range(saves):
        with store.transaction() as tx:
            tx.write("a", f"{number % 10}")
        with store.snapshot() as snap:
            versions.append(snap.version("a"))
        states.append(store.state_version())
    assert len(set(versions)) == len(set(states)) == saves


@pytest.mark.parametrize("how", ["same bytes", "other bytes", "replaced from outside", "deleted and made again"])
def test_d13_a_stale_version_is_noticed_at_once(root: Path, how: str) -> None:
    _write(root, "a")
    with FileTransaction(root) as tx:
        seen = tx.version("a")
    found = (root / "a").stat()
    if how == "replaced from outside":
        (root / "t").write_text("own", encoding="utf-8")
        os.utime(root / "t", ns=(found.st_atime_ns, found.st_mtime_ns))
        (root / "t").replace(root / "a")
    else:
        with FileTransaction(root) as tx:
            if how == "deleted and made again":
                tx.delete("a")
            tx.write("a", "own" if how == "other bytes" else "new")
    with FileTransaction(root) as tx, pytest.raises(ConflictError):
        tx.write("a", "mine", if_version=seen)


# -- D14, D15: what the system says ---------------------------------------------------------------------------------


def test_d14_os_access_is_never_asked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(*_: object, **__: object) -> bool:
        raise AssertionError("os.access was asked")

    monkeypatch.setattr(os, "access", lie)
    _write(root, "a", "sub/b")
    killed(lambda: _write(root, "a", "sub/b"), "rename", 2)
    recover(root)
    with FileTransaction(root) as tx:
        tx.copy("a", "c")
        tx.delete("a")
        tx.delete_tree("sub")
    with FileStore(root).snapshot() as snap:
        assert snap.glob("**") == ["c"]


def _leftovers(root: Path) -> list[str]:
    return sorted({path.name for path in (root / ".txfiles").iterdir()} - {"format", "lock", "HEAD", "spare"})


@pytest.mark.parametrize(
    "error", [errno.EPERM, errno.EACCES, errno.EBUSY, errno.EIO, errno.EXDEV], ids=errno.errorcode.get
)
@pytest.mark.parametrize("name", [b"a", b"b", b"sub", None], ids=["first", "last", "in a directory", "all"])
def test_d15_a_rename_that_always_fails_leaves_nothing(root: Path, name: bytes | None, error: int) -> None:
    durability = "full" if error == errno.EPERM else "process"
    _write(root, "a", "sub/b", "b")
    before = tree(root)
    with system.use(Refusing(b"b" if name == b"sub" else name, error)):
        for _ in range(20):
            with pytest.raises(CommitError) as caught:
                _write(root, "a", "sub/b" if name == b"sub" else "b", "c", durability=durability)
            assert caught.value.outcome == "before"
            assert isinstance(caught.value.__cause__, OSError)
            assert caught.value.__cause__.errno == error
            assert _leftovers(root) == []
    assert tree(root) == before
    _write(root, "a")


@pytest.mark.needs("strace")
@pytest.mark.parametrize("when", ["1+", "2+", "3+"])
def test_d15_every_rename_of_the_process_fails(root: Path, when: str) -> None:
    """From the first on, nothing is left. Where the undo fails, too, one journal is left, and never a second."""
    _write(root, "a", "b")
    code = """
        from txfiles import FileTransaction
        from txfiles.errors import TxFilesError
        def save():
            try:
                with FileTransaction(sys.argv[1]) as tx:
                    for name in "ab":
                        tx.write(name, "x")
            except (TxFilesError, OSError) as error:
                return getattr(error, "outcome", "not begun")
        FileTransaction(sys.argv[1]).begin().rollback()
        with region():
            for _ in range(20):
                print(save(), len(os.listdir(sys.argv[1] + "/.txfiles")))
    """
    done = traced(code, root, faults=[Fault(RENAME, error="EPERM", when=when)])
    said = done.check().stdout.splitlines()
    assert len(said) == 20
    if when == "1+":
        assert set(said) == {"before 4"}
    else:
        assert said[0].startswith("unknown")
        assert len(set(said[1:])) == 1
        assert said[1].split()[-1] == said[0].split()[-1]
    recover(root)
    assert _leftovers(root) == []
    assert (root / "a").read_text(encoding="utf-8") == (root / "b").read_text(encoding="utf-8")


def test_d15_a_rename_that_fails_a_few_times_is_reported_each_time_and_then_works(root: Path) -> None:
    _write(root, "a", "b")
    fs = Refusing(b"b", times=3)
    with system.use(fs):
        for _ in range(3):
            with pytest.raises(TxFilesError):
                _write(root, "a", "b", "c")
            assert _leftovers(root) == []
        _write(root, "a", "b", "c")
    assert sorted(tree(root)) == ["a", "b", "c"]
