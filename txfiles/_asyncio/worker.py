"""The thread of one transaction: makes all its calls, in their order, and ends with it."""

from __future__ import annotations

import atexit
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from txfiles.errors import TransactionClosedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


T = TypeVar("T")

_running: set[Worker[Any]] = set()


class Served(Protocol):
    """The transaction of a thread, as far as the thread has to know it."""

    @property
    def ended(self) -> bool: ...
    def begin(self) -> object: ...
    def stop_waiting(self) -> None: ...
    def leave(self) -> None: ...


S = TypeVar("S", bound=Served)


class Job(Generic[T]):
    """A call, and what came of it.

    `tell` is called in the thread when it is finished; false says that nobody is there any more to hear it.
    """

    def __init__(self, call: Callable[[], T], tell: Callable[[], bool] = lambda: True) -> None:
        self._call: Callable[[], T] | None = call
        self.tell = tell
        self.value: T | None = None
        self.error: BaseException | None = None

    def skip(self) -> None:
        """Do not make the call, unless it has begun."""
        self._call = None

    def run(self) -> bool:
        call, self._call = self._call, None
        try:
            if call is not None:
                self.value = call()
        except BaseException as error:  # raised where the result is awaited
            self.error = error
        del call
        return self.tell()

    def refuse(self) -> None:
        self._call, self.error = None, TransactionClosedError("the transaction has ended")
        self.run()

    def result(self) -> T:
        """REQUIRES: it is finished and was not skipped."""
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


class Worker(Generic[S]):
    """A thread for the transaction that `make` returns, from its `begin` on.

    Daemonic, because it must not keep a program alive whose event loop was abandoned; at the interpreter's exit the
    call that runs comes to its end, and the transaction is rolled back.
    """

    def __init__(self, make: Callable[[], S], pid: int) -> None:
        self.tx: S | None = None
        self.pid = pid
        self.ended: bool = False
        self._make = make
        self._stopped = False
        self._files: list[IO[Any]] = []
        self._savepoints: list[AbstractContextManager[None]] = []
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="txfiles transaction", daemon=True)
        self._thread.start()

    # -- from any thread ----------------------------------------------------------------------------------------

    def post(self, job: Job[Any]) -> None:
        self._jobs.put(job)
        if self.ended:
            self._refuse_rest()

    def stop_waiting(self) -> None:
        self._stopped = True
        if self.tx is not None:
            self.tx.stop_waiting()

    def end(self) -> None:
        """Whatever is still open then is rolled back. Nobody waits for it; may be called by a destructor."""
        self.stop_waiting()
        self._jobs.put(None)

    def join(self) -> None:
        self._thread.join()

    # -- in the thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        _running.add(self)
        try:
            while (job := self._jobs.get()) is not None and job.run():
                del job
            self.leave()
        finally:
            _running.discard(self)
            self.ended = True
            self._refuse_rest()

    def _refuse_rest(self) -> None:
        with suppress(Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    job.refuse()

    def begin(self) -> S:
        tx = self.tx = self._make()
        if self._stopped:
            tx.stop_waiting()
        tx.begin()
        return tx

    def leave(self) -> None:
        """Roll back what is open, inside out."""
        try:
            while self._savepoints:
                self.leave_savepoint(GeneratorExit())
        finally:
            if self.tx is not None:
                self.finish(self.tx.leave)

    def finish(self, call: Callable[[], T]) -> T:
        """A call with which the transaction may end; its files end with it."""
        try:
            return call()
        finally:
            if self.tx is None or self.tx.ended:
                while self._files:
                    with suppress(OSError):  # what was not written yet goes with the transaction
                        self._files.pop().close()

    def open(self, call: Callable[[S], IO[Any]]) -> IO[Any]:
        assert self.tx is not None
        file = call(self.tx)
        self._files.append(file)
        return file

    def undo_open(self, job: Job[IO[Any]]) -> None:
        if (file := job.value) is not None:
            self.close(file, GeneratorExit())

    def close(self, file: IO[Any], error: BaseException | None) -> None:
        if file in self._files:
            self._files.remove(file)
            file.__exit__(None if error is None else type(error), error, None)

    def enter_savepoint(self, make: Callable[[S], AbstractContextManager[None]]) -> None:
        assert self.tx is not None
        savepoint = make(self.tx)
        savepoint.__enter__()
        self._savepoints.append(savepoint)

    def leave_savepoint(self, error: BaseException | None) -> None:
        savepoint = self._savepoints.pop()
        if error is None:
            savepoint.__exit__(None, None, None)
        else:
            savepoint.__exit__(type(error), error, error.__traceback__)


@atexit.register
def _end_all() -> None:
    workers = list(_running)
    for worker in workers:
        worker.end()
    for worker in workers:
        worker.join()
