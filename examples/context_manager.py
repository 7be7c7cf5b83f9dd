"""An agent's context in four JSON files, saved all at once or not at all.

Run as a program, it saves a conversation of some hundred messages; then children go on with it and are killed, each at
a random step of a save, that is, before a random one of its system calls. After each kill it recovers and checks that
the four files agree:

    python examples/context_manager.py [directory] [--kills 40] [--naive]

With `--naive` the four files are written one after another, each with a careful temp-and-rename, to show what then
goes wrong (its children are killed at random times).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txfiles import JsonDocuments, recover
from txfiles.testing import killed_at_call

EMPTY: dict[str, Any] = {
    "messages": [],
    "metadata": {"last_updated": None, "message_count": 0},
    "state": {},
    "global_context": {},
}


class ContextManager:
    """The messages and the state of one conversation, kept in `directory`."""

    messages: list[dict[str, Any]]
    metadata: dict[str, Any]
    state: dict[str, Any]
    global_context: dict[str, Any]

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.documents = JsonDocuments(directory, EMPTY, create=True)
        vars(self).update(deepcopy(EMPTY))

    def load(self) -> None:
        """Finish or undo what a crash left, then read the four files in one state."""
        vars(self).update(self.documents.load())

    def save(self) -> None:
        """Replace the four files together."""
        self.count()
        self.documents.save(**{name: getattr(self, name) for name in EMPTY})

    def add(self, role: str, text: str) -> None:
        self.messages.append({"role": role, "text": text})
        self.state["last_role"] = role
        self.global_context["turns"] = len(self.messages)

    def count(self) -> None:
        self.metadata = {"last_updated": datetime.now(UTC).isoformat(), "message_count": len(self.messages)}


class NaiveContextManager(ContextManager):
    """The usual cure: each file is whole, the set is not."""

    def save(self) -> None:
        self.count()
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in EMPTY:
            temp = self.directory / f"{name}.tmp"
            with temp.open("w", encoding="utf-8") as file:
                json.dump(getattr(self, name), file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            temp.replace(self.directory / f"{name}.json")


def disagreement(directory: Path) -> str | None:
    """What is wrong between the four files, read as any program would; `None` if they agree."""
    try:
        messages, metadata, state, context = (
            json.loads((directory / f"{n}.json").read_text(encoding="utf-8")) for n in EMPTY
        )
    except (OSError, ValueError) as error:
        return f"a file cannot be read: {error}"
    counts = {len(messages), metadata["message_count"], context["turns"]}
    if len(counts) > 1:
        return f"{len(messages)} messages, but {metadata['message_count']} counted and {context['turns']} turns"
    if messages[-1]["role"] != state["last_role"]:
        return f"the last message is by {messages[-1]['role']}, the state says {state['last_role']}"
    return None


def converse(manager: ContextManager, turns: int) -> None:
    """Add a question and an answer and save, `turns` times."""
    for _ in range(turns):
        number = len(manager.messages)
        manager.add("user" if number % 2 == 0 else "assistant", f"message {number}: " + "so it goes. " * 8)
        manager.save()


def kill_at_a_random_step(manager: ContextManager) -> None:
    """Let a child go on with the conversation; it dies at some system call of one of its first saves."""
    child = os.fork()
    if child == 0:
        with killed_at_call(random.randint(1, 400)):
            converse(manager, 10_000)
    _, how = os.waitpid(child, 0)
    assert os.WIFSIGNALED(how)


def kill_at_a_random_time(manager: ContextManager, longest: float) -> None:
    """Let a child go on with the conversation and kill it within so many seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        converse(manager, 1)
        os.write(writing, b"at work")
        converse(manager, 10_000)
    os.read(reading, 7)
    os.close(reading)
    os.close(writing)
    time.sleep(random.uniform(0, longest))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", help="where to work (default: a new temporary directory)")
    parser.add_argument("--kills", type=int, default=40, help="how many children to kill (default: 40)")
    parser.add_argument("--naive", action="store_true", help="write the four files one after another")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="context-") as temporary:  # gone at the end
        return run(Path(options.directory or temporary) / "context", options)


def run(directory: Path, options: argparse.Namespace) -> int:
    make = NaiveContextManager if options.naive else ContextManager

    manager = make(directory)
    started = time.perf_counter()
    converse(manager, 200)
    each = (time.perf_counter() - started) / 200
    print(f"saved 200 messages in {directory}, {each * 1000:.1f} ms a save")

    torn = forward = back = 0
    logging.getLogger("txfiles").setLevel(logging.ERROR)  # what is recovered is told below
    for number in range(1, options.kills + 1):
        if options.naive:
            kill_at_a_random_time(manager, 4 * each)
        else:
            kill_at_a_random_step(manager)
        report = recover(directory)
        forward += len(report.rolled_forward)
        back += not report.clean and not report.rolled_forward
        wrong = disagreement(directory)
        torn += wrong is not None
        manager = make(directory)
        manager.load()
        done = "rolled forward" if report.rolled_forward else "undone" if not report.clean else "nothing to recover"
        print(
            f"kill {number:3}: {done:18} {len(manager.messages)} messages: "
            f"{'the four files agree' if wrong is None else 'TORN: ' + wrong}"
        )
    print(f"{options.kills} kills: {forward} saves rolled forward, {back} undone, {torn} torn")
    return 1 if torn else 0


if __name__ == "__main__":
    sys.exit(main())
