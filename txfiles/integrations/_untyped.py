"""For type checkers only: what this package uses of classes that have no types."""

from __future__ import annotations

from typing import Any, ClassVar


class AbstractFileSystem:
    """`fsspec.AbstractFileSystem`."""

    clear_instance_cache: ClassVar[Any]
    copy: Any
    mv: Any
    open: Any
    pipe: Any
    pipe_file: Any
    put: Any
    put_file: Any
    walk: Any

    def __init__(self, **options: Any) -> None: ...

    def __getattr__(self, name: str) -> Any: ...


class Transaction:
    """`fsspec.transaction.Transaction`."""

    files: Any
    start: Any

    def __init__(self, fs: Any, **options: Any) -> None: ...


class TransientError(Exception):
    """`transaction.interfaces.TransientError`."""
