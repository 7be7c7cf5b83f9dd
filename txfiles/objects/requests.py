"""The boundary to a store: five requests on an object that can be replaced. Nothing else here talks to a network.

What a request raises is one of the errors below and nothing else; `cause` is the store's own error without secrets.
Only `Missing` means that there is nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from txfiles._disk import system
from txfiles.errors import TransactionClosedError, UnsupportedFilesystemError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obstore.store import ObjectStore


class Token(NamedTuple):
    """What a store calls the version of an object: an ETag, on GCS a generation. Opaque."""

    e_tag: str | None
    version: str | None = None


class Got(NamedTuple):
    data: bytes
    token: Token
    modified: float  # seconds, by the clock of the store


class Listed(NamedTuple):
    key: str
    modified: float
    size: int


class RequestError(Exception):
    """A request that failed; whether it took effect is unknown, but for `Missing`, `Unchanged` and `Denied`."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class Missing(RequestError):
    """There is no such object."""


class Unchanged(RequestError):
    """The object is still the one of the token."""


class Raced(RequestError):
    """A condition did not hold (412), two requests met (409), or a repeated request met its own effect: no verdict."""


class Denied(RequestError):
    """401 or 403."""


class Failed(RequestError):
    """Anything else. `throttled`: the store asks for fewer requests (429, 503)."""

    throttled = False


Body = bytes | Callable[[], Iterator[bytes]]
Condition = Token | Literal["create"] | None


