"""The project's own Markdown: its Python blocks and the marked command lines."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.procs import CHECKOUT

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*)")


@dataclass(frozen=True)
class Block:
    """A fenced block: the line of its first line of code, and in `mark` the HTML comment on the line before it."""

    language: str
    mark: str
    line: int
    code: str


def pages() -> list[Path]:
    """README.md and everything in docs/."""
    return [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]


def blocks(text: str) -> list[Block]:
    found = []
    lines = text.split("\n")
    position = 0
    while position < len(lines):
        fence = _FENCE.match(lines[position])
        position += 1
        if fence is None:
            continue
        start, before = position, lines[position - 2].strip() if position > 1 else ""
        while lines[position].strip() != "```":
            position += 1
        code = "\n".join(line.removeprefix(fence["indent"]) for line in lines[start:position])
        mark = before.removeprefix("<!--").removesuffix("-->").strip() if before.startswith("<!--") else ""
        found.append(Block(fence["language"], mark, start + 1, code))
        position += 1
    return found


def program(text: str, *, without: frozenset[str] = frozenset({"norun", "needs docs"})) -> str:
    """The Python blocks of a page as one program, on the lines where they are in the page; not those so marked."""
    lines: list[str] = []
    for block in blocks(text):
        if block.language == "python" and block.mark not in without:
            lines += [""] * (block.line - 1 - len(lines))
            lines += block.code.split("\n")
    return "\n".join(lines)


if __name__ == "__main__":  # a page with all its blocks, where the extra `docs` is installed
    page = Path(sys.argv[1])
    exec(
        compile(program(page.read_text(encoding="utf-8"), without=frozenset({"norun"})), page, "exec"),
        {"__name__": "__main__"},
    )
