"""Rounds of syncs: jobs that are done together, and that learn how their own sync has ended.

A job is a sync, `(fs.sync_file, fd)`, or a generator function that yields one where it wants it, and goes on when that
is done, or is given the error. On Linux the fsyncs of a round are issued at once; elsewhere by several threads.
"""

from __future__ import annotations

import _thread
import errno
import inspect
import os
import resource
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

from txfiles._disk import fsyncs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    Sync = tuple[Callable[[int], None], int]
    Steps = Generator[Sync, None, None]
    Job = Sync | Callable[[], Steps]

_NO_FAILURES = (FileNotFoundError, NotADirectoryError, StopIteration)  # what is gone needs no sync; a job ended
_NO_MORE = (errno.EMFILE, errno.ENFILE)
THREADS = 8
PARALLEL_FROM = 12  # below this many jobs threads cost more than they bring


def run_all(jobs: Iterable[Job], plain: Sequence[Callable[..., None]]) -> None:
    """Do every job; then raise the first failure, or else the interrupt. What is `plain` only calls fsync(2)."""
    todo = list(jobs)
    if plain and len(todo) > 2 and _run_together(todo, plain):  # the two of most second rounds gain nothing
        return
    if len(todo) < PARALLEL_FROM:
        run_here(todo)
    else:
        _run_in_threads(todo)


def perform(job: Job) -> None:
    """Do a job by itself: each sync where it asks for it."""
    if isinstance(job, tuple):
        sync, fd = job
        return sync(fd)
    steps = job()
    for sync, fd in steps:
        _go_on(steps, sync, fd)


def run_here(jobs: Iterable[Job]) -> None:
    """Do every job, one after another."""
    errors: list[BaseException] = []
    outer = sys.exception()
    try:
        for job in jobs:
            try:
                perform(job)
            except BaseException as error:
                errors.append(error)
    except BaseException as interrupt:  # between two jobs
        errors.append(interrupt)
    _raise_first(errors, outer)


def _go_on(steps: Steps, sync: Callable[[int], None], fd: int) -> None:
    """The rest of a job that has asked for a sync."""
    try:
        while True:
            try:
                sync(fd)
            except BaseException as error:
                sync, fd = steps.throw(error)
            else:
                sync, fd = next(steps)
    except StopIteration:
        pass


def _run_together(jobs: list[Job], plain: Sequence[Callable[..., None]]) -> bool:
    """The kernel does the first sync of each job, of some jobs at a time; false if there is nothing to be had."""
    if (context := fsyncs.take_context()) is None:
        return False
    errors: list[BaseException] = []
    outer = sys.exception()
    todo = deque(jobs)
    part = None
    try:
        try:
            at_once = max(1, min(fsyncs.AT_ONCE, descriptors() // 8))
            while todo:
                part = _Part()
                part.begin(todo, at_once, errors)
                syncs = {sync for _, sync, _ in part.waiting}
                if all(getattr(sync, "__func__", None) in plain for sync in syncs):
                    part.batch = fsyncs.Batch([fd for _, _, fd in part.waiting], context)
                    part.batch.run(errors)
                part.end(errors)
        finally:
            fsyncs.give_context(context, None if part is None else part.batch)
    except BaseException as interrupt:
        errors.append(interrupt)
        if part is not None:
            part.end(errors)
    _raise_first(errors, outer)
    return True


class _Part:
    """Jobs that wait for their syncs, and for word of them."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Steps | None, Callable[[int], None], int]] = []
        self.batch: fsyncs.Batch | None = None
        self._told = 0

    def begin(self, todo: deque[Job], at_most: int, errors: list[BaseException]) -> None:
        """Let jobs come to their sync, not more than there are descriptors for."""
        while todo and len(self.waiting) < at_most:
            job = todo.popleft()
            if isinstance(job, tuple):
                self.waiting.append((None, *job))
                continue
            try:
                steps = job()
                self.waiting.append((steps, *next(steps)))
            except StopIteration:
                pass
            except OSError as error:
                if error.errno in _NO_MORE and self.waiting:
                    todo.appendleft(job)
                    return
                errors.append(error)
            except BaseException as error:
                errors.append(error)

    def end(self, errors: list[BaseException]) -> None:
        """Tell each job how its sync has ended, or do it now. No failure may be lost, wherever an interrupt comes."""
        codes = self.batch.codes() if self.batch is not None else [None] * len(self.waiting)
        while self._told < len(self.waiting):
            steps, sync, fd = self.waiting[self._told]
            try:
                code = codes[self._told]
                if steps is None:
                    if code:
                        errors.append(_failure(code))
                    self._told += 1
                    if code is None:
                        sync(fd)
                    continue
                if inspect.getgeneratorstate(steps) != inspect.GEN_CLOSED:
                    _tell(steps, sync, fd, code)
                self._told += 1
            except BaseException as error:
                errors.append(error)


def _tell(steps: Steps, sync: Callable[[int], None], fd: int, code: int | None) -> None:
    if code is None:
        return _go_on(steps, sync, fd)
    try:
        sync, fd = steps.throw(_failure(code)) if code else next(steps)
    except StopIteration:
        return
    _go_on(steps, sync, fd)


def _failure(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def descriptors() -> int:
    """How many this process may have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit


def _run_in_threads(jobs: list[Job]) -> None:
    """Threads take the jobs from a queue; an interrupt of this one, wherever it comes, waits until all are done."""
    queue, done, finished = deque(jobs), deque[None](), threading.Event()
    errors: list[BaseException] = []
    outer = sys.exception()

    def work() -> None:
        while queue:
            try:
                job = queue.popleft()
            except IndexError:  # another thread took it
                return
            try:
                perform(job)
            except BaseException as error:
                errors.append(error)
            done.append(None)
            if len(done) == len(jobs):
                finished.set()

    workers = 0
    while not finished.is_set():
        try:
            while workers < THREADS:
                _thread.start_new_thread(work, ())
                workers += 1
            finished.wait()
        except RuntimeError:  # no more threads to be had, or the interpreter is about to end
            if workers == 0:
                return run_here(jobs)
            workers = THREADS
        except BaseException as interrupt:
            errors.append(interrupt)
    _raise_first(errors, outer)


def _raise_first(errors: list[BaseException], outer: BaseException | None) -> None:
    """Raise a failure rather than an interrupt: whoever runs the jobs again must know that a sync has failed (A4).

    An interrupt that came beside a failure is its `__cause__`. What is raised is not to refer to itself, by way of its
    traceback: or what it keeps open would stay so until the collector runs.
    """
    first = _first(errors, outer)
    errors.clear()
    try:
        if first is not None:
            raise first
    finally:
        del first


def _first(errors: list[BaseException], outer: BaseException | None) -> BaseException | None:
    interrupt = next((error for error in errors if not isinstance(error, Exception)), None)
    for error in errors:
        cause: BaseException | None = error
        while cause is not None and cause is not outer:  # an interrupt may have come while a failure was on its way
            if isinstance(cause, Exception) and not isinstance(cause, _NO_FAILURES):
                if interrupt is not None and interrupt is not cause:
                    cause.__cause__ = interrupt
                return cause
            cause = cause.__context__
    return errors[0] if errors else None
