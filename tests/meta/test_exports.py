"""What is public is exported, documented, and light to import."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import Literal, get_origin

import pytest

import txfiles
from tests.support.documents import pages
from tests.support.procs import CHECKOUT, run_python

EXPORTS = [name for name in txfiles.__all__ if not name.startswith("__")]
_HEAVY = ["asyncio", "concurrent.futures", "ctypes", "filelock", "orjson", "tempfile", "urllib.parse"]


def test_all_is_sorted_and_complete() -> None:
    assert txfiles.__all__ == sorted(txfiles.__all__)
    tree = ast.parse(Path(txfiles.__file__).read_text(encoding="utf-8"))
    imported = {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert imported - {"annotations", "TYPE_CHECKING"} <= set(txfiles.__all__)
    for name in txfiles.__all__:
        assert getattr(txfiles, name) is not None
    assert set(txfiles.__all__) <= set(dir(txfiles))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        getattr(txfiles, "Nothing" + "AtAll")


@pytest.mark.parametrize("name", EXPORTS)
def test_every_export_is_documented(name: str) -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in [*pages(), CHECKOUT / "CHANGELOG.md"])
    assert re.search(rf"\b{name}\b", text), f"neither README.md nor docs/ nor CHANGELOG.md mentions {name}"
    value = getattr(txfiles, name)
    assert inspect.getdoc(value) or get_origin(value) in (Literal, UnionType)  # an alias of a type


@pytest.mark.parametrize("name", [name for name in EXPORTS if inspect.isclass(getattr(txfiles, name))])
def test_every_public_method_has_a_docstring(name: str) -> None:
    cls = getattr(txfiles, name)
    bare = [
        member
        for base in cls.__mro__
        if base.__module__.startswith("txfiles.")
        for member, value in vars(base).items()
        if not member.startswith("_") and (callable(value) or isinstance(value, property)) and not inspect.getdoc(value)
    ]
    assert not bare


@pytest.mark.parametrize("name", [name for name in EXPORTS if inspect.isclass(getattr(txfiles, name))])
def test_every_constructor_has_a_docstring(name: str) -> None:
    cls = getattr(txfiles, name)
    if not is_dataclass(cls):
        assert inspect.getdoc(vars(cls)["__init__"])


def test_the_types_of_arguments_are_exported_and_importing_them_is_cheap() -> None:
    for name in ("AnyPath", "Data", "Durability", "Links", "OnConflict", "RecoveryReport"):
        assert name in EXPORTS
    code = "import sys; from txfiles import AnyPath, Data, Durability, Links; print(*sys.modules)"
    done = run_python(code)
    made_of = {"orjson", "ctypes"}  # a journal, and what holds signals back
    assert {name for name in _HEAVY if name in done.stdout.split()} <= made_of


def test_the_version_is_one() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert txfiles.__version__ == project["version"]
    assert f"## [{txfiles.__version__}]" in (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_importing_is_light() -> None:
    code = "import sys, txfiles; print(*sys.modules)"
    argv, env = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, encoding="utf-8")
    assert [name for name in _HEAVY if name in done.stdout.split()] == []
