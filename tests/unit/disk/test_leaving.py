"""The end of a `with` block that an exception keeps from its first line."""

from __future__ import annotations

import pytest

from txfiles._disk.leaving import Exit


class Block:
    """`fails`: an exception comes where its end begins."""

    def __init__(self, *, fails: bool = False) -> None:
        self._state = "new"
        self._fails = fails
        self.ended: list[object] = []

    def __enter__(self) -> Block:
        self._state = "open"
        return self

    def _leave(self, error: BaseException | None) -> None:
        if self._fails:
            raise LookupError
        self._state = "ended"
        self.ended.append(error)

    def _roll_back_late(self) -> None:
        if self._state == "open":
            self._state = "ended"
            self.ended.append("late")

    __exit__ = Exit()


def test_a_block_is_left_once_with_its_error() -> None:
    with Block() as block:
        pass
    assert block.ended == [None]
    error = ValueError()
    with pytest.raises(ValueError), Block() as block:
        raise error
    assert block.ended == [error]


def test_one_whose_end_does_not_begin_is_rolled_back_whatever_is_kept() -> None:
    kept = None
    try:
        with Block(fails=True) as block:
            pass
    except LookupError as error:
        kept = error
    assert kept is not None
    assert block.ended == ["late"]


def test_to_ask_for_the_end_is_not_to_leave() -> None:
    block = Block()
    assert hasattr(block, "__exit__")
    with block:
        assert hasattr(block, "__exit__")
        assert block.ended == []
    assert block.ended == [None]


def test_a_block_that_is_gone_is_not_left() -> None:
    leave = Block().__exit__
    leave(None, None, None)
    block = Block()
    leave = block.__exit__
    block.__enter__()
    del block
    leave(None, None, None)


def test_the_class_has_it_too() -> None:
    block = Block()
    type(block).__exit__(block, None, None, None)
    assert block.ended == [None]
