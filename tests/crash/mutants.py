"""Mutants of the protocol: each lacks one sync or one condition, or does two steps in the wrong order.

They are made from the source as it is, by walking through its functions: every call that syncs is left out, every
condition of a check is taken for true and for false, every step is moved before each that it follows. A mutant is
named after its function and what is different there; it lives in memory only: `applied` gives the function another
code object for a while.

`mutants.txt` has for each of them the scenario that finds it; or, after a dash, why nothing can find it.

    python -m tests.crash.mutants [--write] [WORD...]   tries those whose names have all these words, and prints what
                                                        finds them and the line that replays it; or writes the table
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import itertools
import re
import signal
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from txfiles.testing import Scenario, explore

PROTOCOL = (
    "_commit.durable",
    "_commit.protocol",
    "_commit.recover",
    "_commit.two_phase",
    "_tree.tokens",
    "_commit.home",
    "_commit.logfile",
    "_commit.restore",
    "_commit.checkpoint",
    "_commit.log_commit",
    "_commit.log_recovery",
    "_commit.levels",
)
ORDERED = (
    "_commit.durable",
    "_commit.protocol",
    "_commit.recover",
    "_commit.two_phase",
    "_commit.checkpoint",
    "_commit.log_commit",
    "_commit.log_recovery",
)
CHECKS = {  # where every condition counts: the functions of each module, all of them where none is named
    "_commit.evidence": "",
    "_commit.inventory": "read_head _is_where_it_was_written take is_ours _pending is_process stays keeps_old",
    "_commit.recover": "check_format ensure_format _recover_one judge _is_whole _require_untainted decide "
    "_remove_loose",
    "_commit.protocol": "_secure _apply_delete _apply_directory _apply_write make_parents _undo_write _undo_delete "
    "_undo_directory _finish_if_begun",
    "_commit.durable": "first_round",
    "_commit.levels": "",
    "_commit.logfile": "Read.vouches_for Read.vouches_for_absence LogFile._find_end LogFile._read_on "
    "LogFile.may_hold LogFile.has_room",
    "_commit.checkpoint": "checkpoint",
    "_commit.restore": "",
    "_commit.log_commit": "fits commit _content _make_old_durable _apply _unchanged put take_back",
    "_commit.log_recovery": "recover _is_done",
    "_disk.metadata": "matches",
    "_commit.home": "Home.format",
    "_format.journal": "_body Head.vouches_for_file Head.vouches",
    "_format.log": "_decode_record",
}
TABLE = Path(__file__).with_name("mutants.txt")
CAP = 32  # states of one power loss, where the table has no other number
AT_MOST = 60  # CPU seconds for one scenario
_IS_SYNC = re.compile(r"sync|_round$|^taint$")
_CHANGES = {"create", "write", "rename", "unlink", "mkdir", "rmdir", "link", "symlink", "chmod", "chown", "set_xattr"}
_ANY_ALL = ("any", "all")
_NO_JOB = "lambda: (yield from ())"

Node = ast.AST
Function = ast.FunctionDef
Undoable = tuple[Callable[[], object], Callable[[], object]]  # a change of a tree, and back
Change = tuple[str, Undoable]  # with what is different then


class DoesNotEnd(BaseException):
    """A mutant runs in circles."""


@dataclass(frozen=True)
class Mutant:
    """`functions` are those that differ, by their qualified names in `module`."""

    name: str
    module: str
    functions: dict[str, Function]
    change: Undoable

    def codes(self) -> Iterator[tuple[types.FunctionType, types.CodeType]]:
        """The functions, and the code that each of them has in this mutant."""
        there, back = self.change
        for name, node in self.functions.items():
            *above, _ = name.split(".")
            tree = ast.parse("from __future__ import annotations")
            there()
            tree.body += [ast.ClassDef(one, [], [], [node], []) for one in above] or [node]
            try:
                todo = [compile(ast.fix_missing_locations(tree), f"<{self.name}>", "exec", dont_inherit=True)]
            finally:
                back()
            while (code := todo.pop()).co_qualname != name:
                todo += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            yield _function(self.module, name), code


# -- what can be different ------------------------------------------------------------------------------------------


def syncs(function: Function) -> Iterator[Change]:
    """Each sync left out; of a set of directories each part, too."""
    for place in _places(function):
        node = place.node
        if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):  # of a job for a round
            yield f"no {_name(node.value.elts[0])}", place.replaced(_expression("(yield from ())"))
        if isinstance(node, ast.Tuple) and not isinstance(place.parent, ast.Yield) and _IS_SYNC.search(_first(node)):
            yield f"no {_first(node)}", place.replaced(_expression(_NO_JOB))  # which is all of a job
        if not isinstance(node, ast.Call):
            continue
        name = _called(node)
        if name == "partial" and _IS_SYNC.search(_name(node.args[0])):
            yield f"no {_name(node.args[0])}", place.replaced(_expression(_NO_JOB))
        elif _IS_SYNC.search(name) and _is_job(place.parent):
            yield f"no {name}", place.replaced(_expression(_NO_JOB))
        elif _IS_SYNC.search(name):
            yield f"no {name}", place.replaced(_expression("()" if isinstance(place.parent, ast.YieldFrom) else "None"))
            for argument in node.args:
                if isinstance(argument, ast.BinOp):
                    yield (
                        f"{name} of {_text(argument.left)} only",
                        _Place(argument, "right").replaced(_expression("frozenset()")),
                    )
                    yield (
                        f"{name} of {_text(argument.right)} only",
                        _Place(argument, "left").replaced(_expression("frozenset()")),
                    )
            for keyword in node.keywords:
                yield f"{name} without {keyword.arg}", _Place(keyword, "value").replaced(ast.Constant(False))


def conditions(function: Function) -> Iterator[Change]:
    """Each condition, without `and`, `or` and `not`, taken for true and for false; of a pair of values each part."""
    decides = function.returns is not None and ast.unparse(function.returns) == "bool"
    asked = [node.args[0] for node in ast.walk(function) if isinstance(node, ast.Call) and _called(node) in _ANY_ALL]
    for place in _places(function):
        parent, field = place.parent, place.field
        is_test = field in ("test", "ifs") and not isinstance(parent, (ast.While, ast.Assert))
        is_answer = decides and field == "value" and isinstance(parent, ast.Return)
        if is_test or is_answer or (field == "elt" and parent in asked):
            yield from _parts(place)


def _parts(place: _Place) -> Iterator[Change]:
    node = place.node
    if isinstance(node, ast.BoolOp):
        for number in range(len(node.values)):
            yield from _parts(_Place(node, "values", number))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _parts(_Place(node, "operand"))
    elif not (isinstance(node, ast.Constant) or (isinstance(node, ast.Call) and _called(node) in _ANY_ALL)):
        for value in (True, False):
            yield f"{_text(node)} is {value}", place.replaced(ast.Constant(value))
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Tuple):
            (other,) = node.comparators
            assert isinstance(other, ast.Tuple)
            for number, part in enumerate(node.left.elts):
                same = ast.Constant(None)
                one, two = (_Place(side, "elts", number).replaced(same) for side in (node.left, other))
                yield f"without {_text(part)}", (_both(one[0], two[0]), _both(one[1], two[1]))


def orders(function: Function) -> Iterator[Change]:
    """Each two steps of one block, the second one before the first."""
    for node in ast.walk(function):
        for block in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
            if not isinstance(block, list):
                continue
            steps = [number for number, statement in enumerate(block) if _steps_of(statement)]
            for first, second in itertools.combinations(steps, 2):
                one, other = ("+".join(_steps_of(block[number])) for number in (first, second))
                if one == other or _leaves_early(block[first:second]):
                    continue
                if not _needs([block[second]], block[first:second]):
                    yield f"{other} before {one}", _moved(block, second, first)
                elif not _needs(block[first + 1 : second + 1], [block[first]]):
                    yield f"{other} before {one}", _moved(block, first, second)


def chained(functions: dict[str, Function]) -> Iterator[tuple[str, dict[str, Function], Undoable]]:
    """Each two steps of a chain of methods, of which each ends by naming the next one, in the wrong order."""
    links = {name: _Place(function.body[-1], "value") for name, function in functions.items() if _names_next(function)}
    for name, link in links.items():
        following = f"{name.rpartition('.')[0]}.{_name(link.node)}"
        if following in links:
            one, two = functions[name], functions[following]
            yield (
                f"{two.name} before {one.name}",
                {name: one, following: two},
                _swapped(one, two, link, links[following]),
            )


def _names_next(function: Function) -> bool:
    last = function.body[-1]
    return isinstance(last, ast.Assign) and _name(last.targets[0]) == "_next"


def _swapped(one: Function, two: Function, link: _Place, next_link: _Place) -> Undoable:
    def swap() -> None:
        one.body, two.body = two.body, one.body
        node = link.node
        link.put(next_link.node)
        next_link.put(node)

    return swap, swap


# -- trees ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Where a node stands below its parent."""

    parent: Any
    field: str
    index: int | None = None

    @property
    def node(self) -> Any:
        held = getattr(self.parent, self.field)
        return held if self.index is None else held[self.index]

    def put(self, node: Node) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node

    def replaced(self, new: Node) -> Undoable:
        return functools.partial(self.put, new), functools.partial(self.put, self.node)


