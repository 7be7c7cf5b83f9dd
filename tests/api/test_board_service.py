"""`examples/board_service.py`: several workers, a page that shows what all of them save, workers that are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.browser import Page, page
from tests.support.procs import CHECKOUT
from txfiles import Documents, FileTransaction, status
from txfiles.documents import Document

PROGRAM = CHECKOUT / "examples/board_service.py"


@contextmanager
def served(place: Path, *options: str, patience: float = 60, ends_with: int = 0) -> Iterator[str]:
    """The service over the board in `place`; its address."""
    settings = {"BOARD_DURABILITY": "process", "BOARD_PATIENCE": str(patience)}
    settings |= {"PYTHONWARNINGS": "error", "PYTHONWARNDEFAULTENCODING": ""}  # which its server does not keep to
    env = {**os.environ, **settings, "PYTHONPATH": str(CHECKOUT)}
    argv = [sys.executable, str(PROGRAM), str(place), "--port", "0", *options]
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stderr is not None
        told = ""
        try:
            while not (found := re.search(r"running on (\S+)", told)):
                line = process.stderr.readline()
                assert line, told
                told += line
            with ThreadPoolExecutor(1) as pool:
                pool.submit(process.stderr.read)
                try:
                    _wait_for(found[1])
                    yield found[1]
                finally:
                    process.send_signal(signal.SIGINT)
                    process.wait()
        finally:
            if process.poll() is None:
                process.kill()
    assert process.returncode == ends_with


def _wait_for(url: str) -> None:
    """Until a worker answers: the address is there before the first of them."""
    until = time.monotonic() + 60
    while True:
        with suppress(httpx.ConnectError):
            assert ask("GET", f"{url}/board").status_code == 200
            return
        assert time.monotonic() < until, "no worker answers"
        time.sleep(0.05)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path) as found:
        yield found


def ask(method: str, url: str, **more: Any) -> httpx.Response:
    """One request on a connection of its own: each may be served by another worker."""
    return httpx.request(method, url, timeout=60, **more)


def killed(url: str) -> None:
    """Kill the worker that gets the request."""
    with pytest.raises(httpx.RemoteProtocolError):
        ask("POST", f"{url}/trouble/kill")


def board(url: str) -> dict[str, Any]:
    found: dict[str, Any] = ask("GET", f"{url}/board").json()
    return found


def test_cards_are_made_moved_and_removed(tmp_path: Path, url: str) -> None:
    key = ask("POST", f"{url}/cards", json={"title": "Sweep"}).raise_for_status().json()["key"]
    ask("POST", f"{url}/cards/{key}/move", json={"to": "doing"}).raise_for_status()
    found = board(url)
    assert [(card["title"], card["column"]) for card in found["cards"]] == [("Sweep", "doing")]
    assert found["tally"] == {"todo": 0, "doing": 1, "done": 0, "commits": 2}
    assert found["agrees"]
    card = json.loads((tmp_path / f"board/cards/{key}.json").read_text(encoding="utf-8"))
    assert (card["title"], card["column"]) == ("Sweep", "doing")
    ask("DELETE", f"{url}/cards/{key}").raise_for_status()
    assert board(url)["cards"] == []
    for wrong in ("nobody", "..%2f..%2fetc", key):
        assert ask("DELETE", f"{url}/cards/{wrong}").status_code in (404, 405)
    assert ask("POST", f"{url}/cards", json={"title": ""}).status_code == 422
    assert board(url)["tally"] == {"todo": 0, "doing": 0, "done": 0, "commits": 3}


def test_a_busy_board_is_503_and_nothing_is_changed(tmp_path: Path) -> None:
    with served(tmp_path, patience=0.2) as url:
        ask("POST", f"{url}/trouble/hold?seconds=0").raise_for_status()
        with FileTransaction(tmp_path / "board"):
            for request in (("POST", f"{url}/cards"), ("POST", f"{url}/trouble/hold?seconds=0")):
                refused = ask(*request, json={"title": "x"})
                assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert board(url)["tally"]["todo"] == 0  # to look needs no turn
        while ask("POST", f"{url}/cards", json={"title": "x"}).status_code == 503:
            continue
        assert board(url)["tally"]["todo"] == 1


def test_events_tell_what_every_worker_saves(url: str) -> None:
    with (
        httpx.Client(timeout=60) as client,
        client.stream("GET", f"{url}/events") as events,
        ThreadPoolExecutor(1) as pool,
    ):
        assert events.headers["content-type"].startswith("text/event-stream")
        lines = events.iter_lines()
        seen = [next(_boards(lines))]
        adding = pool.submit(lambda: [ask("POST", f"{url}/cards", json={"title": str(n)}) for n in range(10)])
        while len(seen[-1]["cards"]) < 10:
            seen.append(next(_boards(lines)))
        adding.result()
    assert [shown["agrees"] for shown in seen] == [True] * len(seen)
    assert len({shown["version"] for shown in seen}) > 1


def _boards(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_killed_workers_leave_a_whole_board_and_others_take_over(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        for number in range(12):
            ask("POST", f"{url}/cards", json={"title": f"Card {number}"}).raise_for_status()
        for _ in range(6):
            killed(url)
            found = board(url)
            assert found["agrees"]
            assert sorted(card["title"] for card in found["cards"]) == sorted(f"Card {n}" for n in range(12))
        log = (tmp_path / "service.log").read_text(encoding="utf-8")
        assert log.count("is going to be killed") == 6
        assert ask("POST", f"{url}/cards", json={"title": "Card 12"}).status_code == 201
    place = tmp_path / "board"
    loaded = Documents(place, {"tally": {}, "cards": Document(file="cards/*.json")}).load()
    assert len(loaded["cards"]) == sum(loaded["tally"][column] for column in ("todo", "doing", "done")) == 13
    assert status(place).clean


def test_a_start_recovers_what_the_last_run_left(tmp_path: Path) -> None:
    for run in range(6):
        with served(tmp_path, "--workers", "1", ends_with=-signal.SIGKILL) as url:  # without anybody to start it again
            assert board(url)["agrees"]
            assert run == 0 or status(tmp_path / "board").clean
            for number in range(2):
                ask("POST", f"{url}/cards", json={"title": f"Card {run}.{number}"}).raise_for_status()
            killed(url)
    log = (tmp_path / "service.log").read_text(encoding="utf-8")
    assert log.count("started, ") == 6
    told = r"started, (?:nothing to recover|finished \d+ commits, undid \d+, cleared \d+ files)"
    assert len(re.findall(told, log)) == 6
    loaded = Documents(tmp_path / "board", {"cards": Document(file="cards/*.json")}).load()
    assert len(loaded["cards"]) == 12


@pytest.mark.needs("chromium")
def test_the_page_shows_it_all(tmp_path: Path) -> None:
    with served(tmp_path, patience=3) as url, page(tmp_path, url) as shown:
        for width, dark in ((1200, False), (1200, True), (400, False), (400, True)):
            shown.resize(width, 900, dark=dark)
            shown.wait_for("document.getElementById('live').dataset.on == 'yes'")
            _work(shown, f"A card at {width} {'dark' if dark else 'light'}")
            assert shown.evaluate("document.documentElement.scrollWidth") == width
            assert shown.evaluate(_SMALLEST_CONTRAST) >= 4.5
            if where := os.environ.get("BOARD_SHOTS"):
                shown.screenshot(Path(where) / f"board-{width}-{'dark' if dark else 'light'}.png")
        ask("POST", f"{url}/cards", json={"title": "By somebody else"}).raise_for_status()
        shown.wait_for("document.getElementById('todo').innerText.includes('By somebody else')")
        _trouble(shown, tmp_path / "board")
        assert shown.problems == []


def _work(shown: Page, title: str) -> None:
    """Add a card and move it to the end with the page's own buttons."""
    shown.evaluate(
        f"(document.getElementById('title').value = {title!r}, document.querySelector('form .first').click())"
    )
    for column in ("todo", "doing"):
        card = f"[...document.querySelectorAll('#{column} li')].find(li => li.innerText.includes({title!r}))"
        shown.wait_for(f"!!{card}")
        shown.evaluate(f"{card}.querySelector('[aria-label^=\"Move on\"]').click()")
    shown.wait_for(f"document.getElementById('done').innerText.includes({title!r})")
    shown.wait_for("document.getElementById('told').innerText == 'Saved.'")
    assert shown.evaluate("document.getElementById('agrees').innerText") == "cards and tally agree"


