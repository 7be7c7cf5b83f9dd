"""Documents on object storage: the same calls, and others that commit meanwhile are no error of theirs."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from txfiles import AsyncDocuments, Documents, FileStore
from txfiles.documents import Document
from txfiles.errors import DocumentError


@dataclasses.dataclass
class Task:
    title: str


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://documents-{request.node.name}/board"


def test_every_call_of_documents(url: str) -> None:
    kinds: dict[str, Any] = {"state": {"n": 0}, "s.toml": {"a": 1}, "tasks": Document(type=Task, file="tasks/*.json")}
    docs = Documents(url, kinds, create=True)
    assert docs.load() == {"state": {"n": 0}, "s.toml": {"a": 1}, "tasks": {}}
    docs.save(state={"n": 1})
    with docs.edit() as d:
        d["tasks"]["7"] = Task("sweep")
        d["state"]["n"] += 1
    tasks = docs.collection("tasks")
    tasks.set("8", Task("mop"), group=True)
    assert (tasks.keys(), tasks.get("8")) == (["7", "8"], Task("mop"))
    tasks.delete("7")
    with docs.store.transaction() as tx:
        tx.write("state.json", "{")
    with pytest.raises(DocumentError, match=r"'state\.json'"):
        docs.load()
    assert docs.set_aside() == {"state.json": "state.json.damaged-1"}
    assert docs.load() == {"state": {"n": 0}, "s.toml": {"a": 1}, "tasks": {"8": Task("mop")}}


def test_every_call_of_their_twins(url: str) -> None:
    docs = AsyncDocuments(url, {"state": {"n": 0}, "tasks": Document(type=Task, file="tasks/*.json")}, create=True)

    async def main() -> None:
        async with docs.edit() as d:
            d["state"]["n"] = 5
            await d["tasks"].set("9", Task("dust"))
        tasks = docs.collection("tasks")
        await tasks.set("1", Task("cook"), group=True)
        await tasks.delete("9")
        assert await docs.load() == {"state": {"n": 5}, "tasks": {"1": Task("cook")}}
        async with docs.store.async_transaction() as tx:
            await tx.write("state.json", "{")
        assert await docs.set_aside() == {"state.json": "state.json.damaged-1"}

    asyncio.run(main())


@pytest.mark.parametrize("of_the_set", [False, True])
def test_an_upgrade_that_another_commit_disturbs_is_done_again(url: str, of_the_set: bool) -> None:
    store = FileStore(url, create=True)
    with store.transaction() as tx:
        tx.write_json("all/a.json", {"name": "old"})
        tx.write_json("other.json", 0)
    disturbed: list[int] = []

    def migrate(value: Any, version: int) -> Any:
        if len(disturbed) < 3:  # when the snapshot is read, and twice in the transaction
            disturbed.append(version)
            with store.transaction() as tx:
                tx.write_json("all/a.json", {"name": f"newer {len(disturbed)}"})
        return value

    docs = Documents(url, {"all/*.json": Document(version=1, migrate=migrate), "other": 0})
    found = docs.collection("all/*.json").load() if of_the_set else docs.load()["all/*.json"]
    assert found == {"a": {"name": "newer 3"}}
    with store.snapshot() as snap:
        assert snap.read_json("all/a.json") == {"version": 1, "name": "newer 3"}


def test_a_document_that_is_repaired_meanwhile_is_not_set_aside(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = Documents(url, {"state": {"n": 0}}, create=True)
    with docs.store.transaction() as tx:
        tx.write("state.json", "{")
    damage = docs._family.damage

    def repaired_meanwhile(name: str, path: str, data: bytes) -> DocumentError | None:
        if data == b"{":
            docs.save(state={"n": 1})
        return damage(name, path, data)

    monkeypatch.setattr(docs._family, "damage", repaired_meanwhile)
    assert docs.set_aside() == {}
    assert docs.load() == {"state": {"n": 1}}
