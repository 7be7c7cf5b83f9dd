"""`SimFS`: the boundary to the operating system in memory, as an adversary under the assumptions A1 to A5.

The calls answer as Linux does to root. What a power loss may leave of it is in `_simdisk`.
"""

from __future__ import annotations

import errno
import functools
import os
import random
from typing import TYPE_CHECKING, Any

from txfiles._disk.rounds import run_here
from txfiles.testing._simcalls import SimCalls
from txfiles.testing._simlock import SimLock
from txfiles.testing._simtree import Options
from txfiles.testing._survivors import Survivors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from txfiles._disk.rounds import Job
    from txfiles.testing._simdisk import Disk

KILL = "kill"
_LOST_WRITES = (errno.EIO, errno.ENOSPC, errno.EDQUOT)  # from fsync: what was written may be lost (A4)


class Crash(BaseException):
    """The process is dead, or the power is off: no call of this file system works any more."""


def _counted(method: Callable[..., Any]) -> Callable[..., Any]:
    name = method.__name__

    @functools.wraps(method)
    def call(self: SimFS, *args: Any, **kwargs: Any) -> Any:
        if self.crashed:
            raise Crash
        if self.watch is not None:
            self._watched(self.watch)
        self.calls += 1
        if self.plan is None and self.after is None and self.trace is None:
            return method(self, *args, **kwargs)
        if self.trace is not None:
            self.trace.append(f"{self.calls:4} {name} {self._told(*args)}".rstrip())
        try:
            return self._planned(self.calls, method, args, kwargs)
        except OSError as error:
            if self.trace is not None:
                self.trace[-1] += f" ({errno.errorcode.get(error.errno or 0, error)})"
            raise
        except Crash:
            self.crashed = True
            raise

    return call


_OFF_NS = 10_000_000_000  # how long the machine is without power


def _counting(cls: type[SimFS]) -> type[SimFS]:
    """Let every system call of the class be counted, traced and subject to the plan."""
    for name, method in vars(SimCalls).items():
        if not name.startswith("_") and callable(method):
            setattr(cls, name, _counted(method))
    return cls


