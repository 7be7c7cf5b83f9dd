"""Faults at every request of a commit: all or nothing, and what is told is true."""

from __future__ import annotations

import math

import pytest

from tests.objects.faulty import FAULTS, Counted, Planned, contents, fresh, made, memory, writing
from tests.objects.mutants import deleted_head_is_new, unreadable_is_empty
from tests.objects.scenarios import BIG, everything_referenced_is_readable, with_old_files
from txfiles.errors import (
    CommitError,
    CommitOutcomeUnknownError,
    JournalVersionError,
    LockTimeoutError,
    RecoveryError,
)
from txfiles.objects import state as _state
from txfiles.objects.collect import collect
from txfiles.objects.requests import Denied
from txfiles.objects.state import HEAD, State

SHAPES = {
    "small": {b"a": b"1", b"b": b"2"},
    "larger": {b"a": b"1" * BIG, b"b": b"2"},
    "many": {b"many/%d" % n: b"%d" % n for n in range(600)},
}


def _requests_of(files: dict[bytes, bytes]) -> int:
    counted = Counted(made(memory()))
    fresh(counted).commit(writing(files))
    return sum(counted.counts.values())


@pytest.mark.parametrize("times", [1, 2, math.inf])
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_fault_at_every_request_of_a_commit(shape: str, kind: str, times: float) -> None:
    files = SHAPES[shape]
    for at in range(_requests_of(files)):
        inner = made(memory())
        fresh(inner).commit(writing({b"old": b"0"}))
        faulty = Planned(inner, lambda number, name, key, at=at: kind if at <= number < at + times else None)
        change = writing(files)
        try:
            fresh(faulty).commit(change, 1.0)
            outcome = "after"
        except (CommitError, LockTimeoutError) as error:
            outcome = error.outcome
        except CommitOutcomeUnknownError as error:
            assert error.transaction_id == change.tid
            outcome = "after" if fresh(inner).is_committed(change.tid) else "before"
        faulty.land()
        found = contents(fresh(inner))
        assert found.pop(b"old") == b"0"
        assert found == (files if outcome == "after" else {}), f"{kind} at request {at}: told {outcome}"
        if times < math.inf:
            assert outcome == "after", f"{kind} at request {at}"


def test_a_refusal_before_anything_is_in_doubt_is_a_commit_error() -> None:
    inner = made(memory())

    class Refusing(Planned):
        def call(self, name, key, run):
            if name == "put":
                raise Denied("403", PermissionError("403"))
            return run()

    with pytest.raises(CommitError) as caught:
        fresh(Refusing(inner, lambda *_: None)).commit(writing({b"a": b"1"}), None)
    assert caught.value.outcome == "before"
    assert isinstance(caught.value.__cause__, PermissionError)


def test_a_head_that_was_deleted_is_an_error_and_never_a_new_root() -> None:
    requests = made(memory())
    root = fresh(requests)
    root.commit(writing({b"a": b"1"}))
    requests.delete(HEAD)
    with pytest.raises(RecoveryError, match="HEAD is gone"):
        root.commit(writing({b"b": b"1"}))
    with pytest.raises(FileNotFoundError):
        fresh(requests).newest()
    with pytest.raises(FileNotFoundError):
        fresh(requests).commit(writing({b"b": b"1"}))


def test_the_mutant_that_begins_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    deleted_head_is_new(monkeypatch)
    with pytest.raises(pytest.fail.Exception):
        test_a_head_that_was_deleted_is_an_error_and_never_a_new_root()


def test_a_deleted_head_beside_packs_is_not_made_again() -> None:
    requests = made(memory())
    fresh(requests).commit(writing({b"a": b"1" * BIG}))
    requests.delete(HEAD)
    with pytest.raises(RecoveryError, match="no HEAD"):
        fresh(requests).create()


def test_a_head_of_a_newer_version_is_refused() -> None:
    requests = made(memory())
    raw = requests.get(HEAD).data
    requests.put(HEAD, raw.replace(b"txfiles head 1 ", b"txfiles head 2 ", 1))
    with pytest.raises(JournalVersionError, match="newer"):
        fresh(requests).newest()
    with pytest.raises(JournalVersionError) as caught:
        fresh(requests).commit(writing({b"a": b"1"}))
    assert caught.value.outcome == "before"


def test_damage_is_refused_wherever_it_is() -> None:
    requests = made(memory())
    root = fresh(requests)
    root.commit(writing({b"%d" % n: b"x" * BIG for n in range(3)}))
    root.commit(writing(SHAPES["many"]))
    good = contents(fresh(requests))
    assert len(good) == 603
    for key in ["HEAD", *(one.key for one in requests.list("pack/"))]:
        raw = requests.get(key).data
        for damaged in (raw[:-1], raw[:10] + b"\0" + raw[11:], b""):
            requests.put(key, damaged)
            with pytest.raises((RecoveryError, OSError)):
                contents(fresh(requests))
        requests.put(key, raw)
    assert contents(fresh(requests)) == good


