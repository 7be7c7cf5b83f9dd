"""Children under other users. The interpreter and the packages that they need are made reachable for everybody.

run_python("os.unlink('/etc/passwd')", **as_user(1000, umask=0o027))
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from tests.support import mounts, scratch
from tests.support.procs import Settings

_PACKAGES = ("txfiles", "filelock", "orjson")
_until_exit = ExitStack()
atexit.register(_until_exit.close)


def as_user(uid: int, gid: int | None = None, *, groups: Sequence[int] = (), umask: int = 0o022) -> Settings:
    """The settings of a child of user `uid`, without any capability; `gid` is the same number if not given."""
    python = _public_python()
    return {
        "user": uid,
        "group": uid if gid is None else gid,
        "extra_groups": list(groups),
        "umask": umask,
        "cwd": "/",
        "python": str(python),
        "env": {
            "PYTHONPATH": str(_public_packages()),
            "LD_LIBRARY_PATH": str(python.parents[1] / "lib"),
            "HOME": "/nonexistent",
        },
    }


@contextmanager
def public_directory(mode: int = 0o755) -> Iterator[Path]:
    """A directory that every user can reach; pytest's own are closed to others."""
    path = scratch.directory()
    path.chmod(mode)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@cache
def _public_python() -> Path:
    """The interpreter; when it is in somebody's home, its installation is also mounted, read-only, where all may go."""
    executable = Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
    if _anybody_may_run(executable):
        return executable
    if not mounts.isolate():
        raise RuntimeError(f"other users cannot run {executable}, and it cannot be mounted elsewhere")
    where = scratch.directory()
    _until_exit.callback(where.rmdir)
    prefix = Path(os.path.realpath(sys.base_prefix))
    _until_exit.enter_context(mounts.bind(prefix, where))
    mounts.run("mount", "-o", "remount,bind,ro", where)
    return where / executable.relative_to(prefix)


def _anybody_may_run(executable: Path) -> bool:
    command = [str(executable), "-c", ""]
    try:
        return (
            subprocess.run(command, user=65534, group=65534, cwd="/", capture_output=True, check=False).returncode == 0
        )
    except PermissionError:
        return False


@cache
def _public_packages() -> Path:
    path = _until_exit.enter_context(public_directory())
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations
        shutil.copytree(spec.submodule_search_locations[0], path / name)
    for folder, _, files in os.walk(path):
        os.chmod(folder, 0o755)
        for file in files:
            os.chmod(os.path.join(folder, file), 0o644)
    return path
