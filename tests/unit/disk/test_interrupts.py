"""What a signal handler raises is held back until the end of a block, and everything else is as if there were none."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.crash.handlers import Tracer
from txfiles._disk import interrupts
from txfiles._disk.interrupts import AllHeldBack, GivingWay, HeldBack, give_way, let_through


class Deadline(Exception):
    pass


def _raise(*_: object) -> None:
    raise Deadline


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGINT)}
    signal.signal(signal.SIGALRM, _raise)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def _alarm_now() -> None:
    signal.raise_signal(signal.SIGALRM)


def test_it_comes_at_the_end_with_a_note() -> None:
    done = False
    with pytest.raises(Deadline) as caught, HeldBack(lambda: "all is done"):
        _alarm_now()
        done = True
    assert done
    assert caught.value.__notes__ == ["all is done"]
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_the_handler_itself_runs_at_once() -> None:
    ran: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, frame: ran.append(number))
    with HeldBack():
        _alarm_now()
        assert ran == [signal.SIGALRM]


def test_an_error_of_the_block_is_its_cause() -> None:
    with pytest.raises(Deadline) as caught, HeldBack():
        _alarm_now()
        raise OSError(5, "the disk's own")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__context__ is None


def test_what_ends_the_program_comes_before_what_does_not() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, HeldBack():
        _alarm_now()
        signal.raise_signal(signal.SIGINT)
    assert any("Deadline" in note for note in caught.value.__notes__)
    assert caught.value.__cause__ is None


def test_a_block_in_a_block_is_part_of_it() -> None:
    ends = []
    with pytest.raises(Deadline), HeldBack():
        with HeldBack():
            _alarm_now()
        ends.append("inner")
    assert ends == ["inner"]


def test_where_nothing_is_half_done_it_gives_way() -> None:
    give_way()
    went_on = []
    with pytest.raises(Deadline), HeldBack():
        give_way()
        went_on.append(1)
        _alarm_now()
        give_way()
        went_on.append(2)
    assert went_on == [1]


def test_a_wait_ends_at_once_and_what_follows_it_is_whole() -> None:
    cleaned = []
    began = time.monotonic()
    with pytest.raises(Deadline), HeldBack():
        try:
            with GivingWay():
                signal.setitimer(signal.ITIMER_REAL, 0.01, 0.001)
                time.sleep(60)
        finally:
            time.sleep(0.01)
            signal.setitimer(signal.ITIMER_REAL, 0)
            cleaned.append(True)
    assert cleaned
    assert time.monotonic() - began < 30


def test_a_wait_does_not_begin_when_something_is_held_back() -> None:
    done: list[str] = []
    with pytest.raises(Deadline), HeldBack():
        _alarm_now()
        try:
            with GivingWay():
                done.append("waited")
        finally:
            _alarm_now()
            done.append("tidied up")
    assert done == ["tidied up"]


def test_what_ends_a_wait_is_not_interrupted_itself() -> None:
    done: list[str] = []
    with pytest.raises(Deadline), HeldBack(), GivingWay():
        try:
            _alarm_now()
        finally:
            _alarm_now()
            done.append("tidied up")
    assert done == ["tidied up"]


def test_what_follows_a_wait_is_whole() -> None:
    done: list[str] = []
    with pytest.raises(Deadline), HeldBack():
        with GivingWay():
            pass
        _alarm_now()
        done.append("held back again")
    assert done == ["held back again"]


def test_a_handler_that_gives_way_adds_nothing() -> None:
    def handler(*_: object) -> None:
        with GivingWay():
            pass

    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(Deadline) as caught, HeldBack():
        _alarm_now()
        signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert not hasattr(caught.value, "__notes__")


def test_a_wait_inside_a_handler_leaves_the_outer_one_interruptible() -> None:
    def handler(*_: object) -> None:
        with GivingWay():
            pass

    with pytest.raises(Deadline), HeldBack(), GivingWay():
        signal.signal(signal.SIGUSR1, handler)
        signal.raise_signal(signal.SIGUSR1)
        _alarm_now()
        pytest.fail("went on")
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_handlers_are_back_and_one_that_was_put_in_meanwhile_stays() -> None:
    def other(*_: object) -> None:
        pass

    with HeldBack():
        assert signal.getsignal(signal.SIGALRM) is not _raise
    assert signal.getsignal(signal.SIGALRM) is _raise
    with HeldBack():
        signal.signal(signal.SIGALRM, other)
    assert signal.getsignal(signal.SIGALRM) is other


def test_flags_of_the_action_stay() -> None:
    signal.siginterrupt(signal.SIGALRM, False)
    before = _flags(signal.SIGALRM)
    with HeldBack():
        pass
    assert _flags(signal.SIGALRM) == before != _flags(signal.SIGINT)


def _flags(number: int) -> bytes:
    action = interrupts._action_of(number)
    assert action is not None
    return action[136:140]  # glibc: after the function and a set of signals


def test_a_handler_that_c_has_put_in_is_left_alone() -> None:
    with HeldBack():
        pass  # learns what Python's own looks like
    _with_a_handler_of_c()


def _with_a_handler_of_c() -> None:
    libc = ctypes.CDLL(None)
    called: list[int] = []
    foreign = ctypes.CFUNCTYPE(None, ctypes.c_int)(called.append)
    before = interrupts._action_of(signal.SIGALRM)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGALRM, ctypes.cast(foreign, ctypes.c_void_p))
    try:
        with HeldBack():
            _alarm_now()
        _alarm_now()
    finally:
        interrupts._sigaction(signal.SIGALRM, before, None)
    assert called == [signal.SIGALRM] * 2


def test_one_that_c_has_put_in_is_left_alone_before_that_of_python_is_known() -> None:
    before, interrupts._pythons = interrupts._pythons, None
    try:
        _with_a_handler_of_c()
    finally:
        interrupts._pythons = before


def test_where_the_action_cannot_be_asked_for_it_waits_all_the_same() -> None:
    before = interrupts._sigaction, interrupts._pythons
    done = []
    try:
        for known in (None, b"12345678"):
            interrupts._sigaction, interrupts._pythons = None, known
            with pytest.raises(Deadline) as caught, HeldBack():
                assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
                _alarm_now()
                done.append(known)
            assert not hasattr(caught.value, "__notes__")
    finally:
        interrupts._sigaction, interrupts._pythons = before
    assert len(done) == 2
    assert signal.getsignal(signal.SIGALRM) is _raise


def test_a_signal_at_any_line_comes_out_and_leaves_nothing() -> None:
    """Of the blocks themselves."""

    def no_op(*_: object) -> None:
        pass

    signal.signal(signal.SIGUSR1, no_op)  # another one to be replaced
    number = 1
    while number:
        tracer = Tracer(signal.SIGALRM, number)
        seen = False
        try:
            sys.settrace(tracer)
            with AllHeldBack():
                with GivingWay():
                    pass
                let_through(no_op)
            sys.settrace(None)
        except Deadline:
            sys.settrace(None)
            seen = True
        assert seen == (tracer.left <= 0), f"{tracer.came}: lost"
        for number_of, handler in ((signal.SIGALRM, _raise), (signal.SIGINT, signal.default_int_handler)):
            assert signal.getsignal(number_of) is handler, tracer.came
        held = False
        with pytest.raises(Deadline), HeldBack():
            _alarm_now()
            held = True
        assert held, f"{tracer.came}: nothing is held back any more"
        number = number + 1 if seen else 0
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_of_two_in_a_row_the_second_leaves_the_next_block_whole() -> None:
    """It comes while the first, of a handler that is back, is being kept."""

    class Twice(list[BaseException]):
        __iter__ = _raise  # type: ignore[assignment]

    def put_back(one: object) -> None:
        HeldBack._put_back = staticmethod(before)  # type: ignore[method-assign]
        raise Deadline

    before = HeldBack._put_back
    block = HeldBack()
    with pytest.raises(Deadline), block:
        HeldBack._put_back = staticmethod(put_back)  # type: ignore[method-assign]
        block.raised = Twice()
    assert interrupts._current is None
    held = False
    with pytest.raises(Deadline):
        _alarm_now()
    with pytest.raises(Deadline), HeldBack():
        _alarm_now()
        held = True
    assert held
    assert signal.getsignal(signal.SIGALRM) is _raise


def test_a_child_that_is_forked_inside_holds_nothing_back() -> None:
    with HeldBack():
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _alarm_now()
            except Deadline:
                code = 0
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


def test_other_threads_neither_hold_back_nor_give_way() -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            give_way()
            with HeldBack(), GivingWay():
                pass
        except BaseException as error:
            failed.append(error)

    with pytest.raises(Deadline), HeldBack():
        _alarm_now()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert not failed


# -- Ctrl-C, code of the caller's, and blocks inside what waits or lets through --------------------------------------


def test_ctrl_c_waits_only_where_all_does() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), HeldBack():
        signal.raise_signal(signal.SIGINT)
        done.append("late")
    with pytest.raises(KeyboardInterrupt), AllHeldBack():
        signal.raise_signal(signal.SIGINT)
        done.append("whole")
    assert done == ["whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_code_of_the_caller_is_interrupted_at_once_and_what_follows_is_whole() -> None:
    done: list[str] = []

    def theirs() -> None:
        with pytest.raises(Deadline):
            _alarm_now()
        done.append("caught")

    with pytest.raises(Deadline) as caught, HeldBack():
        assert let_through(lambda: 5) == 5
        let_through(theirs)
        _alarm_now()
        done.append("held back again")
        raise ValueError
    assert isinstance(caught.value.__cause__, ValueError)
    assert done == ["caught", "held back again"]


def test_what_comes_out_of_code_of_the_caller_is_the_error_of_the_block() -> None:
    with pytest.raises(Deadline) as caught, HeldBack():
        try:
            let_through(_alarm_now)
        except Deadline as error:
            mine = error
            raise
    assert caught.value is mine


def test_what_follows_code_of_the_caller_is_whole() -> None:
    done: list[str] = []
    with pytest.raises(Deadline), HeldBack():
        let_through(lambda: None)
        _alarm_now()
        done.append("held back again")
    assert done == ["held back again"]


def test_code_of_the_caller_is_not_called_when_something_is_held_back() -> None:
    called: list[bool] = []
    with pytest.raises(Deadline), HeldBack():
        _alarm_now()
        let_through(lambda: called.append(True))
    assert not called


def test_what_ends_code_of_the_caller_is_not_interrupted_itself() -> None:
    done: list[str] = []

    def theirs() -> None:
        try:
            _alarm_now()
        finally:
            _alarm_now()
            done.append("tidied up")

    with pytest.raises(Deadline), HeldBack():
        let_through(theirs)
    assert done == ["tidied up"]


def test_a_block_in_code_of_the_caller_is_one_by_itself() -> None:
    done: list[str] = []

    def theirs() -> None:
        with pytest.raises(Deadline), HeldBack():
            _alarm_now()
            done.append("inside")

    with HeldBack():
        let_through(theirs)
        done.append("end")
    assert done == ["inside", "end"]
    assert signal.getsignal(signal.SIGALRM) is _raise


def test_a_block_in_what_waits_is_whole_and_then_ends_it() -> None:
    done: list[str] = []
    with pytest.raises(Deadline) as caught, HeldBack():
        try:
            with GivingWay():
                with HeldBack():
                    _alarm_now()
                    done.append("inside")
                done.append("late")
        except interrupts.Interrupted:
            done.append("ended")
            raise
    assert done == ["inside", "ended"]
    assert caught.value.__cause__ is None


def test_an_error_of_a_block_in_what_waits_is_not_what_comes_out() -> None:
    with pytest.raises(Deadline), HeldBack(), GivingWay(), HeldBack():
        _alarm_now()
        raise ValueError


def test_a_child_that_is_forked_in_a_block_of_another_holds_nothing_back() -> None:
    def fork() -> None:
        with HeldBack():
            if (pid := os.fork()) == 0:
                try:
                    _alarm_now()
                except Deadline:
                    with HeldBack():
                        os._exit(0)
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    with HeldBack():
        let_through(fork)


def test_other_threads_let_through_as_ever() -> None:
    done: list[str] = []
    with HeldBack():
        thread = threading.Thread(target=lambda: let_through(lambda: done.append("called")))
        thread.start()
        thread.join()
        done.append("end")
    assert done == ["called", "end"]


def _beside_a_thread_that(how: str) -> None:
    inside, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def wait() -> None:
        inside.set()
        assert go_on.wait(60)
        done.append("it was let alone")

    def work() -> None:
        try:
            if how == "lets through":
                let_through(wait)
            else:
                with GivingWay() if how == "waits" else HeldBack():
                    wait()
        finally:
            inside.set()

    thread = threading.Thread(target=work)
    if how == "has a block":
        thread.start()
        assert inside.wait(60)
        with pytest.raises(Deadline):
            _alarm_now()
    else:
        with pytest.raises(Deadline), HeldBack():
            thread.start()
            assert inside.wait(60)
            _alarm_now()
            done.append("held back")
    go_on.set()
    thread.join()
    assert done[-1] == "it was let alone"
    assert len(done) == 1 + (how != "has a block")


def test_a_thread_that_lets_through_changes_nothing() -> None:
    _beside_a_thread_that("lets through")


def test_a_thread_that_waits_changes_nothing() -> None:
    _beside_a_thread_that("waits")


def test_a_thread_that_has_a_block_changes_nothing() -> None:
    _beside_a_thread_that("has a block")


def test_no_block_is_needed_to_let_through() -> None:
    with pytest.raises(Deadline):
        let_through(_alarm_now)
