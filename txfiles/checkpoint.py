"""The end of a log: its checkpoint, and the way back to a root without one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from txfiles._commit import levels
from txfiles._commit.home import Home
from txfiles._disk import system
from txfiles._disk.allowance import Allowance
from txfiles._disk.interrupts import HeldBack
from txfiles._disk.lock import here
from txfiles._format import paths
from txfiles.errors import SettleError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from txfiles._disk.allowance import Accept


def checkpoint(root: bytes, timeout: float | None, accept: Collection[Accept], *, follow: bool) -> None:
    """See `FileStore.checkpoint`."""
    with _locked(root, timeout, accept, follow=follow) as home:
        if home is not None:
            try:
                levels.empty_log(home)
            except OSError as error:
                shown = paths.decode(root)
                message = (
                    f"the commits in {shown!r} are safe in the log, but not in the files: {paths.told(error, root)}"
                )
                raise SettleError(f"{message}; the next transaction tries again", path=shown) from error


def remove_log(root: bytes, timeout: float | None, accept: Collection[Accept], *, follow: bool) -> None:
    """See `FileStore.remove_log`."""
    with _locked(root, timeout, accept, follow=follow) as home:
        if home is not None:
            levels.remove_log(home)


@contextmanager
def _locked(root: bytes, timeout: float | None, accept: Collection[Accept], *, follow: bool) -> Iterator[Home | None]:
    """The root at rest, locked; `None` where no transaction was ever begun."""
    with HeldBack():
        home = Home.find(system.current(), root, follow=follow)
        if home is None:
            yield None
            return
        with home:
            home.lock.acquire(timeout, here())
            home.allowance = Allowance(home.root, accept)
            home.require_in_place()
            levels.enter(home, "journal")
            yield home
