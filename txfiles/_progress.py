"""Progress of long work on a terminal: a bar where rich is installed, a plain line where it is not."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

_AFTER = 0.5  # seconds of silence at first, and between two plain lines
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(size: float) -> str:
    """A number of bytes for people: `1.5 MiB`."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


class Progress:
    """Counts the bytes that pass through `read`; `last` is the size of the last file."""

    def __init__(self, title: str, *, hidden: bool) -> None:
        self._title = title
        self._hidden = hidden or not sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._told = time.monotonic()
        self._total = 0
        self._shown = False
        self.last = 0

    def __enter__(self) -> Self:
        if not self._hidden:
            self._bar = _rich_bar()
            if self._bar is not None:
                self._bar.start()
                self._task = self._bar.add_task(self._title, total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._shown:
            print(file=sys.stderr)

    def read(self, name: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Pass `chunks` on and show how far they have come."""
        self.last = 0
        for chunk in chunks:
            self.last += len(chunk)
            self._total += len(chunk)
            self._tell(name)
            yield chunk

    def _tell(self, name: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._total, description=name)
        elif not self._hidden and time.monotonic() - self._told > _AFTER:
            self._told, self._shown = time.monotonic(), True
            print(f"\r{self._title}: {size_text(self._total)}, {name[:60]:<60}", end="", file=sys.stderr, flush=True)


def _rich_bar() -> Any:
    try:
        from rich.console import Console
        from rich.progress import DownloadColumn, SpinnerColumn, TextColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    columns = (SpinnerColumn(), TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn())
    return Bar(*columns, console=Console(stderr=True), transient=True)
