"""`AsyncDocuments`: what `Documents` does, as coroutines."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import tree
from txfiles import AsyncDocuments, Documents
from txfiles.async_documents import AsyncCollection, AsyncMembers
from txfiles.documents import Collection, Document, Json, Members
from txfiles.errors import DocumentError, DocumentVersionError


@dataclasses.dataclass
class Task:
    title: str
    done: bool = False


TASKS = "tasks/*.json"


@pytest.fixture
def docs(root: Path) -> AsyncDocuments:
    return AsyncDocuments(root, {"state": {"turn": 0}, "notes.txt": "", TASKS: Task}, durability="process")


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(main, debug=True)


def test_it_has_the_methods_of_documents() -> None:
    for one, other in ((Documents, AsyncDocuments), (Collection, AsyncCollection)):
        public = {name for name in vars(one) if not name.startswith("_")}
        assert public <= set(vars(other))
        for name in public:
            mine, theirs = (inspect.getattr_static(cls, name) for cls in (one, other))
            if callable(mine):
                assert list(inspect.signature(mine).parameters) == list(inspect.signature(theirs).parameters), name
    assert list(inspect.signature(Documents).parameters) == list(inspect.signature(AsyncDocuments).parameters)
    assert {"keys", "get", "set", "delete", "update"} <= set(vars(AsyncMembers)) & set(dir(Members))


def test_load_save_and_edit(root: Path, docs: AsyncDocuments) -> None:
    async def main() -> None:
        assert await docs.load() == {"state": {"turn": 0}, "notes.txt": "", TASKS: {}}
        await docs.save(**{"state": {"turn": 1}, "notes.txt": "x"})
        async with docs.edit() as d:
            assert list(d) == ["state", "notes.txt", TASKS]
            d["state"]["turn"] += 1
            tasks = d[TASKS]
            assert await tasks.keys() == []
            await tasks.set("1", Task("sweep"))
            await tasks.update({"2": Task("mop"), "3": Task("dust")})
            assert await tasks.get("1") == Task("sweep")
            assert await tasks.keys() == ["1", "2", "3"]
        async with docs.edit() as d:
            tasks = d[TASKS]
            (await tasks.get("1")).done = True
            await tasks.delete("2")
            assert await tasks.get("2") is None
            for gone in ("2", "9"):
                with pytest.raises(KeyError):
                    await tasks.delete(gone)
        want = {"state": {"turn": 2}, "notes.txt": "x", TASKS: {"1": Task("sweep", True), "3": Task("dust")}}
        assert await docs.load() == want
        with pytest.raises(ZeroDivisionError):
            async with docs.edit() as d:
                d["state"] = {}
                await d[TASKS].delete("1")
                raise ZeroDivisionError
        with pytest.raises(DocumentError):
            async with docs.edit() as d:
                d["notes.txt"] = "y"
                await d[TASKS].set("4", 5)
        with pytest.raises(ValueError, match="no such document"):
            await docs.save(nobody=1)
        assert await docs.load() == want

    run(main())
    assert sorted(tree(root)) == ["notes.txt", "state.json", "tasks", "tasks/1.json", "tasks/3.json"]


def test_a_collection(docs: AsyncDocuments) -> None:
    async def main() -> None:
        tasks = docs.collection(TASKS)
        await tasks.set("a", Task("mop"))
        await tasks.update({"b": Task("sweep")})
        assert await tasks.keys() == ["a", "b"]
        assert await tasks.load() == {"a": Task("mop"), "b": Task("sweep")}
        assert await tasks.get("c", 1) == 1
        with pytest.raises(KeyError):
            await tasks.delete("a", "c")
        await tasks.delete("a")
        assert await tasks.keys() == ["b"]
        with pytest.raises(ValueError, match="state"):
            docs.collection("state")
        assert "Async" in repr(tasks)

    run(main())


def test_many_tasks_edit_at_once_and_none_is_lost(docs: AsyncDocuments) -> None:
    async def main() -> None:
        async def edit(number: int) -> None:
            async with docs.edit() as d:
                d["state"]["turn"] += 1
                await d[TASKS].set(str(number), Task(str(d["state"]["turn"])))

        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(edit(number))
        loaded = await docs.load()
        assert loaded["state"] == {"turn": 40}
        assert sorted(int(task.title) for task in loaded[TASKS].values()) == list(range(1, 41))

    run(main())


def test_a_cancelled_edit_changes_nothing_and_frees_the_lock(root: Path, docs: AsyncDocuments) -> None:
    async def main() -> None:
        inside = asyncio.Event()

        async def edit() -> None:
            async with docs.edit() as d:
                d["state"]["turn"] = 5
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(edit())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await docs.save(state={"turn": 9})
        closed = edit()
        closed.send(None)
        closed.close()  # without ever being awaited
        assert await docs.load() == {"state": {"turn": 9}, "notes.txt": "", TASKS: {}}
        await docs.save(state={"turn": 10})

    asyncio.run(main())
    assert json.loads((root / "state.json").read_text(encoding="utf-8")) == {"turn": 10}


def test_what_is_saved_is_the_value_at_the_call(root: Path, docs: AsyncDocuments) -> None:
    async def main() -> None:
        state = {"turn": 1}
        saving = asyncio.create_task(docs.save(state=state))
        await asyncio.sleep(0)
        state["turn"] = "changed meanwhile"  # type: ignore[assignment]
        await saving
        assert (await docs.load())["state"] == {"turn": 1}

    run(main())


def test_a_damaged_one_is_set_aside_and_a_newer_one_is_not(root: Path) -> None:
    docs = AsyncDocuments(root, {"a": 1, "b": Document({}, version=1), "c/*": Document(codec=Json(), file="c/*")})
    (root / "c").mkdir()
    for name in ("a.json", "a.json.damaged-1", "c/x"):
        (root / name).write_text("{", encoding="utf-8")
    (root / "b.json").write_text('{"version": 2}', encoding="utf-8")

    async def main() -> None:
        with pytest.raises(DocumentVersionError):
            await docs.set_aside()
        assert await docs.set_aside("a", "c/*") == {"a.json": "a.json.damaged-2", "c/x": "c/x.damaged-1"}
        (root / "b.json").unlink()
        assert await docs.set_aside() == {}
        assert await docs.load() == {"a": 1, "b": {}, "c/*": {}}

    run(main())


def test_the_store_is_at_hand(root: Path, docs: AsyncDocuments) -> None:
    async def main() -> None:
        version = docs.store.state_version()
        waiting = asyncio.create_task(docs.store.async_wait_for_change(version))
        await docs.save(state={})
        assert await waiting != version

    run(main())
    assert "AsyncDocuments" in repr(docs)
    assert docs.store.root == str(root.resolve())