@_counting
class SimFS(SimCalls):
    """A file system in memory that implements the boundary, counts the calls, and loses what it may.

    `calls` is the number of calls so far. `plan(number, name)` runs before each call and may raise: an `OSError`, so
    that the call fails (a close has closed all the same, a sync has lost what A4 lets it lose); `Crash`, after which
    nothing works any more; or anything else. `after(number, name)` runs after each call that succeeded. `watch(fs)`
    runs before each call too, to look at what the calls so far have made, and may raise `Crash`. `trace`, if it is a
    list, gets a line for every call.

    `after_kill()` is what a process kill leaves, `surviving_states(cap, seed)` is what a power loss may leave, each
    with the token for which `survive(token)` gives that state again.
    """

    def __init__(self, options: Options | None = None, disk: Disk | None = None, *, root: bytes = b"/sim") -> None:
        super().__init__(options or Options(), disk)
        if disk is None:
            self.mkdirs(root)
        self.calls = 0
        self.crashed: bool = False
        self.plan: Callable[[int, str], None] | None = None
        self.after: Callable[[int, str], None] | None = None
        self.watch: Callable[[SimFS], None] | None = None
        self.trace: list[str] | None = None
        self.locks: dict[int, SimLock] = {}
        self.numbers: dict[tuple[int, int, int] | None, int] = {}
        self.logs: dict[tuple[object, ...], Any] = {}
        self.lock_factory: Callable[..., object] | None = SimLock
        self._boot = self._ids = self._pid = self._rounds = self._mounted = self._booted_ns = 0

    # -- crashes --------------------------------------------------------------------------------------------------

    def after_kill(self) -> SimFS:
        """What a new process finds after the death of this one: all that was done, durable or not."""
        new = self._successor(self.disk.copy())
        for serial in self._opened:
            if serial in new.disk.nodes:
                new._unlinked(serial)
        return new

    def surviving_states(self, cap: int, seed: int = 0) -> Iterator[tuple[str, SimFS]]:
        """States that a power loss may leave, with their tokens: all when they are few, otherwise `cap` of them.

        Those are: nothing survives, everything does, everything but one change, one change alone, each fault of
        content; then samples drawn with `seed`.
        """
        for token, disk in Survivors(self.disk).states(cap, seed):
            yield token, self._rebooted(disk)

    def survive(self, token: str) -> SimFS:
        """The state that belongs to a token of `surviving_states`, or to `"kill"`."""
        return self.after_kill() if token == KILL else self._rebooted(Survivors(self.disk).survive(token))

    def pulled(self, token: str) -> SimFS:
        """The same on a machine that goes on, where the disk alone was without power and is mounted again."""
        new = self.survive(token)
        new._boot, new._booted_ns, new._mounted = self._boot, self._booted_ns, self._mounted + 1
        return new

    def describe(self, token: str) -> list[str]:
        """What survives and what is lost in that state, in words."""
        return [] if token == KILL else Survivors(self.disk).describe(token)

    def _rebooted(self, disk: Disk) -> SimFS:
        new = self._successor(disk)
        new._boot += 1
        new._mounted += 1
        new._now_ns += _OFF_NS
        new._booted_ns = new._now_ns
        return new

    def _successor(self, disk: Disk) -> SimFS:
        new = SimFS(self.options, disk)
        new._boot, new._ids, new._pid, new._rounds = self._boot, self._ids, self._pid + 1, self._rounds
        new._now_ns, new._booted_ns, new._mounted = self._now_ns, self._booted_ns, self._mounted
        return new

    @property
    def lost_power(self) -> bool:
        """Whether the power was lost since the scene was set."""
        return self._boot > 0

    @property
    def open_files(self) -> list[bytes]:
        """The paths of the descriptors that are open."""
        return [opened.path for opened in self._fds.values()]

    # -- the process and the machine ------------------------------------------------------------------------------

    def run_all(self, jobs: Iterable[Job]) -> None:
        """The jobs one after another, in an order that the seed decides."""
        todo = list(jobs)
        self._rounds += 1
        if len(todo) > 1:
            random.Random(self.options.seed * 7919 + self._rounds).shuffle(todo)
        run_here(todo)

    def random_id(self) -> str:
        self._ids += 1
        return f"{self._ids * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"  # odd: no number comes twice

    def boot_id(self) -> str:
        return f"{self._boot:08x}-0000-4000-8000-000000000000"

    def now(self) -> int:
        return self._now_ns

    def booted(self) -> int:
        return self._booted_ns

    def session(self, fd: int) -> bytes:
        mount = self.disk.nodes[self._fd(fd).serial].mount
        return b"%d %d %d" % (self._boot, self._mounted, mount) if self.options.sessions else b""

    def pid(self) -> int:
        return 1000 + self._pid

    def ids(self) -> tuple[int, int]:
        return 0, 0

    def umask(self, at: int, parent: bytes) -> int:
        return self.options.umask

    def on_fork(
        self,
        callback: Callable[[], None],
        *,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """There are no forks."""

    # -- the plan -------------------------------------------------------------------------------------------------

    def _watched(self, watch: Callable[[SimFS], None]) -> None:
        try:
            watch(self)
        except Crash:
            self.crashed = True
            raise

    def _planned(self, number: int, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = method.__name__
        if self.plan is not None:
            try:
                self.plan(number, name)
            except OSError as error:
                self._refused(name, error, *args)
                raise
        result = method(self, *args, **kwargs)
        if self.after is not None:
            self.after(number, name)
        return result

    def _refused(self, name: str, error: OSError, *args: Any) -> None:
        """What a call does even though it fails."""
        if name == "close" and args[0] in self._fds:
            self._close(args[0])
        elif name in ("sync_file", "sync_data", "sync_dir") and error.errno in _LOST_WRITES and args[0] in self._fds:
            self.disk.sync_failed(self._fds[args[0]].serial)

    def _told(self, *args: Any) -> str:
        """The arguments of a call, with paths instead of descriptors."""
        told, rest = [], list(args)
        while rest:
            one = rest.pop(0)
            is_at = one is None or (isinstance(one, int) and one in self._fds)
            if is_at and rest and isinstance(rest[0], bytes) and (one is None or self._is_dir(one)):
                told.append(os.fsdecode(self._told_at(one, rest.pop(0))))
            elif is_at and one is not None:
                told.append(os.fsdecode(self._fds[one].path))
            elif isinstance(one, (bytes, memoryview)):
                data = bytes(one)
                told.append(repr(data[:40]) + (f"... {len(data)} bytes" if len(data) > 40 else ""))
            else:
                told.append(repr(one))
        return " ".join(told)

    def _is_dir(self, fd: int) -> bool:
        return self.disk.nodes[self._fds[fd].serial].kind == "dir"


def crash_at(number: int) -> Callable[[int, str], None]:
    """For `SimFS.plan`: crash before call `number`; for `SimFS.after`: crash when it is done."""

    def plan(now: int, _: str) -> None:
        if now == number:
            raise Crash

    return plan
