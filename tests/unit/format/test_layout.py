"""Every name of the private directory is built and parsed in one place, and both agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txfiles._format import layout
from txfiles._format.layout import Name

TID = "0123456789abcdef" * 2
tids = st.text("0123456789abcdef", min_size=32, max_size=32)
indices = st.integers(0, layout.MAX_NUMBER)


@given(tids, indices)
def test_tokens_and_old_files_round_trip(tid: str, index: int) -> None:
    assert layout.parse(layout.token(tid, index)) == Name("token", tid, index)
    assert layout.parse(layout.old(tid, index)) == Name("old", tid, index)


@pytest.mark.parametrize("state", ["intent", "committed", "aborting", "prepared"])
def test_journals_round_trip(state: layout.State) -> None:
    assert layout.parse(layout.journal(TID, state)) == Name(state, TID)


@pytest.mark.parametrize("name", [b"format", b"lock", b"HEAD", b"log", b"tail", b".gitignore"])
def test_permanent_names(name: bytes) -> None:
    assert layout.parse(name) == Name("permanent")


@given(st.binary(max_size=80))
def test_any_name_is_parsed_and_what_is_known_is_built_so(name: bytes) -> None:
    parsed = layout.parse(name)
    if parsed.kind == "token":
        assert layout.token(parsed.tid, parsed.number) == name
    elif parsed.kind == "old":
        assert layout.old(parsed.tid, parsed.number) == name
    elif parsed.kind == "permanent":
        assert name in layout.LASTING
    elif parsed.kind != "unknown":
        assert layout.journal(parsed.tid, parsed.kind) == name


T = TID.encode()


@pytest.mark.parametrize(
    "name",
    [
        *(
            b"",
            T,
            T + b".",
            T + b".01",
            T + b".-1",
            T + b".1.old.old",
            T + b".old",
            T + b".intent.old",
            T + b".intent\n",
        ),
        *(
            T[:-1] + b".1",
            T + b"0.1",
            T.upper() + b".1",
            T + b".Intent",
            b"FORMAT",
            b"head",
            b"lock ",
            b"x" + T + b".1",
        ),
        *(T + b".\xd9\xa1", layout.token(TID, layout.MAX_NUMBER + 1)),
    ],
    ids=repr,
)
def test_anything_else_is_unknown(name: bytes) -> None:
    assert layout.parse(name) == Name("unknown")


def test_the_private_directory_and_its_names_are_short_enough() -> None:
    assert layout.PRIVATE == b".txfiles"
    assert len(layout.old(TID, layout.MAX_NUMBER)) < 100  # eCryptfs allows 143 bytes


@given(st.lists(st.sampled_from([b"a", T + b".1", T + b".2.old", T + b".intent", T + b".x", *sorted(layout.LASTING)])))
def test_which_names_mean_something_and_which_are_there_at_rest(names: list[bytes]) -> None:
    ours = {name for name in names if layout.parse(name).kind != "unknown"}
    assert layout.ours(names) == ours - {layout.SPARE, layout.IGNORE}
    assert set(layout.unsettled(names)) == ours - layout.LASTING
