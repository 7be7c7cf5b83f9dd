"""Where a root on a store is: a URL, or a store of obstore with a prefix; and what this process has open there."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

from txfiles.errors import InvalidPathError, UnsupportedFilesystemError
from txfiles.objects.requests import StoreRequests, require_process, store_of, without_retries
from txfiles.objects.root import Root

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_URL = re.compile(r"(s3a?|gs|azure|az|adl|abfss?|memory|file|https?)://(.*)", re.DOTALL)

_mutex = threading.Lock()
_roots: dict[str, Root] = {}  # of this process, by URL: they share what they know, and commit together
_memory: dict[str, Any] = {}


class Far:
    """A place on a store. Cheap to make: nothing is asked before `open`."""

    def __init__(self, url: str, store: ObjectStore | None = None, prefix: str = "") -> None:
        self.url = url
        self._store = store
        self._prefix = prefix
        self._root: Root | None = None
        if store is None:
            found = _URL.match(url)
            assert found is not None
            if "@" in found[2].partition("/")[0] and not found[1].startswith("abfs"):
                raise InvalidPathError("credentials have no place in a URL; the environment has them, or a store")
            if found[1] == "file":
                message = "a directory has no conditional replace: give its path instead of a file:// URL"
                raise UnsupportedFilesystemError(message, path=url)

    @property
    def shown(self) -> str:
        """The URL without what follows a question mark."""
        return self.url.partition("?")[0]

    @property
    def key(self) -> object:
        """Equal for two that are one root for sure."""
        return self.url if self._store is None else self

    def __getstate__(self) -> dict[str, Any]:
        if self._store is not None:
            raise TypeError(
                "a FileStore made by FileStore.on() cannot be pickled: its store may hold secrets; make it from a URL"
            )
        return {**self.__dict__, "_root": None}

    def open(self, *, create: bool = False) -> Root:
        """The root as this process knows it. Raises `FileNotFoundError` if there is none, unless it is to be made."""
        require_process()
        root = self._open()
        if create:
            root.create()
        else:
            root.state()
        return root

    def _open(self) -> Root:
        with _mutex:
            if self._root is None and self._store is None:
                self._root = _roots.get(self.url)
            if self._root is None:
                self._root = self._make()
                if self._store is None:
                    _roots[self.url] = self._root
            return self._root

    def _make(self) -> Root:
        store, prefix, remote = self._store, self._prefix, True
        if store is not None:
            store = without_retries(store)
            remote = type(store).__name__ != "MemoryStore"
        elif self.url.startswith("memory://"):
            name, _, prefix = self.url.removeprefix("memory://").partition("/")
            remote = False
            store = _memory.get(name)
            if store is None:
                store = _memory[name] = store_of("memory:///")
        else:
            store = store_of(self.url)
        prefix = prefix.strip("/")
        return Root(StoreRequests(store, f"{prefix}/" if prefix else ""), self.shown, remote=remote)


def far_of(root: object) -> Far:
    """The place of a root that is on a store: a URL, or a `FileStore` there."""
    if isinstance(root, str):
        return Far(root)
    far = getattr(root, "_far", None)
    assert isinstance(far, Far)
    return far
