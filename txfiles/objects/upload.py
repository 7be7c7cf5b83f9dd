"""What a transaction refers to is uploaded before its commit: packs of contents, each under a name of its own.

A PUT of such a name is repeated freely: it has the same bytes each time. What was uploaded is never deleted after a
failure, for it may be referred to all the same; `collect` knows better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txfiles.errors import CommitError
from txfiles.objects import state as _state
from txfiles.objects.requests import Denied, RequestError
from txfiles.objects.wait import Backoff, os_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from txfiles.objects.change import Change
    from txfiles.objects.content import Content
    from txfiles.objects.keeper import Keeper
    from txfiles.objects.requests import Body

PACK = 32 << 20  # bytes from which on a pack is full


def contents(root: Keeper, change: Change, until: float) -> None:
    """Upload larger contents before anything else; the last pack is left to a commit that makes one anyway.

    Raises `CommitError`.
    """
    known = root.known()
    seq, floor = (0, 0) if known is None else (known.state.seq, known.state.floor)
    todo = [c for c in change.contents() if c.place is None or _state.seq_of(c.place[0]) < floor]
    packs = list(_packs(todo))
    full = known is not None and len(known.state.delta) + len(change.writes) > _state.MAX_ENTRIES
    if packs and (full or change.flush):
        for content in packs.pop():
            content.place = None
    try:
        root.source.at_once(lambda pack: _put_pack(root, pack, seq, until), packs)
    except (OSError, RequestError) as error:
        message = f"nothing was changed: the contents could not be uploaded: {error}"
        raise CommitError(message, path=root.shown) from error


def _put_pack(root: Keeper, pack: list[Content], seq: int, until: float) -> None:
    name = _state.new_name(seq)
    size = sum(content.size for content in pack)

    def pieces() -> Iterator[bytes]:
        for content in pack:
            yield from content.chunks()

    put(root, f"pack/{name}", pieces if size > 2 * PACK else b"".join(pieces()), until)
    offset = 0
    for content in pack:
        content.place = name, offset
        offset += content.size


def put(root: Keeper, key: str, body: Body, until: float) -> None:
    """PUT an object under its own name, again until it is there. Raises `OSError`."""
    backoff = Backoff(root.source.clock, until)
    while True:
        try:
            root.within(until, lambda: root.source.requests.put(key, body))
            return
        except Denied as error:
            raise os_error(root.shown, error) from error.cause
        except RequestError as error:
            if root.source.clock.now() >= until:
                raise os_error(root.shown, error) from error.cause
            root.note(error)
            backoff.pause(throttled=getattr(error, "throttled", False))


def _packs(contents: list[Content]) -> Iterator[list[Content]]:
    pack: list[Content] = []
    size = 0
    for content in contents:
        pack.append(content)
        size += content.size
        if size >= PACK:
            yield pack
            pack, size = [], 0
    if pack:
        yield pack
