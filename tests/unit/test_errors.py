"""Each error says what is on disk, and survives pickling, copying and printing."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import traceback

import pytest

from txfiles import errors
from txfiles.errors import TxFilesError

CLASSES = [cls for _, cls in sorted(inspect.getmembers(errors, inspect.isclass)) if issubclass(cls, TxFilesError)]
OUTCOMES = {
    "CommitOutcomeUnknownError": "unknown",
    "SettleError": "after",
    "RecoveryError": "unknown",
    "JournalCorruptError": "unknown",
    "JournalVersionError": "unknown",
    "RecoveryConflictError": "unknown",
}
PARENTS: dict[str, list[type[Exception]]] = {
    "TxFilesError": [Exception],
    "InvalidPathError": [ValueError],
    "LockTimeoutError": [TimeoutError, OSError],
    "SnapshotExpiredError": [errors.ConflictError],
    "DocumentError": [ValueError],
    "JournalCorruptError": [errors.RecoveryError],
    "JournalVersionError": [errors.RecoveryError],
    "RecoveryConflictError": [errors.RecoveryError],
}


def test_all_errors_are_exported_and_in_the_picture() -> None:
    assert [*sorted([cls.__name__ for cls in CLASSES] + ["Outcome"])] == errors.__all__
    assert errors.__doc__ is not None
    for cls in CLASSES:
        assert cls.__name__ in errors.__doc__
        assert cls.__doc__


@pytest.mark.parametrize("cls", CLASSES)
def test_outcome_and_parents(cls: type[TxFilesError]) -> None:
    error = cls("it failed")
    assert error.outcome == OUTCOMES.get(cls.__name__, "before")
    assert issubclass(cls, TxFilesError)
    for parent in PARENTS.get(cls.__name__, []):
        assert isinstance(error, parent)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_everything(cls: type[TxFilesError], protocol: int) -> None:
    error = cls("it failed: caf\udce9", paths=("a", "caf\udce9"))
    error.outcome = "unknown"
    error.add_note("a note")
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is cls
        assert str(again) == str(error) == "it failed: caf\udce9"
        assert (again.path, again.paths, again.outcome) == ("a", ("a", "caf\udce9"), "unknown")
        assert again.__notes__ == ["a note"]
        assert again.args == error.args


def test_path_and_paths_go_together() -> None:
    assert (TxFilesError("x").path, TxFilesError("x").paths) == (None, ())
    assert (TxFilesError("x", path="a").path, TxFilesError("x", path="a").paths) == ("a", ("a",))
    assert (TxFilesError("x", paths=("a", "b")).path, TxFilesError("x", paths=("a", "b")).paths) == ("a", ("a", "b"))
    assert TxFilesError("x", path="").paths == ("",)


def test_a_subclass_of_a_user_is_pickled_too() -> None:
    assert str(pickle.loads(pickle.dumps(Special("it failed")))) == "it failed"


class Special(errors.CommitError):
    """With another signature, as users write them."""

    def __init__(self, text: str) -> None:
        super().__init__(text, path="p")


@pytest.mark.parametrize("cls", CLASSES)
def test_g08_printable_with_its_cause(cls: type[TxFilesError]) -> None:
    error = cls("it failed", path="a")
    error.__cause__ = OSError(5, "Input/output error", "a")
    text = "".join(traceback.format_exception(error))
    assert f"txfiles.errors.{cls.__name__}: it failed" in text
    assert "Input/output error" in text


def test_an_error_comes_through_a_process_boundary() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with pytest.raises(errors.RecoveryConflictError) as raised:
            pool.apply(_raise)
        pool.close()
        pool.join()
    assert raised.value.paths == ("a", "b")


def _raise() -> None:
    raise errors.RecoveryConflictError("changed since", paths=("a", "b"))
