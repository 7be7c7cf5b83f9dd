"""`txfiles sync`: what is copied, compared, kept and deleted."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import mounts
from tests.support.as_user import as_user, public_directory
from tests.support.procs import run_python
from txfiles import FileTransaction
from txfiles._sync import engine, plan
from txfiles._sync.folder import Folder
from txfiles._sync.sides import Entry, Listing
from txfiles.cli import main


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_sync_makes_equal(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "site"
    (source / "css").mkdir(parents=True)
    (source / "index.html").write_text("new", encoding="utf-8")
    (source / "css" / "a.css").write_text("same", encoding="utf-8")
    (source / "draft.tmp").write_text("no", encoding="utf-8")
    (root / "css").mkdir()
    (root / "css" / "a.css").write_text("same", encoding="utf-8")
    (root / "old.html").write_text("old", encoding="utf-8")
    (root / "keep.tmp").write_text("excluded", encoding="utf-8")
    unchanged = os.stat(root / "css" / "a.css").st_ino
    code, found = _sync(capsys, source, root, "--exclude", "*.tmp")
    assert code == 0
    assert (found["written"], found["deleted"], found["unchanged"]) == (["index.html"], [], 1)
    assert (root / "old.html").exists()
    code, found = _sync(capsys, source, root, "--exclude", "*.tmp", "--delete")
    assert (found["written"], found["deleted"]) == ([], ["old.html"])
    assert sorted(p.name for p in root.rglob("*") if ".txfiles" not in p.parts) == [
        "a.css",
        "css",
        "index.html",
        "keep.tmp",
    ]
    assert os.stat(root / "css" / "a.css").st_ino == unchanged


def _contents(root: Path) -> dict[str, str]:
    found = sorted(p for p in root.rglob("*") if ".txfiles" not in p.parts)
    return {
        str(p.relative_to(root)): "->" if p.is_symlink() else "/" if p.is_dir() else p.read_text(encoding="utf-8")
        for p in found
    }


def test_sync_replaces_links_and_does_not_follow_them(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    for name in ("d/f", "d/g", "a", "b"):
        (source / name).write_text(f"new {name}", encoding="utf-8")
    (root / "e").mkdir()
    (root / "e/f").write_text("old", encoding="utf-8")
    (root / "d").symlink_to("e")
    (root / "b").write_text("old b", encoding="utf-8")
    (root / "a").symlink_to("b")
    assert main(["sync", str(source), str(root)]) == 0
    assert _contents(root) == {**_contents(source), "e": "/", "e/f": "old"}
    assert main(["sync", str(source), str(root), "--delete"]) == 0
    assert _contents(root) == _contents(source)


def test_sync_where_files_and_directories_change_places(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    (source / "x/i").mkdir(parents=True)
    (source / "x/i/deep").write_text("1", encoding="utf-8")
    (source / "y").write_text("2", encoding="utf-8")
    (root / "x").write_text("a file", encoding="utf-8")
    (root / "y/in").mkdir(parents=True)
    (root / "y/in/it").write_text("a directory", encoding="utf-8")
    before = _contents(root)
    assert main(["sync", str(source), str(root)]) == 1
    assert "--delete" in capsys.readouterr().err
    assert main(["sync", str(source), str(root), "--delete", "--exclude", "it"]) == 1
    assert _contents(root) == before
    assert main(["sync", str(source), str(root), "--delete"]) == 0
    assert _contents(root) == _contents(source)
    (source / "y").unlink()
    (source / "x/i/deep").unlink()
    assert main(["sync", str(source), str(root), "--delete"]) == 0
    assert _contents(root) == {"x": "/", "x/i": "/"}, "directories that are in the source stay"


def test_names_are_told_in_letters(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / os.fsdecode(b"\x1b[31m\n\xff\xc3\xa9")).write_text("", encoding="utf-8")
    command = [sys.executable, "-m", "txfiles", "sync", "-v", str(source), str(root)]
    env = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == rb"+ \x1b[31m\n\udcff\xe9"


def _sync(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    capsys.readouterr()
    code = main(["sync", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


# -- what cannot be seen is not taken as absent -----------------------------------------------------------------------

_SYNC = "from txfiles.cli import main\nimport sys\nsys.exit(main(['sync', *sys.argv[1:]]))"


@pytest.mark.needs("users")
@pytest.mark.parametrize(
    ("name", "mode", "excluded", "code"),
    [("priv", 0, False, 1), ("priv", 0o444, False, 1), ("file", 0, False, 1), ("priv", 0, True, 0)],
)
def test_what_of_the_source_cannot_be_read_ends_the_sync(name: str, mode: int, excluded: bool, code: int) -> None:
    with public_directory() as top:
        for side in ("source", "target"):
            (top / side / "priv").mkdir(parents=True)
            (top / side / "priv/deep").write_text(side, encoding="utf-8")
            (top / side / "file").write_text(f"file of the {side}", encoding="utf-8")
        os.chmod(top / "source" / name, mode)
        for folder, _, files in os.walk(top / "target"):
            os.chown(folder, 1000, 1000)
            for file in files:
                os.chown(os.path.join(folder, file), 1000, 1000)
        words = ["--delete", *(["--exclude", "priv"] if excluded else [])]
        done = run_python(_SYNC, top / "source", top / "target", *words, **as_user(1000))
        assert done.returncode == code, done.stderr
        if code:
            assert f"'{top}/source/{name}" in done.stderr
            assert "on disk: nothing of this change" in done.stderr
            assert (top / "target/file").read_text(encoding="utf-8") == "file of the target"
        assert (top / "target/priv/deep").read_text(encoding="utf-8") == "target"


@pytest.mark.needs("users")
def test_an_excluded_directory_of_the_target_is_not_entered() -> None:
    with public_directory() as top:
        (top / "source").mkdir()
        (top / "source/a").write_text("a", encoding="utf-8")
        (top / "target/lost+found").mkdir(parents=True)
        (top / "target/old").write_text("old", encoding="utf-8")
        os.chmod(top / "target/lost+found", 0o700)
        os.chown(top / "target", 1000, 1000)
        words = [top / "source", top / "target", "--delete"]
        done = run_python(_SYNC, *words, **as_user(1000))
        assert done.returncode == 1
        assert f"'{top}/target/lost+found'" in done.stderr
        assert (top / "target/old").exists()
        for pattern in ("lost+found", "lost+found/", "/lost+found", "/lost+found/", "lost*"):
            (top / "target/old").write_text("old", encoding="utf-8")
            done = run_python(_SYNC, *words, "--exclude", pattern, **as_user(1000))
            assert done.returncode == 0, done.stderr
            assert sorted(os.listdir(top / "target")) == [".txfiles", "a", "lost+found"]


def _while_reading(monkeypatch: pytest.MonkeyPatch, change: Callable[[str], object]) -> None:
    """Let `change` happen once, after the first chunk of the file that it is told of was read."""
    read = Folder.read
    pending = [change]

    def reading(folder: Folder, name: str, entry: Any) -> Any:
        for chunk in read(folder, name, entry):
            yield chunk
            if pending:
                pending.pop()(name)

    monkeypatch.setattr(Folder, "read", reading)


@pytest.mark.parametrize("what", ["grows", "vanishes", "is replaced", "another changes", "one comes", "one goes"])
def test_a_source_that_changes_meanwhile_ends_the_sync(
    root: Path, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for name in ("a", "b", "c/d"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(f"new {name}", encoding="utf-8")
    (root / "b").write_text("old", encoding="utf-8")
    (root / "old").write_text("old", encoding="utf-8")
    before = _contents(root)
    changed = source / {"another changes": "b", "one comes": "c/new", "one goes": "c/d"}.get(what, "a")

    def change(name: str) -> None:
        assert name == "a"
        if what in ("vanishes", "one goes"):
            changed.unlink()
        elif what == "is replaced":
            times = os.stat(changed)
            (source.parent / "other").write_text(changed.read_text(encoding="utf-8"), encoding="utf-8")
            os.utime(source.parent / "other", ns=(times.st_atime_ns, times.st_mtime_ns))
            os.replace(source.parent / "other", changed)
        else:
            changed.write_text("changed since it was listed", encoding="utf-8")

    _while_reading(monkeypatch, change)
    code, found = _sync(capsys, source, root, "--delete")
    assert code == 1
    assert found["error"]["path"] == str(changed)
    assert found["error"]["outcome"] == "before"
    assert _contents(root) == before


def test_a_file_that_is_only_compared_may_not_change_either(
    root: Path, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (source, root):
        (folder / "a").write_text("equal", encoding="utf-8")
    _while_reading(monkeypatch, lambda _: (source / "a").write_text("other", encoding="utf-8"))
    code, found = _sync(capsys, source, root)
    assert code == 1
    assert found["error"]["path"] == f"{source}/a"


def test_a_source_that_is_not_there(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "a").write_text("a", encoding="utf-8")
    (tmp_path / "file").write_text("", encoding="utf-8")
    for name, kind in (("missing", "FileNotFoundError"), ("file", "NotADirectoryError")):
        code, found = _sync(capsys, tmp_path / name, root, "--delete")
        assert (code, found["error"]["type"], found["error"]["path"]) == (1, kind, f"{tmp_path}/{name}")
    assert (root / "a").exists()


def test_a_source_with_a_commit_half_done_is_refused(
    root: Path, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileTransaction(source) as tx:
        tx.write("a", "new")
    assert main(["sync", str(source), str(root)]) == 0
    assert (root / "a").read_text(encoding="utf-8") == "new"
    head = source / ".txfiles/HEAD"
    head.rename(head.with_name(json.loads(_status(source, capsys))["head"]["transaction_id"] + ".committed"))
    code, found = _sync(capsys, source, root)
    assert (code, found["error"]["type"], found["error"]["path"]) == (3, "RecoveryError", str(source))
    for pending in (source / ".txfiles").glob("*.committed"):
        pending.unlink()


def _status(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    main(["status", str(path), "--json"])
    return capsys.readouterr().out


# -- links ----------------------------------------------------------------------------------------------------------


def _with_links(source: Path) -> None:
    (source / "releases/5").mkdir(parents=True)
    (source / "releases/5/f").write_text("five", encoding="utf-8")
    (source / "current").symlink_to("releases/5")
    (source / "one").symlink_to("releases/5/f")


@pytest.mark.parametrize("words", [[], ["--delete"]])
def test_links_are_followed(root: Path, source: Path, words: list[str]) -> None:
    _with_links(source)
    for _ in range(2):
        assert main(["sync", str(source), str(root), *words]) == 0
        assert _contents(root) == {
            "releases": "/",
            "releases/5": "/",
            "releases/5/f": "five",
            "current": "/",
            "current/f": "five",
            "one": "five",
        }


@pytest.mark.parametrize("words", [[], ["--delete"]])
def test_links_are_kept_as_links(
    root: Path, source: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    _with_links(source)
    (source / "nowhere").symlink_to("/nonexistent")
    (root / "one").write_text("a file", encoding="utf-8")
    (root / "current").symlink_to("releases/4")
    code, found = _sync(capsys, source, root, "--links", *words)
    assert (code, found["written"]) == (0, ["current", "nowhere", "one", "releases/5/f"])
    for name in ("current", "one", "nowhere"):
        assert os.readlink(root / name) == os.readlink(source / name)
    code, found = _sync(capsys, source, root, "--links", *words)
    assert (code, found["written"], found["unchanged"]) == (0, [], 4)


def test_a_link_in_the_place_of_a_directory(root: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with_links(source)
    (root / "current").mkdir()
    (root / "current/f").write_text("old", encoding="utf-8")
    code, found = _sync(capsys, source, root, "--links")
    assert (code, found["error"]["type"]) == (1, "IsADirectoryError")
    assert (root / "current/f").exists()
    assert main(["sync", str(source), str(root), "--links", "--delete"]) == 0
    assert os.readlink(root / "current") == "releases/5"


@pytest.mark.parametrize(
    ("text", "number"), [("..", errno.ELOOP), (".", errno.ELOOP), ("../../x", errno.ENOENT), ("loop", errno.ELOOP)]
)
def test_a_link_that_cannot_be_followed_ends_the_sync(
    root: Path, source: Path, capsys: pytest.CaptureFixture[str], text: str, number: int
) -> None:
    (source / "d").mkdir()
    (source / "d/loop").symlink_to(text)
    (root / "d").mkdir()
    (root / "d/loop").write_text("kept", encoding="utf-8")
    assert main(["sync", str(source), str(root), "--delete"]) == 1
    told = capsys.readouterr().err
    assert f"{source}/d/loop" in told
    assert os.strerror(number) in told or "--links" in told
    assert (root / "d/loop").read_text(encoding="utf-8") == "kept"
    assert main(["sync", str(source), str(root), "--delete", "--exclude", "loop"]) == 0
    assert (root / "d/loop").read_text(encoding="utf-8") == "kept"


def test_what_is_no_file_is_skipped_and_said(root: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(source / "s"))
    (root / "pipe").write_text("a file there", encoding="utf-8")
    (root / "s").mkdir()
    (root / "s/in").write_text("kept", encoding="utf-8")
    assert main(["sync", str(source), str(root), "--delete"]) == 0
    told = capsys.readouterr().err
    assert "skipped pipe" in told
    assert "skipped s:" in told
    assert _contents(root) == {"pipe": "a file there", "s": "/", "s/in": "kept"}
    code, found = _sync(capsys, source, root)
    assert (code, found["skipped"]) == (0, ["pipe", "s"])


# -- trees that overlap -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--delete"], ["--create"], ["--exclude", "site"], ["-n"]])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("s", "s"),
        ("s", "s/site"),
        ("s", "s/site/missing"),
        ("s/site", "s"),
        ("s/site/deep", "s"),
        ("link", "s/site"),
        ("s", "into"),
        ("into", "s"),
        ("back", "s/site"),
        ("t", "s/site"),
    ],
)
def test_trees_that_overlap_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ours: str, theirs: str, words: list[str]
) -> None:
    (tmp_path / "s/site/deep").mkdir(parents=True)
    (tmp_path / "s/a").write_text("a", encoding="utf-8")
    (tmp_path / "link").symlink_to("s")
    (tmp_path / "into").symlink_to("s/site/deep")
    (tmp_path / "back").mkdir()
    (tmp_path / "back/l").symlink_to("../s")
    (tmp_path / "t").mkdir()
    (tmp_path / "t/l").symlink_to("../s/site/deep")
    if theirs.endswith("missing") and "--create" not in words:
        words = [*words, "--create"]
    (tmp_path / "s/site/deep/f").write_text("f", encoding="utf-8")
    before = _contents(tmp_path)
    code, found = _sync(capsys, tmp_path / ours, tmp_path / theirs, *words)
    assert (code, found["error"]["type"]) == (1, "InvalidPathError")
    assert "overlap" in found["error"]["message"]
    assert _contents(tmp_path) == before


@pytest.mark.needs("mount")
@pytest.mark.parametrize("words", [[], ["--delete"]])
@pytest.mark.parametrize("way", ["target in source", "source in target", "source below source", "target below target"])
def test_trees_that_overlap_through_a_bind_mount_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str, words: list[str]
) -> None:
    (tmp_path / "s/sub/deep").mkdir(parents=True)
    (tmp_path / "s/sub/f").write_text("f", encoding="utf-8")
    (tmp_path / "bound").mkdir()
    with mounts.bind(tmp_path / "s/sub", tmp_path / "bound"):
        ours, theirs = {
            "target in source": ("s", "bound"),
            "source in target": ("bound", "s"),
            "source below source": ("s", "bound/deep"),
            "target below target": ("bound/deep", "s/sub"),
        }[way]
        if way == "source in target" and not words:
            (tmp_path / "bound/sub").mkdir()  # or nothing of the source would be written to
        code, found = _sync(capsys, tmp_path / ours, tmp_path / theirs, *words)
    assert (code, found["error"]["type"]) == (1, "InvalidPathError")
    assert "overlap" in found["error"]["message"]
    assert not (tmp_path / "s/sub/.txfiles/HEAD").exists()


# -- modes and times --------------------------------------------------------------------------------------------------


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_gets_the_mode_of_its_source_less_the_umask(root: Path, source: Path, umask: None) -> None:
    for name, mode in (("script", 0o775), ("plain", 0o664), ("closed", 0o600), ("set", 0o4755), ("read", 0o444)):
        (source / name).write_text("x", encoding="utf-8")
        (source / name).chmod(mode)
    (source / "dir").mkdir(mode=0o500)
    (source / "dir/f").write_text("f", encoding="utf-8")
    assert main(["sync", str(source), str(root)]) == 0
    assert {path.name: oct(_mode(path)) for path in root.iterdir() if path.name != ".txfiles"} == {
        "script": "0o755",
        "plain": "0o644",
        "closed": "0o600",
        "set": "0o755",
        "read": "0o444",
        "dir": "0o700",
    }


def test_a_replaced_file_keeps_its_mode_but_is_executable_as_its_source(root: Path, source: Path, umask: None) -> None:
    for name, ours, theirs, then in (
        ("same", 0o755, 0o640, 0o750),
        ("other", 0o700, 0o644, 0o755),
        ("no longer", 0o644, 0o751, 0o640),
        ("wider", 0o666, 0o600, 0o600),
        ("partly", 0o755, 0o744, 0o744),
    ):
        for folder, mode, text in ((source, ours, "x"), (root, theirs, "x" if name == "same" else "old")):
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(mode)
        assert main(["sync", str(source), str(root)]) == 0
        assert (name, oct(_mode(root / name))) == (name, oct(then))
        assert (root / name).read_text(encoding="utf-8") == "x"


def test_no_perms_leaves_modes_alone(root: Path, source: Path, umask: None) -> None:
    for name in ("new", "old"):
        (source / name).write_text("x", encoding="utf-8")
        (source / name).chmod(0o755)
    (source / "dir").mkdir(mode=0o700)
    (root / "old").write_text("old", encoding="utf-8")
    (root / "old").chmod(0o640)
    assert main(["sync", str(source), str(root), "--no-perms"]) == 0
    assert (_mode(root / "new"), _mode(root / "old"), _mode(root / "dir")) == (0o644, 0o640, 0o755)


@pytest.mark.needs("users")
def test_a_write_protected_file_is_replaced_by_its_owner() -> None:
    with public_directory() as top:
        for side, text in (("source", "new"), ("target", "old")):
            (top / side).mkdir()
            (top / side / "f").write_text(text, encoding="utf-8")
            (top / side / "f").chmod(0o444)
        os.chown(top / "target", 1000, 1000)
        os.chown(top / "target/f", 1000, 1000)
        run_python(_SYNC, top / "source", top / "target", **as_user(1000)).check()
        assert ((top / "target/f").read_text(encoding="utf-8"), _mode(top / "target/f")) == ("new", 0o444)


def test_times_are_kept_on_demand(root: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    when = 1_600_000_000_123_456_789
    (source / "f").write_text("x", encoding="utf-8")
    os.utime(source / "f", ns=(when, when))
    assert main(["sync", str(source), str(root)]) == 0
    assert (root / "f").stat().st_mtime_ns > when
    code, found = _sync(capsys, source, root, "--times")
    assert (code, found["written"]) == (0, ["f"])
    assert (root / "f").stat().st_mtime_ns == when
    code, found = _sync(capsys, source, root, "--times")
    assert (code, found["unchanged"]) == (0, 1)


# -- what is compared -------------------------------------------------------------------------------------------------


class _Reads:
    """Which files a sync reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        read = Folder.read

        def reading(folder: Folder, name: str, entry: Any) -> Any:
            self.names.append(name)
            return read(folder, name, entry)

        monkeypatch.setattr(Folder, "read", reading)


