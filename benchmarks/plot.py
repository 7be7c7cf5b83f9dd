"""The medians of saves as an SVG picture, drawn from a JSON file that `run --json` wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.rounds import Result, quantile

_LABELS = {
    "floor": "all bytes in one file, one fsync",
    "lmdb": "LMDB",
    "sqlite-wal": "SQLite, WAL, FULL",
    "sqlite-extra": "SQLite, rollback journal, EXTRA",
    "txfiles": "txfiles",
    "journal": 'txfiles, durability="journal"',
    "serial": "the same protocol, sync after sync",
    "atomic": "file by file, by hand",
    "atomicwrites": "file by file, atomicwrites",
    "rename": "temp and rename, no sync",
    "process": 'txfiles, durability="process"',
}
_GROUPS = {
    "survives a power loss, all or nothing": ("lmdb", "sqlite-wal", "sqlite-extra", "journal", "txfiles", "serial"),
    "survives a power loss, each file for itself": ("atomic", "atomicwrites"),
    "survives the death of the process": ("rename", "process"),
}
_ROW, _LEFT, _BAR, _WIDTH = 22, 270, 330, 720


def draw(environment: Mapping[str, str], results: Sequence[Result]) -> str:
    """Every `save` of the results as a panel: bars for medians, a thin line over the middle half of the samples."""
    body: list[str] = []
    top = 14
    for result in results:
        if result.mode == "save":
            top = _panel(body, result, top)
    for line in (("file system", "device"), ("kernel", "machine")):
        top += 16
        body.append(_text(14, top - 8, ", ".join(environment[key] for key in line), "small"))
    height = top + 4
    style = (
        "text{font:13px system-ui,sans-serif;fill:#1f2933}.head{font-weight:600;font-size:14px}"
        ".small{font-size:11px;fill:#52606d}.num{font-size:12px}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}">',
            f"<style>{style}</style>",
            f'<rect width="{_WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
            *body,
            "</svg>\n",
        ]
    )


def _panel(body: list[str], result: Result, top: int) -> int:
    """Draw one case from `top` on, and give where the next begins."""
    top += 14
    body.append(_text(14, top, f"{result.case}: milliseconds, median and quartiles", "head"))
    longest = max(result.median(name) for names in _GROUPS.values() for name in names if name in result.seconds)
    for group, names in _GROUPS.items():
        top += _ROW
        body.append(_text(14, top, group, "small"))
        for name in names:
            if name in result.seconds:
                top += _ROW
                _bar(body, result, name, top, _BAR / longest)
    return top + 2 * _ROW


def _bar(body: list[str], result: Result, name: str, top: int, scale: float) -> None:
    seconds = result.seconds[name]
    low, median, high = (quantile(seconds, part) * scale for part in (0.25, 0.5, 0.75))
    end = min(high, _BAR + 60.0)
    colour = "#1d6fd8" if name in ("txfiles", "journal", "process") else "#9aa5b1"
    body.append(_text(26, top, _LABELS[name]))
    body.append(f'<rect x="{_LEFT}" y="{top - 12}" width="{max(1.0, median):.1f}" height="15" fill="{colour}"/>')
    body.append(f'<path d="M{_LEFT + low:.1f} {top - 4.5}H{_LEFT + end:.1f}" stroke="#323f4b"/>')
    body.append(_text(_LEFT + round(max(median, end)) + 6, top, f"{result.median(name) * 1e3:.3g}", "num"))


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{escape(text)}</text>'
