"""What the examples share: where they work, processes that can be killed, and the usual way to replace one file."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

fork = multiprocessing.get_context("fork")
spawn = multiprocessing.get_context("spawn")  # as object storage wants it: its threads are in no forked child


def is_url(place: object) -> bool:
    return isinstance(place, str) and "://" in place


def parser(doc: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("directory", nargs="?", help="where to work, and leave what was made (default: nowhere to stay)")
    made.add_argument("--naive", action="store_true", help="the usual way, without txfiles, to see what goes wrong")
    return made


@contextmanager
def workplace(directory: str | None, name: str) -> Iterator[Any]:
    """The directory `name` below `directory`, or below a temporary one that goes away; of a URL the one below that."""
    logging.getLogger("txfiles").setLevel(logging.ERROR)  # the examples tell themselves what is recovered
    if is_url(directory):
        yield f"{directory}/{name}"
        return
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(directory or temporary) / name
        place.mkdir(parents=True)
        yield place


def replace(path: Path, text: str) -> None:
    """The usual cure for one file: a temporary file beside it, synced, and renamed over it."""
    temp = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temp.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temp.replace(path)
