"""A child of another user has that user's rights and no more."""

from __future__ import annotations

import os

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.procs import run_python

pytestmark = pytest.mark.needs("users")


def test_ids_groups_umask_and_no_capabilities() -> None:
    code = """
        print(os.getresuid(), os.getresgid(), os.getgroups(), oct(os.umask(0)))
        print([line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")])
    """
    done = run_python(code, **as_user(1000, 1001, groups=[1002], umask=0o027)).check()
    assert done.stdout.splitlines() == ["(1000, 1000, 1000) (1001, 1001, 1001) [1002] 0o27", "['0000000000000000']"]


def test_the_packages_can_be_imported() -> None:
    code = "import filelock, orjson\nfrom txfiles._disk import system\nprint(system.current().ids())"
    assert run_python(code, **as_user(1000)).check().stdout == "(1000, 1000)\n"


def test_a_public_directory_can_be_reached_and_is_not_writable() -> None:
    with public_directory() as path:
        (path / "f").write_text("x", encoding="utf-8")
        code = "print(open(sys.argv[1] + '/f').read()); open(sys.argv[1] + '/f', 'w')"
        done = run_python(code, path, **as_user(1000))
        assert done.stdout == "x\n"
        assert "PermissionError" in done.stderr
        os.chown(path, 1000, 1000)
        run_python("os.unlink(sys.argv[1] + '/f')", path, **as_user(1000)).check()
    assert not path.exists()