def _places(function: Function) -> Iterator[_Place]:
    """Of every node below a function."""
    todo: list[Node] = [function]
    while todo:
        parent = todo.pop(0)
        for field in parent._fields:
            held = getattr(parent, field)
            for index, node in enumerate(held) if isinstance(held, list) else [(None, held)]:
                if isinstance(node, ast.AST):
                    yield _Place(parent, field, index)
                    todo.append(node)


def _moved(block: list[Any], number: int, to: int) -> Undoable:
    """One statement of a block to another place."""
    return lambda: block.insert(to, block.pop(number)), lambda: block.insert(number, block.pop(to))


def _both(one: Callable[[], object], two: Callable[[], object]) -> Callable[[], object]:
    return lambda: (one(), two())


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _name(node: Node) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_job(parent: Node) -> bool:
    """Whether what stands right below is an item of a list of jobs."""
    return isinstance(parent, ast.ListComp) or (isinstance(parent, ast.Call) and _called(parent) == "append")


def _first(node: ast.Tuple) -> str:
    return _name(node.elts[0]) if node.elts else ""


def _called(call: ast.Call) -> str:
    return _name(call.func)


def _text(node: Node) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 90 else f"{text[:87]}..."


def _calls(node: Node) -> list[str]:
    return list(dict.fromkeys(_called(below) for below in ast.walk(node) if isinstance(below, ast.Call)))


