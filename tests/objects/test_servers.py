"""Roots on real servers: what MemoryStore answers, they answer, too; and those that keep no conditions are refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore

from tests.objects.faulty import contents, writing
from tests.objects.test_storm import storm
from tests.support.procs import CHECKOUT
from tests.support.servers import SERVERS, keep_versions
from txfiles.errors import CommitOutcomeUnknownError, LockTimeoutError, UnsupportedFilesystemError
from txfiles.objects.engine import problems
from txfiles.objects.requests import StoreRequests
from txfiles.objects.root import Root
from txfiles.objects.wait import Clock

CEPH = pytest.param("ceph", marks=pytest.mark.needs("radosgw", "ceph-mon", "ceph-osd", "ceph"))
AZURITE = pytest.param("azurite", marks=pytest.mark.needs("azurite-blob"))
WRONG = [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("fauxqs", "s3rver")]


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with SERVERS[request.param](tmp_path) as made:
        yield made


def root_on(store: Any, prefix: str) -> Root:
    return Root(StoreRequests(store, prefix), f"test://{prefix}", clock=Clock(), remote=True)


@pytest.mark.parametrize("store", [CEPH, AZURITE], indirect=True)
def test_a_real_server(store: Any) -> None:
    """The probe, files of all sizes, sixteen writers at once, a storm without faults and gc in it."""
    made = root_on(store, "files/")
    made.create()
    sizes = {b"small": 10, b"packed": 5000, b"large": 1 << 20, "n\u00e4me".encode(): 0}
    made.commit(writing({path: path * (size // max(1, len(path))) for path, size in sizes.items()}))
    found = contents(root_on(store, "files/"))
    assert {path: len(data) for path, data in found.items()} == {
        path: size // max(1, len(path)) * len(path) for path, size in sizes.items()
    }
    _sixteen_writers(store)
    shared = root_on(store, "storm/")
    shared.create()
    storm(0.0, writers=4, rounds=4, grouped=False, timeout=60.0, seed=1, store=shared.source.requests)


def _sixteen_writers(store: Any) -> None:
    root_on(store, "race/").create()
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            root_on(store, "race/").commit(writing({b"%d" % number: b"x"}), timeout=90.0)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    root = root_on(store, "race/")
    assert sorted(contents(root)) == sorted(b"%d" % number for number in range(16))
    assert root.newest().seq == 16


@pytest.mark.deep
@pytest.mark.parametrize("store", [CEPH], indirect=True)
def test_workers_with_nothing_in_common_but_the_bucket(store: Any) -> None:
    """The task board of the examples; workers are killed, and no task is lost."""
    settings = store.config
    env = {
        "AWS_ENDPOINT": settings["endpoint"],
        "AWS_ACCESS_KEY_ID": settings["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": settings["secret_access_key"],
        "AWS_REGION": settings["region"],
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
    }
    argv = [
        sys.executable,
        str(CHECKOUT / "examples/task_board.py"),
        f"s3://{settings['bucket']}/prefix",
        "--kills",
        "3",
    ]
    done = subprocess.run(
        argv, env={**os.environ, **env}, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("store", [CEPH], indirect=True)
def test_a_bucket_that_keeps_versions_and_so_no_conditions(store: Any) -> None:
    """Ceph 16 is such a one: refused, and where versions are turned on later, nothing is lost and `verify` says why."""
    made = root_on(store, "before/")
    made.create()
    made.commit(writing({b"a": b"1"}))
    keep_versions(store)
    with pytest.raises(UnsupportedFilesystemError, match="created over one that exists"):
        root_on(store, "after/").create()
    assert root_on(store, "after/").source.requests.list("") == []
    with pytest.raises((LockTimeoutError, CommitOutcomeUnknownError)):
        made.commit(writing({b"a": b"2"}), timeout=1.0)
    assert contents(root_on(store, "before/")) == {b"a": b"1"}
    assert "created over one that exists" in str(problems(root_on(store, "before/")))


@pytest.mark.parametrize("store", WRONG, indirect=True)
def test_a_server_that_keeps_no_conditions_is_refused(store: Any) -> None:
    with pytest.raises(UnsupportedFilesystemError):
        root_on(store, "p/").create()


def test_a_directory_is_refused_as_a_store(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFilesystemError, match="give its path"):
        root_on(LocalStore(tmp_path), "p/").create()
