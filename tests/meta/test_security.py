"""The tests that SECURITY.md names are there."""

from __future__ import annotations

import re

from tests.support.procs import CHECKOUT

_NAMED = re.compile(r"`(?:(?P<file>[a-z]+/test_\w+\.py)(?:::)?)?(?P<test>test_\w+)?`")


def test_the_tests_that_show_each_defence_exist() -> None:
    named: dict[str, set[str]] = {}
    file = ""
    for match in _NAMED.finditer((CHECKOUT / "SECURITY.md").read_text(encoding="utf-8")):
        file = match["file"] or file
        if match["test"]:
            named.setdefault(file, set()).add(match["test"])
    assert len(named) >= 8
    for file, tests in named.items():
        defined = set(
            re.findall(r"^def (test_\w+)", (CHECKOUT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE)
        )
        assert tests <= defined, f"{file}: {sorted(tests - defined)}"
