"""A page in headless Chromium, driven over its DevTools protocol.

with page(tmp_path, "http://127.0.0.1:8000") as shown:
    shown.wait_for("document.title == 'Board'")
    shown.resize(400, 800, dark=True)
    shown.screenshot(tmp_path / "narrow.png")
"""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.needs import program

_QUIET = ("gpu", "quic", "background-networking", "component-update", "sync")
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    "--hide-scrollbars",
    *(f"--disable-{what}" for what in _QUIET),
]
_PATIENCE = 60.0  # seconds; the machine may be busy


class Page:
    """What is shown; its errors, those of the console too, are in `problems`."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        for domain in ("Runtime", "Page", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            told = json.loads(self._socket.recv(timeout=_PATIENCE))
            if told.get("id") == number:
                assert "error" not in told, f"{method}: {told['error']}"
                result: dict[str, Any] = told["result"]
                return result
            if told["method"] == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(told["params"]["exceptionDetails"]))
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["source"] != "network":
                self.problems.append(told["params"]["entry"]["text"])

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, of a promise when it is fulfilled."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, f"{expression}: {done['exceptionDetails']}"
        return done["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """The value of an expression as soon as it is true."""
        until = time.monotonic() + _PATIENCE
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < until, f"not within {_PATIENCE} s: {expression}"
            time.sleep(0.05)
        return value

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def page(place: Path, url: str) -> Iterator[Page]:
    """A browser with its data below `place`, and one page; it ends with the block."""
    from websockets.sync.client import connect

    data = place / "chromium"
    chromium = program("chromium")
    assert chromium is not None
    argv = [chromium, *_FLAGS, "--remote-debugging-port=0", f"--user-data-dir={data}", "about:blank"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
        try:
            port = _port(data / "DevToolsActivePort", browser)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=_PATIENCE) as answer:
                target = next(each for each in json.load(answer) if each["type"] == "page")
            with connect(target["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
                shown = Page(socket)
                shown.call("Page.navigate", url=url)
                shown.wait_for(f"location.href.startsWith({url!r}) && document.readyState == 'complete'")
                yield shown
        finally:
            browser.terminate()
            browser.wait()


def _port(path: Path, browser: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + _PATIENCE
    while not (path.exists() and path.read_text(encoding="utf-8").count("\n")):
        assert browser.poll() is None, f"chromium ended with {browser.returncode}"
        assert time.monotonic() < until, "chromium opened no port"
        time.sleep(0.05)
    return path.read_text(encoding="utf-8").split("\n")[0]
