"""Names below the root: one spelling each, nothing that leads out, any bytes."""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txfiles._format import paths as _paths
from txfiles.errors import InvalidPathError

component = st.binary(min_size=1, max_size=6).map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_"))
names = component.filter(lambda part: part not in (b".", b"..") and part.lower() != b".txfiles")
normal = st.lists(names, min_size=1, max_size=4).map(b"/".join)
spelled = st.lists(
    st.one_of(names, st.sampled_from([b"", b".", b"..", b".txfiles", b".TXFILES", b"a"])), max_size=6
).map(b"/".join)


@given(spelled, st.booleans())
def test_normalize_refuses_or_gives_the_one_spelling(raw: bytes, directory: bool) -> None:
    try:
        path = _paths.normalize(raw, directory=directory)
    except InvalidPathError:
        return
    assert path == _paths.ROOT or _paths.is_normal(path)
    assert _paths.normalize(path or b".", directory=directory) == path
    assert path == b"" or os.path.normpath(raw) == path


@given(normal)
def test_normalize_keeps_what_is_normal(path: bytes) -> None:
    assert _paths.is_normal(path)
    assert _paths.normalize(path) == _paths.normalize(_paths.decode(path)) == path
    assert _paths.normalize(path, directory=True) == _paths.normalize(path + b"/", directory=True) == path


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("a", b"a"),
        ("./a", b"a"),
        ("sub/../a", b"a"),
        ("a//b/./c", b"a/b/c"),
        (b"caf\xe9", b"caf\xe9"),
        ("caf\udce9", b"caf\xe9"),
        ("é", "é".encode()),
        (PurePosixPath("x/y"), b"x/y"),
        (Path("x"), b"x"),
        ("..a", b"..a"),
        ("a/...", b"a/..."),
        (" ", b" "),
        ("a\nb", b"a\nb"),
        (".txfiles2", b".txfiles2"),
        ("x" * 255, b"x" * 255),
    ],
)
def test_normalize(raw: _paths.AnyPath, path: bytes) -> None:
    assert _paths.normalize(raw) == path


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "a\0",
        "/",
        "/a",
        "//a",
        "..",
        "../a",
        "a/../..",
        "a/../../b",
        ".",
        "a/",
        "a/.",
        "a/..",
        "./",
        "a/b/..",
        "\ud800",
        ".txfiles",
        ".txfiles/format",
        "a/.txfiles/b",
        "./.txfiles",
        "x/../.txfiles",
        ".TXFILES",
        ".TxFiles/x",
        ".tx\N{LATIN SMALL LIGATURE FI}les",
        ".txfile\N{LATIN SMALL LETTER LONG S}/HEAD",
    ],
)
def test_c12_normalize_refuses(raw: str | bytes) -> None:
    with pytest.raises(InvalidPathError) as refused:
        _paths.normalize(raw)
    assert isinstance(refused.value, ValueError)
    assert refused.value.path is not None


@pytest.mark.parametrize("raw", [".", "./", "a/..", "a/../."])
def test_a_directory_may_be_the_root(raw: str) -> None:
    assert _paths.normalize(raw, directory=True) == _paths.ROOT


@pytest.mark.parametrize("raw", [None, 1, 1.5, bytearray(b"a"), ["a"], memoryview(b"a")])
def test_what_is_no_path_is_a_type_error(raw: object) -> None:
    with pytest.raises(TypeError, match=type(raw).__name__):
        _paths.to_bytes(raw)  # type: ignore[arg-type]


def test_a_pathlike_that_gives_something_else_is_a_type_error() -> None:
    class Odd:
        def __fspath__(self) -> int:
            return 3

    with pytest.raises(TypeError, match="int"):
        _paths.to_bytes(Odd())  # type: ignore[arg-type]


@given(st.binary())
def test_any_bytes_round_trip_through_str(raw: bytes) -> None:
    assert _paths.encode(_paths.decode(raw)) == raw
    assert _paths.decode(raw) == os.fsdecode(raw)


@pytest.mark.parametrize(
    "raw", [b"", b"a\0b", b"/a", b"a/", b"a//b", b"./a", b"a/..", b"..", b".txfiles", b"a/.TXFILES"]
)
def test_what_a_journal_may_not_say(raw: bytes) -> None:
    assert not _paths.is_normal(raw)


@given(normal)
def test_split_join_and_ancestors(path: bytes) -> None:
    parent, name = _paths.split(path)
    assert b"/" not in name
    assert _paths.join(parent, name) == path
    above = _paths.ancestors(path)
    assert above[0] == _paths.ROOT
    assert above[-1] == parent
    assert all(_paths.is_below(path, directory) for directory in above)
    assert [_paths.split(directory)[0] for directory in above[1:]] == above[:-1]


def test_is_below_compares_whole_components() -> None:
    assert _paths.is_below(b"a/b", b"a")
    assert not _paths.is_below(b"ab", b"a")
    assert not _paths.is_below(b"a", b"a")


# A second opinion on globs: characters one by one, components one by one.


