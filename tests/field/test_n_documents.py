"""N22, N31, N32: documents as they are found, and as people want to write them."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import orjson
import pytest

from tests.support.boundary import tree
from txfiles import FileStore, FileTransaction, JsonDocuments
from txfiles.errors import DocumentError

_BOM = b"\xef\xbb\xbf"


def test_n31_json_with_a_byte_order_mark_is_read(root: Path) -> None:
    (root / "state.json").write_bytes(_BOM + b'{"turn": 3, "long": 123456789012345678901234567890}')
    want = {"turn": 3, "long": 123456789012345678901234567890}
    with FileTransaction(root) as tx:
        assert tx.read_json("state.json") == want
    with FileStore(root).snapshot() as snap:
        assert snap.read_json("state.json") == want
    docs = JsonDocuments(root, {"state": {}})
    assert docs.load() == {"state": want}
    with docs.edit() as d:
        d["state"] = {"turn": 4}
    assert tree(root) == {"state.json": b'{\n  "turn": 4\n}\n'}


@pytest.mark.parametrize("damage", [_BOM, _BOM + _BOM + b"{}", b'{"a": ' + _BOM + b"1}"])
def test_n31_a_mark_alone_or_twice_is_no_document(root: Path, damage: bytes) -> None:
    (root / "state.json").write_bytes(damage)
    with FileTransaction(root) as tx, pytest.raises(DocumentError, match=r"'state\.json' is "):
        tx.read_json("state.json")


def plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, PurePosixPath):
        return value.as_posix()
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"what is {value!r}?")


VALUE = {"n": np.int64(3), "f": np.float32(0.5), "a": np.arange(3), "d": Decimal("1.10"), "p": Path("x/y")}
PLAIN = {"n": 3, "f": 0.5, "a": [0, 1, 2], "d": "1.10", "p": "x/y"}


def test_n32_numpy_decimal_and_path_by_the_default_hook(root: Path) -> None:
    with FileTransaction(root) as tx:
        with pytest.raises(DocumentError, match=r"not JSON serializable: [a-z.]+64$"):
            tx.write_json("a.json", VALUE)
        tx.write_json("a.json", VALUE, default=plain)
    assert json.loads((root / "a.json").read_bytes()) == PLAIN


def test_n32_what_the_hook_refuses_is_told_with_its_reason(root: Path) -> None:
    with FileTransaction(root) as tx, pytest.raises(DocumentError, match=r"'a\.json'.*set.*what is \{1\}\?"):
        tx.write_json("a.json", {"x": {1}}, default=plain)
    assert tree(root) == {}


@pytest.mark.parametrize("bad", [np.array([1.0, np.nan]), np.float32("inf"), Decimal("NaN")])
def test_n32_not_a_number_is_refused_also_from_the_hook_and_from_numpy(root: Path, bad: Any) -> None:
    def to_float(value: Any) -> Any:
        return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else float(value)

    with FileTransaction(root) as tx:
        with pytest.raises(DocumentError, match="not a JSON number"):
            tx.write_json("a.json", {"x": bad}, default=to_float)
        with pytest.raises(DocumentError, match="not a JSON number"):
            tx.write_json("a.json", {"x": bad}, default=to_float, option=orjson.OPT_SERIALIZE_NUMPY)
    assert tree(root) == {}


def test_n32_options_of_orjson_and_any_indent(root: Path) -> None:
    value = {"b": ["  two  spaces", {}], "a": {"c": [1]}}
    for indent in (0, 1, 3, 4, "\t", " \t"):
        with FileTransaction(root, durability="process") as tx:
            tx.write_json("a.json", value, indent=indent, option=orjson.OPT_SORT_KEYS)
        assert (root / "a.json").read_text(encoding="utf-8") == json.dumps(value, indent=indent, sort_keys=True) + "\n"
    with FileTransaction(root, durability="process") as tx:
        tx.write_json("a.json", {1: "a", None: "b"}, indent=None, option=orjson.OPT_NON_STR_KEYS)
        for bad in (-1, 1.5, "x", True):
            with pytest.raises(ValueError, match="indent is"):
                tx.write_json("a.json", value, indent=bad)  # type: ignore[arg-type]
    assert (root / "a.json").read_text(encoding="utf-8") == '{"1":"a","null":"b"}\n'


def test_n32_a_key_that_would_be_there_twice_is_refused(root: Path) -> None:
    with FileTransaction(root) as tx, pytest.raises(DocumentError, match="'1' would be a key twice"):
        tx.write_json("a.json", [{"x": {1: "a", "1": "b"}}], option=orjson.OPT_NON_STR_KEYS)


def test_n22_one_damaged_document_of_several_at_start(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    docs = JsonDocuments(root, {"messages": [], "state": {"turn": 0}, "settings": {}})
    docs.save(messages=["kept"], state={"turn": 7}, settings={"depth": 1})
    (root / "state.json").write_bytes(b'{"turn": 7')
    with pytest.raises(DocumentError, match=r"'state\.json'"):
        docs.load()
    with caplog.at_level("WARNING", "txfiles"):
        assert docs.set_aside() == {"state.json": "state.json.damaged-1"}
    assert "set aside 'state.json' as 'state.json.damaged-1'" in caplog.text
    assert docs.load() == {"messages": ["kept"], "state": {"turn": 0}, "settings": {"depth": 1}}
    assert (root / "state.json.damaged-1").read_bytes() == b'{"turn": 7'
    with docs.edit() as d:
        d["state"]["turn"] += 1
    assert docs.load()["state"] == {"turn": 1}
