"""`txfiles gc|compact|tag`: what there is to do for a root on object storage."""

from __future__ import annotations

import errno
from dataclasses import asdict
from typing import TYPE_CHECKING

from txfiles._cli.answer import DONE, Answer
from txfiles._cli.progress import Progress, size_text
from txfiles.store import FileStore

if TYPE_CHECKING:
    import argparse


def run_gc(options: argparse.Namespace) -> Answer:
    """One run of garbage collection."""
    store = FileStore(options.url)
    with Progress(hidden=options.json) as progress:
        progress.expect("looking for garbage", 0, None)
        done = store.gc(grace_commits=options.grace_commits, grace_seconds=options.grace_seconds)
    found = asdict(done)
    found.pop("lists")
    return Answer(DONE, found, [f"{done.deleted} objects deleted, {done.condemned} found that nothing refers to"])


def run_compact(options: argparse.Namespace) -> Answer:
    """Empty packs that are mostly garbage."""
    done = FileStore(options.url, timeout=options.timeout).compact(dead=options.dead)
    what = f"{done.packs} packs of {size_text(done.bytes)} wait for gc, {size_text(done.moved_bytes)} of them moved"
    return Answer(DONE, asdict(done), [what])


def run_tag(options: argparse.Namespace) -> Answer:
    """Put a tag on the newest state, take one away, or list them."""
    store = FileStore(options.url, timeout=options.timeout)
    if options.name is None:
        tags = store.tags()
        return Answer(DONE, {"tags": tags}, tags)
    if not options.delete:
        store.tag(options.name)
        return Answer(DONE, {"tag": options.name}, [f"tagged {options.name}"])
    try:
        store.untag(options.name)
    except KeyError as error:
        raise FileNotFoundError(errno.ENOENT, "there is no such tag", options.name) from error
    return Answer(DONE, {"untagged": options.name}, [f"untagged {options.name}"])
