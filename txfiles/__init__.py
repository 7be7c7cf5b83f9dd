"""Changes to several ordinary files, all-or-nothing.

>>> with FileTransaction(root) as tx:
...     tx.write("a.json", b"...")
...     tx.write("b.json", b"...")
"""

TYPE_CHECKING = False  # as type checkers know it; importing typing takes longer than all of this
if TYPE_CHECKING:
    from txfiles import errors
    from txfiles._calls.content import Data
    from txfiles._calls.settings import Links
    from txfiles._commit.recover import OnConflict
    from txfiles._disk.allowance import Accept, GivenUp
    from txfiles._format.journal import Durability
    from txfiles._format.paths import AnyPath
    from txfiles._tree.facts import FileStat
    from txfiles.aio import AsyncFileTransaction
    from txfiles.async_documents import AsyncDocuments
    from txfiles.documents import Documents, JsonDocuments
    from txfiles.prepared import commit_prepared, rollback_prepared
    from txfiles.recovery import RecoveryReport, StoreStatus, recover, status
    from txfiles.snapshot import Snapshot
    from txfiles.store import FileStore
    from txfiles.transaction import FileTransaction

__version__ = "0.1.0"

__all__ = [
    "Accept",
    "AnyPath",
    "AsyncDocuments",
    "AsyncFileTransaction",
    "Data",
    "Documents",
    "Durability",
    "FileStat",
    "FileStore",
    "FileTransaction",
    "GivenUp",
    "JsonDocuments",
    "Links",
    "OnConflict",
    "RecoveryReport",
    "Snapshot",
    "StoreStatus",
    "__version__",
    "commit_prepared",
    "errors",
    "recover",
    "rollback_prepared",
    "status",
]

_MODULES = {
    "Accept": "_disk.allowance",
    "AnyPath": "_format.paths",
    "AsyncDocuments": "async_documents",
    "AsyncFileTransaction": "aio",
    "Data": "_calls.content",
    "Documents": "documents",
    "Durability": "_format.journal",
    "FileStat": "_tree.facts",
    "FileStore": "store",
    "FileTransaction": "transaction",
    "GivenUp": "_disk.allowance",
    "JsonDocuments": "documents",
    "Links": "_calls.settings",
    "OnConflict": "_commit.recover",
    "RecoveryReport": "recovery",
    "Snapshot": "snapshot",
    "StoreStatus": "recovery",
    "commit_prepared": "prepared",
    "recover": "recovery",
    "rollback_prepared": "prepared",
    "status": "recovery",
}


def __getattr__(name: str) -> object:
    """Import what is asked for (PEP 562): who only recovers at start does not wait for the rest."""
    from importlib import import_module

    if name == "errors":
        return import_module("txfiles.errors")
    if name not in _MODULES:
        raise AttributeError(f"module 'txfiles' has no attribute {name!r}")
    value: object = getattr(import_module(f"txfiles.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
