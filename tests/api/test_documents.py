"""`JsonDocuments` on a real file system."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.procs import child
from txfiles import FileTransaction, JsonDocuments
from txfiles.errors import DocumentError, InvalidPathError, LockTimeoutError

DEFAULTS: dict[str, Any] = {"messages": [], "metadata": {}, "state": {"turn": 0}, "global_context": {}}


@pytest.fixture
def docs(root: Path) -> JsonDocuments:
    return JsonDocuments(root, DEFAULTS, durability="process")


def inodes(root: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in root.iterdir() if path.is_file()}


def test_missing_files_are_defaults_and_loading_makes_nothing(root: Path, docs: JsonDocuments) -> None:
    assert docs.load() == DEFAULTS
    assert list(root.iterdir()) == []


def test_save_and_load(root: Path, docs: JsonDocuments) -> None:
    docs.save(messages=[{"role": "user", "text": "grüß Gott"}], state={"turn": 1})
    assert docs.load() == {
        "messages": [{"role": "user", "text": "grüß Gott"}],
        "metadata": {},
        "state": {"turn": 1},
        "global_context": {},
    }
    assert sorted(inodes(root)) == ["messages.json", "state.json"]


def test_bytes_are_what_people_expect(root: Path, docs: JsonDocuments) -> None:
    value = {"text": "grüß Gott", "list": [1, 2.5, None, True]}
    docs.save(metadata=value)
    assert (root / "metadata.json").read_bytes() == (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
    JsonDocuments(root, DEFAULTS, indent=None, durability="process").save(metadata=value)
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert (root / "metadata.json").read_bytes() == (compact + "\n").encode()


def test_save_replaces_only_what_is_named(root: Path, docs: JsonDocuments) -> None:
    docs.save(**DEFAULTS)
    before = inodes(root)
    docs.save(state={"turn": 2})
    changed = {name for name, inode in inodes(root).items() if before[name] != inode}
    assert changed == {"state.json"}
    docs.save()
    assert docs.load()["state"] == {"turn": 2}


@pytest.mark.parametrize("bad", [{1, 2}, float("nan"), {1: "a"}, "\ud800", 1 << 70])
def test_what_is_no_json_changes_nothing(root: Path, docs: JsonDocuments, bad: Any) -> None:
    docs.save(state=1, messages=[])
    with pytest.raises(DocumentError) as caught:
        docs.save(messages=["new"], state={"x": bad})
    assert caught.value.path == "state.json"
    assert caught.value.outcome == "before"
    assert (docs.load()["state"], docs.load()["messages"]) == (1, [])
    with pytest.raises(DocumentError), docs.edit() as d:
        d["messages"] = ["new"]
        d["state"] = bad
    assert (docs.load()["state"], docs.load()["messages"]) == (1, [])


@pytest.mark.parametrize("damage", [b"", b"{", b'{"turn": 1', b"\xff\xfe", b"\0" * 20, b"[" * 5000])
def test_a14_a_damaged_file_is_told_and_never_overwritten_by_a_default(
    root: Path, docs: JsonDocuments, damage: bytes
) -> None:
    docs.save(messages=["kept"])
    (root / "state.json").write_bytes(damage)
    with pytest.raises(DocumentError) as caught:
        docs.load()
    assert caught.value.path == "state.json"
    with pytest.raises(DocumentError) as caught, docs.edit() as d:
        d["messages"] = ["lost"]
    assert caught.value.path == "state.json"
    assert (root / "state.json").read_bytes() == damage
    docs.save(messages=["other documents can be saved"])
    assert (root / "state.json").read_bytes() == damage
    docs.save(state={"turn": 7})  # the caller's own value, not a default
    assert docs.load()["state"] == {"turn": 7}


def test_defaults_are_nobodys_to_change(root: Path) -> None:
    defaults: dict[str, Any] = {"state": {"list": []}}
    docs = JsonDocuments(root, defaults, durability="process")
    defaults["state"]["list"].append("by the caller")
    docs.load()["state"]["list"].append("by a reader")
    with docs.edit() as d:
        d["state"]["list"].append("edited")
        (root / "state.json").exists()
    assert docs.load() == {"state": {"list": ["edited"]}}
    (root / "state.json").unlink()
    assert docs.load() == {"state": {"list": []}}


def test_edit_writes_only_what_changed(root: Path, docs: JsonDocuments) -> None:
    (root / "metadata.json").write_text('{"by hand":   [1,2]}', encoding="utf-8")
    docs.save(state={"turn": 1}, messages=[1])
    before = inodes(root)
    with docs.edit() as d:
        d["state"]["turn"] += 1
        d["messages"] = [1]
        d["metadata"] = {"by hand": [1, 2]}
    after = inodes(root)
    assert {name for name in after if before.get(name) != after[name]} == {"state.json"}
    assert (root / "metadata.json").read_text(encoding="utf-8") == '{"by hand":   [1,2]}'
    assert docs.load()["state"] == {"turn": 2}


@pytest.mark.parametrize(("old", "new"), [(1, True), (1, 1.0), (0.0, -0.0), ([0], [False]), ({"a": 1, "b": 2}, None)])
def test_edit_sees_what_python_calls_equal(root: Path, docs: JsonDocuments, old: Any, new: Any) -> None:
    docs.save(state=old)
    before = (root / "state.json").read_bytes()
    with docs.edit() as d:
        d["state"] = {"b": 2, "a": 1} if new is None else new
    assert (root / "state.json").read_bytes() != before


def test_edit_leaves_numbers_alone_that_cannot_be_written(root: Path, docs: JsonDocuments) -> None:
    (root / "state.json").write_text(str(1 << 70), encoding="utf-8")
    with docs.edit() as d:
        assert d["state"] == 1 << 70
        d["messages"].append("x")
    assert (root / "state.json").read_text(encoding="utf-8") == str(1 << 70)
    assert docs.load()["messages"] == ["x"]


def test_an_exception_in_edit_changes_nothing(root: Path, docs: JsonDocuments) -> None:
    docs.save(state={"turn": 1})
    with pytest.raises(KeyError), docs.edit() as d:
        d["state"]["turn"] = 2
        raise KeyError
    assert docs.load()["state"] == {"turn": 1}


def test_the_set_of_documents_is_fixed(docs: JsonDocuments) -> None:
    with pytest.raises(ValueError, match="no such document: stat"):
        docs.save(stat={})
    with pytest.raises(ValueError, match="no such document: more"), docs.edit() as d:
        d["state"] = {"turn": 9}
        d["more"] = 1
    with pytest.raises(ValueError, match="cannot be removed: state"), docs.edit() as d:
        del d["state"]
    assert docs.load() == DEFAULTS


def test_names(root: Path) -> None:
    docs = JsonDocuments(root, {"a": 1, "b.conf": 2, "dir/c": 3, "self": 4}, durability="process")
    docs.save(**{"a": 10, "b.conf": 20, "dir/c": 30, "self": 40})
    assert json.loads((root / "a.json").read_text(encoding="utf-8")) == 10
    assert json.loads((root / "b.conf").read_text(encoding="utf-8")) == 20
    assert json.loads((root / "dir" / "c.json").read_text(encoding="utf-8")) == 30
    assert docs.load() == {"a": 10, "b.conf": 20, "dir/c": 30, "self": 40}
    with pytest.raises(ValueError, match="one file"):
        JsonDocuments(root, {"a": 1, "a.json": 2})
    for bad in ("", "../x", "/x", ".txfiles/x", "a\0"):
        with pytest.raises(InvalidPathError):
            JsonDocuments(root, {bad: 1})
    with pytest.raises(TypeError):
        JsonDocuments(root, {1: 1})  # type: ignore[dict-item]


def test_defaults_must_be_json(root: Path) -> None:
    with pytest.raises(DocumentError) as caught:
        JsonDocuments(root, {"state": {1, 2}})
    assert caught.value.path == "state.json"
    with pytest.raises(ValueError, match="indent"):
        JsonDocuments(root, {"state": 1}, indent=-1)


def test_a_missing_root(tmp_path: Path, watch: Callable[[Path], Path]) -> None:
    path = watch(tmp_path / "new" / "root")
    with pytest.raises(FileNotFoundError):
        JsonDocuments(path, DEFAULTS).load()
    with pytest.raises(FileNotFoundError):
        JsonDocuments(path, DEFAULTS).save(state={})
    docs = JsonDocuments(path, DEFAULTS, create=True)
    assert docs.load() == DEFAULTS
    assert not path.exists()
    docs.save(state={"turn": 1})
    assert docs.load()["state"] == {"turn": 1}


def test_edit_holds_the_lock(root: Path, docs: JsonDocuments) -> None:
    impatient = JsonDocuments(root, DEFAULTS, durability="process", timeout=0)
    with docs.edit() as d:
        d["state"] = {"turn": 5}
        failed: list[BaseException] = []

        def save() -> None:
            try:
                impatient.save(state={"turn": 6})
            except LockTimeoutError as error:
                failed.append(error)

        thread = threading.Thread(target=save)
        thread.start()
        thread.join()
        assert failed
        assert impatient.load()["state"] == {"turn": 0}
    assert docs.load()["state"] == {"turn": 5}


def test_edits_of_several_processes_are_not_lost(root: Path) -> None:
    code = """
    from txfiles import JsonDocuments
    docs = JsonDocuments(sys.argv[1], {"count": 0, "log": []}, durability="process", timeout=60)
    for _ in range(50):
        with docs.edit() as d:
            d["count"] += 1
            d["log"].append(d["count"])
    """
    with child(code, root) as one, child(code, root) as two, child(code, root) as three:
        docs = JsonDocuments(root, {"count": 0, "log": []}, timeout=60)
        last = 0
        while last < 150:
            loaded = docs.load()
            assert loaded["log"] == list(range(1, loaded["count"] + 1))
            assert loaded["count"] >= last
            last = loaded["count"]
            for process in (one, two, three):
                assert process.process.returncode in (None, 0)
        for process in (one, two, three):
            process.finish().check()
    assert docs.load()["count"] == 150


def test_the_store_is_at_hand(root: Path, docs: JsonDocuments) -> None:
    version = docs.store.state_version()
    docs.save(state={})
    assert docs.store.wait_for_change(version, 0) != version
    assert docs.store.status().clean
    assert docs.store.root == os.path.realpath(root)
    assert "state" in repr(docs)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=12,
)
changes = st.dictionaries(st.sampled_from(["one", "two", "three.txt"]), json_values, max_size=3)


@given(st.lists(st.tuples(st.sampled_from(["save", "edit", "fail", "unlink"]), changes), max_size=8))
def test_like_a_dict(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, dict[str, Any]]]) -> None:
    root = tmp_path_factory.mktemp("root")
    defaults: dict[str, Any] = {"one": None, "two": {"x": [1]}, "three.txt": "t"}
    docs = JsonDocuments(root, defaults, durability="process")
    model = dict(defaults)
    for how, values in steps:
        if how == "save":
            docs.save(**values)
            model |= values
        elif how == "edit":
            with docs.edit() as d:
                assert d == model
                d.update(values)
            model |= values
        elif how == "fail":
            with pytest.raises(ZeroDivisionError), docs.edit() as d:
                d.update(values)
                raise ZeroDivisionError
        else:
            with FileTransaction(root, durability="process") as tx:
                for name in values:
                    tx.delete(name if "." in name else f"{name}.json", missing_ok=True)
            model |= {name: defaults[name] for name in values}
        loaded = docs.load()
        assert repr(loaded) == repr({name: model[name] for name in defaults})
    assert JsonDocuments(root, defaults).load() == model
