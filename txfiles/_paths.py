"""Names below the root, as bytes: what a caller may say, and what a journal may say. No I/O.

A path is relative, `/`-separated, without `.`, `..`, empty components or the private directory. The root itself is `b""`.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from txfiles._layout import PRIVATE
from txfiles.errors import InvalidPathError

if TYPE_CHECKING:
    from typing import Protocol

    class PathLike(Protocol):
        """`os.PathLike`, spelled here because only the boundary imports `os`."""

        def __fspath__(self) -> str | bytes: ...

    AnyPath = str | bytes | PathLike

ROOT = b""


def decode(path: bytes) -> str:
    """The `str` form of a path, as `os.fsdecode` gives it; any bytes round-trip through `encode`."""
    return path.decode(sys.getfilesystemencoding(), "surrogateescape")


def encode(path: str) -> bytes:
    return path.encode(sys.getfilesystemencoding(), "surrogateescape")


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
    raw = to_bytes(path)
    shown = decode(raw)
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
    if part.lower() == PRIVATE:
        raise InvalidPathError(f"the path {shown!r} leads into a private directory of txfiles", path=shown)


def is_normal(path: bytes) -> bool:
    """Whether a path read from a journal is one that `normalize` could have returned for a file."""
    if not path or b"\0" in path:
        return False
    return all(p not in (b"", b".", b"..") and p.lower() != PRIVATE for p in path.split(b"/"))


def split(path: bytes) -> tuple[bytes, bytes]:
    """Parent and name; the parent of a name in the root is `ROOT`."""
    parent, _, name = path.rpartition(b"/")
    return parent, name


def join(parent: bytes, name: bytes) -> bytes:
    return parent + b"/" + name if parent else name


def ancestors(path: bytes) -> list[bytes]:
    """The directories above `path`, the root first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:n]) for n in range(len(parts))]


def is_below(path: bytes, directory: bytes) -> bool:
    return not directory or path.startswith(directory + b"/")


def compile_glob(pattern: str | bytes) -> re.Pattern[bytes]:
    """A regular expression over whole paths: `*` and `?` stay in one component, `**` spans any number of them.

    Names that begin with a dot are matched like any others.
    """
    raw = to_bytes(pattern)
    if raw.startswith(b"/") or b".." in raw.split(b"/"):
        raise InvalidPathError(f"the pattern {decode(raw)!r} leaves the root", path=decode(raw))
    expression = b""
    parts = [p for p in raw.split(b"/") if p not in (b"", b".")]
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        if part == b"**":
            expression += b".*" if last else b"(?:[^/]+/)*"
            continue
        expression += _component(part) + (b"" if last else b"/")
    return re.compile(expression, re.DOTALL)


def fixed_part(pattern: str | bytes) -> bytes:
    """The directory (or file) that every match of a pattern begins with."""
    parts = [p for p in to_bytes(pattern).split(b"/") if p not in (b"", b".")]
    fixed = []
    for part in parts:
        if any(char in part for char in b"*?["):
            break
        fixed.append(part)
    return b"/".join(fixed)


def _component(part: bytes) -> bytes:
    out, i = b"", 0
    while i < len(part):
        char = part[i : i + 1]
        i += 1
        if char == b"*":
            out += b"[^/]*"
        elif char == b"?":
            out += b"[^/]"
        elif char == b"[" and (end := part.find(b"]", i + 1 + (part[i : i + 1] == b"!"))) > 0:
            inner = part[i:end].replace(b"\\", b"\\\\").replace(b"^", b"\\^")
            out += b"[" + (b"^" + inner[1:] if inner.startswith(b"!") else inner) + b"]"
            i = end + 1
        else:
            out += re.escape(char)
    return out
