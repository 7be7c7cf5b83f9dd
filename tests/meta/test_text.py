"""The text of the project speaks of the project alone, and is finished."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from shutil import which

import pytest

from tests.support.procs import CHECKOUT

_FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.])/(?:work|root|Users)/\w",
    "the address of a package registry": r"https?://[\w.-]*(?:pypi|pythonhosted|npmjs|debian)\b",
    "something unfinished": r"\b(?:TODO|FIXME)\b",
    "a conflict marker": r"^(?:<{7}|>{7}) ",
    "a trailing blank": r"[ \t]$",
    "a tab": r"\t",
}
_SUFFIXES = {"", ".css", ".md", ".py", ".sh", ".svg", ".toml", ".txt", ".yaml", ".yml"}


def _texts() -> list[Path]:
    """What git tracks or would track; without git, as in an unpacked source distribution, all there is."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = (
        subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=False, encoding="utf-8")
        if which("git")
        else None
    )
    if listed and listed.returncode == 0:
        paths = [CHECKOUT / line for line in listed.stdout.splitlines()]
    else:
        paths = [p for p in CHECKOUT.rglob("*") if not p.relative_to(CHECKOUT).parts[0].startswith(".")]
    assert paths
    return [path for path in paths if path.is_file() and path.suffix in _SUFFIXES and path != Path(__file__)]


@pytest.mark.parametrize("what", list(_FORBIDDEN))
def test_no_text_contains(what: str) -> None:
    pattern = re.compile(_FORBIDDEN[what], re.MULTILINE)
    found = [
        f"{path.relative_to(CHECKOUT)}:{number}: {line.strip()[:80]}"
        for path in _texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
        if pattern.search(line)
    ]
    assert not found, f"{what}: " + "\n".join(found)


def test_the_patterns_find_what_they_are_for() -> None:
    examples = ["cd /root/x", "https://pypi.org/p", "# TODO later", "<" * 7 + " HEAD", "a ", "a\tb"]
    for pattern, example in zip(_FORBIDDEN.values(), examples, strict=True):
        assert re.search(pattern, example)