def naive(pattern: list[str], path: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        if len(pattern) == 1:
            return bool(path)
        return any(naive(pattern[1:], path[n:]) for n in range(len(path) + 1))
    return bool(path) and naive_name(pattern[0], path[0]) and naive(pattern[1:], path[1:])


def naive_name(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(naive_name(pattern[1:], name[n:]) for n in range(len(name) + 1))
    if pattern[0] == "[" and "]" in pattern[(3 if pattern[1:2] == "!" else 2) :]:
        negated = pattern[1] == "!"
        start = 2 if negated else 1
        end = pattern.index("]", start + 1)
        found = bool(name) and name[0] in members(pattern[start:end])
        return bool(name) and found != negated and naive_name(pattern[end + 1 :], name[1:])
    return bool(name) and pattern[0] in ("?", name[0]) and naive_name(pattern[1:], name[1:])


def members(text: str) -> set[str]:
    found: set[str] = set()
    while text:
        if len(text) > 2 and text[1] == "-":
            found |= {chr(code) for code in range(ord(text[0]), ord(text[2]) + 1)}
            text = text[3:]
        else:
            found.add(text[0])
            text = text[1:]
    return found


letters = "ab.é-!^&|~\\"
pattern_parts = st.one_of(st.just("**"), st.text(letters + "*?[]", min_size=1, max_size=6))
patterns = st.lists(pattern_parts.filter(lambda part: part not in (".", "..")), min_size=1, max_size=4)
paths = st.lists(st.text(letters + "[]*?", min_size=1, max_size=4), min_size=1, max_size=4)


@given(patterns, paths)
@example(["**", "**", "a"], ["a"])
@example(["[!a]"], ["b", "b"])
@example(["a[+-b]a"], ["a", "a"])
@example(["[b-a]"], ["a"])
@example(["[!b-a]"], ["a"])
@example(["[]a]"], ["]"])
@example(["[!]a]"], ["]"])
@example(["[[a&&b||~~--]"], ["&"])
@example(["a[^a]"], ["a^"])
def test_glob_agrees_with_a_naive_matcher(pattern: list[str], path: list[str]) -> None:
    found = _paths.compile_glob("/".join(pattern)).fullmatch("/".join(path))
    assert bool(found) == naive(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.json", "a.json", True),
        ("*.json", "d/a.json", False),
        ("*.json", ".hidden.json", True),
        ("**/*.json", "a.json", True),
        ("**/*.json", "d/e/a.json", True),
        ("d/**", "d/e/a", True),
        ("d/**", "d", False),
        ("./d//*", "d/a", True),
        ("?", "é", True),
        ("?", "ab", False),
        (b"caf?", "caf\udce9", True),
        ("[é]", "é", True),
        ("a\nb*", "a\nb\nc", True),
        ("**", "a/b/c", True),
        ("a**b", "axxb", True),
        ("a**b", "a/b", False),
    ],
)
def test_glob(pattern: str | bytes, path: str, matches: bool) -> None:
    assert bool(_paths.compile_glob(pattern).fullmatch(path)) is matches


@pytest.mark.parametrize("pattern", ["/a", "../*", "a/../b", ".."])
def test_glob_refuses_to_leave_the_root(pattern: str) -> None:
    with pytest.raises(InvalidPathError):
        _paths.compile_glob(pattern)


def test_many_stars_are_matched_in_reasonable_time() -> None:
    assert not _paths.compile_glob("*" * 200 + "b").fullmatch("a" * 2000)
    assert not _paths.compile_glob("/".join(["**"] * 200 + ["b"])).fullmatch("/".join("a" * 500))


@given(patterns, paths)
def test_the_fixed_part_is_above_every_match(pattern: list[str], path: list[str]) -> None:
    text, found = "/".join(pattern), "/".join(path)
    start = _paths.fixed_part(text)
    if _paths.compile_glob(text).fullmatch(found):
        assert _paths.encode(found) == start or _paths.is_below(_paths.encode(found), start)


@pytest.mark.parametrize(
    ("pattern", "start"), [("a/b/*.json", b"a/b"), ("./a//b", b"a/b"), ("*", b""), ("a[b]/c", b""), ("a/**", b"a")]
)
def test_fixed_part(pattern: str, start: bytes) -> None:
    assert _paths.fixed_part(pattern) == start


@given(patterns, paths)
def test_no_match_is_deeper(pattern: list[str], path: list[str]) -> None:
    if _paths.compile_glob("/".join(pattern)).fullmatch("/".join(path)):
        assert len(path) <= _paths.depth("/".join(pattern))


@pytest.mark.parametrize(
    ("pattern", "depth"), [("*", 1), ("./a//*.json", 2), ("a**/b", 2), ("**", math.inf), (b"a/**/b", math.inf), ("", 0)]
)
def test_depth(pattern: str | bytes, depth: float) -> None:
    assert _paths.depth(pattern) == depth


def test_a_pattern_with_a_nul_byte() -> None:
    with pytest.raises(InvalidPathError, match="NUL"):
        _paths.compile_glob("a\0*")


@given(st.lists(st.lists(st.sampled_from([b"a", b"b", b"cc"]), min_size=1, max_size=5), max_size=5))
def test_the_directories_above_several_paths(several: list[list[bytes]]) -> None:
    names = [b"/".join(parts) for parts in several]
    assert _paths.above(names) == {directory for name in names for directory in _paths.ancestors(name)}
    assert all(list(_paths.on_the_way(name)) == _paths.ancestors(name)[1:] for name in names)


def test_what_is_above_many_deep_paths_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []
    split = _paths.split

    def counting(path: bytes) -> tuple[bytes, bytes]:
        calls.append(path)
        return split(path)

    monkeypatch.setattr(_paths, "split", counting)
    assert len(_paths.above(b"d/" * 300 + b"%d" % number for number in range(500))) == 301
    assert len(calls) == 300 + 500
