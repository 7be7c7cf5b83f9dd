"""The browser that shows pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.browser import page

pytestmark = pytest.mark.needs("chromium")

_PAGE = """<title>Hello</title>
<style>@media (prefers-color-scheme: dark) { body { color: rgb(1, 2, 3) } }</style>
<script>function fail() { setTimeout(() => nobody(), 0) }</script>
"""


def test_a_page_is_shown_in_the_size_and_scheme_that_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(_PAGE, encoding="utf-8")
    with page(tmp_path, file.as_uri()) as shown:
        assert shown.wait_for("document.title") == "Hello"
        for width, dark in ((400, True), (1000, False)):
            shown.resize(width, 300, dark=dark)
            assert shown.evaluate("innerWidth") == width
            assert (shown.evaluate("getComputedStyle(document.body).color") == "rgb(1, 2, 3)") is dark
        shown.screenshot(tmp_path / "shot.png")
        assert (tmp_path / "shot.png").read_bytes().startswith(b"\x89PNG")
        assert shown.problems == []
        with pytest.raises(AssertionError, match="nobody"):
            shown.evaluate("nobody()")
        shown.evaluate("fail()")
        shown.evaluate("new Promise(done => setTimeout(done, 10))")
        assert "nobody" in shown.problems[0]
