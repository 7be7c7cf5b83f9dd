"""A: files that were damaged before, by somebody else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.boundary import tree
from txfiles import FileStore, FileTransaction, JsonDocuments
from txfiles.errors import DocumentError

_WHOLE = json.dumps({"name": "value", "list": list(range(100))}, indent=2).encode()
DAMAGES = {
    "empty": b"",
    "blanks": b" \n\n",
    "NUL bytes": b"\0" * 4096,
    "half": _WHOLE[: len(_WHOLE) // 2],
    "two writers": _WHOLE[:100] + _WHOLE,
    "a tail of NUL": _WHOLE + b"\0" * 30,
    "not UTF-8": b'{"name": "caf\xe9"}',
    "binary": bytes(range(256)),
}
damaged = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


def _read_in_transaction(root: Path, name: str) -> object:
    with FileTransaction(root) as tx:
        return tx.read_json(name)


def _read_in_snapshot(root: Path, name: str) -> object:
    with FileStore(root).snapshot() as snap:
        return snap.read_json(name)


def _read_pinned(root: Path, name: str) -> object:
    with FileStore(root).snapshot(name) as snap:
        return snap.read_json(name)


def _load(root: Path, name: str) -> object:
    return JsonDocuments(root, {name: {}}).load()[name]


READERS = [_read_in_transaction, _read_in_snapshot, _read_pinned]
Reader = Callable[[Path, str], object]


@damaged
def test_a12_one_damaged_file_of_ten_does_not_stop_the_others(root: Path, damage: bytes) -> None:
    with FileTransaction(root) as tx:
        for number in range(10):
            tx.write_json(f"{number}.json", {"number": number})
    (root / "3.json").write_bytes(damage)
    with FileTransaction(root) as tx:
        for number in range(10):
            if number != 3:
                assert tx.read_json(f"{number}.json") == {"number": number}
        with pytest.raises(DocumentError, match=r"3\.json"):
            tx.read_json("3.json")
        assert tx.read("3.json") == damage
        assert tx.exists("3.json")
        assert len(tx.glob("*.json")) == 10
        tx.write_json("4.json", "and the transaction goes on")
    assert (root / "4.json").read_text(encoding="utf-8") == '"and the transaction goes on"\n'


@damaged
@pytest.mark.parametrize("cure", ["delete", "write", "move", "copy"])
def test_a12_a_damaged_file_can_be_removed_replaced_and_set_aside(root: Path, damage: bytes, cure: str) -> None:
    (root / "a.json").write_bytes(damage)
    with FileTransaction(root) as tx:
        if cure == "delete":
            tx.delete("a.json")
        elif cure == "write":
            tx.write_json("a.json", {})
        elif cure == "move":
            tx.move("a.json", "a.json.damaged")
        else:
            tx.copy("a.json", "a.json.damaged")
            tx.write_json("a.json", {})
    expected = {"delete": {}, "write": {"a.json": b"{}\n"}, "move": {"a.json.damaged": damage}}
    assert tree(root) == expected.get(cure, {"a.json": b"{}\n", "a.json.damaged": damage})


@damaged
def test_a12_a_damaged_document_does_not_stop_the_others_from_being_saved(root: Path, damage: bytes) -> None:
    documents = JsonDocuments(root, {"state": {}, "history": []})
    documents.save(state={"turn": 1}, history=["one"])
    (root / "state.json").write_bytes(damage)
    documents.save(history=["one", "two"])
    with pytest.raises(DocumentError, match=r"state\.json"):
        documents.load()
    documents.save(state={"turn": 2})
    assert documents.load() == {"state": {"turn": 2}, "history": ["one", "two"]}


@pytest.mark.parametrize("read", [*READERS, _load])
@damaged
def test_a13_damage_is_an_error_of_its_own_with_the_path(root: Path, read: Reader, damage: bytes) -> None:
    (root / "settings").mkdir()
    (root / "settings/a.json").write_bytes(damage)
    with pytest.raises(DocumentError) as caught:
        read(root, "settings/a.json")
    assert caught.value.path == "settings/a.json"
    assert "settings/a.json" in str(caught.value)
    assert ("is empty" in str(caught.value)) == (not damage.strip())
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert (root / "settings/a.json").read_bytes() == damage


@pytest.mark.parametrize("read", READERS)
def test_a13_a_missing_file_is_another_error(root: Path, read: Reader) -> None:
    (root / "b.json").touch()
    FileTransaction(root).begin().rollback()
    with pytest.raises(FileNotFoundError):
        read(root, "a.json")


def _add(tx: FileTransaction) -> None:
    value = tx.read_json("a.json")
    value["runs"] = value.get("runs", 0) + 1
    tx.write_json("a.json", value)


def _update(root: Path) -> None:
    FileStore(root).update(_add)


def _with_block(root: Path) -> None:
    with FileTransaction(root) as tx:
        _add(tx)


def _after_another_write(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write_json("log.json", "about to add one")
        _add(tx)


def _optimistic(root: Path) -> None:
    store = FileStore(root)
    with store.snapshot() as snap:
        value = snap.read_json("a.json")
    with store.transaction(base=snap) as tx:
        tx.write_json("a.json", {**value, "runs": 1})


def _edit(root: Path) -> None:
    with JsonDocuments(root, {"a": {}, "b": []}).edit() as documents:
        documents["a"]["runs"] = 1
        documents["b"].append("one")


@damaged
@pytest.mark.parametrize("change", [_update, _with_block, _after_another_write, _optimistic, _edit])
def test_a14_read_modify_write_does_not_replace_what_it_could_not_read(
    root: Path, change: Callable[[Path], None], damage: bytes
) -> None:
    (root / "a.json").write_bytes(damage)
    before = (root / "a.json").stat()
    for _ in range(3):
        with pytest.raises(DocumentError, match=r"a\.json"):
            change(root)
    assert tree(root) == {"a.json": damage}, "nothing is lost, and no copies pile up"
    assert (root / "a.json").stat().st_ino == before.st_ino
    (root / "a.json").write_text("{}", encoding="utf-8")
    change(root)
    assert '"runs": 1' in (root / "a.json").read_text(encoding="utf-8")
