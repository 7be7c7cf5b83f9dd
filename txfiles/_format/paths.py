"""Names below the root, as bytes: what a caller may say, and what a journal may say. No I/O.

A path is relative, `/`-separated, without `.`, `..`, empty components or the private directory; the root is `b""`.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from typing import TYPE_CHECKING, NoReturn, Protocol

from txfiles._format import layout
from txfiles._format.layout import PRIVATE
from txfiles.errors import InvalidPathError, TxFilesError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class PathLike(Protocol):
    """`os.PathLike`, spelled here because only the boundary imports `os`."""

    def __fspath__(self) -> str | bytes: ...


AnyPath = str | bytes | PathLike

ROOT = b""
OUTSIDE = b"\0"  # the directory / where links lead out of the root: below it a path is absolute. No name is like it
_REMEMBERED = 4096  # spellings of paths: most programs write the same files again and again
FEW = 5  # names that a line tells
_LONG = 1000  # characters; longer ones are not remembered
_ENCODING = sys.getfilesystemencoding()


def decode(path: bytes) -> str:
    """The `str` form of a path, as `os.fsdecode` gives it; any bytes round-trip through `encode`.

    Only what is out of the root does not: it is given as an absolute path.
    """
    return _plain(path[1:] or b"/" if path[:1] == OUTSIDE else path)


def _plain(path: bytes) -> str:
    return path.decode(_ENCODING, "surrogateescape")


def encode(path: str) -> bytes:
    return path.encode(_ENCODING, "surrogateescape")


def give_name(error: OSError, path: bytes, *, always: bool = False) -> None:
    """Let a system error name `path`, unless it has the name of a file already.

    The name that a bare call was given, in bytes and relative to some directory, tells nobody anything. With `always`
    neither does that of a file of the private directory. An error without a number is not the system's.
    """
    if isinstance(error, TxFilesError) or error.errno is None:
        return
    if always or not isinstance(error.filename, str):
        error.filename = decode(path)
        del error.filename2


class Naming:
    """A block whose system errors name `path`, by `give_name`."""

    __slots__ = ("_always", "_path")

    def __init__(self, path: bytes, *, always: bool = False) -> None:
        self._path = path
        self._always = always

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            give_name(error, self._path, always=self._always)


class Below:
    """A block whose system errors name a file below `root`, by `name_below`."""

    __slots__ = ("_root",)

    def __init__(self, root: bytes) -> None:
        self._root = root

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        name_below(error, self._root)


def name_below(error: BaseException | None, root: bytes) -> None:
    """Let the error of a bare call name the file of the private directory that it is about, or else the root."""
    if isinstance(error, OSError) and isinstance(error.filename, bytes):
        ours = layout.parse(error.filename).kind != "unknown"
        give_name(error, b"/".join((root, PRIVATE, error.filename)) if ours else root)


def told(error: BaseException, root: bytes) -> str:
    """An error in words that a user of `root` understands."""
    name_below(error, root)
    return str(error)


def to_bytes(path: AnyPath) -> bytes:
    """The bytes of a path as the caller spelled it. Raises `TypeError` and `InvalidPathError`."""
    raw = path if isinstance(path, (str, bytes)) else _fspath(path)
    try:
        return raw if isinstance(raw, bytes) else encode(raw)
    except UnicodeEncodeError as error:
        raise InvalidPathError(f"the path {raw!r} cannot be encoded: {error}", path=repr(raw)) from error


def _fspath(path: PathLike) -> str | bytes:
    method = getattr(type(path), "__fspath__", None)
    if method is None:
        raise TypeError(f"a path must be str, bytes or os.PathLike, not {type(path).__name__}")
    raw = method(path)
    if not isinstance(raw, (str, bytes)):
        raise TypeError(f"__fspath__ must return str or bytes, not {type(raw).__name__}")
    return raw


def normalize(path: AnyPath, *, directory: bool = False) -> bytes:
    """`path` in its one spelling. With `directory`, the root itself and a trailing slash are allowed.

    `..` is taken lexically. Raises `InvalidPathError` for what can never be a name below the root.
    """
    if type(path) is str and len(path) < _LONG:
        return _remembered(path, directory)
    return _normalized(to_bytes(path), directory)


def normalize_all(paths: Sequence[AnyPath]) -> tuple[bytes, ...]:
    """Each in its one spelling, and once."""
    if {*map(type, paths)} == {str} and len("".join(paths)) < _LONG:  # type: ignore[arg-type]
        return _all_remembered(*paths)  # type: ignore[arg-type]
    return tuple(dict.fromkeys(map(normalize, paths)))


@functools.lru_cache(_REMEMBERED)
def _all_remembered(*paths: str) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys(map(normalize, paths)))


@functools.lru_cache(_REMEMBERED)
def _remembered(path: str, directory: bool) -> bytes:
    return _normalized(to_bytes(path), directory)


def _normalized(raw: bytes, directory: bool) -> bytes:
    shown = _plain(raw)
    if not raw:
        raise InvalidPathError("the path is empty", path=shown)
    if b"\0" in raw:
        raise InvalidPathError(f"the path {shown!r} contains a NUL byte", path=shown)
    if raw.startswith(b"/"):
        raise InvalidPathError(f"the path {shown!r} is absolute; paths are relative to the root", path=shown)
    parts: list[bytes] = []
    for part in raw.split(b"/"):
        if part in (b"", b"."):
            continue
        if part != b"..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            raise InvalidPathError(f"the path {shown!r} leaves the root", path=shown)
    if not directory:
        if raw.endswith((b"/", b"/.", b"/..")) or raw in (b".", b".."):
            raise InvalidPathError(f"the path {shown!r} names a directory, not a file", path=shown)
        if not parts:
            raise InvalidPathError(f"the path {shown!r} is the root itself", path=shown)
    for part in parts:
        check_component(part, shown)
    return b"/".join(parts)


def check_component(part: bytes, shown: str) -> None:
    """Refuse the private directory, of this root or of one nested in it, however it is cased."""
    if is_private(part):
        refuse_private(shown)


def refuse_private(shown: str) -> NoReturn:
    raise InvalidPathError(f"the path {shown!r} leads into a private directory of txfiles", path=shown)


def is_normal(path: bytes) -> bool:
    """Whether a path read from a journal is one that `normalize` could have returned for a file."""
    framed = b"/%s/" % path
    if b"\0" in path or b"//" in framed:
        return False
    return b"/." not in framed or not any(p in (b".", b"..") or is_private(p) for p in path.split(b"/"))


def is_private(part: bytes) -> bool:
    """Also in the spellings that a case-folding file system takes for the same name, such as a long s for the s."""
    return part.lower() == PRIVATE or (not part.isascii() and decode(part).casefold() == decode(PRIVATE))


def has_private(path: bytes) -> bool:
    """Whether a private directory is among the components."""
    return (PRIVATE in path.lower() or not path.isascii()) and any(map(is_private, path.split(b"/")))


def one_name(path: bytes, other: bytes) -> InvalidPathError:
    """Two names that the file system takes for one: it ignores case, or the form of accents."""
    shown = decode(other)
    return InvalidPathError(f"{decode(path)!r} and {shown!r} are one name on this file system", path=shown)


def some(shown: Sequence[str]) -> str:
    """A few names in a line, and how many more there are: a transaction may have thousands."""
    rest = len(shown) - FEW
    return ", ".join(shown[:FEW]) + (f" and {rest} more" if rest > 0 else "")


def is_outside(path: bytes) -> bool:
    """Whether a resolved path is one out of the root."""
    return path[:1] == OUTSIDE


def split(path: bytes) -> tuple[bytes, bytes]:
    """Parent and name; the parent of a name in the root is `ROOT`."""
    parent, _, name = path.rpartition(b"/")
    return parent, name


def parents(names: Iterable[bytes]) -> set[bytes]:
    """The directories that these are in."""
    return {path.rpartition(b"/")[0] for path in names}


def join(parent: bytes, name: bytes) -> bytes:
    return parent + b"/" + name if parent else name


def ancestors(path: bytes) -> list[bytes]:
    """The directories above `path`, the root first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:n]) for n in range(len(parts))]


