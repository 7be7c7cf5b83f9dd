"""The standard streams, which may be closed, full or a broken pipe: what was done does not depend on them."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import suppress
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def occupy() -> None:
    """Open the null device where a standard stream is closed: or the next file that is opened gets its number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)


def printable(line: str) -> str:
    """With control characters and undecodable bytes of names escaped, for any terminal."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], line)


def out(text: str) -> OSError | None:
    """Print to the standard output; the error if that cannot be."""
    try:
        _write(sys.stdout, text)
    except OSError as error:
        sys.stdout = _without(sys.stdout)
        return error
    return None


def err(text: str) -> None:
    """Print to the standard error, if that can be."""
    try:
        _write(sys.stderr, text)
    except OSError:
        sys.stderr = _without(sys.stderr)


def settle() -> None:
    """Empty the buffers: the interpreter would do it at its end, and change the exit code if it fails."""
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            setattr(sys, name, _without(stream))


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None or stream.closed:
        return
    stream.write(f"{text}\n".encode(stream.encoding or "utf-8", "backslashreplace").decode(stream.encoding or "utf-8"))
    stream.flush()


def _without(stream: TextIO | None) -> TextIO:
    if stream is not None:
        with suppress(OSError):
            stream.close()  # or what is left in it would be tried once more
    return io.StringIO()