def test_size_and_time_are_compared_before_contents(
    root: Path, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (source / f"f{number}").write_text("x" * 100, encoding="utf-8")
    assert main(["sync", str(source), str(root), "--times"]) == 0
    reads = _Reads(monkeypatch)
    code, found = _sync(capsys, source, root)
    assert (code, found["unchanged"], reads.names) == (0, 5, [])
    code, found = _sync(capsys, source, root, "--checksum")
    assert (code, found["unchanged"]) == (0, 5)
    assert reads.names == [name for number in range(5) for name in [f"f{number}"] * 2]


@pytest.mark.parametrize("words", [[], ["--times"]])
@pytest.mark.parametrize("how", ["in place", "replaced", "shorter"])
def test_nothing_is_silently_not_copied(root: Path, source: Path, how: str, words: list[str]) -> None:
    """Also not where somebody put the time of a changed file back, or builds with one time for all."""
    when = 1_600_000_000_000_000_000
    (source / "f").write_text("one", encoding="utf-8")
    os.utime(source / "f", ns=(when, when))
    assert main(["sync", str(source), str(root), "--times"]) == 0
    text = "two" if how != "shorter" else "2"
    if how == "replaced":
        (source / "new").write_text(text, encoding="utf-8")
        os.replace(source / "new", source / "f")
    else:
        (source / "f").write_text(text, encoding="utf-8")
    os.utime(source / "f", ns=(when, when))
    assert main(["sync", str(source), str(root), *words]) == 0
    assert (root / "f").read_text(encoding="utf-8") == text


def test_a_target_that_somebody_changed_is_put_right(root: Path, source: Path) -> None:
    (source / "f").write_text("right", encoding="utf-8")
    assert main(["sync", str(source), str(root)]) == 0
    (root / "f").write_text("wrong", encoding="utf-8")
    assert main(["sync", str(source), str(root)]) == 0
    assert (root / "f").read_text(encoding="utf-8") == "right"


def test_whole_seconds_of_the_target_are_good_enough() -> None:
    ours, theirs = Entry("file", 0o644, 1, 5_300_000_000), Entry("file", 0o644, 1, 5_000_000_000)
    sides = Listing({"f": ours}, set()), Listing({"f": theirs}, set())
    found = plan.compare(*sides, plan.Wishes(times=True))
    assert (found.write, found.doubtful) == ([], ["f"])


# -- what is excluded, and deleted ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("*.tmp", ["a/x", "build/x", "sub/build/x", "x"]),
        ("build", ["a/x", "a/x.tmp", "x"]),
        ("/build", ["a/x", "a/x.tmp", "sub/build/x", "x"]),
        ("build/", ["a/x", "a/x.tmp", "x"]),
        ("x/", ["a/x", "a/x.tmp", "build/x", "sub/build/x", "x"]),
        ("a/*", ["build/x", "sub/build/x", "x"]),
        ("/x", ["a/x", "a/x.tmp", "build/x", "sub/build/x"]),
        ("sub/*/x", ["a/x", "a/x.tmp", "build/x", "x"]),
    ],
)
def test_what_a_pattern_leaves_alone(root: Path, source: Path, pattern: str, left: list[str]) -> None:
    for folder in (source, root):
        for name in ("x", "a/x", "a/x.tmp", "build/x", "sub/build/x"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"of {folder.name}", encoding="utf-8")
    (root / "build/gone").write_text("not in the source", encoding="utf-8")
    assert main(["sync", str(source), str(root), "--delete", "--exclude", pattern]) == 0
    now = _contents(root)
    assert sorted(name for name, text in now.items() if text == "of source") == left
    assert ("build/gone" in now) == (pattern in ("build", "/build", "build/"))


