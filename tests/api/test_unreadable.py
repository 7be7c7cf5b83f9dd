"""What may be written but not read is made durable all the same, or the commit says that it is not."""

from __future__ import annotations

import os

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.procs import run_python

pytestmark = pytest.mark.needs("users")

COUNTING = """
    from txfiles import FileTransaction
    from txfiles.errors import CommitError
    from txfiles._disk import system

    calls = []

    class Counting(system.KernelFS):
        def sync_file_system(self, fd):
            calls.append(os.fstat(fd).st_ino)
            if len(sys.argv) > 2:
                raise OSError(5, "the disk is broken")
            super().sync_file_system(fd)

    root = sys.argv[1]
    use = system.use(Counting())
    use.__enter__()
"""


def test_the_directory_above_a_root_may_only_be_written() -> None:
    code = COUNTING + (
        """
    with FileTransaction(root, create=True) as tx:
        tx.write("a", "x")
    assert calls == [os.stat(root).st_ino], calls
    with FileTransaction(root) as tx:
        tx.write("a", "y")
    assert len(calls) == 1, calls
    """
    )
    with public_directory(0o733) as above:
        run_python(code, above / "root", **as_user(1000)).check()


@pytest.mark.parametrize("works", [True, False])
def test_an_old_file_that_may_not_be_read(works: bool) -> None:
    code = COUNTING + (
        """
    with open(root + "/a", "w") as file:
        file.write("old")
    os.chmod(root + "/a", 0o200)
    try:
        with FileTransaction(root) as tx:
            tx.write("a", "new")
    except CommitError as error:
        assert len(sys.argv) > 2, error
        print("before")
    else:
        print("after")
    assert calls == [os.stat(root + "/.txfiles").st_ino], calls
    os.chmod(root + "/a", 0o600)
    print(open(root + "/a").read())
    """
    )
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        said = run_python(code, root, *(() if works else ("fail",)), **as_user(1000)).check().stdout
    assert said == ("after\nnew\n" if works else "before\nold\n")
