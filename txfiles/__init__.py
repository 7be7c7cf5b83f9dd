"""Changes to several ordinary files, all-or-nothing.

>>> with FileTransaction(root) as tx:
...     tx.write("a.json", b"...")
...     tx.write("b.json", b"...")
"""

from txfiles import errors
from txfiles.documents import JsonDocuments
from txfiles.prepared import commit_prepared, rollback_prepared
from txfiles.recovery import RecoveryReport, StoreStatus, recover, status
from txfiles.snapshot import Snapshot
from txfiles.store import FileStore
from txfiles.transaction import FileTransaction

__version__ = "0.1.0"

__all__ = [
    "FileStore",
    "FileTransaction",
    "JsonDocuments",
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