def test_a_link_that_is_followed_is_excluded_as_a_directory(root: Path, source: Path) -> None:
    _with_links(source)
    (root / "current").mkdir()
    (root / "current/f").write_text("theirs", encoding="utf-8")
    assert main(["sync", str(source), str(root), "--delete", "--exclude", "current/"]) == 0
    assert (root / "current/f").read_text(encoding="utf-8") == "theirs"
    assert main(["sync", str(source), str(root), "--delete", "--links", "--exclude", "current/"]) == 1
    assert (root / "current/f").read_text(encoding="utf-8") == "theirs"


def test_directories_are_made_and_removed(root: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "empty/deeper").mkdir(parents=True)
    (root / "gone/deep").mkdir(parents=True)
    (root / "gone/deep/f").write_text("f", encoding="utf-8")
    (root / "holds").mkdir()
    (root / "holds/x.tmp").write_text("excluded", encoding="utf-8")
    (root / "holds/f").write_text("f", encoding="utf-8")
    words = [source, root, "--delete", "--exclude", "*.tmp"]
    code, found = _sync(capsys, *words, "--dry-run")
    assert code == 0
    assert found["dry_run"]
    for _ in range(2):
        assert (found["made"], found["removed"]) == (["empty", "empty/deeper"], ["gone", "gone/deep"])
        assert found["deleted"] == ["gone/deep/f", "holds/f"]
        if "dry_run" in found:
            code, found = _sync(capsys, *words)
    assert _contents(root) == {"empty": "/", "empty/deeper": "/", "holds": "/", "holds/x.tmp": "excluded"}


