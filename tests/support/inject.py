"""Faults at chosen system calls of a child, by strace.

    done = traced('''
        tx = FileTransaction(sys.argv[1]); tx.begin(); tx.write("a", b"x")
        with region():                      # traced from here ...
            tx.commit()
    ''', root, faults=[Fault("fsync", error="EIO", when=2)])    # ... and here the second fsync fails

The tracer is attached when the child enters its `region()` and detached when it leaves it, so that calls are counted
from there. strace counts for each thread and each name of a call, and so does `Call.nth`. What the region does for the
first time (imports) is in it: do it once before.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Unpack

from tests.support.procs import Child, Result, Settings, child

SYNC = ("fsync", "fdatasync", "sync_file_range", "syncfs")
RENAME = ("rename", "renameat", "renameat2")
LINK = ("link", "linkat", "symlink", "symlinkat")
UNLINK = ("unlink", "unlinkat", "rmdir")
MKDIR = ("mkdir", "mkdirat")
OPEN = ("open", "openat", "openat2", "creat")
WRITE = ("write", "pwrite64", "writev")
READ = (
    "read",
    "pread64",
    "lseek",
    "readlink",
    "readlinkat",
    "getdents64",
    "statx",
    "newfstatat",
    "fstat",
    "lstat",
    "stat",
)
META = ("fchmod", "fchmodat", "chmod", "fchown", "fchownat", "utimensat", "fsetxattr", "setxattr", "fremovexattr")
LOCK = ("flock", "fcntl")
CHANGES = (*SYNC, *RENAME, *LINK, *UNLINK, *MKDIR, *OPEN, *WRITE, *META, "ftruncate", "flock", "close")
"""The calls that change a tree or make a change durable, and those that open and close."""

_REGION = """
from txfiles._disk import fsyncs
fsyncs._refused = True  # so that each fsync is a call, which strace sees

from contextlib import contextmanager
@contextmanager
def region():
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    try:
        yield
    finally:
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
"""


@dataclass(frozen=True)
class Fault:
    """What happens at a call: it fails with `error` (a name such as "EIO"), or a `signal` (such as "SIGKILL") comes.

    With an error the call is not made. `when` counts from 1: `2` is once at the second, `"2+"` at every one from there.
    A process killed at a call has not made it.
    """

    call: str | Sequence[str]
    error: str | None = None
    signal: str | None = None
    when: int | str = 1

    def option(self) -> str:
        if (self.error is None) == (self.signal is None):
            raise ValueError("a fault is an error or a signal")
        what = f"error={self.error}" if self.error else f"signal={self.signal}"
        return f"inject={_names(self.call)}:{what}:when={self.when}"


@dataclass(frozen=True)
class Call:
    """A call of the region. `nth` counts the calls of this name by this thread, from 1."""

    pid: int
    name: str
    args: str
    result: str
    nth: int

    @property
    def error(self) -> str | None:
        match = re.match(r"-1 (E[A-Z0-9]+)", self.result)
        return match[1] if match else None

    @property
    def injected(self) -> bool:
        return self.result.endswith("(INJECTED)")

    @property
    def paths(self) -> list[str]:
        """The files that it names, as absolute paths where strace knows the directory."""
        return _paths(self.name, self.args)


@dataclass(frozen=True)
class Traced(Result):
    """How the child ended, and what it called in its region."""

    calls: list[Call] = field(default_factory=list)

    def named(self, *names: str) -> list[Call]:
        return [call for call in self.calls if call.name in names]


def traced(
    code: str,
    *args: object,
    faults: Sequence[Fault] = (),
    calls: Sequence[str] = (*CHANGES, *READ),
    timeout: float = 60,
    **settings: Unpack[Settings],
) -> Traced:
    """Run `code` in a child, with the `faults` in its `region()`; `calls` are those that the answer lists."""
    with child(_REGION + textwrap.dedent(code), *args, **settings) as process:
        if process.wait_for_stop(timeout):
            with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as log:
                with _attached(process, faults, calls, log.name):
                    process.resume()
                    process.wait_for_stop(timeout)
                process.resume()
                result, listed = process.finish(timeout), _parse(log.read())
        else:
            raise AssertionError(f"the child never came to its region(): {process.finish(timeout)}")
    return Traced(result.returncode, result.stdout, result.stderr, listed)


def each_call(
    code: str, *args: object, calls: Sequence[str] = CHANGES, timeout: float = 60, **settings: Unpack[Settings]
) -> list[Call]:
    """The calls of an undisturbed run: the places where faults can be put, one `Fault(c.name, when=c.nth)` each."""
    return traced(code, *args, calls=calls, timeout=timeout, **settings).calls


@contextmanager
def _attached(process: Child, faults: Sequence[Fault], calls: Sequence[str], log: str) -> Iterator[None]:
    names = [*calls, *(name for fault in faults for name in _split(fault.call))]
    options = [f"trace={_names(names)}", "signal=none", *(fault.option() for fault in faults)]
    argv = ["strace", "-f", "-y", "-s", "4096", "-o", log, "-p", str(process.pid)]
    with tempfile.TemporaryFile() as said:
        tracer = subprocess.Popen([*argv, *(w for o in options for w in ("-e", o))], stderr=said)
        try:
            _wait_for(tracer, said.fileno(), b"attached")
            yield
        finally:
            tracer.send_signal(signal.SIGINT)  # which makes strace detach
            tracer.wait()


def _wait_for(tracer: subprocess.Popen[bytes], fd: int, text: bytes) -> None:
    while text not in (said := os.pread(fd, 1 << 16, 0)):
        if tracer.poll() is not None:
            raise RuntimeError(f"strace could not attach: {said.decode(errors='replace')}")
        time.sleep(0.001)


def _split(call: str | Sequence[str]) -> Sequence[str]:
    return call.split(",") if isinstance(call, str) else call


def _names(call: str | Sequence[str]) -> str:
    """The names as strace takes them; `?` passes over those that the machine's architecture lacks."""
    return ",".join(f"?{name}" for name in dict.fromkeys(_split(call)))


