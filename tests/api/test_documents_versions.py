"""Documents with a version, migrated when an older one is loaded; damaged ones are set aside."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.boundary import tree
from tests.support.procs import run_python
from txfiles import Documents, FileStore
from txfiles.documents import Document
from txfiles.errors import DocumentError, DocumentVersionError


@dataclasses.dataclass
class Settings:
    names: list[str] = dataclasses.field(default_factory=list)


def migrate(value: Any, version: int) -> Any:
    if version < 1:
        value["name"] = value.pop("Name", "")
    if version < 2:
        value["names"] = [value.pop("name")]
    return value


def documents(root: Path, **settings: Any) -> Documents:
    kinds: dict[str, Any] = {
        "plain": Document({"names": []}, version=2, migrate=migrate),
        "typed.toml": Document(type=Settings, version=2, migrate=migrate),
        "kept.yaml": Document({"names": []}, version=2, migrate=migrate, version_key="schema"),
        "all/*.json": Document(version=2, migrate=migrate),
        "other": 1,
    }
    return Documents(root, kinds, durability="process", **settings)


NEW = {
    "plain": {"names": ["a"]},
    "typed.toml": Settings(["a"]),
    "kept.yaml": {"names": ["a"]},
    "all/*.json": {"x": {"names": ["a"]}, "y": {"names": ["b"]}},
    "other": 1,
}


def old(root: Path) -> None:
    (root / "all").mkdir()
    (root / "plain.json").write_text('{"Name": "a"}', encoding="utf-8")
    (root / "typed.toml").write_text('# mine\nversion = 1 # keep\nname = "a"\n', encoding="utf-8")
    (root / "kept.yaml").write_text("# mine\nschema: 1  # keep\nname: a\n", encoding="utf-8")
    (root / "all/x.json").write_text('{"version": 1, "name": "a"}', encoding="utf-8")
    (root / "all/y.json").write_text('{"version": 2, "names": ["b"]}', encoding="utf-8")


def test_the_version_is_in_the_file_and_not_in_the_value(root: Path) -> None:
    docs = documents(root)
    assert docs.load()["plain"] == {"names": []}
    docs.save(**{"plain": {"names": ["a"]}, "typed.toml": Settings(["a"]), "kept.yaml": {"names": ["a"]}})
    assert json.loads((root / "plain.json").read_text(encoding="utf-8")) == {"version": 2, "names": ["a"]}
    assert (root / "typed.toml").read_text(encoding="utf-8") == 'version = 2\nnames = ["a"]\n'
    assert (root / "kept.yaml").read_text(encoding="utf-8") == "schema: 2\nnames:\n- a\n"
    with docs.edit() as d:
        assert d["plain"] == {"names": ["a"]}
        d["kept.yaml"]["names"].append("b")
    assert docs.load()["kept.yaml"] == {"names": ["a", "b"]}
    assert (root / "kept.yaml").read_text(encoding="utf-8") == "schema: 2\nnames:\n- a\n- b\n"


def test_older_files_are_upgraded_in_one_transaction_at_load(root: Path) -> None:
    old(root)
    docs = documents(root)
    version = docs.store.state_version()
    assert docs.load() == NEW
    commits = docs.store.status().head
    assert commits is not None
    assert commits.sequence == 1
    assert docs.store.state_version() != version
    files = tree(root)
    assert files["plain.json"] == b'{\n  "version": 2,\n  "names": [\n    "a"\n  ]\n}\n'
    assert files["typed.toml"] == b'# mine\nversion = 2 # keep\nnames = ["a"]\n'
    assert files["kept.yaml"] == b"# mine\nschema: 2  # keep\nnames:\n- a\n"
    assert json.loads((root / "all/x.json").read_text(encoding="utf-8")) == {"version": 2, "names": ["a"]}
    assert files["all/y.json"] == b'{"version": 2, "names": ["b"]}'
    assert docs.load() == NEW
    assert docs.store.status().head == commits


def test_an_edit_and_a_collection_upgrade_too(root: Path) -> None:
    old(root)
    docs = documents(root)
    tasks = docs.collection("all/*.json")
    assert tasks.get("x") == {"names": ["a"]}
    assert json.loads((root / "all/x.json").read_text(encoding="utf-8"))["version"] == 2
    (root / "all/x.json").write_text('{"version": 1, "name": "z"}', encoding="utf-8")
    assert tasks.load() == {"x": {"names": ["z"]}, "y": {"names": ["b"]}}
    assert json.loads((root / "all/x.json").read_text(encoding="utf-8"))["version"] == 2
    with docs.edit() as d:
        d["other"] = 2
    assert json.loads((root / "plain.json").read_text(encoding="utf-8")) == {"version": 2, "names": ["a"]}


@pytest.mark.needs("users")
def test_where_nothing_may_be_written_the_value_is_given_all_the_same() -> None:
    code = """
    from txfiles import Documents
    from txfiles.documents import Document
    kind = Document({}, version=2, migrate=lambda value, version: {"was": version})
    every = Document(version=2, migrate=lambda value, version: value)
    docs = Documents(sys.argv[1], {"plain": kind, "all/*.json": every})
    assert docs.load() == {"plain": {"was": 0}, "all/*.json": {"x": {"names": []}}}
    assert docs.collection("all/*.json").get("x") == {"names": []}
    """
    with public_directory() as root:
        (root / "all").mkdir()
        (root / "plain.json").write_text("{}", encoding="utf-8")
        (root / "all/x.json").write_text('{"version": 1, "names": []}', encoding="utf-8")
        before = tree(root)
        run_python(code, root, **as_user(65534)).check()
        assert tree(root) == before


@pytest.mark.parametrize("found", [3, 99])
def test_a_newer_one_is_refused(root: Path, found: int) -> None:
    old(root)
    (root / "plain.json").write_text(json.dumps({"version": found, "Names": {}}), encoding="utf-8")
    before = tree(root)
    docs = documents(root)
    for call in (docs.load, docs.set_aside, lambda: docs.edit().__enter__()):
        with pytest.raises(DocumentVersionError, match=f"version {found}, which is newer") as caught:
            call()
        assert (caught.value.path, caught.value.place) == ("plain.json", "$.version")
    assert tree(root) == before


@pytest.mark.parametrize("text", ['{"version": "2"}', '{"version": true}', '{"version": -1}', "[]", "3"])
def test_what_is_no_version(root: Path, text: str) -> None:
    (root / "plain.json").write_text(text, encoding="utf-8")
    with pytest.raises(DocumentError, match=r"'plain\.json'") as caught:
        documents(root).load()
    assert not isinstance(caught.value, DocumentVersionError)


def test_an_older_one_without_a_way(root: Path) -> None:
    (root / "a.json").write_text("{}", encoding="utf-8")
    docs = Documents(root, {"a": Document({}, version=1)})
    with pytest.raises(DocumentVersionError, match="nothing leads"):
        docs.load()
    assert docs.store.status().head is None


def test_a_migration_that_fails_changes_nothing(root: Path) -> None:
    old(root)
    before = tree(root)

    def fails(value: Any, version: int) -> Any:
        raise KeyError("oops")

    docs = Documents(root, {"plain": Document({}, version=2, migrate=fails)})
    with pytest.raises(KeyError, match="oops") as caught:
        docs.load()
    assert caught.value.__notes__ == ["txfiles: while 'plain.json' was migrated from version 0 to 2"]
    wrongs: list[Any] = [None, [], {"version": 7}]
    for wrong in wrongs:
        docs = Documents(root, {"plain": Document({}, version=2, migrate=lambda value, version, w=wrong: w)})
        with pytest.raises(DocumentError, match=r"'plain\.json' cannot be written"):
            docs.load()
    assert tree(root) == before


def test_values_that_have_no_room_for_a_version(root: Path) -> None:
    docs = documents(root)
    bads: list[Any] = [[], {"version": 2}]
    for bad in bads:
        with pytest.raises(DocumentError):
            docs.save(plain=bad)
    with pytest.raises(DocumentError):
        Documents(root, {"a": Document([], version=1)})
    for settings in ({"version": 0}, {"version": True}, {"version": "1"}, {"migrate": migrate}):
        with pytest.raises(ValueError, match="version"):
            Document({}, **settings)  # type: ignore[arg-type]
    assert tree(root) == {}


# -- set aside --------------------------------------------------------------------------------------------------------


def test_set_aside_moves_what_is_damaged_and_nothing_else(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    docs = documents(root)
    docs.save(plain={"names": ["a"]}, other=5)
    docs.collection("all/*.json").update({"x": {"names": []}, "y": {"names": []}})
    assert docs.set_aside() == {}
    (root / "other.json").write_text("{", encoding="utf-8")
    (root / "typed.toml").write_text("version = 2\nnames = 3\n", encoding="utf-8")
    (root / "all/x.json").write_bytes(b"")
    with pytest.raises(DocumentError):
        docs.load()
    with caplog.at_level(logging.WARNING, "txfiles"):
        moved = docs.set_aside()
    assert moved == {
        "typed.toml": "typed.toml.damaged-1",
        "all/x.json": "all/x.json.damaged-1",
        "other.json": "other.json.damaged-1",
    }
    assert [record.path for record in caplog.records] == list(moved)  # type: ignore[attr-defined]
    assert "$.names: expected list, found 3" in caplog.text
    assert caplog.records[0].set_aside_as == "typed.toml.damaged-1"  # type: ignore[attr-defined]
    assert (root / "other.json.damaged-1").read_text(encoding="utf-8") == "{"
    loaded = docs.load()
    assert (loaded["other"], loaded["typed.toml"], loaded["plain"]) == (1, Settings(), {"names": ["a"]})
    assert loaded["all/*.json"] == {"y": {"names": []}}
    (root / "other.json").write_text("[", encoding="utf-8")
    assert docs.set_aside("other", "plain") == {"other.json": "other.json.damaged-2"}
    assert (root / "other.json.damaged-1").read_text(encoding="utf-8") == "{"
    with pytest.raises(ValueError, match="no such document: nobody"):
        docs.set_aside("nobody")


def test_what_was_set_aside_is_of_no_set(root: Path) -> None:
    docs = Documents(root, {"all/*": Document(codec="json", file="all/*")}, durability="process")
    (root / "all").mkdir()
    (root / "all/x").write_text("{", encoding="utf-8")
    assert docs.set_aside() == {"all/x": "all/x.damaged-1"}
    assert docs.load() == {"all/*": {}}
    assert docs.set_aside() == {}


def test_a_disk_error_is_no_damage(root: Path) -> None:
    (root / "other.json").mkdir()
    with pytest.raises(IsADirectoryError):
        documents(root).set_aside()
    assert (root / "other.json").is_dir()
    assert FileStore(root).status().clean
