"""N29: a root in the working tree of git."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support.halfdone import die
from tests.support.mounts import run
from txfiles import FileTransaction, recover, status

pytestmark = pytest.mark.needs("git")


def _git(tree: Path, *arguments: str) -> str:
    names = ("-c", "user.name=x", "-c", "user.email=x@x.example")
    return run("git", "-C", tree, *names, *arguments)


@pytest.mark.parametrize("place", ["the working tree", "below it"])
def test_n29_git_takes_no_notice(tmp_path: Path, place: str) -> None:
    root = tmp_path if place == "the working tree" else tmp_path / "data"
    _git(tmp_path, "init", "-q")
    with FileTransaction(root, create=True) as tx:
        tx.write("a", b"1")
    assert _git(tmp_path, "status", "--porcelain", "-uall").split() == ["??", "a" if root == tmp_path else "data/a"]
    _git(tmp_path, "add", "-A")
    assert _git(tmp_path, "ls-files").split() == ["a" if root == tmp_path else "data/a"]
    _git(tmp_path, "commit", "-qm", "x")
    _git(tmp_path, "clean", "-fdq")
    assert sorted(os.listdir(root / ".txfiles")) == [".gitignore", "HEAD", "format", "lock", "spare"]
    _git(tmp_path, "stash", "-uq")
    _git(tmp_path, "clean", "-fdq")
    assert status(root).clean
    assert recover(root).unknown == []


def test_n29_a_pending_journal_outlives_git_clean(root: Path) -> None:
    _git(root, "init", "-q")
    die(root, 0)
    _git(root, "add", "-A")
    _git(root, "commit", "-qm", "what is under way")
    before = sorted(os.listdir(root / ".txfiles")), status(root).pending
    assert before[1]
    _git(root, "clean", "-fdq")
    assert (sorted(os.listdir(root / ".txfiles")), status(root).pending) == before
    (root / "sub").mkdir(exist_ok=True)  # an empty directory is nothing to git
    assert recover(root).rolled_forward


def test_n29_a_root_without_the_file_is_as_good(root: Path) -> None:
    (root / ".git").mkdir()
    with FileTransaction(root) as tx:
        tx.write("a", b"1")
    assert stat.S_IMODE(os.stat(root / ".txfiles/.gitignore").st_mode) == 0o600
    (root / ".txfiles/.gitignore").unlink()
    assert (status(root).clean, recover(root).clean) == (True, True)
    with FileTransaction(root) as tx:
        tx.write("a", b"2")
    (root / ".txfiles/.gitignore").write_bytes(b"mine")
    (root / ".txfiles/format").unlink()
    (root / ".txfiles/HEAD").unlink()
    with FileTransaction(root) as tx:
        tx.write("a", b"3")
    assert (root / ".txfiles/.gitignore").read_bytes() == b"mine"
    assert status(root).clean


def test_n29_elsewhere_there_is_no_such_file(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", b"1")
    assert sorted(os.listdir(root / ".txfiles")) == ["HEAD", "format", "lock", "spare"]
