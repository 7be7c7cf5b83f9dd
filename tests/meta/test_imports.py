"""Imports go one way: from a row of `LAYERS` to the rows below it, also inside functions and for types only."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "txfiles"

# The architecture, top to bottom: what users import, then the rooms, each with the modules in it. Modules of one row do
# not know each other. `integrations` and `testing` stand for all their modules.
LAYERS = """
    __main__
    cli

    _cli.options
    _cli.look  _cli.put  _cli.remote  _cli.sync
    _cli.answer  _cli.progress
    _cli.output

    integrations
    testing
    __init__

    _sync.engine  _sync.overlap
    _sync.folder  _sync.plan  _sync.remote  _sync.target
    _sync.excludes  _sync.sides

    async_documents
    documents
    store

    _groups.tasks  _groups.threads
    _groups.update

    aio
    prepared
    checkpoint  recovery  snapshot  transaction

    objects.compact  objects.engine
    objects.far  objects.collect  objects.reader  objects.staging  objects.tags
    objects.root  objects.view
    objects.commit
    objects.probe  objects.settle  objects.turn  objects.upload
    objects.change  objects.keeper
    objects.read
    objects.tree  objects.wait
    objects.content  objects.requests  objects.state

    _asyncio.file  _asyncio.snapshot
    _asyncio.tasks
    _asyncio.worker

    _documents.family
    _documents.members
    _documents.document  _documents.patterns
    _documents.codecs  _documents.typed
    _documents.foreign  _documents.merging
    _documents.places

    _reading.nothing  _reading.reader  _reading.resting
    _reading.question
    _reading.lookout
    _reading.records
    _reading.overlay

    _commit.idle
    _commit.levels  _commit.two_phase
    _commit.recover
    _commit.log_recovery
    _commit.log_commit
    _commit.checkpoint  _commit.protocol
    _commit.logfile  _commit.restore  _commit.spare
    _commit.durable  _commit.evidence  _commit.inventory  _commit.log_look
    _commit.home

    _calls.changing
    _calls.opening
    _calls.reading
    _calls.savepoint
    _calls.session
    _calls.content  _calls.plan  _calls.progress  _calls.settings

    _tree.facts
    _tree.subtrees
    _tree.staging
    _tree.streams
    _tree.tokens  _tree.view
    _tree.tree
    _tree.borders  _tree.exits

    _disk.allowance  _disk.lock  _disk.metadata
    _disk.lockfile  _disk.pace
    _disk.bell
    _disk.system
    _disk.rounds
    _disk.fsyncs  _disk.interrupts  _disk.leaving

    _format.log
    _format.digest  _format.journal  _format.json
    _format.paths
    _format.layout

    errors
