"""`txfiles put`: several files of a directory replaced at once."""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from txfiles._cli.answer import DONE, Answer, number_of
from txfiles._cli.progress import Progress, size_text
from txfiles._format import paths
from txfiles.store import FileStore
from txfiles.transaction import FileTransaction

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

_CHUNK = 1 << 20
_STDIN = "-"


def run(options: argparse.Namespace) -> Answer:
    """Stage every file and commit."""
    pairs = _pairs(options)
    sizes = _look_only(options, pairs) if options.dry_run else _put(options, pairs)
    lines = [f"{name}  {'?' if size is None else size_text(size)}" for name, size in sizes.items()]
    told = f"{number_of(len(sizes))} {'to replace' if options.dry_run else 'replaced'} together"
    shown = [] if options.quiet else [*(lines if options.verbose else ()), told]
    return Answer(DONE, {"written": sizes} | ({"dry_run": True} if options.dry_run else {}), shown)


def _put(options: argparse.Namespace, pairs: list[tuple[str, str]]) -> dict[str, int | None]:
    written: dict[str, int | None] = {}
    tx = FileTransaction(
        options.dir,
        durability=options.durability,
        timeout=options.timeout,
        create=options.create,
        links=options.out,
        accept=options.accept,
    )
    with tx, Progress(hidden=options.json or options.quiet) as progress:
        progress.expect("copying", len(pairs), _total([_size(source) for _, source in pairs]))
        for name, source in pairs:
            with _opened(source) as file:
                tx.write(name, progress.read(name, _chunks(file)))
            written[name] = progress.last
    return written


def _look_only(options: argparse.Namespace, pairs: list[tuple[str, str]]) -> dict[str, int | None]:
    sizes: dict[str, int | None] = {}
    for name, source in pairs:
        with _opened(source):
            sizes[name] = _size(source)
        paths.normalize(name)
    if options.create and not Path(options.dir).exists():
        return sizes
    with FileStore(options.dir, timeout=options.timeout, links=options.out).snapshot() as snap:
        for name in sizes:
            if snap.exists(name) and snap.version(name) is None:
                raise IsADirectoryError(errno.EISDIR, "is a directory", name)
    return sizes


def _size(source: str) -> int | None:
    """In bytes; `None` where only reading tells."""
    if source == _STDIN:
        return None
    found = os.stat(source)
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _total(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _opened(source: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(_stdin()) if source == _STDIN else open(source, "rb")


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise OSError(errno.EBADF, "the standard input is closed", _STDIN)
    return sys.stdin.buffer


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


# -- which files ----------------------------------------------------------------------------------------------------


def _pairs(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Every NAME with its FILE."""
    refuse: Callable[[str], NoReturn] = options.parser.error
    pairs = [*map(tuple, options.pairs), *(_pair(text, refuse) for text in options.files)]
    listed = options.files_from
    _refuse_twice([listed, *(source for _, source in pairs)], refuse)
    if listed is not None:
        with _opened(listed) as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")]
        if words.pop() or len(words) % 2:
            refuse(f"--files-from {listed}: NAME and FILE in turn expected, a NUL after each of them")
        pairs += zip(words[::2], words[1::2], strict=True)
        _refuse_twice([listed, *(source for _, source in pairs)], refuse)
    if not pairs:
        refuse("nothing to put: NAME=FILE expected")
    if len({name for name, _ in pairs}) < len(pairs):
        refuse("a name is there twice")
    return pairs


def _refuse_twice(sources: list[str | None], refuse: Callable[[str], NoReturn]) -> None:
    if sources.count(_STDIN) > 1:
        refuse("stdin (-) can be read once only")


def _pair(text: str, refuse: Callable[[str], NoReturn]) -> tuple[str, str]:
    """One word taken for NAME=FILE: where it has several `=`, there must be one way only to take it for a file."""
    splits = ((text[:at], text[at + 1 :]) for at, char in enumerate(text) if char == "=")
    readings = [(name, source) for name, source in splits if name and source]
    if len(readings) > 1:
        readings = [reading for reading in readings if reading[1] == _STDIN or os.path.exists(reading[1])]
    if len(readings) != 1:
        refuse(f"NAME=FILE expected, not {text!r}; with more than one = in it say --file NAME FILE")
    return readings[0]
