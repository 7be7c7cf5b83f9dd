"""Progress of long work on a terminal: a bar where rich is installed, a plain line where it is not."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from txfiles._cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

_AFTER = 0.5  # seconds of silence at first, and between two plain lines
_WIDTH = 79
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(size: float) -> str:
    """A number of bytes for people: `1.5 MiB`."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


class Progress:
    """Counts the files and bytes that pass through `read`, against what `expect` has announced.

    `last` is the size of the last file.
    """

    def __init__(self, *, hidden: bool) -> None:
        self._hidden = hidden or sys.stderr is None or not sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._told = time.monotonic()
        self._shown = False
        self.expect("", 0, 0)

    def __enter__(self) -> Self:
        if not self._hidden:
            self._bar = _rich_bar()
            if self._bar is not None:
                self._bar.start()
                self._task = self._bar.add_task("", total=None, files="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._shown:
            print(file=sys.stderr)

    def expect(self, what: str, files: int, size: int | None) -> None:
        """A stage of the work begins: so many files of so many bytes in all (`None`: nobody knows)."""
        self._what, self._files, self._size = what, files, size
        self._file = self._done = self.last = 0
        self._started = time.monotonic()
        if self._bar is not None:
            self._bar.reset(self._task, total=size, description=what, files="")

    def read(self, name: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Pass `chunks` of a file on and show how far they have come."""
        self._file, self.last = self._file + 1, 0
        for chunk in chunks:
            self._done += len(chunk)
            self.last += len(chunk)
            self._tell(name)
            yield chunk

    def _tell(self, name: str) -> None:
        if self._hidden:
            return
        files = f"{self._file}/{self._files} files"
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, files=files)
        elif time.monotonic() - self._told > _AFTER:
            self._told, self._shown = time.monotonic(), True
            line = printable(f"{self._what} {files}, {self._how_far()}, {name}")
            print(f"\r{line[:_WIDTH]:<{_WIDTH}}", end="", file=sys.stderr, flush=True)

    def _how_far(self) -> str:
        rate = self._done / max(time.monotonic() - self._started, 1e-6)
        if self._size is None:
            return f"{size_text(self._done)}, {size_text(rate)}/s"
        left = max(self._size - self._done, 0) / max(rate, 1.0)
        minutes, seconds = divmod(round(left), 60)
        so_far = f"{size_text(self._done)} of {size_text(self._size)}"
        return f"{so_far}, {size_text(rate)}/s, {minutes}:{seconds:02} left"


def _rich_bar() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    words = TextColumn("{task.description} {task.fields[files]}")
    columns = (words, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Bar(*columns, console=Console(stderr=True), transient=True)