def _trouble(shown: Page, root: Path) -> None:
    cards = shown.evaluate("document.querySelectorAll('li').length")
    shown.evaluate("document.getElementById('kill').click()")
    shown.wait_for("document.getElementById('told').innerText.includes('is dead')")
    shown.wait_for("document.getElementById('live').dataset.on == 'yes'")
    shown.wait_for("document.getElementById('log').innerText.includes('is going to be killed')")
    shown.wait_for("document.getElementById('agrees').innerText == 'cards and tally agree'")
    assert shown.evaluate("document.querySelectorAll('li').length") == cards
    with FileTransaction(root):
        shown.evaluate(
            "(document.getElementById('title').value = 'Too many', document.querySelector('.first').click())"
        )
        shown.wait_for("document.getElementById('told').innerText.includes('503')")
    assert shown.evaluate("document.getElementById('title').value") == "Too many"
    shown.evaluate("document.getElementById('hold').click()")
    shown.wait_for("document.getElementById('log').innerText.includes('keeps the board busy')")


# The smallest contrast of a text with what is behind it, as WCAG counts it.
_SMALLEST_CONTRAST = """
(() => {
  const light = color => {
    const [r, g, b] = color.match(/[\\d.]+/g).map(Number);
    const part = [r, g, b].map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (color != "rgba(0, 0, 0, 0)") return color;
    }
    return "rgb(255, 255, 255)";
  };
  const texts = [...document.querySelectorAll("body *")].filter(
    node => [...node.childNodes].some(child => child.nodeType == 3 && child.data.trim()) && node.checkVisibility());
  return Math.min(...texts.filter(node => !["SCRIPT", "STYLE"].includes(node.tagName)).map(node => {
    const [a, b] = [getComputedStyle(node).color, behind(node)].map(light).sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  }));
})()
"""