def test_a_file_that_comes_into_a_directory_that_goes_is_not_lost(
    root: Path, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "gone").mkdir()
    find = engine.find

    def found(*arguments: Any) -> Any:
        (root / "gone/late").write_text("somebody's", encoding="utf-8")
        return find(*arguments)

    monkeypatch.setattr(engine, "find", found)
    code, said = _sync(capsys, source, root, "--delete")
    assert (code, said["error"]["path"]) == (1, "gone")
    assert (root / "gone/late").read_text(encoding="utf-8") == "somebody's"


def test_private_directories_are_left_alone(root: Path, source: Path) -> None:
    with FileTransaction(source) as tx:
        tx.write("a", "a")
    with FileTransaction(source / "a root", create=True) as tx:
        tx.write("b", "b")
    with FileTransaction(root / "their root", create=True) as tx:
        tx.mkdir("d")
    assert main(["sync", str(source), str(root)]) == 0
    assert not (root / "a root/.txfiles").exists()
    assert (root / "a root/b").read_text(encoding="utf-8") == "b"
    assert main(["sync", str(source), str(root), "--delete"]) == 1, "the private directory of another root is not ours"
    assert (root / "their root/.txfiles/HEAD").exists()


def test_names_and_paths_of_any_length(root: Path, source: Path) -> None:
    deep = "/".join(["d" * 200] * 30)
    old = os.getcwd()
    try:
        os.chdir(source)
        for part in deep.split("/"):
            os.mkdir(part)
            os.chdir(part)
        Path("f").write_text("deep", encoding="utf-8")
    finally:
        os.chdir(old)
    assert main(["sync", str(source), str(root)]) == 0
    assert main(["sync", str(source), str(root), "--checksum", "--delete"]) == 0
    with FileTransaction(root) as tx:
        assert tx.read(f"{deep}/f") == b"deep"
        tx.delete_tree("d" * 200)
    with FileTransaction(source) as tx:
        tx.delete_tree("d" * 200)


