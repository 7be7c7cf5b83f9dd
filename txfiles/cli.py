"""The command line: `txfiles status|recover|decide|verify|put|sync`.

Exit codes: 0 done, 1 failed, 2 usage, 3 needs a decision or recovery, 4 lock not obtained, 130 interrupted.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import json
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from txfiles import __version__
from txfiles._progress import Progress, size_text
from txfiles.errors import (
    ConflictError,
    LockTimeoutError,
    RecoveryError,
    TxFilesError,
)
from txfiles.prepared import commit_prepared, rollback_prepared
from txfiles.recovery import recover, status, verify
from txfiles.transaction import FileTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["main"]

DONE, FAILED, USAGE, DECISION, LOCKED = range(5)
_CHUNK = 1 << 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_EXIT_CODES = """\
exit codes:
  0  done
  1  failed
  2  the command line is wrong
  3  recovery is needed, or a decision: somebody changed files since a crash
  4  another writer held the lock for too long
  130  interrupted with Ctrl-C; nothing was left half done
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], tuple[int, dict[str, Any], list[str]]] = options.run
    try:
        code, found, lines = run(options)
    except KeyboardInterrupt:
        print("interrupted; nothing was left half done", file=sys.stderr)
        return 128 + signal.SIGINT
    except (TxFilesError, OSError) as error:
        return _failed(error, as_json=options.json)
    _tell(json.dumps(found, indent=2, default=str) if options.json else "\n".join(map(_printable, lines)))
    return code


