"""`FileStore`: a root and its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txfiles import _fs, _paths, recovery
from txfiles._home import locate
from txfiles.transaction import FileTransaction, check_settings

if TYPE_CHECKING:
    from txfiles._journal import Durability
    from txfiles._paths import AnyPath
    from txfiles._recover import OnConflict, RecoveryReport

__all__ = ["FileStore"]


class FileStore:
    """A root directory and the settings of its transactions. Cheap to make, safe to share between threads.

    The arguments are those of `FileTransaction`.
    """

    def __init__(
        self,
        root: AnyPath,
        *,
        durability: Durability = "full",
        timeout: float | None = 10.0,
        create: bool = False,
    ) -> None:
        check_settings(durability, timeout)
        self._root = _paths.decode(locate(_fs.current(), root))
        self._durability: Durability = durability
        self._timeout = timeout
        self._create = create

    def __repr__(self) -> str:
        return f"<FileStore {self._root!r}>"

    @property
    def root(self) -> str:
        """The absolute path of the root, symbolic links resolved."""
        return self._root

    def transaction(self) -> FileTransaction:
        """A new transaction, not begun: use it as a context manager."""
        return FileTransaction(self._root, durability=self._durability, timeout=self._timeout, create=self._create)

    def recover(self, *, on_conflict: OnConflict = "raise") -> RecoveryReport:
        """`txfiles.recover` on this root, with this store's timeout."""
        return recovery.recover(self._root, timeout=self._timeout, on_conflict=on_conflict)

    def status(self) -> recovery.StoreStatus:
        """`txfiles.status` of this root."""
        return recovery.status(self._root)
