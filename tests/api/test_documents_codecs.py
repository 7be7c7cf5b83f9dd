"""Documents of several formats, each with a codec of its own."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest
import tomlkit

from tests.support.boundary import tree
from txfiles import Documents, JsonDocuments
from txfiles._documents.codecs import codec_of
from txfiles.documents import Codec, CommentsLostWarning, Document, Json, Text, Yaml
from txfiles.errors import DocumentError

_BOM = b"\xef\xbb\xbf"
YAML = b"""\
# the settings
depth: 1   # how deep

names:       # who
- 'one'  # the first
- two
nested:
  # beside x
  x: 1.50
"""
TOML = b"""\
# the settings
depth = 1 # how deep

[nested] # the table
# beside x
x = 1.50

[[item]]
name = "one" # the first
"""


def documents(root: Path, given: dict[str, Any], **settings: Any) -> Documents:
    return Documents(root, given, durability="process", **settings)


def test_the_suffix_says_what_a_document_is(root: Path) -> None:
    docs = documents(root, {"a": {}, "b.yaml": {}, "c.yml": [], "d.toml": {}, "e.txt": "", "f.md": "", "g.conf": 1})
    values = {"a": {"x": 1}, "b.yaml": {"x": 1}, "c.yml": [1], "d.toml": {"x": 1}, "e.txt": "e", "f.md": "f\r\n"}
    docs.save(**values)
    assert tree(root) == {
        "a.json": b'{\n  "x": 1\n}\n',
        "b.yaml": b"x: 1\n",
        "c.yml": b"- 1\n",
        "d.toml": b"x = 1\n",
        "e.txt": b"e",
        "f.md": b"f\r\n",
    }
    assert docs.load() == {**values, "g.conf": 1}


@pytest.mark.parametrize(
    ("codec", "suffix", "value", "data"),
    [
        ("json", ".json", {"x": 1}, b'{\n  "x": 1\n}\n'),
        ("yaml", ".yaml", {"x": 1}, b"x: 1\n"),
        ("toml", ".toml", {"x": 1}, b"x = 1\n"),
        ("text", ".txt", "grüß", "grüß".encode()),
        ("bytes", "", b"\x00\xff", b"\x00\xff"),
        ((pickle.loads, pickle.dumps), "", {1, 2}, pickle.dumps({1, 2})),
        (Codec(json.loads, json.dumps, suffix=".js"), ".js", [1], b"[1]"),
    ],
    ids=["json", "yaml", "toml", "text", "bytes", "a pair", "a codec"],
)
def test_the_codec_of_all_and_of_one(root: Path, codec: Any, suffix: str, value: Any, data: bytes) -> None:
    for number, docs in enumerate(
        [documents(root, {"d0": value}, codec=codec), documents(root, {"d1": Document(value, codec=codec)})]
    ):
        assert docs.load() == {f"d{number}": value}
        docs.save(**{f"d{number}": value})
        assert (root / f"d{number}{suffix}").read_bytes() == data
        assert docs.load() == {f"d{number}": value}


def test_json_beside_a_name_that_says_otherwise(root: Path) -> None:
    JsonDocuments(root, {"a.yaml": 1}, durability="process").save(**{"a.yaml": {"x": [1]}})
    assert json.loads((root / "a.yaml").read_bytes()) == {"x": [1]}


def test_json_with_a_hook_options_and_indent(root: Path) -> None:
    how: dict[str, Any] = {"indent": 4, "default": str, "option": orjson.OPT_SORT_KEYS}
    value = {"b": Decimal("1.10"), "a": [1]}
    want = json.dumps({"a": [1], "b": "1.10"}, indent=4) + "\n"
    JsonDocuments(root, {"state": {}}, durability="process", **how).save(state=value)
    assert (root / "state.json").read_text(encoding="utf-8") == want
    documents(root, {"other": {}}, codec=Json(**how)).save(other=value)
    assert (root / "other.json").read_text(encoding="utf-8") == want
    with pytest.raises(ValueError, match="indent"):
        Json(indent=-1)


def test_a_default_of_a_type_that_needs_the_hook_is_not_written_by_an_edit(root: Path) -> None:
    docs = JsonDocuments(root, {"a": {"d": Decimal(1)}, "b": 1}, default=str, durability="process")
    with docs.edit() as d:
        d["b"] = 2
    assert list(tree(root)) == ["b.json"]
    with docs.edit() as d:
        d["a"]["d"] += 1
    assert docs.load()["a"] == {"d": "2"}


@pytest.mark.parametrize(("name", "data"), [("a.yaml", YAML), ("a.toml", TOML)])
def test_comments_stay(root: Path, name: str, data: bytes) -> None:
    (root / name).write_bytes(data)
    docs = documents(root, {name: {}})
    with docs.edit() as d:
        d[name]["depth"] = 2
    assert (root / name).read_bytes() == data.replace(b"1   #", b"2   #").replace(b"1 #", b"2 #")
    loaded = docs.load()[name]
    loaded["depth"] = 1
    docs.save(**{name: loaded})
    assert (root / name).read_bytes() == data


@pytest.mark.parametrize(("name", "data"), [("a.yaml", YAML), ("a.toml", TOML)])
def test_an_edit_that_changes_nothing_writes_nothing(root: Path, name: str, data: bytes) -> None:
    (root / name).write_bytes(data)
    before = (root / name).stat().st_ino
    docs = documents(root, {name: {}, "b": 1})
    with docs.edit() as d:
        d[name]["depth"] = 2
        d[name]["depth"] = 1
        d["b"] = 2
    assert (root / name).stat().st_ino == before


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("a.json", b"{"),
        ("a.json", _BOM),
        ("a.yaml", b"a: [1\n"),
        ("a.yaml", b"a: 1\na: 2\n"),
        ("a.yaml", b""),
        ("a.yaml", b"# nothing\n"),
        ("a.yaml", b"a: 1\n---\nb: 2\n"),
        ("a.yaml", b"\xff"),
        ("a.yaml", b"[" * 500),
        ("a.toml", b"a = \n"),
        ("a.toml", b"a = 1\na = 2\n"),
        ("a.toml", b"\xff"),
        ("a.txt", b"\xff"),
    ],
)
def test_what_cannot_be_read_is_named_and_stays(root: Path, name: str, bad: bytes) -> None:
    (root / name).write_bytes(bad)
    docs = documents(root, {name: "" if name == "a.txt" else {}, "b": 1})
    for call in (docs.load, lambda: docs.edit().__enter__()):
        with pytest.raises(DocumentError) as caught:
            call()
        assert caught.value.path == name
        assert name in str(caught.value)
    docs.save(b=2)
    assert (root / name).read_bytes() == bad


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("a.yaml", {"x": Path("y")}),
        ("a.yaml", {"x": "\ud800"}),
        ("a.toml", {"x": None}),
        ("a.toml", [1]),
        ("a.toml", {"x": {1, 2}}),
        ("a.toml", {"x": "\ud800"}),
        ("a.txt", b"x"),
        ("a.txt", "\ud800"),
    ],
)
def test_what_cannot_be_written_changes_nothing(root: Path, name: str, bad: Any) -> None:
    docs = documents(root, {name: "" if name == "a.txt" else {}, "b": 1})
    with pytest.raises(DocumentError) as caught:
        docs.save(**{"b": 2, name: bad})
    assert caught.value.path == name
    with pytest.raises(DocumentError), docs.edit() as d:
        d["b"] = 2
        d[name] = bad
    assert tree(root) == {}


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.toml", "a.txt"])
def test_a_byte_order_mark_is_read(root: Path, name: str) -> None:
    text = {"a.json": '{"x": "grün"}', "a.yaml": "x: grün\n", "a.toml": 'x = "grün"\n', "a.txt": "grün"}[name]
    (root / name).write_bytes(_BOM + text.encode())
    value: Any = "grün" if name == "a.txt" else {"x": "grün"}
    assert documents(root, {name: "" if name == "a.txt" else {}}).load() == {name: value}


def test_what_toml_would_read_as_another_value_is_refused(root: Path) -> None:
    docs = documents(root, {"a.toml": {}})
    for value in ({"t": {"a": 1}, "x": 1}, {"r": [{"a": 1}, {"b": []}], "f": float("nan")}, {"e": {}, "s": "\n\\"}):
        docs.save(**{"a.toml": value})
        assert repr(dict(sorted(docs.load()["a.toml"].unwrap().items()))) == repr(dict(sorted(value.items())))


def test_what_a_library_writes_wrongly_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = documents(root, {"a.toml": {}})
    monkeypatch.setattr(tomlkit, "dumps", lambda table: "x = 2\n")
    with pytest.raises(DocumentError, match="would be read as another value"):
        docs.save(**{"a.toml": {"x": 1}})
    assert tree(root) == {}
    docs.save(**{"a.toml": {"x": 2}})


def test_errors_of_a_pair_of_functions(root: Path) -> None:
    def fails(value: Any) -> Any:
        raise KeyError("why")

    def disk(value: Any) -> Any:
        raise OSError(5, "the disk")

    (root / "a").write_bytes(b"x")
    with pytest.raises(DocumentError, match=r"'a' cannot be read: 'why'"):
        documents(root, {"a": Document(b"", codec=(fails, bytes))}).load()
    with pytest.raises(OSError, match="the disk"):
        documents(root, {"a": Document(b"", codec=(disk, bytes))}).load()
    with pytest.raises(DocumentError, match=r"'b' cannot be written: 'why'"):
        documents(root, {"b": Document(b"", codec=(bytes, fails))})


def test_what_is_no_codec(root: Path) -> None:
    with pytest.raises(ValueError, match="xml"):
        documents(root, {}, codec="xml")
    with pytest.raises(TypeError, match="codec"):
        documents(root, {"a": Document(1, codec=3)})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="codec"):
        documents(root, {}, codec=(json.loads, 3))


def test_a_missing_library_is_named_with_its_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ruamel.yaml", None)
    with pytest.raises(ImportError, match=r"txfiles\[yaml\]"):
        Yaml()
    with pytest.raises(ImportError, match=r"txfiles\[yaml\]"):
        documents(root, {"a.yaml": {}})


def test_the_file_may_have_another_name(root: Path) -> None:
    docs = documents(root, {"settings": Document({}, file="conf/app.toml"), "log": Document("", codec=Text())})
    docs.save(settings={"x": 1}, log="y")
    assert tree(root) == {"conf": None, "conf/app.toml": b"x = 1\n", "log.txt": b"y"}
    with pytest.raises(ValueError, match="one file"):
        documents(root, {"a": 1, "b": Document(1, file="a.json")})


ALIASED = b"one: &part  # the first\n  x: 1  # of both\ntwo: *part\n"


@pytest.mark.parametrize(
    ("name", "data", "value", "why"),
    [
        ("a.yaml", ALIASED, {"one": {"x": 2}, "two": {"x": 1}}, "another value"),
        ("a.yaml", b"{ # damaged\n", {"x": 1}, "not valid YAML"),
        ("a.toml", b"x = # damaged\n", {"x": 1}, "not valid TOML"),
    ],
)
def test_comments_that_cannot_stay_are_told(root: Path, name: str, data: bytes, value: Any, why: str) -> None:
    codec = codec_of(name.partition(".")[2])
    with pytest.warns(CommentsLostWarning, match=f"'{name}' is written without .*{why}"):
        written = codec.write(value, name, data)
    assert codec.read_plain(written, name) == value


@pytest.mark.parametrize("name", ["a.yaml", "a.toml"])
def test_where_there_were_none_nothing_is_told(root: Path, name: str) -> None:
    codec = codec_of(name.partition(".")[2])
    assert codec.read_plain(codec.write({"x": 1}, name, b"{ damaged"), name) == {"x": 1}


def test_comments_that_are_lost_can_be_an_error_that_saves_nothing(root: Path) -> None:
    (root / "a.yaml").write_bytes(ALIASED)
    docs = Documents(root, {"a.yaml": Document({}, type=dict[str, dict[str, int]])})
    with pytest.raises(CommentsLostWarning), docs.edit() as d:
        d["a.yaml"] = {"one": {"x": 2}, "two": {"x": 1}}
    assert (root / "a.yaml").read_bytes() == ALIASED
    with pytest.warns(CommentsLostWarning), docs.edit() as d:
        d["a.yaml"] = {"one": {"x": 2}, "two": {"x": 1}}
    assert docs.load()["a.yaml"] == {"one": {"x": 2}, "two": {"x": 1}}


def test_a_value_that_cannot_be_written_is_no_word_about_comments(root: Path) -> None:
    with pytest.raises(DocumentError, match="cannot be written as TOML"):
        codec_of("toml").write({"x": object()}, "a.toml", b"x = 1 # one\n")
