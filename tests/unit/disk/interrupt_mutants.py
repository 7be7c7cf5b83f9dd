"""Mutants of what holds back the exceptions of signal handlers: each lacks one step, or has one condition decided.

`interrupt_mutants.txt` has for each of them the test that finds it; or, after a dash, why nothing can find it.

    python -m tests.unit.disk.interrupt_mutants     prints the table anew: what has no finder, with a question mark
"""

from __future__ import annotations

import ast
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

from tests.crash.mutants import Change, Function, Mutant, _functions, _text, applied, conditions
from tests.unit.disk import test_interrupts, test_leaving
from txfiles._disk import interrupts

TABLE = Path(__file__).with_name("interrupt_mutants.txt")
MODULES = ("_disk.interrupts", "_disk.leaving")
FINDERS: dict[str, Callable[[], None]] = {
    name: test for tests in (test_interrupts, test_leaving) for name, test in vars(tests).items() if name[:5] == "test_"
}


def removals(function: Function) -> Iterator[Change]:
    """Each call and assignment left out whose value nobody wants, or everybody sees."""
    for node in ast.walk(function):
        for block in filter(_is_block, (getattr(node, field, ()) for field in ("body", "orelse", "finalbody"))):
            for number, step in enumerate(block):
                is_call = isinstance(step, ast.Expr) and isinstance(step.value, ast.Call)
                if is_call or (isinstance(step, ast.Assign) and isinstance(step.targets[0], ast.Attribute)):
                    yield f"no {_text(step)}", _without(block, number)


def _is_block(found: Any) -> TypeGuard[list[ast.stmt]]:
    return isinstance(found, list)


def _without(block: list[ast.stmt], number: int) -> tuple[Callable[[], object], Callable[[], object]]:
    step = block[number]
    return lambda: block.__setitem__(number, ast.Pass()), lambda: block.__setitem__(number, step)


def mutants() -> dict[str, Mutant]:
    found: dict[str, Mutant] = {}
    for module in MODULES:
        for name, node in _functions(module).items():
            count: Counter[str] = Counter()
            for what, change in (*conditions(node), *removals(node)):
                count[what] += 1
                shown = f"{module.partition('.')[2]}.{name}: {what}" + (f" ({count[what]})" if count[what] > 1 else "")
                found[shown] = Mutant(shown, module, {name: node}, change)
    return found


def table() -> dict[str, str]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return dict(line.rsplit(" -> ", 1) for line in lines)


def finds(finder: str, mutant: Mutant, at_most: float = 60) -> bool:
    """Whether the test fails, or does not end, in a process of its own where the package is the mutant.

    It has a second of CPU time.
    """
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
            interrupts._known, interrupts._pythons = ((), {}), None
            signal.signal(signal.SIGALRM, test_interrupts._raise)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with applied(mutant):
                FINDERS[finder]()
            code = 0
        finally:
            os._exit(code)
    until = time.monotonic() + at_most
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status != 0
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
        time.sleep(0.001)


def main() -> None:
    known = table() if TABLE.exists() else {}
    for name, mutant in mutants().items():
        before = known.get(name, "?")
        if before[0] == "-":
            found_by = before
        else:
            finders = [before, *FINDERS] if before in FINDERS else [*FINDERS]
            found_by = next((finder for finder in finders if finds(finder, mutant, 5)), "?")
        print(f"{name} -> {found_by}", flush=True)


if __name__ == "__main__":
    main()
