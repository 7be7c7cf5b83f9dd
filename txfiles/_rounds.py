"""Rounds of syncs: jobs that are done together, and that learn how their own sync has ended.

A job is a generator function. It yields `(fs.sync_file, fd)` where it wants a sync, and goes on when that is done, or
is given the error. On Linux the fsyncs of a round are issued at once; elsewhere by several threads.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    Sync = tuple[Callable[[int], None], int]
    Steps = Generator[Sync, None, None]
    Job = Callable[[], Steps]

_NO_FAILURES = (FileNotFoundError, NotADirectoryError, StopIteration)  # what is gone needs no sync; a job ended
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


def _go_on(steps: Steps, sync: Callable[[int], None], fd: int, code: int | None = None) -> None:
    """The rest of a job that has asked for a sync; `code` is its errno where it was done already."""
    try:
        while True:
            try:
                if code is None:
                    sync(fd)
                elif code:
                    raise OSError(code, os.strerror(code))
            except BaseException as error:
                sync, fd = steps.throw(error)
            else:
                sync, fd = next(steps)
            code = None
    except StopIteration:
        pass


def _run_together(jobs: list[Job], plain: Sequence[Callable[..., None]]) -> bool:
    """The kernel does the first sync of each job, of some jobs at a time; false if there is nothing to be had."""
    from txfiles import _fsyncs

    if (context := _fsyncs.take_context()) is None:
        return False
    errors: list[BaseException] = []
    outer = sys.exception()
    at_once = max(1, min(_fsyncs.AT_ONCE, _descriptors() // 8))
    for start in range(0, len(jobs), at_once):
        waiting: list[tuple[Steps, Callable[[int], None], int]] = []
        batch = None
        try:
            for job in jobs[start : start + at_once]:
                try:
                    steps = job()
                    waiting.append((steps, *next(steps)))
                except StopIteration:
                    pass
                except BaseException as error:
                    errors.append(error)
            if all(getattr(sync, "__func__", None) in plain for _, sync, _ in waiting):
                batch = _fsyncs.Batch([fd for _, _, fd in waiting], context)
                batch.run(errors)
        except BaseException as interrupt:
            errors.append(interrupt)
        left = deque(zip(waiting, batch.codes() if batch else [None] * len(waiting), strict=True))
        while left:  # none of the codes may be lost, wherever an interrupt comes
            try:
                while left:
                    (steps, sync, fd), code = left[0]
                    if inspect.getgeneratorstate(steps) != inspect.GEN_CLOSED:
                        _go_on(steps, sync, fd, code)
                    left.popleft()
            except BaseException as error:
                errors.append(error)
    _fsyncs.give_context(context)
    _raise_first(errors, outer)
    return True


def _descriptors() -> int:
    """How many this process may have."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit


def _run_in_threads(jobs: list[Job]) -> None:
    """Threads take the jobs from a queue; an interrupt of this one, wherever it comes, waits until all are done."""
    import _thread
    import threading

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

    An interrupt that came beside a failure is its `__cause__`.
    """
    interrupt = next((error for error in errors if not isinstance(error, Exception)), None)
    for error in errors:
        cause: BaseException | None = error
        while cause is not None and cause is not outer:  # an interrupt may have come while a failure was on its way
            if isinstance(cause, Exception) and not isinstance(cause, _NO_FAILURES):
                if interrupt is not None and interrupt is not cause:
                    cause.__cause__ = interrupt
                raise cause
            cause = cause.__context__
    if errors:
        raise errors[0]