class Requests(Protocol):
    """A store below one prefix."""

    def put(self, key: str, body: Body, condition: Condition = None) -> Token:
        """Write an object: if it is still the one of a token, if there is none ("create"), or whatever is there."""
        ...

    def get(self, key: str, unless: Token | None = None) -> Got:
        """Read an object; raises `Unchanged` if it is still the one of `unless`."""
        ...

    def ranges(self, key: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Parts of an object, each as (offset, length); short where it ends earlier."""
        ...

    def list(self, prefix: str, at_most: int | None = None) -> list[Listed]:
        """The objects whose key begins with `prefix`. It may be stale."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; there may be none."""
        ...


_used_in: int | None = None  # the process in which obstore's threads run


def require_process() -> None:
    """Refuse a forked child: obstore's threads are not there, and every request would hang."""
    if _used_in not in (None, system.current().pid()):
        raise TransactionClosedError(
            "object storage was used before this process was forked; start processes with the method 'spawn'"
        )


class StoreRequests:
    """The five requests through obstore. No retries of its own: what they hide has to be seen (see `commit`)."""

    def __init__(self, store: ObjectStore, prefix: str = "") -> None:
        global _used_in
        require_process()
        _used_in = system.current().pid()
        import obstore

        self._obstore = obstore
        self._store = store
        self._prefix = prefix
        self.is_local: bool = type(store).__name__ == "LocalStore"

    def put(self, key: str, body: Body, condition: Condition = None) -> Token:
        mode = "overwrite" if condition is None else _mode(condition)
        with self._errors(key):
            data = body if isinstance(body, bytes) else body()
            found = self._obstore.put(
                self._store,
                self._prefix + key,
                data,
                mode=mode,  # type: ignore[arg-type]
                use_multipart=None if condition is None else False,
            )
        return Token(found["e_tag"], found["version"])

    def get(self, key: str, unless: Token | None = None) -> Got:
        options = {} if unless is None or unless.e_tag is None else {"if_none_match": unless.e_tag}
        with self._errors(key):
            found = self._obstore.get(self._store, self._prefix + key, options=options)  # type: ignore[arg-type]
            data = bytes(found.bytes())
            meta = found.meta
        return Got(data, Token(meta["e_tag"], meta["version"]), meta["last_modified"].timestamp())

    def ranges(self, key: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        with self._errors(key):
            if len(spans) == 1:
                start, length = spans[0]
                return [bytes(self._obstore.get_range(self._store, self._prefix + key, start=start, length=length))]
            starts, lengths = zip(*spans, strict=True)
            found = self._obstore.get_ranges(self._store, self._prefix + key, starts=starts, lengths=lengths)
            return [bytes(part) for part in found]

    def list(self, prefix: str, at_most: int | None = None) -> list[Listed]:
        found: list[Listed] = []
        with self._errors(prefix):
            for chunk in self._obstore.list(self._store, self._prefix + prefix or None, chunk_size=1000):
                for meta in chunk:
                    key, modified = meta["path"][len(self._prefix) :], meta["last_modified"].timestamp()
                    found.append(Listed(key, modified, meta["size"]))
                if at_most is not None and len(found) >= at_most:
                    break
        return found

    def delete(self, key: str) -> None:
        with self._errors(key), contextlib.suppress(FileNotFoundError):
            self._obstore.delete(self._store, self._prefix + key)

    def _errors(self, key: str) -> _Errors:
        require_process()
        return _Errors(key)


_TIMEOUT = "30s"  # of one request


def store_of(url: str) -> ObjectStore:
    """The store of a URL, with what the environment says. Raises `UnsupportedFilesystemError`, `OSError`."""
    require_process()
    try:
        from obstore.store import MemoryStore, from_url
    except ImportError as error:
        message = "object storage needs obstore: pip install 'txfiles[objects]'"
        raise UnsupportedFilesystemError(message, path=url.partition("?")[0]) from error
    if url.startswith("memory:"):
        return MemoryStore()
    try:
        return from_url(
            url,
            retry_config={"max_retries": 0},
            client_options={
                "timeout": _TIMEOUT,
                "allow_http": True,
            },  # the environment may name an endpoint without TLS
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        message = f"{url.partition('?')[0]} cannot be opened: {without_secrets(str(error))}"
        raise UnsupportedFilesystemError(message, path=url.partition("?")[0]) from None


def without_retries(store: ObjectStore) -> ObjectStore:
    """The same store, which does not repeat requests by itself, if it can be had."""
    try:
        arguments, settings = store.__getnewargs_ex__()  # type: ignore[union-attr]
        again: ObjectStore = type(store)(*arguments, **{**settings, "retry_config": {"max_retries": 0}})
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return store
    return again


class _Errors:
    """A block in which the store's errors become those of this module."""

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            return
        raise translated(self._key, error) from None


_KINDS: dict[str, type[RequestError]] = {
    "FileNotFoundError": Missing,
    "NotFoundError": Missing,
    "NotModifiedError": Unchanged,
    "AlreadyExistsError": Raced,
    "PreconditionError": Raced,
    "PermissionDeniedError": Denied,
    "UnauthenticatedError": Denied,
}
_THROTTLED = re.compile(r"\b(429|503)\b|SlowDown|TooManyRequests|ServerBusy", re.IGNORECASE)


def translated(key: str, error: BaseException) -> Exception:
    text = without_secrets(str(error))
    name = type(error).__name__
    if name in ("NotSupportedError", "NotImplementedError"):
        return UnsupportedFilesystemError(f"the store cannot do what is needed for {key!r}: {text}")
    try:
        cause: BaseException = type(error)(text)
    except Exception:
        cause = Exception(f"{name}: {text}")
    found = _KINDS.get(name, Failed)(f"{key}: {text}", cause)
    if isinstance(found, Failed):
        found.throttled = _THROTTLED.search(text) is not None
    return found


_SECRET = re.compile(
    r"(?i)\b(x-amz-[a-z-]+|sig|signature|awsaccesskeyid|[a-z_]*(?:secret|token|password|key)[a-z_]*)"
    r"(\s*[=:]\s*\"?)[^&\s\",}]+"
)
_USER = re.compile(r"//[^/@\s]+@")


def without_secrets(text: str) -> str:
    """The first paragraph of a store's message, without what could be part of a credential."""
    text = text.split("\n\nDebug source:", maxsplit=1)[0].strip()
    return _SECRET.sub(r"\1\2***", _USER.sub("//", text))[:500]


def _mode(condition: Token | Literal["create"]) -> object:
    if isinstance(condition, str):
        return condition
    return {name: value for name, value in condition._asdict().items() if value is not None}