# -- what is said -----------------------------------------------------------------------------------------------------


def test_a_summary_the_paths_or_nothing(root: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "d").mkdir()
    (source / "d/f").write_text("xx", encoding="utf-8")
    (root / "old").write_text("", encoding="utf-8")
    words = ["sync", str(source), str(root), "--delete"]
    assert main([*words, "--dry-run", "-v"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[:3] == ["+ d/", "+ d/f", "- old"]
    assert told[3].startswith("1 file to write (2 B), 1 to delete, 0 unchanged")
    assert _contents(root) == {"old": ""}
    assert not (root / ".txfiles").exists()
    assert main([*words, "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(words) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("0 files written (0 B), 0 deleted, 1 unchanged")
    with pytest.raises(SystemExit):
        main([*words, "-q", "-v"])


def test_a_dry_run_makes_nothing(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "f").write_text("x", encoding="utf-8")
    missing = tmp_path / "missing"
    assert main(["sync", str(source), str(missing), "-n"]) == 1
    code, found = _sync(capsys, source, missing, "-n", "--create")
    assert (code, found["written"]) == (0, ["f"])
    assert main(["put", str(missing), f"a={source}/f", "-n", "--create", "-v"]) == 0
    assert capsys.readouterr().out == "a  1 B\n1 file to replace together\n"
    assert not missing.exists()
    missing.mkdir()
    assert main(["put", str(missing), f"a={source}/f", "-n"]) == 0
    (missing / "a").mkdir()
    for words in (["-n"], []):
        assert main(["put", str(missing), f"a={source}/f", *words]) == 1
    assert main(["put", str(missing), "b=nothing", "-n"]) == 1


def test_a_dry_run_beside_a_commit_half_done_says_so(
    root: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "a")
    head = root / ".txfiles/HEAD"
    pending = head.with_name(json.loads(_status(root, capsys))["head"]["transaction_id"] + ".committed")
    head.rename(pending)
    assert main(["sync", str(source), str(root), "-n"]) == 3
    pending.unlink()
