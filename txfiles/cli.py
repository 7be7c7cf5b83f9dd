"""The command line: `txfiles status|recover|decide|verify|checkpoint|put|sync|gc|compact|tag`.

Exit codes: 0 done, 1 failed, 2 usage, 3 needs a decision or recovery, 4 lock not obtained, 5 not a root,
130 interrupted.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from txfiles._cli import output
from txfiles._cli.answer import DECISION, FAILED, LOCKED, Answer
from txfiles._cli.options import parse
from txfiles.errors import (
    ConflictError,
    LockTimeoutError,
    RecoveryError,
    TxFilesError,
)

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, whatever has become of the standard streams."""
    output.occupy()
    try:
        options = parse(arguments)
        return _run(options.run, options)
    finally:
        output.settle()


def _run(command: Callable[[Namespace], Answer], options: Namespace) -> int:
    try:
        code, found, lines = command(options)
    except KeyboardInterrupt:
        output.err("interrupted; nothing was left half done")
        return 128 + signal.SIGINT
    except (TxFilesError, OSError) as error:
        return _failed(error, as_json=options.json)
    lines = [json.dumps(found, indent=2, default=str)] if options.json else [*map(output.printable, lines)]
    if lines and (failed := output.out("\n".join(lines))):
        output.err(f"txfiles: done, but it cannot be told: {failed}")
    return code


def _failed(error: TxFilesError | OSError, *, as_json: bool) -> int:
    code = FAILED
    if isinstance(error, LockTimeoutError):
        code = LOCKED
    elif isinstance(error, (RecoveryError, ConflictError)):
        code = DECISION
    path = error.path if isinstance(error, TxFilesError) else error.filename
    outcome = error.outcome if isinstance(error, TxFilesError) else "before"
    told = {"type": type(error).__name__, "message": str(error), "outcome": outcome, "path": path}
    if not as_json or output.out(json.dumps({"error": told}, indent=2, default=str)):
        output.err(f"txfiles: {output.printable(str(error)).replace('create=True', '--create')}")
        output.err(f"on disk: {_outcome_text(outcome)}")
    return code


def _outcome_text(outcome: str) -> str:
    return {
        "before": "nothing of this change",
        "after": "all of this change; only tidying up is left, `txfiles recover` does it",
        "unknown": "to be decided by `txfiles recover`",
    }[outcome]
