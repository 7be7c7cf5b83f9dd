"""Documents of a type: dataclasses, attrs, pydantic, msgspec, and types of these."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import attrs
import msgspec
import pydantic
import pytest

from tests.support.boundary import tree
from txfiles import Documents
from txfiles.documents import CommentsLostWarning, Document
from txfiles.errors import DocumentError

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Entry:
    data: int
    name: str = ""


@dataclasses.dataclass
class Book:
    entries: list[Entry] = dataclasses.field(default_factory=list)
    colour: Colour = Colour.RED
    parent: Book | None = None


@attrs.define
class AttrsEntry:
    data: int
    _hidden: str = ""


@attrs.define
class AttrsBook:
    entries: list[AttrsEntry] = attrs.Factory(list)
    number: int = attrs.field(default=1, converter=int)


class ModelEntry(pydantic.BaseModel):
    data: int
    at: datetime.datetime | None = None


class ModelBook(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    entries: list[ModelEntry] = []
    kind: str = pydantic.Field(default="x", alias="Kind")


@pydantic.dataclasses.dataclass
class PydanticBook:
    entries: list[Entry] = dataclasses.field(default_factory=list)


class StructEntry(msgspec.Struct):
    data: int
    at: datetime.datetime | None = None


class StructBook(msgspec.Struct, rename="camel"):
    entries: list[StructEntry] = []
    first_name: str = "x"


BOOKS: list[tuple[Any, Any]] = [
    (Book, Book([Entry(1, "a")], Colour.BLUE, Book([Entry(2)]))),
    (AttrsBook, AttrsBook([AttrsEntry(1, "h")], 2)),
    (ModelBook, ModelBook(entries=[ModelEntry(data=1, at=datetime.datetime(2026, 1, 2, 3))], Kind="y")),
    (PydanticBook, PydanticBook([Entry(1)])),
    (StructBook, StructBook([StructEntry(1, datetime.datetime(2026, 1, 2, 3))], "y")),
]
EACH = pytest.mark.parametrize(("book", "value"), BOOKS, ids=lambda book: getattr(book, "__name__", ""))
FORMATS = pytest.mark.parametrize("suffix", ["json", "yaml", "toml"])


@FORMATS
@EACH
def test_a_value_comes_back_as_it_was(root: Path, book: Any, value: Any, suffix: str) -> None:
    name = f"book.{suffix}"
    docs = Documents(root, {name: book, "many": dict[str, book]}, durability="process")
    assert docs.load() == {name: book(), "many": {}}
    docs.save(**{name: value, "many": {"one": value}})
    loaded = docs.load()
    assert loaded == {name: value, "many": {"one": value}}
    assert type(loaded[name]) is book
    inodes = {path.name: path.stat().st_ino for path in root.glob("*.*")}
    with docs.edit() as d:
        assert d[name] == value
        d[name].entries.append(d[name].entries[0])
    assert len(docs.load()[name].entries) == 2
    changed = {path.name for path in root.glob("*.*") if inodes[path.name] != path.stat().st_ino}
    assert changed == {name}


@EACH
def test_an_error_has_its_place(root: Path, book: Any, value: Any) -> None:
    docs = Documents(root, {"book": book, "many": list[book]}, durability="process")
    bad = {"entries": [{"data": 1}, {"data": "x"}]}
    (root / "book.json").write_text(json.dumps(bad), encoding="utf-8")
    for call in (docs.load, lambda: docs.edit().__enter__()):
        with pytest.raises(DocumentError, match=r"'book\.json' does not fit: \$\.entries\[1\]\.data: ") as caught:
            call()
        assert (caught.value.path, caught.value.place) == ("book.json", "$.entries[1].data")
    (root / "book.json").unlink()
    (root / "many.json").write_text(json.dumps([{}, bad]), encoding="utf-8")
    with pytest.raises(DocumentError) as caught:
        docs.load()
    assert (caught.value.path, caught.value.place) == ("many.json", "$[1].entries[1].data")


@EACH
def test_what_could_not_be_read_again_is_not_written(root: Path, book: Any, value: Any) -> None:
    docs = Documents(root, {"book": book}, durability="process")
    docs.save(book=value)
    before = tree(root)
    with pytest.raises(DocumentError, match=r"'book\.json' cannot be written") as caught:
        docs.save(book={"entries": [{"data": None}]})
    assert caught.value.place == "$.entries[0].data"
    with pytest.raises(DocumentError, match=r"'book\.json' cannot be written"), docs.edit() as d:
        d["book"].entries[0].data = "x"
    assert tree(root) == before
    docs.save(book={"entries": [{"data": 5}]})  # a plain value that fits
    assert docs.load()["book"].entries[0].data == 5


@pytest.mark.parametrize(
    ("suffix", "comment"), [("yaml", "depth: 1  # how deep\n"), ("toml", "depth = 1 # how deep\n")]
)
def test_comments_stay_in_a_typed_document(root: Path, suffix: str, comment: str) -> None:
    @dataclasses.dataclass
    class Settings:
        depth: int = 0
        names: list[str] = dataclasses.field(default_factory=list)

    globals()["Settings"] = Settings
    (root / f"a.{suffix}").write_text("# all\n" + comment, encoding="utf-8")
    docs = Documents(root, {"a": Document(Settings(), type=Settings, codec=suffix)}, durability="process")
    with docs.edit() as d:
        d["a"].names += ["x", "y"]
    text = (root / f"a.{suffix}").read_text(encoding="utf-8")
    assert text.startswith("# all\n" + comment)
    assert docs.load()["a"] == Settings(1, ["x", "y"])
    with docs.edit() as d:
        d["a"].names.remove("x")
        d["a"].depth = 2
    assert (root / f"a.{suffix}").read_text(encoding="utf-8").startswith("# all\n" + comment.replace("1", "2"))
    assert docs.load()["a"] == Settings(2, ["y"])


class Pair(NamedTuple):
    x: int
    y: float


class Options(TypedDict):
    name: str
    depth: NotRequired[int]


@dataclasses.dataclass
class Box(Generic[T]):
    item: T
    more: list[T] = dataclasses.field(default_factory=list)


Id = NewType("Id", int)

GOOD: list[tuple[Any, Any, Any]] = [
    (int, 1, 1),
    (float, 1, 1.0),
    (str, "x", "x"),
    (bool, True, True),
    (None, None, None),
    (Any, {"x": [1]}, {"x": [1]}),
    (int | None, None, None),
    (int | str, "1", "1"),
    (int | float, 1.5, 1.5),
    (Literal["a", 1], 1, 1),
    (list, [1, "x"], [1, "x"]),
    (dict, {"a": 1}, {"a": 1}),
    (Sequence[int], [1], [1]),
    (Mapping[str, int], {"a": 1}, {"a": 1}),
    (tuple[int, str], [1, "x"], (1, "x")),
    (tuple[int, ...], [1, 2], (1, 2)),
    (set[int], [1], {1}),
    (frozenset[str], ["a"], frozenset("a")),
    (dict[int, str], {"1": "x"}, {1: "x"}),
    (dict[Colour, int], {"red": 1}, {Colour.RED: 1}),
    (Pair, [1, 2], Pair(1, 2.0)),
    (Options, {"name": "x"}, {"name": "x"}),
    (Box[int], {"item": 1, "more": [2]}, Box(1, [2])),
    (Box[Colour], {"item": "red"}, Box(Colour.RED)),
    (Id, 1, 1),
    (Annotated[int, "doc"], 1, 1),
    (datetime.date, "2026-01-02", datetime.date(2026, 1, 2)),
    (datetime.datetime, "2026-01-02T03:04:05Z", datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
    (datetime.time, "03:04:00", datetime.time(3, 4)),
    (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
    (decimal.Decimal, 1.1, decimal.Decimal("1.1")),
    (uuid.UUID, "12345678123456781234567812345678", uuid.UUID(int=0x12345678123456781234567812345678)),
    (Path, "x/y", Path("x/y")),
]


@pytest.mark.parametrize(("declared", "plain", "value"), GOOD, ids=str)
def test_a_type_of_python(root: Path, declared: Any, plain: Any, value: Any) -> None:
    (root / "d.json").write_text(json.dumps(plain), encoding="utf-8")
    docs = Documents(root, {"d": Document(value, type=declared)}, durability="process")
    loaded = docs.load()["d"]
    assert (loaded, type(loaded)) == (value, type(value))
    docs.save(d=loaded)
    assert docs.load()["d"] == value


BAD: list[tuple[Any, Any, Any, str]] = [
    (int, 0, True, r"\$: expected int, found True"),
    (int, 0, 1.0, r"\$: expected int, found 1\.0"),
    (float, 0.0, "1", r"\$: expected float, found '1'"),
    (str, "", None, r"\$: expected str, found null"),
    (int | None, 0, "x", r"\$: expected int \| None, found 'x'"),
    (list[int], [], {"a": 1}, r"\$: expected list, found dict"),
    (list[int], [], [1, "x"], r"\$\[1\]: expected int"),
    (dict[str, list[int]], {}, {"a b": [1, None]}, r'\$\["a b"\]\[1\]: expected int, found null'),
    (dict[int, int], {}, {"x": 1}, r"\$\.x: 'x' is not a key"),
    (tuple[int, int], (0, 0), [1], r"\$: a list of 1 where 2"),
    (Colour, Colour.RED, "green", r"\$: 'green' is not one of \['red', 'blue'\]"),
    (Literal["a"], "a", "b", r"\$: 'b' is none of 'a'"),
    (datetime.date, datetime.date(2026, 1, 1), "yesterday", r"\$: 'yesterday' is not a date"),
    (Entry, Entry(1), {}, r"\$\.data: is missing"),
    (Entry, Entry(1), {"data": 1, "more": 2}, r"\$\.more: is no field"),
    (Entry, Entry(1), [], r"\$: expected Entry, found list"),
    (Book | None, None, {"entries": [{}]}, r"\$\.entries\[0\]\.data: is missing"),
    (Options, {"name": ""}, {"depth": 1}, r"\$\.name: is missing"),
    (Box[int], Box(1), {"item": "x"}, r"\$\.item: expected int"),
    (Box[int], Box(1), {"item": 1, "more": ["x"]}, r"\$\.more\[0\]: expected int"),
]


@pytest.mark.parametrize(("declared", "default", "plain", "told"), BAD, ids=str)
def test_what_does_not_fit(root: Path, declared: Any, default: Any, plain: Any, told: str) -> None:
    (root / "d.json").write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(DocumentError, match=told):
        Documents(root, {"d": Document(default, type=declared)}).load()


@EACH
def test_a_default_of_a_class_is_of_that_type(root: Path, book: Any, value: Any) -> None:
    docs = Documents(root, {"book": value}, durability="process")
    assert docs.load() == {"book": value}
    docs.save(book=value)
    assert type(docs.load()["book"]) is book


@dataclasses.dataclass
class Checked:
    low: int = 0
    high: int = 1

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


def test_what_a_class_checks_itself(root: Path) -> None:
    docs = Documents(root, {"d": Checked}, durability="process")
    with pytest.raises(DocumentError, match=r"\$: low is above high"), docs.edit() as d:
        d["d"].low = 5
    assert tree(root) == {}


def test_no_null_in_toml(root: Path) -> None:
    @dataclasses.dataclass
    class Settings:
        one: int | None = None
        two: int | None = 2

    globals()["Settings"] = Settings
    docs = Documents(root, {"a.toml": Settings()}, durability="process")
    docs.save(**{"a.toml": Settings(None, 3)})
    assert (root / "a.toml").read_text(encoding="utf-8") == "two = 3\n"
    with pytest.raises(DocumentError, match="no null"):
        docs.save(**{"a.toml": Settings(1, None)})
    assert docs.load()["a.toml"] == Settings(None, 3)


def test_a_type_that_no_document_can_have(root: Path) -> None:
    @dataclasses.dataclass
    class Local:
        field: Nowhere  # type: ignore[name-defined]  # noqa: F821

    for declared in (complex, object(), list[complex], Local):
        with pytest.raises(TypeError):
            Documents(root, {"d": Document(None, type=declared)})
    with pytest.raises(ValueError, match="'d' needs a default"):
        Documents(root, {"d": Entry})
    with pytest.raises(DocumentError, match=r"\$\.data"):
        Documents(root, {"d": Document({}, type=Entry)})


def test_no_library_is_imported_that_the_program_has_not(root: Path) -> None:
    code = """
