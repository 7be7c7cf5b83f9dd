"""The package builds, and has in it what it should."""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import txfiles
from tests.support.procs import CHECKOUT

pytestmark = pytest.mark.needs("module:hatchling")

NAME = f"txfiles-{txfiles.__version__}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the source distribution."""
    where = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", where], cwd=CHECKOUT, check=True, capture_output=True
    )
    return where


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = email.message_from_bytes(archive.read(f"{NAME}.dist-info/METADATA"))
    modules = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "txfiles").rglob("*.py")}
    assert modules | {"txfiles/py.typed"} == {name for name in names if not name.startswith(f"{NAME}.dist-info/")}
    assert f"{NAME}.dist-info/licenses/LICENSE" in names
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_source_distribution_can_be_tested(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "txfiles/py.typed"} <= names
    assert {
        "tests/conftest.py",
        "tests/unit/format/test_paths.py",
        "docs/protocol.md",
        "examples/context_manager.py",
    } <= names
    assert not any("__pycache__" in name or name.startswith((".git/", ".hypothesis")) for name in names)


@pytest.mark.deep
def test_it_installs_in_a_fresh_environment_and_is_typed(built: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    subprocess.run([python, "-m", "pip", "install", "-q", wheel, "mypy"], check=True, cwd=tmp_path)
    (tmp_path / "consumer.py").write_text(
        "from txfiles import FileTransaction\n"
        "with FileTransaction('d', create=True) as tx:\n"
        "    tx.write('a', b'x')\n"
        "    print(tx.read('a'))\n",
        encoding="utf-8",
    )
    ran = subprocess.run(
        [python, "consumer.py"], check=True, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8"
    )
    assert ran.stdout == "b'x'\n"
    with open(tmp_path / "consumer.py", "a", encoding="utf-8") as file:
        file.write("    reveal_type(tx.read('a'))\n")
    done = subprocess.run(
        [python, "-m", "mypy", "--strict", "consumer.py"],
        check=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert 'Revealed type is "bytes"' in done.stdout.replace("builtins.", "")
