"""The examples in the docstrings of stores, snapshots and documents, and of their twins for asyncio, run."""

from __future__ import annotations

import asyncio
import doctest
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from txfiles import FileStore, JsonDocuments, aio, async_documents, documents, snapshot, store
from txfiles._asyncio import snapshot as async_snapshot
from txfiles._documents import codecs


@pytest.mark.parametrize(
    "module",
    [documents, async_documents, codecs, snapshot, store, aio, async_snapshot],
    ids=lambda module: module.__name__,
)
def test_examples(root: Path, module: ModuleType) -> None:
    made = FileStore(root, durability="process")
    names: dict[str, Any] = {"root": root, "store": made, "JsonDocuments": JsonDocuments, "asyncio": asyncio}
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner()
    for example in finder.find(module, extraglobs=names):
        with made.transaction() as tx:
            tx.write_json("a.json", {"generation": 1, "parts": [1, 2]})
            tx.write_json("b.json", {"generation": 1})
            tx.write("count", "0")
        runner.run(example)
    assert runner.tries > 0
    assert not runner.failures
