"""A process in the sandbox may do what it says, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.procs import CHECKOUT, run_python

pytestmark = pytest.mark.needs("landlock")


@pytest.mark.parametrize(("refer", "expected"), [(True, "EPERM works"), (False, "EPERM EXDEV")])
def test_what_a_confined_process_may_do(tmp_path: Path, refer: bool, expected: str) -> None:
    code = """
        import errno
        from tests.support.sandbox import confine
        top = sys.argv[1]
        confine(top + "/in", refer=sys.argv[2] == "True")
        for target in ("/out/f", "/in/d/f"):
            try:
                os.rename(top + "/in/f", top + target)
            except OSError as error:
                print(errno.errorcode[error.errno].replace("EACCES", "EPERM").replace("EXDEV", "EXDEV"), end=" ")
            else:
                print("works", end=" ")
    """
    (tmp_path / "in/d").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "in/f").touch()
    done = run_python(code, tmp_path, refer, cwd=CHECKOUT).check().stdout.split()
    assert done == expected.split()