def _printable(line: str) -> str:
    """With control characters and undecodable bytes of names escaped, for any terminal."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], line)


def _tell(text: str) -> None:
    """Print what was done; whether it was done does not depend on whether anybody can read it."""
    try:
        sys.stdout.buffer.write(text.encode(sys.stdout.encoding, "backslashreplace") + b"\n")
        sys.stdout.flush()
    except OSError as error:
        print(f"txfiles: done, but it cannot be told: {error}", file=sys.stderr)
        with suppress(OSError):
            sys.stdout.close()
        sys.stdout = io.StringIO()  # or the interpreter tries once more at its end


def _failed(error: TxFilesError | OSError, *, as_json: bool) -> int:
    code = FAILED
    if isinstance(error, LockTimeoutError):
        code = LOCKED
    elif isinstance(error, (RecoveryError, ConflictError)):
        code = DECISION
    path = error.path if isinstance(error, TxFilesError) else error.filename
    outcome = error.outcome if isinstance(error, TxFilesError) else "before"
    if as_json:
        told = {"type": type(error).__name__, "message": str(error), "outcome": outcome, "path": path}
        print(json.dumps({"error": told}, indent=2, default=str))
    else:
        print(f"txfiles: {_printable(str(error)).replace('create=True', '--create')}", file=sys.stderr)
        print(f"on disk: {_outcome_text(outcome)}", file=sys.stderr)
    return code


def _outcome_text(outcome: str) -> str:
    return {
        "before": "nothing of this change",
        "after": "all of this change; only tidying up is left, `txfiles recover` does it",
        "unknown": "to be decided by `txfiles recover`",
    }[outcome]


# -- commands -------------------------------------------------------------------------------------------------------


def _status(options: argparse.Namespace) -> tuple[int, dict[str, Any], list[str]]:
    found = status(options.dir)
    lines = []
    if found.head is not None:
        lines.append(
            f"last commit  number {found.head.sequence}, {len(found.head.paths)} paths ({found.head.transaction_id})"
        )
    for pending in found.pending:
        lines.append(f"{pending.state:<12} {pending.transaction_id}: {pending.error or _some(pending.paths)}")
    lines += [f"left over    {name}" for name in found.debris]
    lines += [f"unknown      {name}" for name in found.unknown]
    if any(pending.state == "prepared" for pending in found.pending):
        lines.append("waits for whoever prepared it: txfiles decide")
    elif not found.clean:
        lines.append("needs recovery (or a writer is at work now): txfiles recover")
    else:
        lines.append("clean")
    return (DONE if found.clean else DECISION), {"clean": found.clean, **asdict(found)}, lines


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def _recover(options: argparse.Namespace) -> tuple[int, dict[str, Any], list[str]]:
    if options.dry_run:
        code, found, lines = _status(options)
        return code, {"dry_run": True, **found}, ["would recover:" if code else "nothing to recover", *lines]
    report = recover(options.dir, timeout=options.timeout, on_conflict=options.decision)
    lines = []
    for word, transactions in (
        ("finished", report.rolled_forward),
        ("undid", report.rolled_back),
        ("waiting", report.waiting),
    ):
        lines += [f"{word:<9} {done.transaction_id}: {_some(done.paths)}" for done in transactions]
    lines += [f"removed   {name}" for name in report.removed]
    lines += [f"unknown   {name} (left alone)" for name in report.unknown]
    if report.clean:
        lines.append("clean, nothing to recover")
    return (DECISION if report.waiting else DONE), {"clean": report.clean, **asdict(report)}, lines


def _decide(options: argparse.Namespace) -> tuple[int, dict[str, Any], list[str]]:
    if options.commit:
        commit_prepared(options.dir, options.id, timeout=options.timeout, on_conflict=options.decision)
    else:
        rollback_prepared(options.dir, options.id, timeout=options.timeout)
    done = "committed" if options.commit else "rolled back"
    return DONE, {"transaction_id": options.id, "decision": done}, [f"{done} {options.id}"]


def _verify(options: argparse.Namespace) -> tuple[int, dict[str, Any], list[str]]:
    """Read the private directory and every journal in it; change nothing."""
    found, pending = verify(options.dir), []
    if not found.damaged:
        now = status(options.dir)
        pending = [f"{one.state} {one.transaction_id}: {_some(one.paths)}" for one in now.pending]
        pending += [f"left over: {name}" for name in now.debris]
    lines = [f"damaged: {text}" for text in found.damaged]
    lines += [f"conflict: {text}" for text in found.conflicts]
    lines += [f"pending: {text}" for text in pending]
    what = "recovery needs a decision" if found.conflicts else "recovery is pending"
    lines.append("not sound" if found.damaged else f"sound, {what}" if pending else "sound")
    code = FAILED if found.damaged else DECISION if pending or found.conflicts else DONE
    return code, {"sound": found.sound, **asdict(found), "pending": pending}, lines


def _put(options: argparse.Namespace) -> tuple[int, dict[str, Any], list[str]]:
    written: dict[str, int] = {}
    if sum(source == "-" for _, source in options.files) > 1:
        options.parser.error("stdin (-) can be read once only")
    if len({name for name, _ in options.files}) < len(options.files):
        options.parser.error("a name is there twice")
    with _transaction(options) as tx, Progress("put", hidden=options.json) as progress:
        for name, source in options.files:
            with _open_source(source) as file:
                tx.write(name, progress.read(name, _chunks(file)))
            written[name] = progress.last
    lines = [f"{name}  {size_text(size)}" for name, size in written.items()]
    return DONE, {"written": written}, [*lines, f"{_files(len(written))} replaced together"]


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"


def _open_source(source: str) -> BinaryIO:
    return sys.stdin.buffer if source == "-" else open(source, "rb")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _sync(options: argparse.Namespace) -> tuple[int, dict[str, Any], list[str]]:
    source = Path(options.src)
    if not source.is_dir():
        raise NotADirectoryError(20, "the source is not a directory", str(source))
    wanted = sorted(_walk(source, options.exclude))
    started = time.perf_counter()
    written, total, deleted = [], 0, []
    gone: set[str] = set()
    with _transaction(options) as tx, Progress("sync", hidden=options.json) as progress:
        for name in wanted:
            _make_way(options, tx, name, gone)
            path = source / name
            if tx.exists(name) and _same(path, tx, name):
                continue
            with path.open("rb") as file:
                tx.write(name, progress.read(name, _chunks(file)))
            written.append(name)
            total += progress.last
        if options.delete:
            deleted = sorted(n for n in set(tx.glob("**")) - set(wanted) if not _excluded(n, options.exclude))
            for name in deleted:
                tx.delete(name)
            _delete_emptied(source, tx, deleted)
    seconds = time.perf_counter() - started
    lines = [f"+ {name}" for name in written] + [f"- {name}" for name in deleted]
    lines.append(
        f"{_files(len(written))} written ({size_text(total)}), {len(deleted)} deleted,"
        f" {len(wanted) - len(written)} unchanged, {seconds:.1f} s"
    )
    found = {"written": written, "deleted": deleted, "unchanged": len(wanted) - len(written), "bytes": total}
    return DONE, {**found, "seconds": seconds}, lines


def _make_way(options: argparse.Namespace, tx: FileTransaction, name: str, gone: set[str]) -> None:
    """Delete what is in the way of a file: links on its path, which are not followed, a file where a directory has to
    be and, with `--delete`, a directory in its own place. What was deleted for an earlier name is in `gone`.
    """
    *above, _ = paths = [name[:end] for end in range(1, len(name) + 1) if end == len(name) or name[end] == "/"]
    for path in paths:
        if path in gone:
            return
        there = Path(options.dir) / path
        if there.is_symlink() or (path in above and there.exists() and not there.is_dir()):
            tx.delete(path)
            gone.add(path)
        elif path == name and there.is_dir():
            if not options.delete or any(
                _excluded(inside, options.exclude) for inside in tx.glob(f"{_plain(path)}/**")
            ):
                raise IsADirectoryError(21, "is a directory; only --delete, without --exclude, replaces it", path)
            tx.delete_tree(path)
            gone.add(path)


def _plain(path: str) -> str:
    """The pattern that matches this path only."""
    return re.sub(r"([*?[])", r"[\1]", path)


def _delete_emptied(source: Path, tx: FileTransaction, deleted: list[str]) -> None:
    parents = {str(parent) for name in deleted for parent in PurePosixPath(name).parents} - {"."}
    for path in sorted(parents, key=len, reverse=True):
        if not (source / path).is_dir() and tx.exists(path) and not tx.listdir(path):
            tx.delete_tree(path)


def _walk(source: Path, exclude: list[str]) -> Iterator[str]:
    for path in source.rglob("*"):
        name = path.relative_to(source).as_posix()
        if ".txfiles" not in path.parts and path.is_file() and not _excluded(name, exclude):
            yield name


def _excluded(name: str, patterns: list[str]) -> bool:
    parts = name.split("/")
    return any(fnmatch.fnmatch(name, p) or any(fnmatch.fnmatch(part, p) for part in parts) for p in patterns)


def _same(path: Path, tx: FileTransaction, name: str) -> bool:
    with path.open("rb") as ours, tx.open(name, "rb") as theirs:
        while True:
            one, other = ours.read(_CHUNK), theirs.read(_CHUNK)
            if one != other:
                return False
            if not one:
                return True


def _transaction(options: argparse.Namespace) -> FileTransaction:
    return FileTransaction(options.dir, durability=options.durability, timeout=options.timeout, create=options.create)


# -- arguments ------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="txfiles",
        description="Changes to several files, all-or-nothing.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"txfiles {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = _command(commands, "status", _status, "show what is pending in DIR; changes nothing")
    command.add_argument("dir", metavar="DIR")

    command = _command(commands, "recover", _recover, "finish or undo what a crash left in DIR")
    command.add_argument("dir", metavar="DIR")
    _timeout(command)
    command.add_argument("--dry-run", action="store_true", help="say what is pending and change nothing")
    _on_conflict(
        command,
        {
            "keep-theirs": "where somebody changed a file since the crash, keep theirs and finish the rest",
            "roll-forward": "finish the transaction, over their changes",
            "roll-back": "undo the transaction, keep their changes",
        },
    )

    command = _command(commands, "decide", _decide, "commit or roll back a transaction of DIR that was prepared")
    command.add_argument("dir", metavar="DIR")
    command.add_argument("id", metavar="ID", help="as txfiles status shows it")
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("--commit", action="store_true", help="make its changes")
    which.add_argument("--rollback", action="store_true", help="forget them")
    _timeout(command)
    _on_conflict(
        command,
        {
            "keep-theirs": "with --commit: where somebody changed a file since, keep theirs and commit the rest",
            "roll-forward": "with --commit: over their changes",
        },
    )

    command = _command(commands, "verify", _verify, "check the private directory and the journals of DIR; read-only")
    command.add_argument("dir", metavar="DIR")

    command = _command(commands, "put", _put, "replace several files of DIR at once")
    command.add_argument("dir", metavar="DIR")
    command.add_argument(
        "files", metavar="NAME=FILE", nargs="+", type=_assignment, help="FILE may be - for stdin, once"
    )
    _writing(command)

    command = _command(commands, "sync", _sync, "make the files of DIR equal to those of SRC, in one transaction")
    command.add_argument("src", metavar="SRC")
    command.add_argument("dir", metavar="DIR")
    command.add_argument("--delete", action="store_true", help="delete files of DIR that SRC does not have")
    command.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave files alone whose path, or a part of it, matches; may be repeated",
    )
    _writing(command)
    return parser


def _command(commands: Any, name: str, run: Callable[..., Any], text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text, epilog=_EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("--json", action="store_true", help="print one JSON object, errors included")
    command.set_defaults(run=run, parser=command)
    return command


def _on_conflict(command: argparse.ArgumentParser, choices: dict[str, str]) -> None:
    decision = command.add_mutually_exclusive_group()
    for value, text in choices.items():
        decision.add_argument(f"--{value}", dest="decision", action="store_const", const=value, help=text)
    command.set_defaults(decision="raise")


def _timeout(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--timeout", type=_seconds, default=10.0, metavar="SECONDS", help="how long to wait for another writer (10)"
    )


def _writing(command: argparse.ArgumentParser) -> None:
    _timeout(command)
    command.add_argument("--create", action="store_true", help="make DIR if it is missing")
    command.add_argument(
        "--durability",
        choices=("full", "process"),
        default="full",
        help="full: safe against power loss; process: only against the death of the process",
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("a number of seconds, 0 or more")
    return value


def _assignment(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not (name and equals and source):
        raise argparse.ArgumentTypeError(f"NAME=FILE expected, not {text!r}")
    return name, source
