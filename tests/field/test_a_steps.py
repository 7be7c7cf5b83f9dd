"""A: the order of the system calls, and deaths at each of them."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import DEEP
from tests.support.boundary import killed, tree
from tests.support.debris import problems
from tests.support.disks import EXT4, XFS, Place
from tests.support.inject import LOCK, META, MKDIR, RENAME, SYNC, UNLINK, WRITE, Call, Fault, each_call, traced
from txfiles import FileTransaction, recover, status
from txfiles._disk import system
from txfiles._format import layout
from txfiles.testing._faults import FaultyFS, kill_at

Places = Callable[[str], Place]
strace = pytest.mark.needs("strace")


def _state(path: str) -> str:
    """What a file of the private directory is for: token, old, intent ... or nothing."""
    folder, _, name = path.rpartition("/")
    return layout.parse(os.fsencode(name)).kind if folder.endswith("/.txfiles") else ""


def _save(root: Path, **contents: str) -> None:
    with FileTransaction(root) as tx:
        for name, content in contents.items():
            tx.write(name, content)


def _open(root: Path) -> None:
    FileTransaction(root, timeout=0).begin().rollback()


# -- A03: the order -------------------------------------------------------------------------------------------------

_COMMITS = {
    "three directories": 'tx.write("a", "2"); tx.write("s/b", "2"); tx.write("t/u/c", "2")',
    "new directories": 'tx.write("n/m/a", "2"); tx.write("s/b", "2"); tx.mkdir("t/empty")',
    "deletes": 'tx.delete("a"); tx.write("s/b", "2"); tx.delete("t/u/c"); tx.write("t/v", "new")',
    "twenty files": '[tx.write(f"{d}/{n}", "2") for d in ("s", "t/u") for n in range(10)]',
}


@strace
@pytest.mark.parametrize("change", _COMMITS.values(), ids=_COMMITS)
@pytest.mark.parametrize("first", [True, False], ids=["first commit", "later commit"])
def test_a03_order_of_syncs_and_renames(root: Path, change: str, first: bool) -> None:
    for name in ("a", "s/b", "t/u/c"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("1", encoding="utf-8")
    if not first:
        _save(root, settled="once")
    done = traced(
        f"""
        from txfiles import FileTransaction
        import txfiles._disk.system, txfiles._commit.recover, filelock, orjson
        with region():
            with FileTransaction(sys.argv[1]) as tx:
                {change}
        """,
        root,
    )
    done.check()
    calls = [call for call in done.calls if not call.error]
    syncs = [(n, call.paths[0]) for n, call in enumerate(calls) if call.name in SYNC[:2]]
    [commit] = [n for n, c in enumerate(calls) if c.name in RENAME and _state(c.paths[-1]) == "committed"]
    [settle] = [n for n, c in enumerate(calls) if c.name in RENAME and c.paths[-1].endswith("/.txfiles/HEAD")]
    private = f"{root}/.txfiles"
    first_round = [path for n, path in syncs if n < commit]
    tokens = {path for c in calls if c.name == "openat" and "O_CREAT" in c.args for path in c.paths}
    transaction = calls[commit].paths[-1].removesuffix("committed")
    tokens = {path for path in tokens if path.startswith(transaction) and _written(calls, path)}
    tokens = {path for path in tokens if _state(path) == "token"}
    assert tokens <= set(first_round), "every staged file is synced before the commit point"
    assert all(_last(calls, path, "write") < _first(syncs, path) for path in tokens), "after its content was written"
    [intent] = {path for path in first_round if _state(path) == "intent"}
    assert _last(calls, intent, "write") < _first(syncs, intent)
    assert private in first_round, "the names of the staged files and of the journal"
    made = [n for n, c in enumerate(calls) if c.name in ("openat", "linkat") and _state(c.paths[-1]) and n < commit]
    made = [n for n in made if "O_CREAT" in calls[n].args or calls[n].name == "linkat"]
    assert max(made) < max(n for n, path in syncs if path == private and n < commit)
    changed = [n for n, c in enumerate(calls) if _changes_the_tree(c, private)]
    assert commit < min(changed), "no target is touched before"
    touched = {os.path.dirname(path) for n in changed for path in calls[n].paths if not path.startswith(private)}
    second_round = {path for n, path in syncs if max(changed) < n < settle}
    assert touched | {private} <= second_round, "every touched directory, after the last change and before the end"
    removed = [n for n, c in enumerate(calls) if c.name in UNLINK and _state(c.paths[-1]) == "old"]
    assert all(n > settle for n in removed)


def _written(calls: list[Call], path: str) -> bool:
    return any(call.name == "write" and call.paths == [path] for call in calls)


def _last(calls: list[Call], path: str, name: str) -> int:
    return max(n for n, call in enumerate(calls) if call.name == name and call.paths[0] == path)


def _first(syncs: list[tuple[int, str]], path: str) -> int:
    return min(n for n, synced in syncs if synced == path)


def _changes_the_tree(call: Call, private: str) -> bool:
    if call.name not in (*RENAME, *MKDIR, *UNLINK):
        return False
    return any(path != private and not path.startswith(private + "/") for path in call.paths)


# -- A23: metadata before the sync ----------------------------------------------------------------------------------

_STAGING = {
    "write": 'tx.write("owned", "new"); tx.write("shared/acl", "new"); tx.write("shared/fresh", "new")',
    "open": '[tx.open(n, "w").close() for n in ("owned", "shared/acl", "shared/fresh")]',
    "copy": 'tx.copy("owned", "shared/copy"); tx.copy("shared/acl", "shared/copied")',
    "twenty": '[tx.copy("owned", f"shared/{n}") for n in range(20)]',
}


@strace
@pytest.mark.needs("setfacl")
@pytest.mark.parametrize("how", _STAGING.values(), ids=_STAGING)
@pytest.mark.parametrize("filesystem", [EXT4])
def test_a23_mode_owner_and_attributes_before_the_sync(place: Places, filesystem: str, how: str) -> None:
    here = place(filesystem)
    (here.root / "owned").write_text("old", encoding="utf-8")
    os.chmod(here.root / "owned", 0o640)
    os.chown(here.root / "owned", 1234, 5678)
    os.setxattr(here.root / "owned", "user.k", b"value")
    (here.root / "shared").mkdir(mode=0o2775)
    assert os.system(f"setfacl -d -m u:1234:rw,g::r {here.root}/shared") == 0
    (here.root / "shared/acl").write_text("old", encoding="utf-8")
    done = traced(
        f"""
        from txfiles import FileTransaction
        with region():
            with FileTransaction(sys.argv[1]) as tx:
                {how}
        """,
        here.root,
    )
    done.check()
    seen = set()
    [journal] = {p for call in done.named(*RENAME) for p in call.paths if _state(p) == "committed"}
    for path in {p for call in done.named("openat") if "O_CREAT" in call.args for p in call.paths}:
        if _state(path) != "token" or not path.startswith(journal.removesuffix("committed")):
            continue
        on_it = [call.name for call in done.calls if call.paths[:1] == [path]]
        if "fsync" in on_it:
            meta = [n for n, name in enumerate(on_it) if name in META]
            assert max(meta) < on_it.index("fsync"), on_it
            seen.update(on_it)
    assert {"fchmod", "fsetxattr", "fsync"} <= seen
    expected = {path.name: _metadata(path) for path in here.root.rglob("*") if ".txfiles" not in path.parts}
    with here.after_power_loss() as copy:
        assert {path.name: _metadata(path) for path in copy.rglob("*") if ".txfiles" not in path.parts} == expected


def _metadata(path: Path) -> tuple[object, ...]:
    info = path.stat()
    return info.st_mode, info.st_uid, info.st_gid, [(k, os.getxattr(path, k)) for k in sorted(os.listxattr(path))]


# -- A19: the very first opening ------------------------------------------------------------------------------------


@strace
def test_a19_killed_at_each_system_call_of_the_first_opening(tmp_path: Path) -> None:
    code = """
        from txfiles import FileTransaction
        import txfiles._disk.system, txfiles._commit.recover, filelock, orjson
        with region():
            FileTransaction(sys.argv[1], create=True).begin().rollback()
    """
    (tmp_path / "listing").mkdir()
    calls = (*MKDIR, "openat", *LOCK[:1], *WRITE, *RENAME, *UNLINK, *SYNC)
    for number, call in enumerate(each_call(code, tmp_path / "listing" / "root", calls=calls)):
        parent = tmp_path / str(number)
        parent.mkdir()
        faults = [Fault(call.name, signal="SIGKILL", when=call.nth)]
        assert traced(code, parent / "root", faults=faults).returncode == -signal.SIGKILL
        with FileTransaction(parent / "root", create=True, timeout=0) as tx:
            tx.write("a", "works")
        assert tree(parent / "root") == {"a": b"works"}
        assert problems(parent) == []


@pytest.mark.parametrize("durability", ["full", pytest.param("process", marks=pytest.mark.deep)])
def test_a19_killed_at_each_call_of_the_first_transaction(memory: Path, durability: str) -> None:
    counting = FaultyFS(system.KernelFS())
    with system.use(counting):  # type: ignore[arg-type]
        _first_transaction(memory / "counting", durability)
    for number in range(1, counting.calls + 1):
        root = memory / str(number)
        assert _killed_at(number, lambda root=root: _first_transaction(root, durability))
        _open_or_make(root)
        assert tree(root) in ({}, {"new": None, "new/a": b"first", "b": b"first"}), counting.trace[number - 1]
        assert problems(root) == []


def _first_transaction(root: Path, durability: str) -> None:
    with FileTransaction(root, create=True, durability=durability) as tx:  # type: ignore[arg-type]
        tx.write("new/a", "first")
        tx.write("b", "first")


def _open_or_make(root: Path) -> None:
    FileTransaction(root, create=True, timeout=0).begin().rollback()


def _killed_at(number: int, work: Callable[[], object]) -> bool:
    """Do the work in a forked child that dies before its call `number`; false when it made fewer calls."""
    child = os.fork()
    if child == 0:
        try:
            with system.use(FaultyFS(system.KernelFS(), kill_at(number))):  # type: ignore[arg-type]
                work()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("filesystem", [EXT4, XFS])
def test_a19_power_lost_at_each_step_of_the_first_transaction(place: Places, filesystem: str) -> None:
    here = place(filesystem)
    here.sync()
    root = here.root / "root"

    def look(copy: Path, where: str) -> None:
        _open_or_make(copy / "root")
        assert tree(copy / "root") in ({}, {"new": None, "new/a": b"first", "b": b"first"}), where
        assert problems(copy / "root") == []

    steps = ("mkdir", "create", "rename", "sync_dir") if DEEP else ("mkdir", "rename")
    here.after_each(*steps, work=lambda: _first_transaction(root, "full"), look=look)


# -- A08: recovery dies, too ----------------------------------------------------------------------------------------


def _old(root: Path) -> None:
    for name in "abc":
        (root / name).write_text(f"old {name}", encoding="utf-8")
    (root / "gone").mkdir()
    (root / "gone/d").write_text("old d", encoding="utf-8")
    _save(root, settled="once")


def _change(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "new")
        tx.write("b", "new")
        tx.write("fresh/e", "new")
        tx.delete_tree("gone")


class _RefusesLast(system.KernelFS):
    """The last file cannot be put in its place, so that the commit is undone."""

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        if new == b"e" and at != to:
            raise OSError(errno.EIO, "refused")
        super().rename(at, name, to, new)


_DEATHS: dict[str, Callable[[Path], None]] = {
    "nothing applied": lambda root: killed(lambda: _change(root), "rename", 2),
    "one applied": lambda root: killed(lambda: _change(root), "rename", 3),
    "all applied": lambda root: killed(lambda: _change(root), "rename", 6),
    "undo begun": lambda root: killed(lambda: _change(root), "rename", 7, inner=_RefusesLast()),
    "undo half done": lambda root: killed(lambda: _change(root), "rename", 9, inner=_RefusesLast()),
}


@pytest.fixture
def half_done(memory: Path) -> Callable[[str, str], Path]:
    """Makes a root whose commit or undo has died."""

    def make(name: str, died: str) -> Path:
        root = memory / name
        root.mkdir()
        _old(root)
        _DEATHS[died](root)
        return root

    return make


def _ends(memory: Path) -> tuple[dict[str, object], dict[str, object]]:
    twin = memory / "twin"
    twin.mkdir()
    _old(twin)
    before = tree(twin)
    _change(twin)
    after = tree(twin)
    shutil.rmtree(twin)
    return before, after


@strace
def test_a08_recovery_killed_twice_at_each_system_call(memory: Path, half_done: Callable[[str, str], Path]) -> None:
    code = """
        from txfiles import recover
        import txfiles._disk.system, txfiles._commit.recover, filelock, orjson
        with region():
            recover(sys.argv[1])
    """
    _, after = _ends(memory)
    listed = each_call(code, half_done("listing", "one applied"), calls=(*RENAME, *UNLINK, *MKDIR, *SYNC[:1]))
    for number, call in enumerate(call for call in listed if not call.error):
        root = half_done(str(number), "one applied")
        faults = [Fault(call.name, signal="SIGKILL", when=call.nth)]
        assert traced(code, root, faults=faults).returncode == -signal.SIGKILL
        _killed_at(1 + 3 * number, lambda root=root: recover(root))
        recover(root, timeout=0)
        assert tree(root) == after
        assert problems(root) == []
    assert len(listed) > 10


_OFTEN = ("nothing applied", "one applied", "undo half done")


@pytest.mark.parametrize(
    "died", [pytest.param(died, marks=() if died in _OFTEN else pytest.mark.deep) for died in _DEATHS]
)
def test_a08_recovery_killed_at_each_call_twice(memory: Path, half_done: Callable[[str, str], Path], died: str) -> None:
    end = _ends(memory)["undo" not in died]
    numbers = range(1, 1000, 1 if DEEP else 7)
    for number in numbers:
        root = half_done(str(number), died)
        alive = not _killed_at(number, lambda root=root: recover(root))
        _killed_at(max(1, number - 2), lambda root=root: recover(root))
        recover(root, timeout=0)
        assert tree(root) == end, f"recovery killed at its calls {number} and {number - 2}"
        assert problems(root) == []
        if alive:
            break
    assert number > 30


# -- A22: killed while staging --------------------------------------------------------------------------------------


def _two_files(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "new")
        tx.write("sub/b", "new" * 100_000)
        tx.delete("c")


@pytest.mark.parametrize(
    ("call", "nth", "where"),
    [
        ("create", 2, "between the first and the second file"),
        ("write", 2, "in the second file, empty"),
        ("chmod", 2, "the second file written, without its mode"),
        ("create", 3, "before the journal"),
        ("create", 4, "the journal empty"),
        ("write", 3, "the journal without a byte, all else ready"),
        ("sync_file", 1, "nothing synced"),
        ("rename", 1, "before the commit point"),
    ],
)
def test_a22_killed_before_the_journal_is_complete(root: Path, call: str, nth: int, where: str) -> None:
    for name in "ac":
        (root / name).write_text("old", encoding="utf-8")
    _save(root, settled="once")
    before = tree(root)
    killed(lambda: _two_files(root), call, nth)
    assert not status(root).clean, where
    _open(root)
    assert tree(root) == before
    assert status(root).clean
    _two_files(root)
    assert set(tree(root)) == {"a", "sub", "sub/b", "settled"}


# -- A24: killed at random ------------------------------------------------------------------------------------------


def _many(root: Path, content: str) -> None:
    with FileTransaction(root) as tx:
        for number in range(200):
            tx.write(f"d{number % 7}/{number}", f"{content} {number}")
        tx.delete(f"only {content[:1]}", missing_ok=True)


def test_a24_killed_at_random_times_in_a_commit_of_200_files(memory: Path) -> None:
    dice = random.Random(0)
    _many(memory, "0")
    start = time.monotonic()
    _many(memory, "1")
    longest = 1.5 * (time.monotonic() - start)
    ends: list[bool] = []
    for number in range(2, 502 if DEEP else 32):
        child = os.fork()
        if child == 0:
            try:
                _many(memory, str(number))
            finally:
                os._exit(0)
        time.sleep(dice.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        _open(memory)
        [round_] = {content.split()[0] for content in tree(memory).values() if isinstance(content, bytes)}
        assert len(tree(memory)) == 207
        assert int(round_) in (number, number - 1) or not ends[-1]
        ends.append(int(round_) == number)
    assert set(ends) == {False, True}
    _many(memory, "last")


def test_a24_killed_at_each_call_of_a_commit_of_200_files(memory: Path) -> None:
    _many(memory, "0")
    counting = FaultyFS(system.KernelFS())
    with system.use(counting):  # type: ignore[arg-type]
        _many(memory, "1")
    for number in range(1, counting.calls, 1 if DEEP else 211):
        assert _killed_at(number, lambda n=number: _many(memory, f"at {n}"))
        _open(memory)
        assert len({content.rsplit(None, 1)[0] for content in tree(memory).values() if isinstance(content, bytes)}) == 1
        assert len(tree(memory)) == 207
    assert "sync_file" in counting.trace