def on_the_way(path: bytes) -> Iterator[bytes]:
    """The directories above `path` that are below the root, the first first: for who stops at one that is missing."""
    end = path.find(b"/")
    while end >= 0:
        yield path[:end]
        end = path.find(b"/", end + 1)


def above(names: Iterable[bytes]) -> set[bytes]:
    """The directories above any of these, each taken once: deep ones in common cost no more than one."""
    out: set[bytes] = set()
    for path in names:
        while path:
            path, _ = split(path)
            if path in out:
                break
            out.add(path)
    return out


def is_below(path: bytes, directory: bytes) -> bool:
    return not directory or path.startswith(directory + b"/")


def compile_glob(pattern: str | bytes) -> re.Pattern[str]:
    """A regular expression over whole paths as `decode` gives them.

    `*`, `?` and `[...]` stay in one component, `**` as a component spans any number of them (at the end at least one).
    Names that begin with a dot are matched like any others.
    """
    text = _plain(to_bytes(pattern))
    if "\0" in text:
        raise InvalidPathError(f"the pattern {text!r} contains a NUL byte", path=text)
    if text.startswith("/") or ".." in text.split("/"):
        raise InvalidPathError(f"the pattern {text!r} leaves the root", path=text)
    parts = [part for part in text.split("/") if part not in ("", ".")]
    expression = ""
    for position, part in enumerate(parts):
        if part == "**":
            if position == len(parts) - 1:
                expression += ".+"
            elif parts[position + 1] != "**":
                expression += "(?:[^/]+/)*"
        else:
            expression += _component(part) + ("/" if position < len(parts) - 1 else "")
    return re.compile(expression, re.DOTALL)


