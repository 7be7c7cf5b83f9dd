"""Whether a transaction is committed, however long ago it was: its id is in `HEAD`, or in a block of `hist`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from txfiles.errors import RecoveryError
from txfiles.objects import state as _state
from txfiles.objects.requests import Missing
from txfiles.objects.wait import reading

if TYPE_CHECKING:
    from txfiles.objects.read import Source
    from txfiles.objects.state import Block, State


def is_committed(source: Source, state: State, tid: str, since: int = 0) -> bool:
    """Whether the id is among those that led to this state. It cannot be in states before the number `since`.

    Raises `OSError` and `RecoveryError`: what cannot be read is not taken for "not there".
    """
    if state.has(tid):
        return True
    oldest = state.recent[0][0] if state.recent else state.seq
    block = state.hist[0] if state.hist is not None else None
    while block is not None and oldest >= since:
        found = read_block(source, block)
        if tid in found.ids:
            return True
        oldest, block = min(found.ids.values(), default=0), found.before
    return False


def read_block(source: Source, name: str) -> Block:
    cached: Block | None = source.cache.get(f"hist/{name}", 0)
    if cached is not None:
        return cached
    key = f"hist/{name}"
    try:
        got = reading(source.clock, source.shown, lambda: source.requests.get(key))
    except Missing as error:
        message = f"{source.shown}: {key} is missing; something else deleted it"
        raise RecoveryError(message, path=source.shown) from error.cause
    block = _state.decode_block(got.data, f"{source.shown}: {key}")
    source.cache.put(key, 0, block, 4 * len(got.data))
    return block


def push_out(state: State, seq: int) -> tuple[State, tuple[str, bytes]]:
    """The state with fewer recent ids, and the block to upload first that has the others; `seq` is for its name."""
    out, kept = state.recent[: -_state.RECENT // 2], state.recent[-_state.RECENT // 2 :]
    before, count = state.hist or (None, 0)
    name = _state.new_name(seq)
    block = f"hist/{name}", _state.encode_block(out, before)
    return replace(state, recent=kept, hist=(name, count + 1)), block
