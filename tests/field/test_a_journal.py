"""A: journals and staged files that are torn or damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.boundary import tree
from tests.support.debris import problems
from tests.support.halfdone import NEW, OLD, die, everything, journal_of, of_kind, staged
from tests.support.mounts import run
from txfiles import recover, status
from txfiles.errors import JournalCorruptError, JournalVersionError, RecoveryError

# -- A15: two journals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["intent", "committed"])
@pytest.mark.parametrize("damage", [b"", b"txfiles journal 1 900 ", b"\0" * 900])
def test_a15_a_torn_journal_does_not_hide_a_whole_one(root: Path, state: str, damage: bytes) -> None:
    die(root, 1)
    torn = root / ".txfiles" / f"{'0' * 32}.{state}"
    torn.write_bytes(damage)
    if state == "intent":
        report = recover(root)
        assert report.removed == [torn.name], "and said so"
    else:
        found = everything(root)
        with pytest.raises(JournalCorruptError, match=torn.name):
            recover(root)
        assert everything(root) == found, "the whole one waits, too"
        assert {p.error is None for p in status(root).pending} == {True, False}
        torn.unlink()
        report = recover(root)
    assert len(report.rolled_forward) == 1
    assert tree(root) == NEW


# -- A16, A21: a journal that is damaged ----------------------------------------------------------------------------


def test_a16_an_intent_cut_at_every_byte_was_never_committed(memory: Path) -> None:
    die(memory, -1)
    intent, token = journal_of(memory), staged(memory, 1)
    whole = intent.read_bytes()
    for length in range(len(whole)):
        intent.write_bytes(whole[:length])
        token.write_bytes(b"new b\n")
        report = recover(memory)
        assert tree(memory) == OLD, f"cut at {length}"
        assert not report.rolled_forward
        assert problems(memory) == []


@pytest.mark.parametrize("applied", [0, 1])
def test_a16_a_committed_journal_cut_at_any_byte_is_damage(memory: Path, applied: int) -> None:
    """It was renamed after its sync, so that it cannot be torn."""
    die(memory, applied)
    journal, found = journal_of(memory), tree(memory)
    whole = journal.read_bytes()
    for length in range(len(whole)):
        journal.write_bytes(whole[:length])
        with pytest.raises(JournalCorruptError, match=journal.name):
            recover(memory)
        assert tree(memory) == found, f"cut at {length}"
    journal.write_bytes(whole)
    recover(memory)
    assert tree(memory) == NEW


def _flips(length: int) -> list[tuple[int, int]]:
    return [(at, 1 << at % 8) for at in range(length)]


@pytest.mark.parametrize("applied", [0, 1])
def test_a21_a_flipped_bit_anywhere_in_the_journal(memory: Path, applied: int) -> None:
    die(memory, applied)
    journal, found = journal_of(memory), tree(memory)
    whole = journal.read_bytes()
    for at, bit in _flips(len(whole)):
        journal.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        with pytest.raises((JournalCorruptError, JournalVersionError)):
            recover(memory)
        assert tree(memory) == found, f"bit {bit} of byte {at}"
    journal.write_bytes(whole)
    recover(memory)
    assert tree(memory) == NEW


@pytest.mark.parametrize("applied", [-1, 0, 1])
def test_a21_a_flipped_bit_anywhere_in_a_staged_file(memory: Path, applied: int) -> None:
    die(memory, applied)
    found = tree(memory)
    for token in of_kind(memory, "token"):
        whole = token.read_bytes()
        for at, bit in _flips(len(whole)):
            with token.open("r+b") as file:
                file.seek(at)
                file.write(bytes([whole[at] ^ bit]))
            if applied == -1:
                assert status(memory).pending[0].state == "intent"
            else:
                with pytest.raises(RecoveryError, match="damaged"):
                    recover(memory)
            assert tree(memory) == found
        token.write_bytes(whole)
    if applied == -1:
        staged(memory, 0).write_bytes(b"bad a\n")
    recover(memory)
    assert tree(memory) == (OLD if applied == -1 else NEW)


@pytest.mark.parametrize("damage", ["mode", "owner", "shorter", "longer", "missing", "a link"])
def test_a21_a_staged_file_that_is_otherwise_not_what_it_was(root: Path, damage: str, tmp_path: Path) -> None:
    die(root, 1)
    found = tree(root)
    token = staged(root, 1)
    aside = tmp_path / "aside"
    run("cp", "-a", token, aside)
    if damage == "mode":
        token.chmod(0o666)
    elif damage == "owner":
        os.chown(token, 1234, 1234)
    elif damage in ("shorter", "longer"):
        os.truncate(token, 3 if damage == "shorter" else 30)
    else:
        token.unlink()
        if damage == "a link":
            token.symlink_to(aside)
    with pytest.raises(RecoveryError, match=r"'b' is (damaged|missing)|since the crash: 'b'"):
        recover(root)
    assert tree(root) == found
    token.unlink(missing_ok=True)
    aside.rename(token)
    recover(root)
    assert tree(root) == NEW
