"""P05: a service that starts where nothing is yet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.procs import run_python
from txfiles import FileStore
from txfiles.errors import ConflictError


def _snapshot(store: FileStore) -> object:
    with store.snapshot("a") as snap:
        for call in (snap.read, snap.read_text, snap.read_json):
            for name in ("a", "b", "sub/c"):
                with pytest.raises(FileNotFoundError):
                    call(name)
        with pytest.raises(FileNotFoundError):
            snap.listdir("sub")
        assert (snap.exists("a"), snap.exists("."), snap.exists("sub/c")) == (False, True, False)
        assert (snap.listdir(), snap.glob("**"), snap.glob("sub/*"), snap.version("a")) == ([], [], [], None)
        return snap.state_version


async def _async_snapshot(store: FileStore) -> object:
    async with store.async_snapshot() as snap:
        assert await snap.listdir() == []
        with pytest.raises(FileNotFoundError):
            await snap.read("a")
        return snap.state_version


CALLS: dict[str, tuple[Callable[[FileStore], object], object]] = {
    "recover": (lambda store: store.recover().clean, True),
    "status": (lambda store: (store.status().clean, store.status().head), (True, None)),
    "snapshot": (_snapshot, "0"),
    "async_snapshot": (lambda store: asyncio.run(_async_snapshot(store)), "0"),
    "state_version": (lambda store: store.state_version(), "0"),
    "wait_for_change": (lambda store: store.wait_for_change("0", timeout=0), "0"),
    "async_wait_for_change": (lambda store: asyncio.run(store.async_wait_for_change("0", timeout=0)), "0"),
}


@pytest.mark.parametrize("call", CALLS)
def test_p05_a_root_that_is_still_to_be_made_is_empty_and_clean(tmp_path: Path, call: str) -> None:
    root = tmp_path / "var/state"
    act, answer = CALLS[call]
    assert act(FileStore(root, create=True)) == answer
    assert not (tmp_path / "var").exists()
    with pytest.raises(FileNotFoundError) as caught:
        act(FileStore(root))
    assert caught.value.filename == str(root)


@pytest.mark.parametrize("call", CALLS)
def test_p05_what_cannot_be_seen_is_not_missing(tmp_path: Path, call: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError) as caught:
        CALLS[call][0](FileStore(tmp_path / "file/root", create=True))
    assert caught.value.filename == str(tmp_path / "file/root")


@pytest.mark.needs("root")
def test_p05_nor_is_what_may_not_be_seen() -> None:
    with public_directory() as above:
        (above / "closed/root").mkdir(parents=True)
        (above / "closed").chmod(0o700)
        code = f"""
            from txfiles import FileStore
            store = FileStore({str(above / "closed/root")!r}, create=True)
            for call in (store.recover, store.status, store.state_version, store.snapshot().__enter__):
                try:
                    call()
                except PermissionError as error:
                    print(error.filename)
        """
        assert run_python(code, **as_user(1000)).stdout.split() == [str(above / "closed/root")] * 4


def test_p05_a_change_is_noticed_where_nothing_was(tmp_path: Path, watch: Callable[[Path], Path]) -> None:
    store = FileStore(watch(tmp_path / "root"), create=True)
    before = store.state_version()
    with store.snapshot("a") as snap:
        thread = threading.Thread(target=store.update, args=(lambda tx: tx.write("a", b"1"),))
        thread.start()
        after = store.wait_for_change(before, timeout=60)
        thread.join()
        assert after == store.state_version() != before
        assert not snap.exists("a")
        assert snap.state_version == before


def test_p05_a_transaction_on_nothing_makes_the_root(tmp_path: Path, watch: Callable[[Path], Path]) -> None:
    store = FileStore(watch(tmp_path / "root"), create=True)
    with store.snapshot() as snap:
        assert not snap.exists("a")
    with store.transaction(base=snap) as tx:
        tx.write("a", b"1")
    with pytest.raises(ConflictError, match="'a' was changed"), store.transaction(base=snap) as tx:
        tx.write("a", b"2")
    assert (tmp_path / "root/a").read_bytes() == b"1"
