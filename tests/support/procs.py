"""Child processes that run snippets of Python, talk in lines, and are stopped and killed.

with child("print('ready'); input(); print(sys.argv[1])", "x") as process:
    process.expect("ready")
    process.stop()          # SIGSTOP: alive, and doing nothing
    process.resume()
    process.send()
    assert process.finish().stdout == "ready\\nx\\n"
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypedDict, Unpack

CHECKOUT = Path(__file__).resolve().parents[2]
IMPORTS = "import json, os, random, signal, sys, threading, time\n"
_TICK = 0.001


class Settings(TypedDict, total=False):
    """How a child is started; `env` is added to the environment, `python` takes the place of this interpreter."""

    cwd: str | os.PathLike[str]
    env: Mapping[str, str]
    python: str
    user: int
    group: int
    extra_groups: Sequence[int]
    umask: int


@dataclass(frozen=True)
class Result:
    """How a child ended; `returncode` is minus the signal that killed it."""

    returncode: int
    stdout: str
    stderr: str

    def check(self) -> Result:
        """Itself, when the child ended with 0."""
        assert self.returncode == 0, f"the child ended with {self.returncode}:\n{self.stdout}{self.stderr}"
        return self


class Child:
    """A running child, the leader of a process group of its own. Its output goes to files, so it never blocks on it.

    It is reaped only at its `finish`, so that until then its number cannot be that of somebody else.
    """

    def __init__(self, argv: Sequence[str], settings: Settings) -> None:
        with ExitStack() as stack:
            self._stdout = stack.enter_context(tempfile.TemporaryFile())
            self._stderr = stack.enter_context(tempfile.TemporaryFile())
            self._lines = 0
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=self._stdout,
                stderr=self._stderr,
                env={**os.environ, "PYTHONPATH": str(CHECKOUT), **settings.get("env", {})},
                start_new_session=True,
                cwd=settings.get("cwd"),
                user=settings.get("user"),
                group=settings.get("group"),
                extra_groups=settings.get("extra_groups"),
                umask=settings.get("umask", -1),
            )
            self.pid: int = self.process.pid
            self._files = stack.pop_all()

    def expect(self, text: str, timeout: float = 30) -> str:
        """Wait for the next line of its output, which must contain `text`, and return it."""
        until = time.monotonic() + timeout
        while True:
            ended = self._ended()
            lines = _content(self._stdout).splitlines(keepends=True)[self._lines :]
            if lines and lines[0].endswith("\n"):
                self._lines += 1
                assert text in lines[0], f"{text!r} expected, not {lines[0]!r}"
                return lines[0].rstrip("\n")
            assert not ended, f"{text!r} expected, but the child ended: {_content(self._stderr)}"
            assert time.monotonic() < until, f"{text!r} expected for {timeout} s: {_content(self._stderr)}"
            time.sleep(_TICK)

    def send(self, text: str = "") -> None:
        """Give it a line of input."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child and to its own children, if it still runs."""
        if not self._ended():
            os.killpg(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def stop(self) -> None:
        """SIGSTOP, and wait until it has stopped."""
        self.signal(signal.SIGSTOP)
        assert self.wait_for_stop(), "the child ended before it could be stopped"

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def wait_for_stop(self, timeout: float = 60) -> bool:
        """Wait until it is stopped (true) or has ended (false)."""
        until = time.monotonic() + timeout
        while not self._ended():
            with suppress(ChildProcessError):  # it has ended since
                if os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG):
                    return True
            assert time.monotonic() < until, f"the child neither stopped nor ended in {timeout} s"
            time.sleep(_TICK)
        return False

    def finish(self, timeout: float = 60) -> Result:
        """Wait for its end. One that takes longer than `timeout` seconds is killed, and that is an error."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        until = time.monotonic() + timeout
        while not (ended := self._ended()) and time.monotonic() < until:
            time.sleep(_TICK)
        if self.process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)  # also what is left of its own children
            self.process.wait()
        result = Result(self.process.returncode, _content(self._stdout), _content(self._stderr))
        assert ended, f"the child did not end in {timeout} s: {result}"
        return result

    def close(self) -> None:
        """Kill what still runs, reap it, and forget its output."""
        self.kill()
        self.finish()
        self._files.close()

    def _ended(self) -> bool:
        if self.process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@contextmanager
def child(code: str, *args: object, **settings: Unpack[Settings]) -> Iterator[Child]:
    """A child that runs `code` with `args` in `sys.argv[1:]`; it does not outlive the block."""
    running = Child(python(code, *args, **settings), settings)
    try:
        yield running
    finally:
        running.close()


def run_python(code: str, *args: object, timeout: float = 60, **settings: Unpack[Settings]) -> Result:
    """Run `code` in a child to its end."""
    with child(code, *args, **settings) as running:
        return running.finish(timeout)


def killed_at_random(
    code: str, *args: object, rounds: int, longest: float, seed: int = 0, **settings: Unpack[Settings]
) -> Iterator[Result]:
    """Run `rounds` children one after another, each killed within `longest` seconds after its first line of output."""
    dice = random.Random(seed)
    for _ in range(rounds):
        with child(code, *args, **settings) as running:
            running.expect("")
            time.sleep(dice.uniform(0, longest))
            running.kill()
            yield running.finish()


def python(code: str, *args: object, **settings: Unpack[Settings]) -> list[str]:
    """The command that runs `code`. The usual modules are imported and the output is not buffered."""
    return [settings.get("python", sys.executable), "-u", "-c", IMPORTS + textwrap.dedent(code), *map(str, args)]


def _content(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")
