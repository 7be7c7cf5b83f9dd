"""Whether a store keeps its conditions: asked once, under a random key, before a root is made."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from txfiles.errors import UnsupportedFilesystemError
from txfiles.objects.requests import Denied, Failed, Missing, Raced, RequestError, Token
from txfiles.objects.state import new_id
from txfiles.objects.wait import Backoff, os_error, reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles.objects.read import Source
    from txfiles.objects.requests import Got, Requests
    from txfiles.objects.state import Form

_ROUNDS = 12
_RACERS = 8
_TRIES = 8


def probe(source: Source) -> Form:
    """The form of tokens that the store understands. Raises `UnsupportedFilesystemError`, `OSError`."""
    key = f"probe/{new_id()}"
    try:
        return _Probe(source, key).run()
    except RequestError as error:
        raise os_error(source.shown, error) from error.cause
    finally:
        with suppress(RequestError):
            source.requests.delete(key)


def formed(token: Token, form: Form) -> Token:
    """A token as this store wants it back."""
    if form == "quoted" or token.e_tag is None:
        return token
    return token._replace(e_tag=token.e_tag.removeprefix("W/").strip('"'))


class _Probe:
    def __init__(self, source: Source, key: str) -> None:
        self._source = source
        self._requests: Requests = source.requests
        self._key = key

    def run(self) -> Form:
        self._refuse_kind()
        first, answered = self._put(b"1", "create")
        if not answered:
            self._refuse("creating an object that is not there is refused")
        if self._put(b"2", "create")[1] and self._value() == b"2":
            self._refuse("an object is created over one that exists")
        token = self._token(b"1")
        if first is not None and first != token:
            self._refuse("the token that a PUT returns is not the one that a GET returns")
        form = self._find_form(token)
        stale, token = token, self._token(b"3")
        if self._put(b"4", formed(stale, form))[1] or self._value() != b"3":
            self._refuse("an object is replaced although it is no longer the one of the condition")
        for number in range(_ROUNDS):
            token = self._race(formed(token, form), number)
        return form

    def _refuse_kind(self) -> None:
        if getattr(self._requests, "is_local", False):
            self._refuse("a directory has no conditional replace: give its path instead of a file:// URL")

    def _find_form(self, token: Token) -> Form:
        forms: tuple[Form, ...] = ("quoted", "bare")
        for form in forms:
            self._put(b"3", formed(token, form))
            if self._value() == b"3":
                return form
        self._refuse("an object cannot be replaced on condition that it is still the same")

    def _race(self, token: Token, number: int) -> Token:
        """Several replacements at once by one token: one may win."""
        bodies = [b"%d %d" % (number, racer) for racer in range(_RACERS)]
        with ThreadPoolExecutor(_RACERS) as pool:
            won = [body for body, (_, done) in zip(bodies, pool.map(self._racer(token), bodies), strict=True) if done]
        got = self._ask(lambda: self._requests.get(self._key))
        if len(won) > 1 or (won and got.data != won[0]) or got.data not in bodies:
            self._refuse(f"{len(won)} of {_RACERS} writers at once were told that they had won")
        return got.token

    def _racer(self, token: Token) -> Callable[[bytes], tuple[Token | None, bool]]:
        return lambda body: self._put(body, token, tries=2)

    def _put(self, data: bytes, condition: Token | str, tries: int = _TRIES) -> tuple[Token | None, bool]:
        """The new token if it is told, and whether the store says that it was done."""
        backoff = Backoff(self._source.clock)
        for _ in range(tries):
            try:
                return self._requests.put(self._key, data, condition), True  # type: ignore[arg-type]
            except (Raced, Missing):
                if condition == "create" and self._is_there(data):
                    return None, True  # the answer was about our own success
                return None, False
            except Denied:
                raise
            except Failed as error:
                if self._is_there(data):
                    return None, True
                backoff.pause(throttled=error.throttled)
        return None, False

    def _is_there(self, data: bytes) -> bool:
        try:
            return self._value() == data
        except Missing:
            return False

    def _value(self) -> bytes:
        return self._ask(lambda: self._requests.get(self._key)).data

    def _token(self, data: bytes) -> Token:
        got = self._ask(lambda: self._requests.get(self._key))
        if got.data != data:
            self._refuse("what was written is not what is read")
        return got.token

    def _ask(self, call: Callable[[], Got]) -> Got:
        return reading(self._source.clock, self._source.shown, call)

    def _refuse(self, what: str) -> NoReturn:
        message = f"{self._source.shown}: the store cannot keep a root of txfiles: {what}"
        raise UnsupportedFilesystemError(message, path=self._source.shown)