def one_pattern(pattern: str | bytes) -> TypeError:
    """A pattern where several are expected: taken as such, each of its letters would be one."""
    return TypeError(f"a list of patterns expected, not {pattern!r} alone")


def compile_globs(patterns: Iterable[str | bytes]) -> list[re.Pattern[str]]:
    """The same for several."""
    if isinstance(patterns, (str, bytes)):
        raise one_pattern(patterns)
    return [compile_glob(pattern) for pattern in patterns]


def fixed_part(pattern: str | bytes) -> bytes:
    """The directory (or file) that every match of a pattern begins with."""
    fixed = []
    for part in to_bytes(pattern).split(b"/"):
        if any(char in part for char in (b"*", b"?", b"[")):
            break
        fixed.append(part)
    return b"/".join(part for part in fixed if part not in (b"", b"."))


def depth(pattern: str | bytes) -> float:
    """How many components a match of a pattern has at most."""
    parts = [part for part in to_bytes(pattern).split(b"/") if part not in (b"", b".")]
    return math.inf if b"**" in parts else len(parts)


def _component(part: str) -> str:
    out, i = "", 0
    while i < len(part):
        char = part[i]
        i += 1
        if char == "*":
            out += "[^/]*" if part[i - 2 : i] != "**" else ""
        elif char == "?":
            out += "[^/]"
        elif char == "[" and (end := part.find("]", i + (2 if part.startswith("!", i) else 1))) > 0:
            out += _one_of(part[i:end])
            i = end + 1
        else:
            out += re.escape(char)
    return out


def _one_of(members: str) -> str:
    """The set `[members]`; a range that runs backwards is empty."""
    negated = members.startswith("!")
    rest, items = members[negated:], ""
    while rest:
        if len(rest) > 2 and rest[1] == "-":
            first, last, rest = rest[0], rest[2], rest[3:]
            items += f"{re.escape(first)}-{re.escape(last)}" if first <= last else ""
        else:
            items, rest = items + re.escape(rest[0]), rest[1:]
    if negated:
        return f"[^/{items}]"
    return f"(?!/)[{items}]" if items else "(?!)"
