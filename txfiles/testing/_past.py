"""What a save does past txfiles, where the simulation does not see it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SHOWN = 5
_watching: Past | None = None
_hooked = False


class Past:
    """Calls of Python that name something below `root`, a real and empty directory; that it is there is no matter."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.calls: list[str] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the calls in the block."""
        global _watching, _hooked
        if not _hooked:
            _hooked = True
            sys.addaudithook(_note)  # for good: there is no way to take one back
        _watching = self
        try:
            yield
        finally:
            _watching = None

    def note(self, event: str, path: str) -> None:
        if path.startswith(self._root + os.sep) or (path == self._root and event != "os.mkdir"):
            call = f"{event} {path!r}"
            if call not in self.calls:
                self.calls.append(call)

    def tell(self, error: BaseException) -> None:
        """Say in the report what was called."""
        if self.calls:
            more = f", and {len(self.calls) - _SHOWN} more" if len(self.calls) > _SHOWN else ""
            shown = ", ".join(self.calls[:_SHOWN])
            error.add_note(
                f"past txfiles the save called {shown}{more}: only txfiles finds the files of the simulation"
            )


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _watching is None or not event.startswith(("open", "os.", "shutil.")):
        return
    for argument in arguments:
        if isinstance(argument, (str, bytes, os.PathLike)):
            _watching.note(event, os.path.abspath(os.fsdecode(argument)))
