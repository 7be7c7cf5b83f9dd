"""Open sets of documents: `tasks/*.json` as a mapping."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.boundary import tree
from tests.support.procs import child
from txfiles import Documents, FileTransaction, Snapshot
from txfiles.documents import Document
from txfiles.errors import DocumentError


@dataclasses.dataclass
class Task:
    title: str
    done: bool = False


TASKS = "tasks/*.json"


@pytest.fixture
def docs(root: Path) -> Documents:
    return Documents(root, {"count": 0, TASKS: Task}, durability="process")


def test_no_files_is_an_empty_mapping(root: Path, docs: Documents) -> None:
    assert docs.load() == {"count": 0, TASKS: {}}
    with docs.edit() as d:
        assert list(d) == ["count", TASKS]
        assert dict(d[TASKS]) == {}
    assert docs.collection(TASKS).keys() == []
    assert tree(root) == {}


def test_keys_get_set_and_delete_in_one_commit(root: Path, docs: Documents) -> None:
    with docs.edit() as d:
        d[TASKS]["1"] = Task("sweep")
        d[TASKS].set("2", Task("mop"))
        d[TASKS].update({"3": Task("dust")})
        d["count"] = 3
        assert sorted(d[TASKS].keys()) == ["1", "2", "3"]
        assert (
            json.loads((root / "count.json").read_text(encoding="utf-8") if (root / "count.json").exists() else "0")
            == 0
        )
    assert sorted(tree(root)) == ["count.json", "tasks", "tasks/1.json", "tasks/2.json", "tasks/3.json"]
    before = {path.name: path.stat().st_ino for path in (root / "tasks").iterdir()}
    with docs.edit() as d:
        tasks = d[TASKS]
        assert tasks.get("1") == Task("sweep")
        assert tasks.get("9") is None
        tasks["1"].done = True
        assert tasks["3"] == Task("dust")
        tasks.delete("2")
        assert "2" not in tasks
        assert list(tasks) == ["1", "3"]
        assert len(tasks) == 2
        for gone in ("2", "9"):
            with pytest.raises(KeyError):
                del tasks[gone]
            with pytest.raises(KeyError):
                tasks[gone]
        d["count"] -= 1
    assert docs.load() == {"count": 2, TASKS: {"1": Task("sweep", True), "3": Task("dust")}}
    after = {path.name: path.stat().st_ino for path in (root / "tasks").iterdir()}
    assert before["3.json"] == after["3.json"]
    assert before["1.json"] != after["1.json"]


def test_deleted_and_made_again(root: Path, docs: Documents) -> None:
    docs.collection(TASKS).set("1", Task("old"))
    with docs.edit() as d:
        assert d[TASKS].pop("1") == Task("old")
        d[TASKS]["1"] = Task("new")
        d[TASKS]["2"] = Task("never")
        del d[TASKS]["2"]
    assert docs.load()[TASKS] == {"1": Task("new")}


def test_an_exception_changes_nothing(root: Path, docs: Documents) -> None:
    docs.collection(TASKS).set("1", Task("old"))
    before = tree(root)
    with pytest.raises(ZeroDivisionError), docs.edit() as d:
        d[TASKS]["2"] = Task("new")
        del d[TASKS]["1"]
        raise ZeroDivisionError
    with pytest.raises(DocumentError, match=r"'tasks/2\.json' cannot be written: \$\.title"), docs.edit() as d:
        del d[TASKS]["1"]
        d[TASKS]["2"] = Task(3)  # type: ignore[arg-type]
    assert tree(root) == before


def test_a_collection_by_itself(root: Path, docs: Documents) -> None:
    tasks = docs.collection(TASKS)
    tasks.set("b", Task("mop"))
    version = docs.store.state_version()
    tasks.update({"a": Task("sweep"), "c": Task("dust")})
    assert tasks.keys() == ["a", "b", "c"]
    assert tasks.get("a") == Task("sweep")
    assert tasks.get("d") is None
    assert tasks.get("d", 1) == 1
    assert tasks.load() == {"a": Task("sweep"), "b": Task("mop"), "c": Task("dust")}
    assert docs.store.state_version() != version
    with pytest.raises(KeyError):
        tasks.delete("a", "d")
    assert tasks.keys() == ["a", "b", "c"]
    tasks.delete("a", "b")
    assert tasks.keys() == ["c"]
    with pytest.raises(DocumentError):
        tasks.update({"c": Task("new"), "e": 5})
    assert tasks.load() == {"c": Task("dust")}
    assert "tasks" in repr(tasks)
    with pytest.raises(ValueError, match="count"):
        docs.collection("count")


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        *((TASKS, key) for key in ("", "a/b", "../x", "a\0b", "/")),
        *(("all/*", key) for key in ("", ".", "..", "a.damaged-1")),
    ],
)
def test_what_is_no_key(root: Path, pattern: str, key: str) -> None:
    docs = Documents(root, {"set": Document(type=int, codec="json", file=pattern)}, durability="process")
    for call in (docs.collection("set").get, lambda key: docs.collection("set").set(key, 1)):
        with pytest.raises(ValueError, match=r"key|NUL|directory"):
            call(key)
    with docs.edit() as d, pytest.raises(ValueError, match=r"key|NUL|directory"):
        d["set"][key] = 1
    with pytest.raises(TypeError):
        docs.collection("set").get(7)  # type: ignore[arg-type]
    assert tree(root) == {}


@pytest.mark.parametrize("key", [".", ".x", "a b", "ü", "*", "[", "..", "\udcff"])
def test_any_name_of_a_file_is_a_key(root: Path, docs: Documents, key: str) -> None:
    docs.collection(TASKS).set(key, Task("x"))
    assert docs.collection(TASKS).load() == {key: Task("x")}


def test_a_document_of_its_own_is_not_of_the_set(root: Path) -> None:
    docs = Documents(
        root, {"index.json": {"n": 0}, "*.json": {}, "dir/*": Document(codec="text")}, durability="process"
    )
    (root / "dir").mkdir()
    (root / "dir" / "readme").write_text("hello", encoding="utf-8")
    docs.collection("*.json").set("a", {"x": 1})
    docs.save(**{"index.json": {"n": 1}})
    assert docs.load() == {"index.json": {"n": 1}, "*.json": {"a": {"x": 1}}, "dir/*": {}}
    with pytest.raises(ValueError, match="'index' is no key"):
        docs.collection("*.json").set("index", {})


def test_a_star_for_a_directory(root: Path) -> None:
    docs = Documents(root, {"users": Document(file="users/*/profile.yaml")}, durability="process")
    docs.collection("users").update({"ann": {"age": 3}, "bob": {"age": 4}})
    assert (root / "users/ann/profile.yaml").read_text(encoding="utf-8") == "age: 3\n"
    assert docs.load() == {"users": {"ann": {"age": 3}, "bob": {"age": 4}}}


def test_patterns_that_are_refused(root: Path) -> None:
    for bad in ("*/*.json", "**/a.json", "a?*.json", "[a]*.json"):
        with pytest.raises(ValueError, match="no pattern"):
            Documents(root, {bad: {}})
    for one, other in (("a*.json", "*.json"), ("tasks/*.json", "*/x.json"), ("t/*", "t/*.json")):
        with pytest.raises(ValueError, match="files in common"):
            Documents(root, {one: Document(codec="json"), other: {}})
    Documents(root, {"a/*.json": {}, "a*.json": {}, "b/*.json": {}, "a/*.yaml": {}})
    with pytest.raises(ValueError, match="the default is"):
        Documents(root, {"tasks/*.json": {"a": 1}})


def test_a_set_is_not_saved_or_replaced_as_a_whole(root: Path, docs: Documents) -> None:
    docs.collection(TASKS).set("1", Task("old"))
    with pytest.raises(ValueError, match="edit"):
        docs.save(**{TASKS: {}})
    with pytest.raises(ValueError, match="change what is in it"), docs.edit() as d:
        d[TASKS] = {}
    assert docs.load()[TASKS] == {"1": Task("old")}


def test_a_damaged_one_is_told_where_it_is_read(root: Path, docs: Documents) -> None:
    tasks = docs.collection(TASKS)
    tasks.update({"1": Task("one"), "2": Task("two")})
    (root / "tasks/1.json").write_text("{", encoding="utf-8")
    for call in (docs.load, tasks.load, lambda: tasks.get("1")):
        with pytest.raises(DocumentError) as caught:
            call()
        assert caught.value.path == "tasks/1.json"
    assert tasks.get("2") == Task("two")
    with docs.edit() as d:  # it is neither read nor lost
        d[TASKS]["2"].done = True
        with pytest.raises(DocumentError):
            d[TASKS]["1"]
    assert (root / "tasks/1.json").read_text(encoding="utf-8") == "{"
    tasks.set("1", Task("new"))
    assert tasks.get("1") == Task("new")


def test_loads_beside_a_writer_are_of_one_state(root: Path) -> None:
    docs = Documents(root, {"count": 0, "n/*.json": int}, durability="process", timeout=60)
    code = """
    from txfiles import Documents, FileTransaction, Snapshot
    docs = Documents(sys.argv[1], {"count": 0, "n/*.json": int}, durability="process", timeout=60)
    for number in range(150):
        with docs.edit() as d:
            d["count"] += 1
            d["n/*.json"][str(number % 7)] = number
            d["n/*.json"].pop(str((number + 3) % 7), None)
            d["sum"] = 0
            del d["sum"]
            assert sorted(d) == ["count", "n/*.json"]
    """
    with child(code, root) as one:
        last = 0
        while last < 150:
            loaded = docs.load()
            last = loaded["count"]
            want = {number % 7: number for number in range(max(0, last - 4), last)}
            assert loaded["n/*.json"] == {str(key): number for key, number in sorted(want.items())}
            assert one.process.returncode in (None, 0)
        one.finish().check()


def test_a_set_that_never_holds_still_is_read_under_the_lock(
    root: Path, docs: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs.collection(TASKS).set("1", Task("0"))
    looks: list[type] = []
    paths = docs._paths

    def committed_meanwhile(view: Any, name: str) -> list[str]:
        found = paths(view, name)
        looks.append(type(view))
        if isinstance(view, Snapshot):
            with FileTransaction(root, durability="process") as tx:
                tx.write_json("tasks/1.json", {"title": str(len(looks))})
        return found

    monkeypatch.setattr(docs, "_paths", committed_meanwhile)
    assert docs.load()[TASKS] == {"1": Task("3")}
    assert looks == [Snapshot] * 3 + [FileTransaction]


def test_a_missing_root(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Documents(tmp_path / "x", {TASKS: {}}).load()
    docs = Documents(tmp_path / "x", {TASKS: {}}, create=True)
    assert docs.load() == {TASKS: {}}
    assert docs.collection(TASKS).keys() == []
    assert docs.collection(TASKS).get("1") is None
    assert not (tmp_path / "x").exists()


steps = st.tuples(
    st.sampled_from(["set", "delete", "get", "change", "fail"]), st.sampled_from("abc"), st.integers(0, 9)
)


@given(st.lists(st.lists(steps, max_size=6), max_size=6))
def test_like_a_dict(tmp_path_factory: pytest.TempPathFactory, edits: list[list[tuple[str, str, int]]]) -> None:
    root = tmp_path_factory.mktemp("root")
    docs = Documents(root, {"n/*": Document(type=list[int], codec="json")}, durability="process")
    model: dict[str, list[int]] = {}
    for edit in edits:
        inside = {key: list(value) for key, value in model.items()}
        try:
            with docs.edit() as d:
                members = d["n/*"]
                for how, key, number in edit:
                    if how == "set":
                        inside[key] = [number]
                        members[key] = [number]
                    elif how == "delete":
                        assert members.pop(key, None) == inside.pop(key, None)
                    elif how == "get":
                        assert members.get(key) == inside.get(key)
                    elif how == "change" and key in inside:
                        inside[key].append(number)
                        members[key].append(number)
                    elif how == "fail":
                        raise ZeroDivisionError
                    assert sorted(members) == sorted(inside)
        except ZeroDivisionError:
            inside = model
        model = inside
        assert docs.load()["n/*"] == model
