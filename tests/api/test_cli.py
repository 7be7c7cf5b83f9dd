"""The command line: what each command does, prints and returns."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.procs import CHECKOUT
from txfiles import FileTransaction, status
from txfiles._cli.options import parser
from txfiles._disk import system
from txfiles.cli import main
from txfiles.testing._faults import FaultyFS


class _Stop(BaseException):
    pass


def _leave_half_done(root: Path) -> None:
    """A commit of a and b that stops after a was renamed, as a killed process leaves it."""
    (root / "a").write_text("old a", encoding="utf-8")
    (root / "b").write_text("old b", encoding="utf-8")
    renames = 0

    def plan(_: int, name: str) -> None:
        nonlocal renames
        renames += name == "rename" and renames < 4
        if renames == 4 and name != "close":
            raise _Stop

    fs: Any = FaultyFS(system.KernelFS(), plan)
    with pytest.raises(_Stop), system.use(fs), FileTransaction(root) as tx:
        tx.write("a", "new a")
        tx.write("b", "new b")


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_put_replaces_several_files_at_once(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 2048)
    assert main(["put", str(root), f"a={source}", f"sub/b={source}"]) == 0
    assert capsys.readouterr().out == "2 files replaced together\n"
    assert (root / "sub" / "b").read_bytes() == b"x" * 2048
    code, found = _json(capsys, "put", str(root), f"a={source}")
    assert (code, found) == (0, {"written": {"a": 2048}})


def test_put_reads_stdin_once(root: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "txfiles", "put", root, "a=-"], input=b"piped", check=False)
    assert done.returncode == 0
    assert (root / "a").read_bytes() == b"piped"
    with pytest.raises(SystemExit) as stopped:
        main(["put", str(root), "a=-", "b=-"])
    assert stopped.value.code == 2


def test_put_of_a_missing_file_changes_nothing(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").write_text("new", encoding="utf-8")
    (root / "a").write_text("old", encoding="utf-8")
    code, found = _json(capsys, "put", str(root), f"a={tmp_path}/there", f"b={tmp_path}/missing")
    assert code == 1
    assert found["error"]["type"] == "FileNotFoundError"
    assert found["error"]["outcome"] == "before"
    assert found["error"]["path"] == f"{tmp_path}/missing"
    assert (root / "a").read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("words", [[], ["put"], ["put", "dir", "a"], ["nonsense"], ["recover", "x", "--timeout", "-1"]])
def test_usage_errors(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2


def test_a_crash_is_seen_verified_and_recovered(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _leave_half_done(root)
    code, found = _json(capsys, "status", str(root))
    assert code == 3
    assert [p["state"] for p in found["pending"]] == ["committed"]
    assert found["pending"][0]["paths"] == ["a", "b"]
    code, found = _json(capsys, "verify", str(root))
    assert (code, found["sound"]) == (3, True)
    assert main(["recover", str(root), "--dry-run"]) == 3
    assert "would recover" in capsys.readouterr().out
    assert (root / "b").read_text(encoding="utf-8") == "old b"
    code, found = _json(capsys, "recover", str(root))
    assert code == 0
    assert found["rolled_forward"][0]["paths"] == ["a", "b"]
    assert ((root / "a").read_text(encoding="utf-8"), (root / "b").read_text(encoding="utf-8")) == ("new a", "new b")
    assert main(["status", str(root)]) == 0
    assert main(["verify", str(root)]) == 0


@pytest.mark.parametrize(
    ("flag", "a", "b"),
    [
        ("--keep-theirs", "new a", "theirs"),
        ("--roll-forward", "new a", "new b"),
        ("--roll-back", "old a", "theirs"),
    ],
)
def test_a_conflict_needs_a_decision(root: Path, capsys: pytest.CaptureFixture[str], flag: str, a: str, b: str) -> None:
    _leave_half_done(root)
    (root / "b").write_text("theirs", encoding="utf-8")
    code, found = _json(capsys, "recover", str(root))
    assert code == 3
    assert found["error"]["type"] == "RecoveryConflictError"
    assert found["error"]["path"] == "b"
    assert main(["recover", str(root), flag]) == 0
    assert ((root / "a").read_text(encoding="utf-8"), (root / "b").read_text(encoding="utf-8")) == (a, b)


def test_a_directory_that_is_no_root_is_not_called_healthy(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["status"], ["verify"], ["recover"], ["recover", "--dry-run"]):
        assert main([words[0], str(root), *words[1:]]) == 5
        assert capsys.readouterr().out == f"not a txfiles root: {root} (or no transaction was ever begun in it)\n"
        code, found = _json(capsys, words[0], str(root), *words[1:])
        assert (code, found["is_root"]) == (5, False)
        assert main([words[0], str(tmp_path / "missing"), *words[1:]]) == 1
        assert "does not exist" in capsys.readouterr().err
    assert not (root / ".txfiles").exists()
    assert not status(root).is_root
    with FileTransaction(root):
        pass
    for words in (["status"], ["verify"], ["recover"]):
        code, found = _json(capsys, *words, str(root))
        assert (code, found["is_root"]) == (0, True)


def test_verify_finds_damage(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _leave_half_done(root)
    private = root / ".txfiles"
    token = next(p for p in private.iterdir() if p.name.endswith(".1"))
    good = token.read_bytes()
    token.write_bytes(b"!" * len(good))
    assert main(["verify", str(root)]) == 1
    assert "damaged" in capsys.readouterr().out
    token.write_bytes(good)
    journal = next(private.glob("*.committed"))
    raw = journal.read_bytes()
    journal.write_bytes(raw[:-5])
    code, found = _json(capsys, "verify", str(root))
    assert (code, found["sound"]) == (1, False)
    journal.write_bytes(raw)
    assert main(["recover", str(root)]) == 0


def test_verify_finds_what_needs_a_decision(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _leave_half_done(root)
    (root / "b").write_text("somebody else's", encoding="utf-8")
    code, found = _json(capsys, "verify", str(root))
    assert (code, found["sound"], found["damaged"]) == (3, False, [])
    assert ["'b'" in text for text in found["conflicts"]] == [True]
    assert main(["verify", str(root)]) == 3
    assert "recovery needs a decision" in capsys.readouterr().out
    assert main(["recover", str(root), "--keep-theirs"]) == 0


def test_a_held_lock_is_exit_code_4(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "held")
        command = [sys.executable, "-m", "txfiles", "put", str(root), f"b={__file__}", "--timeout", "0", "--json"]
        done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 4
    assert json.loads(done.stdout)["error"]["type"] == "LockTimeoutError"


def test_ctrl_c_leaves_nothing(root: Path) -> None:
    (root / "a").write_text("old", encoding="utf-8")
    child = subprocess.Popen(
        [sys.executable, "-m", "txfiles", "put", root, "a=-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdin is not None
    child.stdin.write(b"x" * 100_000)
    child.stdin.flush()
    while not list(root.glob(".txfiles/*.0")):
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate()
    assert child.returncode == 130
    assert b"nothing was left half done" in said
    assert (root / "a").read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("where", ["/dev/full", "a closed pipe"])
def test_what_is_done_is_done_also_when_it_cannot_be_told(root: Path, where: str) -> None:
    command = [sys.executable, "-m", "txfiles", "put", str(root), f"a={__file__}"]
    if where == "/dev/full":
        with open(where, "wb") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    else:
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
        os.close(writer)
    assert done.returncode == 0
    assert done.stderr.decode().startswith("txfiles: done, but it cannot be told")
    assert b"Traceback" not in done.stderr
    assert (root / "a").exists()


def test_what_is_wrong_with_the_words(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (["put", str(root), f"a={__file__}", f"a={__file__}"], "a name is there twice"),
        (["put", str(root), f"a={__file__}", "--timeout", "abc"], "a number of seconds"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 2
        assert told in capsys.readouterr().err
    assert main(["put", str(root / "missing"), f"a={__file__}"]) == 1
    assert "--create makes it" in capsys.readouterr().err


def test_decide_ends_what_was_prepared(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for how, content in (("--commit", "new"), ("--rollback", "old")):
        (root / "a").write_text("old", encoding="utf-8")
        with FileTransaction(root) as tx:
            tx.write("a", "new")
            prepared = tx.prepare()
        assert main(["status", str(root)]) == 3
        assert "txfiles decide" in capsys.readouterr().out
        assert main(["recover", str(root)]) == 3
        assert f"waiting   {prepared}: a" in capsys.readouterr().out
        code, found = _json(capsys, "decide", str(root), prepared, how)
        assert (code, found["transaction_id"]) == (0, prepared)
        assert (root / "a").read_text(encoding="utf-8") == content
    assert main(["decide", str(root), prepared, "--commit"]) == 1
    assert "no transaction" in capsys.readouterr().err


def test_decide_with_a_conflict(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "a").write_text("old", encoding="utf-8")
    with FileTransaction(root) as tx:
        tx.write("a", "new")
        tx.write("b", "new")
        prepared = tx.prepare()
    (root / "a").write_text("theirs", encoding="utf-8")
    assert main(["decide", str(root), prepared, "--commit"]) == 3
    assert "'a'" in capsys.readouterr().err
    assert main(["decide", str(root), prepared, "--commit", "--keep-theirs"]) == 0
    assert ((root / "a").read_text(encoding="utf-8"), (root / "b").read_text(encoding="utf-8")) == ("theirs", "new")


def _commands() -> list[str]:
    [commands] = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return list(commands.choices)


def test_every_command_has_help_with_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], *([command] for command in _commands())):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        assert "exit codes:" in capsys.readouterr().out


@pytest.mark.parametrize("command", _commands())
def test_every_command_is_documented(command: str) -> None:
    assert f"\ntxfiles {command} " in (CHECKOUT / "README.md").read_text(encoding="utf-8")
