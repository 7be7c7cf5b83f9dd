"""Files joined to a database transaction: they agree after every kill, and the usual way they do not."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.procs import CHECKOUT
from txfiles import FileTransaction, status
from txfiles._disk import system
from txfiles.errors import RecoveryConflictError
from txfiles.testing import killed_at_call
from txfiles.testing._faults import FaultyFS

PROGRAM = CHECKOUT / "examples" / "with_sqlite.py"
BEFORE = {"a": b"old a", "b": b"old b", "gone": b"gone"}
AFTER = {"a": b"new a", "b": b"old b", "c": b"new c"}
CHANGE = {"a": b"new a", "c": b"new c", "gone": None}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("with_sqlite", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def library(example: ModuleType, directory: Path):
    made = example.Library(directory)
    made.change(BEFORE)
    return made


def documents(library) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in library.files.iterdir() if path.is_file()}


def killed(library, *, call: int = 0, statement: int = 0) -> bool:
    """Let a child make the change; whether it was killed, at a call of txfiles or before an SQL statement."""
    child = os.fork()
    if child == 0:
        try:
            library.die_at_statement = statement
            with killed_at_call(call) if call else nullcontext():
                library.change(CHANGE)
        finally:
            os._exit(0)
    ended = os.waitpid(child, 0)[1]
    assert os.WIFEXITED(ended) or os.WTERMSIG(ended) == signal.SIGKILL
    return os.WIFSIGNALED(ended)


def settled(library) -> dict[str, bytes]:
    """The files after a recovery; the rows agree with them."""
    library.recover()
    assert library.disagreement() is None
    assert status(library.files).clean
    return documents(library)


def test_killed_before_each_sql_statement(example: ModuleType, tmp_path: Path) -> None:
    outcomes = []
    statement = 1
    while killed(one := library(example, tmp_path / str(statement)), statement=statement):
        outcomes.append(settled(one))
        statement += 1
    assert len(outcomes) >= 7  # from BEGIN to COMMIT
    assert outcomes == [BEFORE] * len(outcomes)
    assert settled(one) == AFTER


def test_killed_at_each_call_of_txfiles(example: ModuleType, tmp_path: Path) -> None:
    counting = FaultyFS(system.KernelFS())
    counted = library(example, tmp_path / "counted")
    with system.use(counting):  # type: ignore[arg-type]
        counted.change(CHANGE)
    outcomes = []
    for call in range(1, counting.calls + 1, 5):
        one = library(example, tmp_path / str(call))
        assert killed(one, call=call)
        outcomes.append(settled(one))
    assert outcomes == sorted(outcomes, key=lambda found: found == AFTER), "once committed it stays so"
    assert BEFORE in outcomes
    assert AFTER in outcomes


def test_an_error_in_the_database_leaves_both_as_they_were(example: ModuleType, tmp_path: Path) -> None:
    one = library(example, tmp_path)
    with one.database() as database:
        database.execute("CREATE TRIGGER no BEFORE INSERT ON committed BEGIN SELECT RAISE(ABORT, 'full'); END")
    with pytest.raises(example.sqlite3.IntegrityError, match="full"):
        one.change(CHANGE)
    assert settled(one) == BEFORE


def test_it_waits_for_a_change_that_is_being_made(example: ModuleType, tmp_path: Path) -> None:
    """Between prepare and the commit of the database nothing is decided by others."""
    one = library(example, tmp_path)
    decisions: list[str] = []
    with FileTransaction(one.files) as tx, one.database() as database, database:
        database.execute("BEGIN IMMEDIATE")
        tx.write("c", b"new c")
        example.change_rows(database, {"c": b"new c"})
        database.execute("INSERT INTO committed VALUES (?)", [tx.prepare()])
        other = threading.Thread(target=lambda: decisions.extend(one.recover()))
        other.start()
        other.join(0.1)
        assert other.is_alive()
        database.execute("COMMIT")
    other.join()
    assert decisions == ["committed"]
    assert settled(one)["c"] == b"new c"


def test_a_file_changed_by_hand_is_not_overwritten(example: ModuleType, tmp_path: Path) -> None:
    one = library(example, tmp_path)
    with pytest.raises(RecoveryConflictError), FileTransaction(one.files) as tx, one.database() as database:
        tx.write("a", b"new a")
        database.execute("INSERT INTO committed VALUES (?)", [tx.prepare()])
        (one.files / "a").write_bytes(b"theirs")
        tx.commit()
    with pytest.raises(RecoveryConflictError):
        one.recover()
    assert documents(one)["a"] == b"theirs"


def run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), str(directory), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")


def test_the_program(tmp_path: Path) -> None:
    done = run(tmp_path, "--kills", "18")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("rows and files agree") == 18
    assert "; 0 torn" in done.stdout


def test_the_usual_way_tears_them(tmp_path: Path) -> None:
    done = run(tmp_path, "--kills", "20", "--naive")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "TORN" in done.stdout
