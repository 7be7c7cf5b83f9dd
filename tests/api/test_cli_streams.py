"""The standard streams of the command line closed, full or broken; and what is shown on a terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from txfiles import FileTransaction
from txfiles._cli import progress as module
from txfiles._cli.progress import Progress
from txfiles.cli import main


@contextmanager
def _broken(how: str) -> Iterator[int]:
    if how == "full":
        fd = os.open("/dev/full", os.O_RDWR)
    else:
        reader, fd = os.pipe()
        os.close(reader)
    try:
        yield fd
    finally:
        os.close(fd)


def _run(words: list[str], streams: tuple[int, ...], how: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command with some of its streams closed, full or broken pipes; the others are captured, or empty."""
    command = [sys.executable, "-m", "txfiles", *words]
    if how == "closed":
        shell = " ".join(f"{stream}{'<' if stream == 0 else '>'}&-" for stream in streams)
        command = ["sh", "-c", f'exec "$@" {shell}', "sh", *command]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    with _broken(how) as fd:
        out, err = (fd if stream in streams else subprocess.PIPE for stream in (1, 2))
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=False)


def _commands(tmp_path: Path) -> dict[str, tuple[list[str], int]]:
    """Every command, with what it is to return."""
    root, source, stale = tmp_path / "made", tmp_path / "source", tmp_path / "stale"
    source.mkdir()
    (source / "f").write_text("new", encoding="utf-8")
    with FileTransaction(root, create=True) as tx:
        tx.write("old", "old")
    with FileTransaction(stale, create=True) as tx:
        tx.write("f", "new")
        prepared = tx.prepare()
    return {
        "status": (["status", str(root)], 0),
        "status 3": (["status", str(stale)], 3),
        "status json": (["status", str(stale), "--json"], 3),
        "verify": (["verify", str(root)], 0),
        "recover": (["recover", str(root)], 0),
        "recover 3": (["recover", str(stale)], 3),
        "decide": (["decide", str(stale), prepared, "--commit"], 0),
        "decide 1": (["decide", str(root), prepared, "--commit"], 1),
        "put": (["put", str(root), f"a={source}/f", "-v"], 0),
        "put 1": (["put", str(root), f"a={source}/missing"], 1),
        "put json 1": (["put", str(root), f"a={source}/missing", "--json"], 1),
        "sync": (["sync", str(source), str(root), "--delete", "-v"], 0),
        "sync 1": (["sync", str(tmp_path / "missing"), str(root)], 1),
        "usage": (["put"], 2),
        "help": (["--help"], 0),
        "version": (["--version"], 0),
    }


@pytest.mark.parametrize(
    ("how", "streams"), [("closed", (1,)), ("closed", (0, 1, 2)), ("full", (1,)), ("full", (2,)), ("pipe", (1, 2))]
)
def test_every_command_ends_with_the_exit_code_of_what_it_did(
    tmp_path: Path, how: str, streams: tuple[int, ...]
) -> None:
    for name, (words, code) in _commands(tmp_path).items():
        done = _run(words, streams, how)
        said = (done.stderr or b"").decode()
        assert done.returncode == code, (name, said)
        assert "Traceback" not in said
        assert "Exception ignored" not in said
    assert (tmp_path / "made/f").read_text(encoding="utf-8") == "new"
    assert (tmp_path / "stale/f").read_text(encoding="utf-8") == "new"


def test_a_closed_standard_input_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old", encoding="utf-8")
    done = _run(["put", str(tmp_path), "a=-"], (0,), "closed")
    assert done.returncode == 1
    assert b"the standard input is closed" in done.stderr
    assert (tmp_path / "a").read_text(encoding="utf-8") == "old"


def test_an_error_that_the_output_does_not_take_is_told_as_text(tmp_path: Path) -> None:
    done = _run(["put", str(tmp_path), "a=missing", "--json"], (1,), "full")
    assert b"txfiles: [Errno 2]" in done.stderr


# -- put ------------------------------------------------------------------------------------------------------------


