"""pandas writing through the fsspec file system: several tables are one change, also when the process is killed."""

from __future__ import annotations

import doctest
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from tests.support.boundary import tree
from txfiles import recover, status
from txfiles.integrations import fsspec as module
from txfiles.integrations.fsspec import TxFilesFileSystem
from txfiles.testing import killed_at_call

if TYPE_CHECKING:
    import pandas

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # after a fork in a process with more, children may hang
pytestmark = pytest.mark.needs("module:pandas")

NAMES = ("a.csv", "b.json", "c.csv.gz", "sub/d.pkl")


@pytest.fixture
def fs(root: Path) -> TxFilesFileSystem:
    return TxFilesFileSystem(root, skip_instance_cache=True)


def table(generation: int) -> pandas.DataFrame:
    import pandas as pd

    return pd.DataFrame({"generation": [generation] * 50, "text": [f"row {n}" for n in range(50)]})


def writes(root: Path, generation: int) -> list[Callable[[], object]]:
    made, url = table(generation), f"txfiles://{root}"
    return [
        lambda: made.to_csv(f"{url}/a.csv", index=False),
        lambda: made.to_json(f"{url}/b.json"),
        lambda: made.to_csv(f"{url}/c.csv.gz", index=False),
        lambda: made.to_pickle(f"{url}/sub/d.pkl"),
    ]


def save(fs: TxFilesFileSystem, generation: int) -> None:
    with fs.transaction:
        for write in writes(Path(fs.root), generation):
            write()


def load(root: Path) -> list[Any]:
    import pandas as pd

    url = f"txfiles://{root}"
    return [
        pd.read_csv(f"{url}/a.csv"),
        pd.read_json(f"{url}/b.json"),
        pd.read_csv(f"{url}/c.csv.gz"),
        pd.read_pickle(f"{url}/sub/d.pkl"),
    ]


def generation(root: Path) -> int:
    """That of all tables: each is whole, and of the same."""
    tables = load(root)
    found = int(tables[0]["generation"][0])
    for one in tables:
        assert one.equals(table(found))
    return found


def test_several_tables_are_one_change(fs: TxFilesFileSystem, root: Path) -> None:
    save(fs, 1)
    assert generation(root) == 1
    head = status(root).head
    assert head is not None
    assert head.sequence == 1
    with fs.transaction:
        before = tree(root)
        for write in writes(root, 2):
            write()
            assert tree(root) == before
        assert generation(root) == 2  # what was written is seen inside
    assert generation(root) == 2


def test_an_exception_leaves_the_tables_as_they_were(fs: TxFilesFileSystem, root: Path) -> None:
    save(fs, 1)
    with pytest.raises(ZeroDivisionError), fs.transaction:
        for write in writes(root, 2):
            write()
        raise ZeroDivisionError
    assert generation(root) == 1


def test_a_table_that_cannot_be_written_leaves_all_as_they_were(fs: TxFilesFileSystem, root: Path) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise ZeroDivisionError

    save(fs, 1)
    broken = table(2).astype(object)
    broken.loc[49, "text"] = Unprintable()
    with pytest.raises(ZeroDivisionError), fs.transaction:
        writes(root, 2)[1]()
        broken.to_csv(f"txfiles://{root}/a.csv", index=False, chunksize=5)
    assert generation(root) == 1


def test_the_example_in_the_docstring_runs(root: Path) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(
        module, globs={"fsspec": fsspec, "root": root, "table": table(1)}
    )
    runner = doctest.DocTestRunner()
    runner.run(example)
    assert (runner.tries, runner.failures) == (2, 0)
    assert set(tree(root)) == {"a.json", "b.csv"}


def test_a_table_alone(root: Path) -> None:
    import pandas as pd

    url = f"txfiles://{root}/alone.csv"
    table(1).to_csv(url, index=False)
    table(2).to_csv(url, index=False, mode="a", header=False)
    assert list(pd.read_csv(url)["generation"]) == [1] * 50 + [2] * 50
    table(3).to_csv(url, index=False, storage_options={"root": str(root), "durability": "process"})
    assert pd.read_csv(url, storage_options={"root": str(root)}).equals(table(3))


def forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            TxFilesFileSystem.clear_instance_cache()
            work()
        finally:
            os._exit(1)
    return child


def was_killed(child: int) -> bool:
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.parametrize("written", range(5))
def test_killed_between_the_tables(fs: TxFilesFileSystem, root: Path, written: int) -> None:
    save(fs, 1)

    def die() -> None:
        with fs.transaction:
            for write in writes(root, 2)[:written]:
                write()
            os.kill(os.getpid(), signal.SIGKILL)

    assert was_killed(forked(die))
    before = set(os.listdir(root / ".txfiles"))
    assert len(before) >= 3 + written
    recover(root)
    assert set(os.listdir(root / ".txfiles")) == {"format", "lock", "HEAD", "spare"}
    assert generation(root) == 1


def test_killed_at_each_step(fs: TxFilesFileSystem, root: Path) -> None:
    """Before a call of the staging, of the commit, and of what comes after."""
    save(fs, 1)

    def save_until(call: int) -> None:
        with killed_at_call(call):
            save(fs, 2)

    outcomes = []
    for call in count(2, 11):
        save(fs, 1)
        killed = was_killed(forked(partial(save_until, call)))
        recover(root)
        outcomes.append(generation(root))
        assert status(root).clean
        if not killed:  # it makes fewer calls
            break
    assert outcomes == [1] * outcomes.count(1) + [2] * outcomes.count(2)
    assert len(outcomes) > 10
    assert outcomes.count(2) > 2


def test_killed_at_random_times(fs: TxFilesFileSystem, root: Path) -> None:
    def work() -> None:
        for number in range(1, 100_000):
            save(fs, number)

    dice = random.Random(0)
    for _ in range(6):
        save(fs, 0)
        child = forked(work)
        time.sleep(dice.uniform(0.02, 0.1))
        os.kill(child, signal.SIGKILL)
        assert was_killed(child)
        generation(root)  # the reads finish what was committed
        recover(root)
        assert status(root).clean