def _steps_of(statement: Node) -> list[str]:
    if isinstance(statement, (ast.FunctionDef, ast.Return)):
        return []
    raises = any(isinstance(node, ast.Raise) for node in ast.walk(statement))
    return [*["raise"][:raises], *(name for name in _calls(statement) if name in _step_names())]


def _leaves_early(statements: Sequence[Node]) -> bool:
    return any(isinstance(node, (ast.Return, ast.Continue)) for one in statements for node in ast.walk(one))


def _needs(statements: Sequence[Node], earlier: Sequence[Node]) -> bool:
    """Whether a name that those before it set is read before it is set anew."""
    made = _names(earlier, ast.Store)
    return any((_names([one], ast.Load) - _names([one], ast.Store)) & made for one in statements)


def _names(statements: Sequence[Node], context: type) -> set[str]:
    walked = [node for statement in statements for node in ast.walk(statement)]
    return {node.id for node in walked if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


@functools.cache
def _functions(module: str) -> dict[str, Function]:
    """The functions and methods of a module of the package, by qualified name."""
    spec = importlib.util.find_spec(f"txfiles.{module}")
    assert spec is not None
    assert spec.origin is not None
    found = {}
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{below.name}": below for below in node.body if isinstance(below, ast.FunctionDef)}
    return found


@functools.cache
def _step_names() -> frozenset[str]:
    """The calls that change the tree or make it durable, and whatever makes them; and those that may refuse."""
    calls = {node.name: _calls(node) for module in PROTOCOL for node in _functions(module).values()}
    found = {name for name in itertools.chain(*calls.values()) if name in _CHANGES or _IS_SYNC.search(name)}
    while more := {name for name, called in calls.items() if name not in found and found.intersection(called)}:
        found |= more
    refuse = {"decide", "judge", "take", "check_format", "_require_untainted", "conflicts_forward", "conflicts_undo"}
    return frozenset(found | refuse)


@functools.cache
def mutants() -> dict[str, Mutant]:
    """By name: `function: what is different`, with a number where one function has several of that name."""
    found: dict[str, Mutant] = {}
    for module in dict.fromkeys((*PROTOCOL, *CHECKS)):
        for name, node in _functions(module).items():
            changes = [*syncs(node)] if module in PROTOCOL else []
            changes += orders(node) if module in ORDERED else []
            if name in CHECKS.get(module, "-").split() or not CHECKS.get(module, "-"):
                changes += conditions(node)
            count: Counter[str] = Counter()
            for what, change in changes:
                count[what] += 1
                shown = f"{module.partition('.')[2]}.{name}: {what}" + (f" ({count[what]})" if count[what] > 1 else "")
                found[shown] = Mutant(shown, module, {name: node}, change)
        for what, nodes, change in chained(_functions(module)) if module in ORDERED else ():
            shown = f"{module.partition('.')[2]}.{what}"
            found[shown] = Mutant(shown, module, nodes, change)
    return found


# -- running --------------------------------------------------------------------------------------------------------


def _function(module: str, name: str) -> types.FunctionType:
    found: Any = importlib.import_module(f"txfiles.{module}")
    for part in name.split("."):
        found = vars(found)[part]
    for wrapper in ("fget", "__func__", "__wrapped__"):
        found = getattr(found, wrapper, found)
    assert isinstance(found, types.FunctionType)
    return found


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The package is the mutant in the block."""
    codes = list(mutant.codes())
    before = [function.__code__ for function, _ in codes]
    for function, code in codes:
        function.__code__ = code
    try:
        yield
    finally:
        for (function, _), code in zip(codes, before, strict=True):
            function.__code__ = code


def finds(found_by: str, mutant: Mutant) -> str:
    """What the explorer says about the mutant in this scenario (`name` or `name cap`); empty when it finds nothing."""
    name, _, cap = found_by.partition(" ")
    scenario = scenarios()[name]  # here: what the mutant breaks while scenarios are made is no finding

    def stop(*_: object) -> None:
        raise DoesNotEnd

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, AT_MOST)
    try:
        with applied(mutant):
            explore(scenario, (int(cap or CAP),))
    except (Exception, DoesNotEnd, pytest.fail.Exception) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
    return ""


@functools.cache
def scenarios() -> dict[str, Scenario]:
    """Every scenario of the engine, by name."""
    from tests.crash import mutant_cases, mutant_scenarios, steps_of_log, test_simfs_engine, test_two_phase
    from tests.crash import test_new_directory_acl as acl

    log = {**steps_of_log.SCENARIOS, **acl.SCENARIOS}
    groups = mutant_cases.CASES, mutant_scenarios.EXTRA, test_two_phase.SCENARIOS, test_simfs_engine.SCENARIOS, log
    return {name: scenario for group in groups for name, scenario in group.items()}


# -- the table ------------------------------------------------------------------------------------------------------


@functools.cache
def table() -> dict[str, str]:
    """By name: the scenario that finds a mutant, or the test, or a dash and the reason why none can."""
    return dict(line.split("  ->  ") for line in TABLE.read_text(encoding="utf-8").splitlines())


def likely(name: str) -> list[str]:
    """The scenarios to try: that of the table, or else those that find other mutants of the function."""
    if name in table():
        return [table()[name]]
    where = name.partition(":")[0]
    near = [found for other, found in table().items() if other.partition(":")[0] == where and is_scenario(found)]
    return list(dict.fromkeys(near))


def is_scenario(found: str) -> bool:
    return not found.startswith(("-", "tests/"))


def is_course(name: str) -> bool:
    """A scenario of fixed events, without a crash at each step: it takes milliseconds."""
    return not scenarios()[name.partition(" ")[0]].steps


def main(arguments: Sequence[str]) -> None:
    words = [word for word in arguments if word != "--write"]
    found = table().copy() if TABLE.exists() else {}
    by_cost = sorted(scenarios(), key=lambda name: not is_course(name))
    for name, mutant in mutants().items():
        if not all(word in name for word in words):
            continue
        for scenario in dict.fromkeys([*(likely(name) if TABLE.exists() else []), *by_cost]):
            if is_scenario(scenario) and (told := finds(scenario, mutant)):
                (line,) = [line for line in told.splitlines() if line.startswith("txfiles-replay")] or [told[:100]]
                print(f"{name}  ->  {line}", flush=True)
                found[name] = scenario
                break
        else:
            print(f"{name}  ->  not found; {found.get(name, 'nobody said why')}", flush=True)
            if is_scenario(found.get(name, "")):
                found.pop(name, None)
    if "--write" in arguments:
        lines = [f"{name}  ->  {found[name]}\n" for name in mutants() if name in found]
        TABLE.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