def test_put_takes_names_with_an_equals_sign(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("b=c").write_text("one", encoding="utf-8")
    assert main(["put", str(root), "a=b=c"]) == 0
    assert (root / "a").read_text(encoding="utf-8") == "one"
    Path("c").write_text("two", encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        main(["put", str(root), "a=b=c"])
    assert caught.value.code == 2, "two readings have a file"
    with pytest.raises(SystemExit):
        main(["put", str(root), "a=b=d"])
    assert main(["put", str(root), "--file", "a=b", "c", "--file", "x", "b=c", "y=c"]) == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in root.iterdir() if path.is_file()} == {
        "a": "one",
        "a=b": "two",
        "x": "one",
        "y": "two",
    }


@pytest.mark.parametrize("where", ["list", "-"])
def test_put_takes_a_list_with_nuls(root: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "f=\n").write_text("one", encoding="utf-8")
    words = b"a=\n\0%s/f=\n\0sub/b\0%s\0" % (os.fsencode(tmp_path), os.fsencode(__file__))
    (tmp_path / "list").write_bytes(words)
    command = [sys.executable, "-m", "txfiles", "put", str(root), "--files-from", where]
    subprocess.run(command, cwd=tmp_path, input=words, check=True)
    assert (root / "a=\n").read_text(encoding="utf-8") == "one"
    assert (root / "sub/b").read_text(encoding="utf-8") == Path(__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [b"a\0b", b"a\0b\0c\0", b"a\0"])
def test_put_refuses_a_list_that_is_cut_off(root: Path, tmp_path: Path, words: bytes) -> None:
    (tmp_path / "list").write_bytes(words)
    with pytest.raises(SystemExit) as caught:
        main(["put", str(root), "--files-from", str(tmp_path / "list")])
    assert caught.value.code == 2


def test_put_with_nothing_or_with_the_standard_input_twice(root: Path) -> None:
    for words in ([], ["a=-", "--files-from", "-"], ["--file", "a", "-", "b=-"]):
        with pytest.raises(SystemExit) as caught:
            main(["put", str(root), *words])
        assert caught.value.code == 2


# -- progress -------------------------------------------------------------------------------------------------------


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def _terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """The standard error is a terminal; returns what was written to it."""
    with monkeypatch.context() as patch:
        written = _Terminal()
        patch.setattr(sys, "stderr", written)
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "120")
        yield written.getvalue


def test_a_plain_line_tells_files_bytes_rate_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module, "_rich_bar", lambda: None)
    with _terminal(monkeypatch) as terminal, Progress(hidden=False) as progress:
        progress.expect("copying", 3, 4096)
        clock[0] += 1.0
        assert b"".join(progress.read("a", iter([b"x" * 1024]))) == b"x" * 1024
        clock[0] += 1.0
        assert len(b"".join(progress.read("b", iter([b"x" * 1024])))) == 1024
        assert progress.last == 1024
        lines = terminal().split("\r")
        assert lines[1].rstrip() == "copying 1/3 files, 1.0 KiB of 4.0 KiB, 1.0 KiB/s, 0:03 left, a"
        assert lines[2].rstrip() == "copying 2/3 files, 2.0 KiB of 4.0 KiB, 1.0 KiB/s, 0:02 left, b"


def test_a_size_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module, "_rich_bar", lambda: None)
    with _terminal(monkeypatch) as terminal, Progress(hidden=False) as progress:
        progress.expect("copying", 1, None)
        clock[0] += 2.0
        list(progress.read("-", iter([b"x" * 1024])))
        assert terminal().split("\r")[1].rstrip() == "copying 1/1 files, 1.0 KiB, 512 B/s, -"


@pytest.mark.needs("module:rich")
def test_a_bar_tells_files_bytes_rate_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with _terminal(monkeypatch) as terminal, Progress(hidden=False) as progress:
        progress.expect("copying", 3, 4096)
        for name in ("a", "b"):
            for _ in progress.read(name, iter([b"x" * 1024])):
                progress._bar.refresh()
        told = terminal()
        assert "copying 2/3 files" in told
        assert "2.0/4.1 kB" in told
        assert "0:00:0" in told
        assert "/s" in told


def test_nothing_is_shown_where_nobody_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream in (sys.stderr, None):
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress(hidden=False) as progress:
            progress.expect("copying", 1, 1)
            list(progress.read("a", iter([b"x"])))
        monkeypatch.undo()
    assert capsys.readouterr() == ("", "")
