"""H: scale and limits."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import DEEP
from tests.support.boundary import killed
from tests.support.inject import RENAME, SYNC, WRITE, Call, each_call
from tests.support.mounts import tmpfs
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, recover, status

# -- H01: descriptors -----------------------------------------------------------------------------------------------

MANY = """
    import resource
    from txfiles import FileStore, FileTransaction, recover
    from txfiles._disk import system
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    root, files, directories = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    names = [f"{n % directories}/{n % 7}/{n}" for n in range(files)]
    def save(content, **settings):
        with FileTransaction(root, **settings) as tx:
            for name in names:
                tx.write(name, content)
    def check(content):
        assert len(names) == files
        for name in names:
            with open(os.path.join(root, name)) as file:
                assert file.read() == content
        assert sorted(os.listdir(root + "/.txfiles")) == ["HEAD", "format", "lock", "spare"]
"""
STEPS = {
    "commit": """
        save("new")
        check("new")
    """,
    "recover forward": """
        save("old")
        class Dying(system.KernelFS):
            renames = 0
            def rename(self, *args):
                Dying.renames += 1
                if Dying.renames == files // 2:
                    os._exit(0)
                super().rename(*args)
        if os.fork() == 0:
            with system.use(Dying()):
                save("new")
        assert os.wait()[1] == 0
        assert len(recover(root).rolled_forward) == 1
        check("new")
    """,
    "undo": """
        save("old")
        class Refusing(system.KernelFS):
            def rename(self, at, name, to, new):
                if new == b"4999" and name.endswith(b".0") is False and b"old" not in name:
                    raise PermissionError(1, "refused")
                super().rename(at, name, to, new)
        names.append("z/4999")
        try:
            with system.use(Refusing()):
                save("new")
        except Exception as error:
            assert error.outcome == "before", error
        else:
            raise AssertionError("it was not refused")
        names.pop()
        check("old")
        assert not os.path.exists(root + "/z")
    """,
    "trees": """
        save("new")
        with FileTransaction(root) as tx:
            tx.mkdir("all")
            for n in range(directories):
                tx.move(str(n), f"all/{n}")
            tx.copy("all/0", "copied")
            assert len(tx.glob("all/**")) == files
        with FileTransaction(root) as tx:
            tx.delete_tree("all")
            tx.delete_tree("copied")
        assert os.listdir(root) == [".txfiles"]
    """,
    "many streams one after another": """
        with FileTransaction(root) as tx:
            for name in names:
                with tx.open(name, "w") as file:
                    file.write("new")
            for name in names:
                with tx.open(name) as file:
                    assert file.read() == "new"
        check("new")
    """,
    "a snapshot": """
        save("new")
        with FileStore(root).snapshot(*names) as snap:
            assert all(snap.read(name) == b"new" for name in names)
        with FileStore(root).snapshot() as snap:
            assert len(snap.glob("**")) == files
            assert all(snap.read(name) == b"new" for name in names)
    """,
}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "memory") as path:
        yield path


@pytest.mark.needs("mount")
@pytest.mark.parametrize("steps", STEPS)
def test_h01_five_thousand_files_with_sixty_four_descriptors(memory: Path, steps: str) -> None:
    files, directories = (5000, 500) if steps in ("commit", "recover forward") or DEEP else (1000, 100)
    code = textwrap.dedent(MANY) + textwrap.dedent(STEPS[steps])
    run_python(code, memory, files, directories, timeout=300).check()


@pytest.mark.needs("mount")
def test_h01_memory_does_not_grow_with_the_size_of_a_file(memory: Path) -> None:
    code = """
        import resource
        from txfiles import FileTransaction
        with FileTransaction(sys.argv[1]) as tx:
            tx.write("warm", b"x")
        limit = int(open("/proc/self/statm").read().split()[0]) * 4096 + (96 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        chunk = b"x" * (1 << 20)
        with FileTransaction(sys.argv[1]) as tx:
            tx.write("a", (chunk for _ in range(200)))
            with tx.open("b", "wb") as file:
                for _ in range(200):
                    file.write(chunk)
            tx.copy("a", "c")
            with tx.open("c", "ab") as file:
                file.write(b"end")
            with open(sys.argv[1] + "/warm", "rb") as file:
                tx.write("d", file)
    """
    run_python(code, memory).check()
    assert (memory / "a").stat().st_size == (memory / "b").stat().st_size == 200 << 20
    assert (memory / "c").stat().st_size == (200 << 20) + 3


# -- H02, H05: syncs ------------------------------------------------------------------------------------------------

COUNTED = """
    from txfiles import FileTransaction
    files, directories, sub = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    for number in range(3):
        def save():
            with FileTransaction(sys.argv[1]) as tx:
                for n in range(files):
                    tx.write(f"{sub}{n % directories}/{n}", f"{number}" * 1024)
        if number == 2:
            with region():
                save()
        else:
            save()
"""


def _synced(calls: list[Call]) -> Counter[str]:
    return Counter(call.paths[0] for call in calls if call.name in ("fsync", "fdatasync"))


@pytest.mark.needs("strace")
@pytest.mark.parametrize(("files", "directories"), [(1, 1), (4, 1), (4, 4), (300, 30), (40, 1)])
def test_h02_each_directory_is_synced_once_and_each_file_once(root: Path, files: int, directories: int) -> None:
    """All is written first and synced together then; the second round is one sync for each directory."""
    calls = each_call(COUNTED, root, files, directories, "d", calls=(*SYNC, *RENAME, *WRITE))
    synced = _synced(calls)
    private = str(root / ".txfiles")
    tokens = {path for path in synced if path.startswith(private + "/") and not path.endswith(".intent")}
    assert len(tokens) == files
    assert {path: count for path, count in synced.items() if path not in tokens} == {
        private: 2,
        str(root): 1,  # which the directories are in
        **{path: 1 for path in synced if path.endswith(".intent")},
        **{str(root / f"d{n}"): 1 for n in range(directories)},
    }
    assert set(synced.values()) == {1, 2}
    assert sum(synced.values()) == files + directories + 4
    first_sync = next(n for n, call in enumerate(calls) if call.name in ("fsync", "fdatasync"))
    assert not [call for call in calls[first_sync:] if call.name in WRITE]
    syncs_then_renames = [call.name in RENAME for call in calls if call.name in (*RENAME, "fsync", "fdatasync")]
    first_rename = syncs_then_renames.index(True)
    assert first_rename == files + 3  # the first round is over before anything is renamed
    assert syncs_then_renames[first_rename : first_rename + files + 1] == [True] * (files + 1)


@pytest.mark.needs("strace")
def test_h05_one_file_costs_five_syncs_in_two_rounds(root: Path) -> None:
    """The new file, the journal and the private directory together; then the file's directory and the private one."""
    code = """
        from txfiles import FileTransaction
        for number in range(3):
            def save(**settings):
                with FileTransaction(sys.argv[1], **settings) as tx:
                    tx.write("a", str(number))
            if number < 2:
                save()
        with region():
            save()
            print(len(os.listdir(sys.argv[1])))
            save(durability="process")
            with FileTransaction(sys.argv[1]) as tx:
                tx.read("a")
                tx.delete("missing", missing_ok=True)
            FileTransaction(sys.argv[1]).begin().rollback()
    """
    calls = each_call(code, root, calls=SYNC)
    assert [call.name for call in calls if call.name != "sync_file_range"] == ["fsync"] * 5
    assert sum(_synced(calls).values()) == 5
    assert _synced(calls)[str(root)] == 1
    assert _synced(calls)[str(root / ".txfiles")] == 2


@pytest.mark.needs("strace")
def test_h05_the_first_commit_of_a_root_makes_the_root_durable_too(root: Path) -> None:
    code = """
        from txfiles import FileTransaction
        with FileTransaction(sys.argv[1] + "/warm", create=True) as tx:
            tx.write("a", "x")
        with region(), FileTransaction(sys.argv[1] + "/new/root", create=True) as tx:
            tx.write("a", "x")
    """
    synced = _synced(each_call(code, root, calls=SYNC))
    assert synced[str(root)] >= 1
    assert synced[str(root / "new")] >= 1
    assert synced[str(root / "new/root")] >= 1
    assert synced[str(root / "new/root/.txfiles/format")] == 1


# -- H04: long paths ------------------------------------------------------------------------------------------------

PATHS = {
    "PATH_MAX - 5": "/".join(["d" * 100] * 40) + "/" + "f" * (4091 - 40 * 101),
    "PATH_MAX below the root": "/".join(["d" * 200] * 20) + "/" + "f" * 74,
    "beyond PATH_MAX": "/".join(["d" * 250] * 20) + "/f",
    "two hundred deep": "d/" * 200 + "f",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_h04_paths_as_long_as_one_likes(tmp_path: Path, path: str) -> None:
    """Every call of the library is relative to an open directory, so that only single names have a limit."""
    root = tmp_path / "root"
    root.mkdir()
    try:
        for content in ("old", "new"):
            with FileTransaction(root) as tx:
                tx.write(path, content)
                assert tx.read_text(path) == content
        with FileStore(root).snapshot(path) as snap:
            assert snap.read_text(path) == "new"

        def newest() -> None:
            with FileTransaction(root) as tx:
                tx.write("0", "x")
                tx.write(path, "newest")

        killed(newest, "rename", 3)
        assert len(recover(root).rolled_forward) == 1
        with FileTransaction(root) as tx:
            assert tx.read_text(path) == "newest"
            tx.move(path, "short")
        assert (root / "short").read_text(encoding="utf-8") == "newest"
        assert status(root).clean
    finally:
        _remove_deep(root)


def test_h04_deeper_than_the_interpreter_recurses(root: Path) -> None:
    fd = os.open(root, os.O_DIRECTORY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    path = "d/" * 1100 + "f"
    try:
        with FileTransaction(root, durability="process") as tx:
            tx.write(path, "x")
        with FileTransaction(root) as tx:
            assert tx.read_text(path) == "x"
            assert tx.glob("**/f") == [path]
            tx.copy("d", "dd")
            tx.move("dd", "ddd")
            assert tx.read_text("dd" + path) == "x"
            tx.delete_tree("ddd")
            assert tx.glob("**") == [path]
    finally:
        _remove_deep(root)
        root.mkdir()


def _remove_deep(root: Path) -> None:
    """As `rmtree`, which stops at PATH_MAX and at the recursion limit: bring the deep directories up, one by one."""
    while deeper := [entry.name for entry in os.scandir(root) if entry.name[0] == "d"]:
        (root / deeper[0]).rename(root / "top")
        for entry in list(os.scandir(root / "top")):
            os.rename(entry.path, root / entry.name)
        (root / "top").rmdir()
    shutil.rmtree(root)


# -- all of it, in the deep run -------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.needs("strace")
def test_h02_five_thousand_small_files(root: Path) -> None:
    calls = each_call(COUNTED, root, 5000, 50, "d", calls=("fsync",), timeout=600)
    assert len(calls) == 5000 + 50 + 3