def test_a_head_that_went_back_is_refused() -> None:
    requests = made(memory())
    root = fresh(requests)
    old = requests.get(HEAD).data
    root.commit(writing({b"a": b"1"}))
    requests.put(HEAD, old)
    with pytest.raises(RecoveryError, match="went back"):
        root.commit(writing({b"b": b"1"}))
    assert contents(fresh(requests)) == {}


def test_gc_ends_where_it_cannot_read() -> None:
    """ "Could not be read" is not "refers to nothing"."""
    inner = made(memory())
    fresh(inner).commit(writing({b"%d" % n: b"x" for n in range(600)}))
    for _ in range(2):
        collect(fresh(inner), 0, 0)
    for _ in range(3):
        faulty = Planned(inner, lambda number, name, key: "before" if name == "range" else None)
        with pytest.raises(OSError, match="the store failed"):
            collect(fresh(faulty), 0, 0)
    everything_referenced_is_readable(inner)


def test_the_mutant_that_takes_unreadable_for_empty_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable_is_empty(monkeypatch)
    with pytest.raises((pytest.fail.Exception, RecoveryError)):
        test_gc_ends_where_it_cannot_read()


def test_gc_deletes_only_names_of_exactly_the_pattern() -> None:
    requests = made(memory())
    strange = ["pack/notes.txt", "pack/0-abc", "gc/readme", "snap/x", f"pack/0-{'0' * 32}.tmp", "other/0-" + "0" * 32]
    for key in strange:
        requests.put(key, b"mine")
    requests.put(f"gc/0-{'1' * 32}", _state.encode_condemned(["HEAD", "pack/notes.txt", "../x"]))
    with_old_files(6)(requests)
    kept = {one.key for one in requests.list("")}
    assert set(strange) <= kept
    assert HEAD in kept


def test_a_list_that_another_run_has_finished_is_no_error() -> None:
    inner = made(memory())
    with_old_files(1)(inner)
    root = fresh(inner)
    root.commit(writing({b"old/0": b"2" * BIG, b"old/1": b"2" * BIG}))
    while not (lists := [one.key for one in inner.list("gc/")]):
        collect(root, 0, 0)

    class Finished(Planned):
        """The list goes between the listing and the read."""

        def call(self, name, key, run):
            if name == "get" and key in lists:
                inner.delete(key)
            return run()

    collect(fresh(Finished(inner, lambda *_: None)), 0, 0)
    everything_referenced_is_readable(inner)


def test_a_pack_that_a_lifecycle_rule_deleted_is_told_as_such() -> None:
    requests = made(memory())
    fresh(requests).commit(writing({b"a": b"1" * BIG}))
    (pack,) = requests.list("pack/")
    requests.delete(pack.key)
    with pytest.raises(RecoveryError, match="lifecycle"):
        contents(fresh(requests))


def test_ids_that_have_left_recent_are_found_in_hist() -> None:
    requests = made(memory())
    root = fresh(requests)
    tids = []
    for n in range(1100):
        change = writing({b"a": b"%d" % n})
        tids.append(change.tid)
        root.commit(change)
    assert root.state().hist is not None
    assert len(root.state().recent) <= _state.RECENT
    before = root.state().seq
    again = fresh(requests)
    for tid in (tids[0], tids[300], tids[700], tids[-1]):
        assert again.is_committed(tid)
    assert again.state().seq == before
    assert not again.is_committed("0" * 32)
    for _ in range(5):
        collect(again, 0, 0)
    assert fresh(requests).is_committed(tids[0])


def test_states_are_written_and_read_alike() -> None:
    state = State(
        3,
        "0" * 32,
        recent=((1, "1" * 32),),
        hist=("1-" + "2" * 32, 1),
        floor=1,
        nextfloor=2,
        tags={"v": _state.Tag("1-" + "3" * 32, 1, "4" * 32)},
        root=_state.Ref("1-" + "5" * 32, 1, 2, "6" * 64, 1, 7),
        delta={
            b"gone": None,
            b"dir": _state.Entry("7" * 32 + ".0"),
            b"caf\xe9\xff%": _state.Entry("7" * 32 + ".1", 1, _state.checksum(b"x"), 0o644, b"x"),
            b"far": _state.Entry("7" * 32 + ".2", 9, "8" * 64, None, None, "1-" + "9" * 32, 5),
        },
        files=2,
    )
    assert _state.decode(_state.encode(state), "HEAD") == state