import dataclasses, sys
from txfiles import Documents
@dataclasses.dataclass
class Entry:
    data: int = 1
docs = Documents(sys.argv[1], {"d": Entry, "e": list[Entry]})
docs.save(d=Entry(2), e=[Entry(3)])
assert docs.load() == {"d": Entry(2), "e": [Entry(3)]}
print({"pydantic", "msgspec", "attr", "attrs", "ruamel", "tomlkit", "tomllib"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, root], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert done.stdout == "set()\n"


@dataclasses.dataclass
class Point:
    x: int = 0
    y: int = 0


@dataclasses.dataclass
class Drawing:
    a: Point = dataclasses.field(default_factory=Point)
    b: Point = dataclasses.field(default_factory=Point)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("d.yaml", "# shared\na: &p\n  x: 1\n  y: 2\nb: *p\n"),
        ("d.yaml", "a: &p {x: 1, y: 2}\nb:\n  <<: *p\n  x: 5\n"),
        ("d.toml", "# inline\na = {x = 1, y = 2}\nb.x = 1\nb.y = 2\n"),
    ],
)
def test_what_two_places_of_a_file_share_is_changed_in_one(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text, encoding="utf-8")
    docs = Documents(root, {name: Drawing}, durability="process")
    told = pytest.warns(CommentsLostWarning) if "# shared" in text else nullcontext()
    with told, docs.edit() as d:
        before = dataclasses.replace(d[name].a)
        d[name].b.x = 9
        d[name].b.y = 8
    assert docs.load()[name] == Drawing(before, Point(9, 8))


@dataclasses.dataclass
class Node:
    inner: Node | None = None


def test_what_is_nested_too_deeply_is_told(root: Path) -> None:
    docs = Documents(root, {"n": Node}, durability="process")
    (root / "n.json").write_text('{"inner": ' * 900 + "null" + "}" * 900, encoding="utf-8")
    with pytest.raises(DocumentError, match=r"'n\.json' does not fit: it is nested too deeply"):
        docs.load()
    circle = Node()
    circle.inner = circle
    with pytest.raises(DocumentError, match=r"'n\.json' cannot be written: it is nested too deeply"):
        docs.save(n=circle)