_LINE = re.compile(r"(?P<pid>\d+) +(?P<name>\w+)\((?P<args>.*)\) += (?P<result>.*)")
_UNFINISHED = re.compile(r"(?P<pid>\d+) +(?P<head>\w+\(.*?)(?:,? )?<unfinished \.\.\.>(?P<result>.*)")
_RESUMED = re.compile(r"(?P<pid>\d+) +<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)")


def _parse(log: str) -> list[Call]:
    calls: list[Call] = []
    begun: dict[str, str] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for raw in log.splitlines():
        line = raw
        if match := _UNFINISHED.match(line):
            begun[match["pid"]] = match["head"]
            if match["result"].strip().startswith(") = ?"):  # killed in the call
                line = f"{match['pid']} {begun.pop(match['pid'])}) = ?"
            else:
                continue
        elif match := _RESUMED.match(line):
            line = f"{match['pid']} {begun.pop(match['pid'], match['name'] + '(')}{match['rest']}"
        if match := _LINE.match(line):
            key = match["pid"], match["name"]
            counts[key] += 1
            calls.append(Call(int(key[0]), key[1], match["args"], match["result"], counts[key]))
    return calls


_WORD = re.compile(r'(?:\d+|AT_FDCWD)<(?P<fd>[^>]*)>(?:\(deleted\))?|"(?P<text>(?:[^"\\]|\\.)*)"')


def _paths(name: str, args: str) -> list[str]:
    words = [(match["fd"], match["text"]) for match in _WORD.finditer(args)]
    if not words:
        return []
    if not name.endswith(("at", "at2", "statx")):  # a descriptor, or one name; rename and link have two
        taken = words if name in ("rename", "link", "symlink") else words[:1]
        return [fd if fd is not None else _unquote(text) for fd, text in taken]
    found: list[str] = []
    folder: str | None = None
    for fd, text in words:
        if fd is not None:
            if folder is not None:
                found.append(folder)
            folder = fd
        else:
            found.append(os.path.join(folder or "", _unquote(text)))
            folder = None
    return found if folder is None else [*found, folder]


def _unquote(text: str) -> str:
    """What strace shows as a C string, as a file name."""
    plain, octal = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f"}, re.compile(r"\\([0-7]{1,3}|.)")
    raw = octal.sub(lambda m: chr(int(m[1], 8)) if m[1].isdigit() else plain.get(m[1], m[1]), text)
    return os.fsdecode(raw.encode("latin-1"))
