"""Imports go one way: from a row of `LAYERS` to the rows below it, also inside functions and for types only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "txfiles"

# The architecture, top to bottom. Modules of one row do not know each other. A package stands for all its modules.
LAYERS = """
    __main__
    cli  integrations
    testing
    __init__  _progress
    documents
    store
    aio
    _async_file  _async_snapshot
    _tasks
    _worker
    snapshot
    prepared  recovery
    transaction
    _reader
    _question
    _lookout  _overlay  _two_phase
    _recover
    _protocol
    _durable  _evidence  _inventory
    _trees  _streams
    _staging
    _home  _view
    _tokens
    _tree  _metadata  _lock  _json
    _lockfile
    _fs
    _rounds
    _fsyncs
    _journal
    _paths
    _layout  _digest
    errors
"""

# What only these modules may import: the rest reaches it through them.
ONLY_IN = {
    "os": {"_fs", "_fsyncs", "_rounds", "testing"},
    "shutil": {"_fs", "testing"},
    "fcntl": {"_fs", "testing"},
    "ctypes": {"_fs", "_fsyncs", "testing"},
    "filelock": {"_lock"},
    "orjson": {"_json", "_journal"},
    "asyncio": {"aio", "_async_file", "_async_snapshot", "_tasks"},
    "argparse": {"cli", "testing"},
    "fsspec": {"integrations"},
    "transaction": {"integrations"},
}

ROWS = {name: row for row, line in enumerate(LAYERS.split("\n")) for name in line.split()}
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


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
    second = name.split(".")[1] if "." in name else "__init__"
    return second if second in ROWS else "__init__"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    here = name_of(path)
    assert here in ROWS, f"{here} has no row in LAYERS"
    wrong = [
        f"{path.name}:{line} imports {name}"
        for name, line in imports(path)
        if name.split(".")[0] == "txfiles" and inside(name) != here and ROWS[inside(name)] <= ROWS[here]
    ]
    assert not wrong


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
    module = tmp_path / "_fs.py"
    module.write_text(
        "import txfiles.cli\n"
        "from txfiles import store, FileStore\n"
        "from . import _lock\n"
        "from ._tree import Tree\n"
        "from txfiles.testing.sim import SimFS\n"
        "def f():\n"
        "    import os.path\n"
    )
    found = [name for name, _ in imports(module)]
    assert [inside(name) for name in found[:-1]] == ["cli", "store", "__init__", "_lock", "_tree", "testing"]
    assert found[-1] == "os.path"
