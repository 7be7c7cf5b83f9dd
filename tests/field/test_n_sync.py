"""N: what users of `txfiles sync` and `txfiles put` met."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import mounts
from tests.support.as_user import as_user, public_directory
from tests.support.boundary import tree
from tests.support.halfdone import die
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, recover, status
from txfiles.cli import main


@pytest.mark.needs("users")
def test_n01_a_directory_that_may_not_be_read_is_not_taken_as_empty() -> None:
    with public_directory() as top:
        for side in ("source", "target"):
            (top / side / "priv").mkdir(parents=True)
            (top / side / "priv/secret").write_text("secret", encoding="utf-8")
        os.chmod(top / "source/priv", 0)
        for path in (top / "target", top / "target/priv", top / "target/priv/secret"):
            os.chown(path, 1000, 1000)
        before = tree(top / "target")
        code = "import sys; from txfiles.cli import main; sys.exit(main(sys.argv[1:]))"
        done = run_python(code, "sync", top / "source", top / "target", "--delete", **as_user(1000))
        assert done.returncode == 1
        assert f"'{top}/source/priv'" in done.stderr
        assert tree(top / "target") == before


@pytest.mark.parametrize("words", [[], ["--delete"], ["--links"], ["--links", "--delete"]])
def test_n02_a_link_to_a_directory_is_neither_left_out_nor_a_reason_to_delete(
    root: Path, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "source/releases/5").mkdir(parents=True)
    (tmp_path / "source/releases/5/f").write_text("five", encoding="utf-8")
    (tmp_path / "source/current").symlink_to("releases/5")
    assert main(["sync", str(tmp_path / "source"), str(root), *words]) == 0
    assert (root / "current").is_symlink() == ("--links" in words)
    assert (root / "current/f").read_text(encoding="utf-8") == "five"


def test_n04_a_tree_is_not_copied_into_itself(tmp_path: Path) -> None:
    (tmp_path / "s/site").mkdir(parents=True)
    (tmp_path / "s/page").write_text("page", encoding="utf-8")
    before = tree(tmp_path)
    for _ in range(3):
        assert main(["sync", str(tmp_path / "s"), str(tmp_path / "s/site")]) == 1
        assert tree(tmp_path) == before


def test_n05_a_script_stays_executable(root: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    script = tmp_path / "source/script"
    script.write_text("#!/bin/sh\nexit 7\n", encoding="utf-8")
    script.chmod(0o755)
    assert main(["sync", str(tmp_path / "source"), str(root)]) == 0
    assert subprocess.run([root / "script"], check=False).returncode == 7


def test_n11_a_name_with_an_equals_sign(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("new.csv").write_text("one", encoding="utf-8")
    assert main(["put", str(root), "year=2024/part.csv=new.csv"]) == 0
    assert (root / "year=2024/part.csv").read_text(encoding="utf-8") == "one"


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_n12_what_was_done_does_not_depend_on_the_standard_streams(root: Path, closed: list[int]) -> None:
    (root / "a").write_text("old", encoding="utf-8")
    words = f"exec '{sys.executable}' -m txfiles put '{root}' a='{__file__}'"
    streams = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    done = subprocess.run(
        ["sh", "-c", f"{words} {streams}"], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (root / "a").read_text(encoding="utf-8") == Path(__file__).read_text(encoding="utf-8")


_FOREIGN = [".DS_Store", "@eaDir", ".nfs000000000012", "HEAD (conflicted copy 2024-01-01)", ".stignore", "~lock.tmp"]


@pytest.mark.leaves_debris
@pytest.mark.parametrize("pending", [False, True])
def test_n13_a_foreign_file_beside_ours_is_neither_pending_nor_damage(root: Path, pending: bool) -> None:
    if pending:
        die(root, 1)
    else:
        with FileTransaction(root) as tx:
            tx.write("a", "a")
    for name in _FOREIGN:
        path = root / ".txfiles" / name
        path.mkdir() if name.startswith("@") else path.write_text("foreign", encoding="utf-8")
    assert main(["status", str(root)]) == main(["verify", str(root)]) == (3 if pending else 0)
    assert recover(root).clean == (not pending)
    assert main(["status", str(root)]) == main(["verify", str(root)]) == main(["recover", str(root)]) == 0
    assert recover(root).clean
    assert status(root).clean
    assert recover(root).foreign == status(root).foreign == sorted(_FOREIGN)
    assert set(_FOREIGN) <= set(os.listdir(root / ".txfiles"))


@pytest.mark.leaves_debris
@pytest.mark.needs("mount")
def test_n13_a_foreign_file_keeps_nobody_from_a_root_at_rest_on_a_read_only_mount(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "a")
    (root / ".txfiles/.DS_Store").write_text("foreign", encoding="utf-8")
    with mounts.read_only(root):
        assert recover(root).clean
        with FileStore(root).snapshot() as snap:
            assert snap.read("a") == b"a"


def test_n13_a_foreign_file_is_no_reason_to_recover(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "old")
    foreign = root / ".txfiles/.DS_Store"
    foreign.write_text("foreign", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("txfiles._commit.levels.recover_locked", None)
        with FileTransaction(root) as tx:
            tx.write("a", "a")
    foreign.unlink()


@pytest.mark.leaves_debris
@pytest.mark.needs("root")
def test_n13_a_foreign_file_of_another_user_keeps_no_reader_from_recovering(root: Path) -> None:
    die(root, 1)
    (root / ".txfiles/.DS_Store").write_text("foreign", encoding="utf-8")
    os.chown(root / ".txfiles/.DS_Store", 1000, 1000)
    with FileStore(root).snapshot():
        assert not status(root).pending
