"""The changes of one call of the file system for fsspec, all or none."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from txfiles._disk.interrupts import Interrupted
from txfiles._disk.leaving import Exit

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from txfiles.store import FileStore
    from txfiles.transaction import FileTransaction

    Running = dict[tuple[threading.Thread, str], FileTransaction]


class Change:
    """In a part of the transaction that the call is to join, or else in one of its own, which others join meanwhile."""

    _state = "new"

    def __init__(self, joined: FileTransaction | None, store: FileStore, running: Running) -> None:
        self._tx = joined or store.transaction()
        self._inner: AbstractContextManager[object] = self._tx if joined is None else joined.savepoint()
        self._key = None if joined is not None else (threading.current_thread(), store.root)
        self._running = running

    def __enter__(self) -> FileTransaction:
        self._state = "open"
        self._inner.__enter__()
        if self._key is not None:
            self._running[self._key] = self._tx
        return self._tx

    def _leave(self, error: BaseException | None) -> None:
        if self._key is not None:
            self._running.pop(self._key, None)
        self._inner.__exit__(None if error is None else type(error), error, None)
        self._state = "ended"

    def _roll_back_late(self) -> None:
        if self._state == "open":
            self._leave(Interrupted())

    __exit__: Exit = Exit()
