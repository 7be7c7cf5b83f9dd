"""What a transaction, a store and recovery do where the root is on a store."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from txfiles.errors import ConflictError, RecoveryError, TxFilesError
from txfiles.objects import state as _state
from txfiles.objects.collect import tagged
from txfiles.objects.probe import probe
from txfiles.objects.requests import Missing
from txfiles.objects.staging import Staged
from txfiles.objects.view import Names
from txfiles.objects.wait import reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles._tree.tree import Tree
    from txfiles.objects.far import Far
    from txfiles.objects.read import Reading
    from txfiles.objects.root import Root
    from txfiles.objects.state import State


class Engine:
    """One transaction: begins on the newest state that this process knows, and commits by `commit.Committer`."""

    def __init__(self, far: Far, timeout: float | None, *, create: bool) -> None:
        self._root = far.open(create=create)
        self._timeout = timeout
        if self._root.stale:
            self._root.newest()
            self._root.stale = False
        self.staged: Staged = Staged(self._root.reading(self._root.state()))

    def commit(self, checks: list[Callable[[Tree], None]]) -> None:
        change = self.staged.change()
        change.checks += [partial(_check, check) for check in checks]
        if change.is_empty:
            self._root.stale = True  # who only reads asks again the next time
            if checks:
                for check in change.checks:
                    check(self._root.reading(self._root.newest()))
            return
        self._root.commit(change, self._timeout)

    def failed(self, error: BaseException | None) -> None:
        """After a conflict the next transaction begins with a look at what there is now."""
        if isinstance(error, ConflictError):
            self._root.stale = True


def _check(check: Callable[[Tree], None], reading: Reading) -> None:
    check(Names(reading))


class Facts(NamedTuple):
    """What there is on a store: the last commit, how many files and packs, what gc is about."""

    sequence: int
    transaction_id: str
    files: int
    floor: int
    packs: int
    condemned: int
    tags: list[str]

    def counts(self) -> dict[str, Any]:
        """All but the last commit, by name."""
        return {name: value for name, value in self._asdict().items() if name not in ("sequence", "transaction_id")}


def facts(root: Root) -> Facts:
    state = root.newest()
    source = root.source

    def count(kind: str) -> list[str]:
        found = reading(source.clock, root.shown, lambda: source.requests.list(f"{kind}/"))
        return [one.key for one in found if _state.seq_of_key(one.key, kind) is not None]

    condemned = 0
    for key in count("gc"):
        with suppress(Missing):  # another run has finished it
            got = reading(source.clock, root.shown, partial(source.requests.get, key))
            condemned += len(_state.decode_condemned(got.data, key))
    return Facts(state.seq, state.id, state.files, state.floor, len(count("pack")), condemned, sorted(state.tags))


def problems(root: Root) -> list[str]:
    """What is wrong with the store, or with any object that a state or tag refers to. Changes nothing of the root."""
    found: list[str] = []
    try:
        probe(root.source)
    except TxFilesError as error:
        found.append(str(error))
    state = root.newest()
    for tag in (None, *state.tags):
        try:
            _read_all(root, state if tag is None else tagged(root, state.tags[tag].snap))
        except RecoveryError as error:
            found.append(str(error) if tag is None else f"tag {tag!r}: {error}")
    return found


def _read_all(root: Root, state: State) -> None:
    view = root.reading(state)
    for path, entry in view.scan(b""):
        if entry.is_file:
            for _ in view.chunks(path, entry):
                pass


def state_of_tag(root: Root, name: str) -> State:
    """Raises `KeyError`, `RecoveryError`."""
    tag = root.newest().tags.get(name)
    if tag is None:
        raise KeyError(name)
    return tagged(root, tag.snap)
