"""A transaction as the target of a sync."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from txfiles._format import paths
from txfiles._tree.staging import Directory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from txfiles.transaction import FileTransaction


class TransactionTarget:
    """An open transaction; its methods are those of a `Target`."""

    def __init__(self, tx: FileTransaction) -> None:
        self._tx = tx

    def write(self, name: str, chunks: Iterable[bytes], mode: int | None, mtime_ns: int | None) -> None:
        """Also where the file is write-protected: one whose source is has to be replaced all the same."""
        path = paths.normalize(name)
        with self._tx._call() as staging, staging.step():
            place = staging.place(path)
            writer = staging.tokens.new(path)
            try:
                for chunk in chunks:
                    writer.write(chunk)
                with paths.Naming(path):
                    staging.make_parents(path)
                    meta = place.meta
                    if meta is None:
                        meta = staging.meta_for_new(path, mode=mode)
                    elif mode is not None:
                        meta = meta._replace(mode=mode)
                staging.put(place.path, writer.finish(meta, place.identity, mtime_ns))
            finally:
                writer.discard()

    def make_directory(self, name: str, mode: int | None) -> None:
        """Its owner may always write to it: its files are still to come."""
        path = paths.normalize(name)
        with self._tx._call() as staging, staging.step(), paths.Naming(path):
            staging.make_parents(path)
            meta = staging.meta_for_new(path, is_dir=True, mode=None if mode is None else mode | 0o700)
            staging.put(path, Directory(meta))

    def make_link(self, name: str, text: str) -> None:
        path = paths.normalize(name)
        with self._tx._call() as staging, staging.step(), paths.Naming(path):
            staging.make_parents(path)
            staging.put(path, staging.tokens.symlink(paths.encode(text)))

    def delete(self, name: str) -> None:
        self._tx.delete(name)

    def remove_directory(self, name: str) -> None:
        if self._tx.listdir(name):
            raise OSError(errno.ENOTEMPTY, "somebody else has put something into the directory", name)
        self._tx.delete_tree(name)
