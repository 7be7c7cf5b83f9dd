"""F and its neighbours once more, through the documents that a program loads and saves."""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import DEEP
from tests.support.boundary import killed, tree
from tests.support.loop import loop_fs
from tests.support.mounts import read_only
from tests.support.procs import child
from txfiles import FileTransaction, JsonDocuments, recover
from txfiles.errors import DocumentError, NestedTransactionError

DEFAULTS = {"messages": [], "metadata": {"count": 0}, "state": {}}


def test_f01_f02_eight_writers_of_a_conversation(root: Path) -> None:
    """Four processes and four threads append; whoever loads sees as many messages as are counted."""
    turns = 100 if DEEP else 15
    code = """
        from txfiles import JsonDocuments
        docs = JsonDocuments(sys.argv[1], {"messages": [], "metadata": {"count": 0}}, durability="process", timeout=60)
        print("ready")
        input()
        for turn in range(int(sys.argv[2])):
            with docs.edit() as d:
                d["messages"].append([os.getpid(), turn])
                d["metadata"]["count"] = len(d["messages"])
    """
    docs = JsonDocuments(root, DEFAULTS, durability="process", timeout=60)
    done = threading.Event()

    def edit(number: int) -> None:
        for turn in range(turns):
            with docs.edit() as d:
                d["messages"].append([number, turn])
                d["metadata"]["count"] = len(d["messages"])

    def load() -> int:
        loads = 0
        while not done.is_set():
            found = docs.load()
            assert found["metadata"]["count"] == len(found["messages"])
            loads += 1
        return loads

    with ExitStack() as stack:
        children = [stack.enter_context(child(code, root, turns)) for _ in range(4)]
        for one in children:
            one.expect("ready")
            one.send()
        with ThreadPoolExecutor(5) as pool:
            reader = pool.submit(load)
            try:
                list(pool.map(edit, range(4)))
                for one in children:
                    one.finish().check()
            finally:
                done.set()
            assert reader.result() > 5
    messages = docs.load()["messages"]
    assert len(messages) == 8 * turns
    assert len({tuple(message) for message in messages}) == 8 * turns
    assert sorted(tree(root)) == ["messages.json", "metadata.json"]


@pytest.mark.parametrize("nth", range(1, 6))
def test_f04_a_killed_save_is_loaded_as_a_whole(root: Path, nth: int) -> None:
    docs = JsonDocuments(root, DEFAULTS)
    docs.save(messages=[1], metadata={"count": 1}, state={"count": 1})
    killed(lambda: docs.save(messages=[1, 2], metadata={"count": 2}, state={"count": 2}), "rename", nth)
    found = docs.load()
    assert len(found["messages"]) == found["metadata"]["count"] == found["state"]["count"]
    assert found["state"]["count"] == (1 if nth == 1 else 2)
    recover(root)
    assert docs.load() == found


def _save(docs: JsonDocuments) -> None:
    docs.save(state={"x": 1})


def _edit(docs: JsonDocuments) -> None:
    with docs.edit() as d:
        d["state"] = {"x": 1}


@pytest.mark.parametrize("call", [_save, _edit])
def test_e04_a_save_inside_a_transaction_is_an_error_at_once(root: Path, call: Callable[[JsonDocuments], None]) -> None:
    docs = JsonDocuments(root, DEFAULTS, timeout=None)
    with docs.edit() as d, pytest.raises(NestedTransactionError):
        d["metadata"]["count"] = 1
        call(docs)
    with FileTransaction(root), pytest.raises(NestedTransactionError):
        call(docs)
    assert docs.load() == {"messages": [], "metadata": {"count": 1}, "state": {}}


@pytest.mark.parametrize("bad", [{"x": {1}}, {"x": float("nan")}, {1: "a"}, "\ud800", [2**64]], ids=repr)
def test_g01_g02_g04_g05_one_bad_document_saves_none(root: Path, bad: object) -> None:
    docs = JsonDocuments(root, DEFAULTS)
    docs.save(messages=["old"], metadata={}, state={})
    with pytest.raises(DocumentError, match=r"'metadata\.json'"):
        docs.save(messages=["new"], metadata=bad, state={"new": 1})
    with pytest.raises(DocumentError, match=r"'metadata\.json'"), docs.edit() as d:
        d.update(messages=["new"], metadata=bad)
    with pytest.raises(DocumentError):
        JsonDocuments(root, {"messages": bad})
    assert docs.load() == {"messages": ["old"], "metadata": {}, "state": {}}


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b'{"count": 1', b"[" * 100_000])
def test_g07_a_damaged_document_is_never_taken_for_its_default(root: Path, data: bytes) -> None:
    docs = JsonDocuments(root, DEFAULTS)
    docs.save(messages=["old"], metadata={"count": 1})
    (root / "metadata.json").write_bytes(data)
    for call in (docs.load, lambda: docs.edit().__enter__()):
        with pytest.raises(DocumentError, match=r"'metadata\.json'"):
            call()
    assert (root / "metadata.json").read_bytes() == data
    docs.save(metadata={"count": 1})
    assert docs.load()["metadata"] == {"count": 1}


@pytest.mark.needs("mount")
def test_e15_loading_from_a_read_only_mount(root: Path) -> None:
    docs = JsonDocuments(root, DEFAULTS)
    with read_only(root):
        assert docs.load() == DEFAULTS
    docs.save(messages=[1])
    with read_only(root):
        assert docs.load() == {**DEFAULTS, "messages": [1]}
        with pytest.raises(OSError, match="Read-only"):
            docs.save(messages=[2])
    docs.save(messages=[2])


@pytest.mark.needs("loop", "ext4")
def test_f17_documents_are_durable_by_default(tmp_path: Path) -> None:
    assert inspect.signature(JsonDocuments).parameters["durability"].default == "full"
    with loop_fs(tmp_path, "ext4") as fs:
        docs = JsonDocuments(fs.path / "new" / "root", DEFAULTS, create=True)
        docs.save(messages=[1], metadata={"count": 1})
        fs.power_cut()
        assert recover(fs.path / "new" / "root").rolled_back == []
        assert docs.load() == {"messages": [1], "metadata": {"count": 1}, "state": {}}
        assert json.loads((fs.path / "new/root/messages.json").read_bytes()) == [1]