"""

# The doors of a room: what the rest of the package may import of it.
DOORS = {
    "_cli": {"answer", "options", "output"},
    "_sync": {"engine", "excludes", "folder", "overlap", "plan", "remote", "sides", "target"},
    "_format": {"digest", "journal", "json", "layout", "log", "paths"},
    "_disk": {"allowance", "interrupts", "leaving", "lock", "metadata", "rounds", "system"},
    "_tree": {"borders", "facts", "staging", "streams", "subtrees", "tokens", "tree", "view"},
    "_calls": {"changing", "content", "opening", "plan", "progress", "session", "settings"},
    "_commit": {
        "evidence",
        "home",
        "idle",
        "inventory",
        "levels",
        "log_commit",
        "log_look",
        "log_recovery",
        "protocol",
        "recover",
        "restore",
        "two_phase",
    },
    "_documents": {"codecs", "document", "family", "members", "patterns"},
    "_reading": {"lookout", "nothing", "question", "reader", "resting"},
    "objects": {"collect", "compact", "engine", "far", "reader", "root", "state", "tags"},
    "_groups": {"tasks", "threads"},
    "_asyncio": {"file", "snapshot", "tasks", "worker"},
}

# What only these modules may import: the rest reaches it through them.
ONLY_IN = {
    "os": {
        "_cli.output",
        "_cli.put",
        "_sync.folder",
        "_sync.overlap",
        "_disk.bell",
        "_disk.system",
        "_disk.fsyncs",
        "_disk.interrupts",
        "_disk.rounds",
        "testing",
    },
    "shutil": {"_disk.system", "testing"},
    "fcntl": {"_disk.bell", "_disk.system", "testing"},
    "ctypes": {"_disk.bell", "_disk.system", "_disk.fsyncs", "_disk.interrupts", "testing"},
    "filelock": {"_disk.lock"},
    "orjson": {"_format.json", "_format.journal", "_format.log", "objects.state", "objects.tree"},
    "obstore": {"objects.far", "objects.requests", "store"},
    "asyncio": {
        "_asyncio.file",
        "_asyncio.snapshot",
        "_asyncio.tasks",
        "_groups.tasks",
        "aio",
        "async_documents",
    },
    "argparse": {"_cli.look", "_cli.options", "_cli.put", "_cli.remote", "_cli.sync", "cli", "testing"},
    "fsspec": {"integrations"},
    "transaction": {"integrations"},
}

ROWS = {name: row for row, line in enumerate(LAYERS.split("\n")) for name in line.split()}
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The module as in `LAYERS`; the room alone for its `__init__`."""
    first, *rest = path.relative_to(PACKAGE).with_suffix("").parts
    return f"{first}.{rest[0]}" if first in DOORS and rest != ["__init__"] else first


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every import of a module as a dotted name, with its line."""
    package = ["txfiles", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            for alias in node.names:
                yield ".".join(filter(None, [*base, node.module, alias.name])), node.lineno


def inside(name: str) -> str:
    """The module of the package that a dotted name leads to; the package itself for what `__init__` exports."""
    first, second, *_ = [*name.split(".")[1:], "", ""]
    for module in (f"{first}.{second}", first):
        if module in ROWS:
            return module
    return "__init__"


def inner(path: Path) -> Iterator[tuple[str, int]]:
    return ((inside(name), line) for name, line in imports(path) if name.split(".")[0] == "txfiles")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    here = name_of(path)
    if here in DOORS:
        assert not list(imports(path)), "the page of a room imports nothing"
        return
    assert here in ROWS, f"{here} has no row in LAYERS"
    wrong = [
        f"{path.name}:{line} imports {name}" for name, line in inner(path) if name != here and ROWS[name] <= ROWS[here]
    ]
    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_is_entered_through_its_doors(path: Path) -> None:
    here = name_of(path).partition(".")[0]
    wrong = []
    for name, line in inner(path):
        room, _, module = name.partition(".")
        if room != here and module and module not in DOORS[room]:
            wrong.append(f"{path.name}:{line} imports {name}")
    assert not wrong


def test_every_room_has_its_page_and_its_place() -> None:
    rooms = [name.partition(".")[0] for name in ROWS if "." in name]
    assert list(dict.fromkeys(rooms)) == [room for room, _ in itertools.groupby(rooms)], "a room is one block"
    assert set(rooms) == set(DOORS)
    for room in DOORS:
        text = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))) or ""
        assert "May know" in text
        assert "Begin with" in text


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_only_some_may_import(path: Path) -> None:
    here = name_of(path)
    wrong = [
        f"{path.name}:{line} imports {name}"
        for name, line in imports(path)
        if here not in ONLY_IN.get(name.split(".")[0], {here})
    ]
    assert not wrong


def test_the_check_sees_every_form_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / "_disk").mkdir()
    module = tmp_path / "_disk" / "system.py"
    module.write_text(
        "import txfiles.cli\n"
        "from txfiles import store, FileStore\n"
        "from .lock import RootLock\n"
        "from txfiles._tree.tree import Tree\n"
        "from txfiles.testing.sim import SimFS\n"
        "def f():\n"
        "    import os.path\n",
        encoding="utf-8",
    )
    found = [name for name, _ in imports(module)]
    assert [inside(name) for name in found[:-1]] == ["cli", "store", "__init__", "_disk.lock", "_tree.tree", "testing"]
    assert found[-1] == "os.path"
