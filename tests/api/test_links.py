"""`links="follow"`: files out of the root that its links lead to are read and changed like those in it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import mounts
from tests.support.as_user import as_user, public_directory
from tests.support.boundary import killed, nth_call, tree
from tests.support.procs import run_python
from txfiles import (
    AsyncDocuments,
    AsyncFileTransaction,
    Documents,
    FileStore,
    FileTransaction,
    commit_prepared,
    recover,
    rollback_prepared,
    status,
)
from txfiles._commit.home import Home
from txfiles._disk import system
from txfiles.cli import main
from txfiles.errors import (
    CommitError,
    ConflictError,
    InvalidPathError,
    RecoveryConflictError,
    RecoveryError,
    UnsupportedFilesystemError,
)
from txfiles.integrations.fsspec import TxFilesFileSystem
from txfiles.recovery import verify
from txfiles.testing._faults import FaultyFS, kill_at

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def out(root: Path) -> Path:
    """A directory beside the root, and links to it and to what is in it."""
    out = root.with_name("out")
    (out / "deep").mkdir(parents=True)
    for name in ("f", "g", "deep/h"):
        (out / name).write_text(f"old {name}", encoding="utf-8")
    (root / "a").write_text("old a", encoding="utf-8")
    (root / "absolute").symlink_to(out / "f")
    (root / "relative").symlink_to("../out/f")
    (root / "chain").symlink_to("relative")
    (root / "dir").symlink_to("../out")
    (out / "on").symlink_to("deep/h")
    (root / "fresh").symlink_to(out / "fresh")
    (out / "back").symlink_to(root / "a")
    with FileTransaction(root) as tx:
        tx.write("settled", "once")
    return out


def follow(root: Path) -> FileTransaction:
    return FileTransaction(root, links="follow")


def change(tx: FileTransaction) -> None:
    tx.write("absolute", "new f")
    tx.write("dir/on", "new h")
    tx.write("a", "new a")
    tx.delete("dir/g")
    tx.write("dir/new/i", "new i")


AFTER = {"f": b"new f", "deep": None, "deep/h": b"new h", "on": "-> deep/h", "new": None, "new/i": b"new i"}


def dead(root: Path, renames: int = 3) -> None:
    """A commit of `change` that died before so many of its renames: the first is the commit point."""

    def work() -> None:
        with follow(root) as tx:
            change(tx)

    killed(work, "rename", renames)


# -- reading and writing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["absolute", "relative", "chain", "dir/f"])
def test_what_a_link_leads_to_is_replaced(root: Path, out: Path, name: str) -> None:
    links = tree(root)
    with follow(root) as tx:
        assert tx.read(name) == b"old f"
        assert tx.exists(name)
        assert tx.is_file(name)
        tx.write(name, "new")
        assert str(tx.plan()) == f"replace {name} (3 bytes)"
    assert (out / "f").read_bytes() == b"new"
    assert tree(root) == links
    head = status(root).head
    assert head is not None
    assert head.paths == [name]


def test_all_of_a_transaction_or_nothing(root: Path, out: Path) -> None:
    with follow(root) as tx:
        change(tx)
    assert tree(out) == AFTER | {"back": f"-> {root}/a"}
    assert (root / "a").read_bytes() == b"new a"
    before = tree(out)
    with pytest.raises(ZeroDivisionError), follow(root) as tx:
        tx.write("absolute", "x")
        tx.delete_tree("dir/new")
        raise ZeroDivisionError
    assert tree(out) == before


def test_two_links_to_one_file_are_one_file(root: Path, out: Path) -> None:
    with follow(root) as tx:
        tx.write("absolute", "1")
        assert tx.read("relative") == tx.read("dir/f") == b"1"
        tx.append("relative", "2")
        tx.append("dir/f", "3")
        assert len(tx.plan()) == 1
        with tx.open("dir/f", "a") as file, pytest.raises(OSError, match="open for writing"):
            tx.open("absolute", "a")
        file.close()
    assert (out / "f").read_bytes() == b"123"


def test_a_link_that_leads_out_and_back_in_is_a_file_of_the_root(root: Path, out: Path) -> None:
    (root / "round").symlink_to(f"../{root.name}/a")
    with follow(root) as tx:
        for name in ("dir/back", "round"):
            tx.append(name, "!")
        assert tx.read("a") == b"old a!!"
        assert [one.path for one in tx.plan()] == ["a"]


def test_a_link_that_leads_nowhere_yet(root: Path, out: Path) -> None:
    (root / "beyond").symlink_to(out / "missing" / "f")
    with follow(root) as tx:
        assert not tx.exists("fresh")
        tx.write("fresh", "made")
        with pytest.raises(FileNotFoundError, match="no directory where the link leads to"):
            tx.write("beyond", "x")
    assert (out / "fresh").read_bytes() == b"made"
    assert not (out / "missing").exists()


def test_lists_and_walks(root: Path, out: Path) -> None:
    with follow(root) as tx:
        tx.write("dir/deep/new", "1")
        assert tx.listdir("dir/deep") == ["h", "new"]
        assert tx.iterdir("dir/deep") == ["dir/deep/h", "dir/deep/new"]
        assert ("dir/deep", [], ["h", "new"]) in tx.walk("dir")
        assert tx.read(tx.walk("dir")[0][0] + "/f") == b"old f"
        assert tx.stat("absolute").st_ino == (out / "f").stat().st_ino
        assert tx.readlink("absolute") == str(out / "f")


def test_links_themselves_are_deleted_and_moved(root: Path, out: Path) -> None:
    before = tree(out)
    with follow(root) as tx:
        tx.delete("absolute")
        tx.move("dir", "moved")
        tx.copy("relative", "copied")
    assert tree(out) == before
    assert tree(root)["moved"] == "-> ../out"
    assert tree(root)["copied"] == b"old f"


def test_files_and_directories_move_across(root: Path, out: Path) -> None:
    with follow(root) as tx:
        tx.move("dir/deep", "deep")
        tx.move("a", "dir/a")
        tx.copy("dir/f", "f")
    assert tree(root)["deep/h"] == b"old deep/h"
    assert (out / "a").read_bytes() == b"old a"
    assert not (out / "deep").exists()


def test_a_link_and_what_is_behind_it_are_not_both_changed(root: Path, out: Path) -> None:
    before = tree(root), tree(out)
    for call in (lambda tx: tx.delete("dir"), lambda tx: tx.move("dir", "moved")):
        with pytest.raises(InvalidPathError, match="cannot be changed in one transaction"), follow(root) as tx:
            tx.write("dir/f", "x")
            call(tx)
    assert (tree(root), tree(out)) == before


def test_the_root_itself_is_out_of_reach_from_above(root: Path, out: Path) -> None:
    (root / "up").symlink_to("..")
    with follow(root) as tx:
        assert tx.read(f"up/{root.name}/a") == b"old a"
        with pytest.raises(InvalidPathError, match="private directory"):
            tx.read(f"up/{root.name}/.txfiles/HEAD")
        (root / "top").symlink_to("/")
        with pytest.raises(InvalidPathError, match="root of its own"):
            tx.delete_tree("top" + str(root.parent))
    assert tree(root)["a"] == b"old a"


# -- what is refused ------------------------------------------------------------------------------------------------


def test_by_default_it_is_refused_and_the_error_names_the_way(root: Path, out: Path) -> None:
    with FileTransaction(root) as tx, pytest.raises(InvalidPathError, match='only links="follow" follows'):
        tx.write("absolute", "x")
    with pytest.raises(ValueError, match='links is "refuse" or "follow"'):
        FileStore(root, links="yes")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedFilesystemError, match="object storage has no links"):
        FileStore("memory://x", links="follow")


@pytest.mark.needs("mount")
def test_no_link_is_followed_to_another_mount(root: Path, out: Path) -> None:
    (root / "proc").symlink_to("/proc/self/comm")
    other = out / "m"
    other.mkdir()
    (root / "mounted").symlink_to("../out/m/f")
    with mounts.tmpfs(other), follow(root) as tx:
        calls: list[Callable[[str], object]] = [
            tx.read,
            tx.exists,
            lambda p: tx.write(p, "x"),
            lambda p: tx.open(p, "w"),
            tx.version,
        ]
        for call in calls:
            for path in ("proc", "mounted", "dir/m/f"):
                with pytest.raises(UnsupportedFilesystemError, match="another mount") as refusal:
                    call(path)
                assert refusal.value.outcome == "before"
    with FileStore(root, links="follow").snapshot() as snap, pytest.raises(UnsupportedFilesystemError):
        snap.read("proc")


@pytest.mark.needs("root")
def test_links_of_others_lead_nowhere(root: Path, out: Path) -> None:
    os.chown(root / "absolute", 1000, 1000, follow_symlinks=False)
    os.chown(out / "on", 1000, 1000, follow_symlinks=False)
    with follow(root) as tx:
        for path in ("absolute", "dir/on"):
            with pytest.raises(InvalidPathError, match="link of user 1000"):
                tx.write(path, "x")
        tx.write("relative", "new")


@pytest.mark.needs("root")
@pytest.mark.parametrize("how", ["of a user", "of a group"])
def test_it_is_for_a_root_of_the_caller_alone(root: Path, out: Path, how: str) -> None:
    if how == "of a user":
        os.chown(root, 1000, 1000)
    else:
        root.chmod(0o775)
    with FileTransaction(root) as tx:
        tx.write("b", "b")
    openings: list[Callable[[], Any]] = [
        lambda: follow(root).begin(),
        lambda: recover(root, links="follow"),
        lambda: verify(root, links="follow"),
        lambda: FileStore(root, links="follow").snapshot("absolute").__enter__(),
        lambda: commit_prepared(root, "ab" * 16, links="follow"),
    ]
    for opening in openings:
        with pytest.raises(UnsupportedFilesystemError, match="who alone may write"):
            opening()


# -- between staging and the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["../out/g", "a", "nowhere", None])
def test_a_link_that_leads_elsewhere_at_the_commit(root: Path, out: Path, text: str | None) -> None:
    with pytest.raises(ConflictError, match="leads elsewhere now") as conflict, follow(root) as tx:
        tx.write("a", "new")
        tx.write("absolute", "new")
        (root / "absolute").unlink()
        if text is not None:
            (root / "absolute").symlink_to(text)
    assert (conflict.value.path, conflict.value.outcome) == ("absolute", "before")
    assert (root / "a").read_text(encoding="utf-8") == "old a"
    assert (out / "f").read_text(encoding="utf-8") == "old f"


def test_an_update_follows_the_link_of_its_last_try(root: Path, out: Path) -> None:
    (out / "v2").mkdir()
    (out / "..data").symlink_to("deep")
    (root / "h").symlink_to(out / "..data" / "h")
    tries: list[int] = []

    def work(tx: FileTransaction) -> None:
        tx.write("h", "new")
        if not tries:
            os.symlink("v2", out / "tmp")
            os.rename(out / "tmp", out / "..data")
        tries.append(1)

    FileStore(root, links="follow").update(work)
    assert len(tries) == 2
    assert (out / "v2" / "h").read_text(encoding="utf-8") == "new"
    assert (out / "deep" / "h").read_text(encoding="utf-8") == "old deep/h"


def test_a_file_that_changes_meanwhile_is_a_conflict_as_in_the_root(root: Path, out: Path) -> None:
    with pytest.raises(ConflictError), follow(root) as tx:
        tx.write("absolute", "new", if_version=tx.version("absolute"))
        (out / "f").write_text("theirs", encoding="utf-8")
    store = FileStore(root, links="follow")
    with store.snapshot() as snap:
        snap.read("relative")
    (out / "f").write_text("theirs, too", encoding="utf-8")
    with pytest.raises(ConflictError), store.transaction(base=snap) as tx:
        tx.write("a", "new")


def test_a_failed_rename_is_undone_on_both_sides(root: Path, out: Path) -> None:
    before = tree(root), tree(out)

    def fail() -> None:
        raise OSError(5, "injected")

    with pytest.raises(CommitError), system.use(nth_call("rename", 5, fail)), follow(root) as tx:  # type: ignore[arg-type]
        change(tx)
    assert (tree(root), tree(out)) == before


# -- after a crash ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("renames", range(1, 8))
def test_a_dead_commit_is_recovered(root: Path, out: Path, renames: int) -> None:
    before = tree(root), tree(out)
    dead(root, renames)
    report = recover(root, links="follow")
    if renames == 1:
        assert (tree(root), tree(out)) == before
        return
    assert [one.paths for one in report.rolled_forward] == [
        ["a", "absolute", "dir/g", "dir/new", "dir/new/i", "dir/on"]
    ]
    assert tree(out) == AFTER | {"back": f"-> {root}/a"}
    assert (root / "a").read_bytes() == b"new a"


def test_killed_at_each_call(root: Path, out: Path) -> None:
    """The old state or the new one, out of the root and in it, and nothing is left."""

    def state() -> tuple[object, ...]:
        return tree(root), {name: content for name, content in tree(out).items() if name != "back"}

    def work() -> None:
        with follow(root) as tx:
            change(tx)

    def again() -> None:
        shutil.rmtree(out)
        (out / "deep").mkdir(parents=True)
        for name in ("f", "g", "deep/h"):
            (out / name).write_text(f"old {name}", encoding="utf-8")
        (out / "on").symlink_to("deep/h")
        with FileTransaction(root, durability="process") as tx:
            tx.write("a", "old a")

    again()
    before = state()
    counted = FaultyFS(system.KernelFS())
    with system.use(counted):  # type: ignore[arg-type]
        work()
    after = state()
    found = []
    for number in range(1, counted.calls, 11):
        again()
        fs: Any = FaultyFS(system.KernelFS(), kill_at(number))
        child = os.fork()
        if child == 0:
            with system.use(fs):
                work()
            os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        recover(root, links="follow")
        found.append(state())
    assert all(one in (before, after) for one in found)
    assert before in found
    assert after in found


@pytest.mark.leaves_debris
def test_without_follow_recovery_refuses_and_names_the_way(root: Path, out: Path) -> None:
    dead(root)
    before = tree(root), tree(out)
    openings: list[Callable[[], Any]] = [lambda: recover(root), lambda: FileTransaction(root).begin()]
    for opening in openings:
        with pytest.raises(RecoveryError, match=r"through 'absolute', 'dir'.*links=\"follow\"") as refusal:
            opening()
        assert refusal.value.path == str(root)
    assert verify(root).conflicts == [str(refusal.value)]
    assert verify(root, links="follow").sound
    assert (tree(root), tree(out)) == before


@pytest.mark.parametrize("decision", ["keep-theirs", "roll-back"])
def test_a_link_that_leads_elsewhere_after_the_crash(root: Path, out: Path, decision: Any) -> None:
    dead(root)
    (root / "absolute").unlink()
    (root / "absolute").symlink_to(out / "other")
    (out / "other").write_text("other", encoding="utf-8")
    assert verify(root, links="follow").conflicts
    for how in ("raise", "roll-forward"):
        with pytest.raises(RecoveryConflictError) as conflict:
            recover(root, links="follow", on_conflict=how)  # type: ignore[arg-type]
        assert conflict.value.paths == ("absolute",)
    recover(root, links="follow", on_conflict=decision)
    assert (out / "f").read_text(encoding="utf-8") == "old f"
    assert (out / "other").read_text(encoding="utf-8") == "other"
    assert (root / "a").read_text(encoding="utf-8") == ("new a" if decision == "keep-theirs" else "old a")


def test_another_directory_of_the_same_name_is_a_conflict(root: Path, out: Path) -> None:
    dead(root)
    out.rename(out.with_name("moved"))
    (out / "deep").mkdir(parents=True)
    with pytest.raises(RecoveryConflictError) as conflict:
        recover(root, links="follow")
    assert "absolute" in conflict.value.paths
    recover(root, links="follow", on_conflict="keep-theirs")
    assert tree(out) == {"deep": None}


def test_a_copied_root_does_not_reach_out(root: Path, out: Path, watch: Callable[[Path], None]) -> None:
    dead(root)
    copy = root.with_name("copy")
    shutil.copytree(root, copy, symlinks=True)
    watch(copy)
    with pytest.raises(RecoveryConflictError):
        recover(copy, links="follow")
    recover(copy, links="follow", on_conflict="keep-theirs")
    assert (out / "f").read_text(encoding="utf-8") == "old f"
    recover(root, links="follow")
    assert (out / "f").read_text(encoding="utf-8") == "new f"


def test_readers_of_a_dead_commit(root: Path, out: Path) -> None:
    dead(root, 4)
    with FileStore(root).snapshot() as snap:  # does not follow: it reads the root through the journal
        assert snap.read("a") == b"new a"
        assert snap.listdir() == ["a", "absolute", "chain", "dir", "fresh", "relative", "settled"]
    with FileStore(root, links="follow").snapshot("absolute", "dir/on") as snap:  # recovers
        assert [snap.read(name) for name in ("relative", "absolute", "dir/on", "a")] == [
            b"new f", b"new f", b"new h", b"new a",
        ]  # fmt: skip
        assert snap.listdir("dir") == ["back", "deep", "f", "new", "on"]
        assert not snap.exists("dir/g")
    assert status(root).clean


def test_readers_beside_a_stopped_writer(root: Path, out: Path) -> None:
    """Nothing can be recovered, so the state is read through the journal, out of the root, too."""
    dead(root, 3)
    home = Home.open(system.current(), os.fsencode(root), create=False)
    home.lock.acquire(0, object())
    try:
        with FileStore(root, links="follow", timeout=0.1).snapshot() as snap:
            assert [snap.read(name) for name in ("relative", "absolute", "dir/on", "dir/new/i", "a")] == [
                b"new f", b"new f", b"new h", b"new i", b"new a",
            ]  # fmt: skip
            assert not snap.exists("dir/g")
    finally:
        home.close()
    assert (out / "f").read_text(encoding="utf-8") == "old f"
    recover(root, links="follow")


@pytest.mark.parametrize("renames", range(1, 8))
def test_readers_in_the_midst_of_a_commit(root: Path, out: Path, renames: int) -> None:
    """The writer lives: it is the state before, out of the root, too."""
    found: list[list[bytes]] = []

    def look() -> None:
        with FileStore(root, links="follow", timeout=0.1).snapshot() as snap:
            found.append([snap.read(name) for name in ("relative", "dir/f", "dir/on", "a")])
            assert snap.exists("dir/g")
            assert not snap.exists("dir/new")

    with system.use(nth_call("rename", renames, look)), follow(root) as tx:  # type: ignore[arg-type]
        change(tx)
    assert found == [[b"old f", b"old f", b"old deep/h", b"old a"]]
    assert (out / "f").read_text(encoding="utf-8") == "new f"


def test_what_a_snapshot_has_read_expires(root: Path, out: Path) -> None:
    store = FileStore(root, links="follow")
    with store.snapshot("absolute") as pinned, store.snapshot() as snap:
        snap.read("a")
        with store.transaction() as tx:
            tx.write("relative", "new")
        assert pinned.read("absolute") == b"old f"
        with pytest.raises(ConflictError):
            snap.read("dir/f")


@pytest.mark.needs("users")
@pytest.mark.leaves_debris
def test_a_journal_that_a_user_wrote_leads_root_nowhere() -> None:
    """The user's transaction is the user's to recover, whatever it names."""
    with public_directory(0o777) as place:
        (place / "etc").mkdir()
        victim = place / "etc" / "shadow"
        victim.write_text("precious", encoding="utf-8")
        victim.chmod(0o666)
        (place / "etc").chmod(0o777)
        code = """
            import os, signal
            from txfiles import FileTransaction
            from txfiles._disk import system
            root = sys.argv[1]
            os.mkdir(root)
            os.symlink("../etc/shadow", root + "/way")
            class Dying(system.KernelFS):
                renames = 0
                def rename(self, *names):
                    self.renames += 1
                    if self.renames == 3:
                        os._exit(0)
                    super().rename(*names)
            with FileTransaction(root) as tx:
                tx.write("first", "x")
            with system.use(Dying()), FileTransaction(root, links="follow") as tx:
                tx.write("b", "x")
                tx.write("way", "planted")
        """
        root = place / "root"
        run_python(code, root, **as_user(1000)).check()
        (place / "etc").chmod(0o755)
        assert status(root).pending
        content = victim.read_text(encoding="utf-8")
        with pytest.raises(UnsupportedFilesystemError, match="belongs to user 1000"):
            recover(root, links="follow")
        with pytest.raises(RecoveryError, match="its owner can recover it"):
            recover(root)
        with pytest.raises(RecoveryError):
            FileTransaction(root).begin()
        with FileStore(root).snapshot() as snap:
            assert snap.read("b") == b"x"
        assert victim.read_text(encoding="utf-8") == content


@pytest.mark.needs("users")
def test_directories_above_need_not_be_readable() -> None:
    """A user who may only pass through what is above the target."""
    with public_directory(0o755) as place:
        for name in ("closed", "closed/mine", "root"):
            (place / name).mkdir()
            os.chown(place / name, 1000, 1000)
        os.chown(place / "closed", 0, 0)
        (place / "closed").chmod(0o711)
        code = """
            from txfiles import FileTransaction, recover
            from txfiles._disk import system
            root = sys.argv[1]
            os.symlink("../closed/mine/f", root + "/f")
            with FileTransaction(root, links="follow") as tx:
                tx.write("f", "one")
            child = os.fork()
            if not child:
                class Dying(system.KernelFS):
                    renames = 0
                    def rename(self, *names):
                        self.renames += 1
                        if self.renames == 2:
                            os._exit(0)
                        super().rename(*names)
                with system.use(Dying()), FileTransaction(root, links="follow") as tx:
                    tx.write("f", "two")
            os.waitpid(child, 0)
            assert recover(root, links="follow").rolled_forward
            assert open(root + "/f").read() == "two"
        """
        run_python(code, place / "root", **as_user(1000)).check()


# -- the other front doors --------------------------------------------------------------------------------------------


def test_prepared_transactions(root: Path, out: Path) -> None:
    for decide, content in ((rollback_prepared, "old f"), (commit_prepared, "new f")):
        with follow(root) as tx:
            tx.write("absolute", "new f")
            prepared = tx.prepare()
        assert recover(root).waiting
        if decide is commit_prepared:
            with pytest.raises(RecoveryError, match="through 'absolute'"):
                commit_prepared(root, prepared)
        decide(root, prepared, links="follow")  # type: ignore[operator]
        assert (out / "f").read_text(encoding="utf-8") == content


def test_the_twins_and_documents(root: Path, out: Path) -> None:
    (root / "state.json").symlink_to(out / "state.json")
    docs = Documents(root, {"state": {"n": 0}}, links="follow")
    docs.save(state={"n": 1})
    assert docs.load() == {"state": {"n": 1}}

    async def work() -> None:
        async with AsyncFileTransaction(root, links="follow") as tx:
            await tx.write("absolute", "new f")
        store = FileStore(root, links="follow")
        async with store.async_transaction() as tx:
            await tx.append("relative", "!")
        await store.async_update(lambda tx: tx.append("chain", "?"), group=True)
        async with store.async_snapshot() as snap:
            assert await snap.read("dir/f") == b"new f!?"
        asynchronous = AsyncDocuments(root, {"state": {"n": 0}}, links="follow")
        async with asynchronous.edit() as d:
            d["state"]["n"] += 1

    asyncio.run(work())
    store = FileStore(root, links="follow")
    store.update(lambda tx: tx.append("absolute", "."), group=True)
    assert (out / "f").read_bytes() == b"new f!?."
    assert (out / "state.json").read_text(encoding="utf-8") == '{\n  "n": 2\n}\n'
    assert store.recover().clean


def test_the_command_line(root: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = root.with_name("source")
    source.write_text("put", encoding="utf-8")
    assert main(["put", str(root), f"absolute={source}"]) == 1
    assert 'only links="follow" follows' in capsys.readouterr().err
    assert main(["put", str(root), f"absolute={source}", "--follow-links", "--dry-run"]) == 0
    assert (out / "f").read_text(encoding="utf-8") == "old f"
    assert main(["put", str(root), f"absolute={source}", "--follow-links"]) == 0
    assert (out / "f").read_text(encoding="utf-8") == "put"
    dead(root)
    capsys.readouterr()
    assert main(["verify", str(root)]) == 3
    assert "txfiles recover --follow-links" in capsys.readouterr().out
    assert main(["verify", str(root), "--follow-links"]) == 3
    assert "conflict" not in capsys.readouterr().out
    assert main(["recover", str(root)]) == 3
    assert "txfiles recover --follow-links" in capsys.readouterr().err
    assert main(["recover", str(root), "--follow-links"]) == 0
    assert (out / "f").read_text(encoding="utf-8") == "new f"
    with follow(root) as tx:
        tx.write("absolute", "decided")
        prepared = tx.prepare()
    assert main(["decide", str(root), prepared, "--commit"]) == 3
    assert main(["decide", str(root), prepared, "--commit", "--follow-links"]) == 0
    assert (out / "f").read_text(encoding="utf-8") == "decided"


@pytest.mark.needs("landlock")
@pytest.mark.parametrize("granted", [False, True])
def test_a_sandbox_that_keeps_the_way_out_closed(root: Path, out: Path, granted: bool) -> None:
    """The root may be changed, and nothing may be renamed to out of it: refused at the call."""
    code = """
        from tests.support.sandbox import confine
        from txfiles import FileTransaction
        from txfiles.errors import UnsupportedFilesystemError
        root = sys.argv[1]
        confine(root, *sys.argv[2:], refer=True)
        with FileTransaction(root, links="follow") as tx:
            tx.write("a", "new a")
            try:
                tx.write("absolute", "x")
            except (UnsupportedFilesystemError, PermissionError) as error:
                print(type(error).__name__, error)
    """
    told = run_python(code, root, *([out] if granted else []), cwd=CHECKOUT).check().stdout
    if granted:
        assert told.startswith(f"UnsupportedFilesystemError '{out}' is beyond what a sandbox (Landlock) lets")
    else:
        assert told == f"PermissionError [Errno 13] Permission denied: '{out}'\n"
    assert (root / "a").read_text(encoding="utf-8") == "new a"
    assert (out / "f").read_text(encoding="utf-8") == "old f"


def test_fsspec(root: Path, out: Path) -> None:
    with pytest.raises(InvalidPathError):
        TxFilesFileSystem(str(root)).pipe(f"{root}/absolute", b"x")
    fs = TxFilesFileSystem(str(root), links="follow")
    with fs.transaction:
        fs.pipe(f"{root}/absolute", b"new f")
        fs.pipe(f"{root}/a", b"new a")
        assert (out / "f").read_bytes() == b"old f"
    assert fs.cat(f"{root}/dir/f") == (out / "f").read_bytes() == b"new f"
    assert f"{root}/dir/deep/h" in fs.ls(f"{root}/dir/deep", detail=False)
