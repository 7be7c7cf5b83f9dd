"""What README.md and docs/ show works, and names what there is.

The Python blocks of a page run one after another, as one program in an empty directory. A block after the line
`<!-- norun -->` need only compile; one after `<!-- needs docs -->` runs where the extra `docs` is installed, when
`.ci/run` builds the site.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import txfiles
from tests.support.documents import blocks, pages, program
from tests.support.procs import CHECKOUT, run_python
from txfiles.cli import main

PAGES = pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(CHECKOUT)))
SHORT = {"PYTHONWARNINGS": "error,ignore::EncodingWarning:__main__"}  # programs of a page leave out what is not shown
OTHERS = [*sorted(CHECKOUT.glob("[!R]*.md")), CHECKOUT / "tests/README.md"]


@PAGES
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(program(page.read_text(encoding="utf-8")), encoding="utf-8")
    (tmp_path / "cwd").mkdir()
    code = "exec(compile(open(sys.argv[1], encoding='utf-8').read(), sys.argv[2], 'exec'), {'__name__': '__main__'})"
    done = run_python(code, script, page, cwd=tmp_path / "cwd", env=SHORT)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@PAGES
def test_python_blocks_compile(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python":
            compile("\n" * (block.line - 1) + block.code, str(page), "exec")


@PAGES
def test_what_python_blocks_import_is_public(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python":
            for name in _used(ast.parse(block.code)):
                public = name in txfiles.__all__ or importlib.util.find_spec(f"txfiles.{name}") is not None
                assert public, f"{page.name}:{block.line}: txfiles.{name}"


def _used(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "txfiles":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "txfiles":
            found.add(node.attr)
    return found


@pytest.mark.parametrize("page", [*pages(), *OTHERS], ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", text):
        other = page.parent / target if target else page
        assert anchor in _anchors(other.read_text(encoding="utf-8")), f"{page.name}: {target}#{anchor}"


def test_the_reference_has_every_public_name() -> None:
    text = (CHECKOUT / "docs/api.rst").read_text(encoding="utf-8")
    for name in set(txfiles.__all__) - {"__version__"}:
        directive = (
            "automodule:: txfiles." if inspect.ismodule(getattr(txfiles, name)) else "(auto(class|function)|py:data):: "
        )
        assert re.search(rf"^.. {directive}{name}(\(\))?$", text, re.MULTILINE), name
    for path in (CHECKOUT / "txfiles/integrations").glob("[!_]*.py"):
        assert f"\n.. automodule:: txfiles.integrations.{path.stem}\n" in text
    assert "\n.. automodule:: txfiles.testing\n" in text


def test_the_page_of_the_command_line_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    page = (CHECKOUT / "docs/command-line.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    ([a-z]+) ", _help(capsys), re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        assert f"`{command}`" in page
        for option in set(re.findall(r"--[a-z][a-z-]+", _help(capsys, command))) - {"--help"}:
            assert option in page, option


def _help(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    return capsys.readouterr().out


@pytest.mark.needs("sh")
def test_the_page_of_the_command_line_runs(tmp_path: Path) -> None:
    page = (CHECKOUT / "docs/command-line.md").read_text(encoding="utf-8")
    (tmp_path / "txfiles").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m txfiles "$@"\n', encoding="utf-8")
    (tmp_path / "txfiles").chmod(0o755)
    script = "\n".join(block.code for block in blocks(page) if block.language == "sh")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        ["sh", "-euxc", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("mark", ["test-line", "demo-line"])
def test_the_marked_lines_of_the_readme_are_one_line_each(mark: str) -> None:
    (block,) = [block for block in blocks((CHECKOUT / "README.md").read_text(encoding="utf-8")) if block.mark == mark]
    assert "\n" not in block.code
    assert block.code.startswith("python3 -m venv ")


def test_blocks_are_found_with_their_lines_and_marks() -> None:
    text = (
        "x\n```python\na = 1\n```\n\n<!-- norun -->\n```python\nb\n```\n"
        "- list\n  ```python\n  if a:\n      c = a\n  ```\n"
    )
    assert [(b.mark, b.line, b.code) for b in blocks(text)] == [
        ("", 3, "a = 1"),
        ("norun", 8, "b"),
        ("", 12, "if a:\n    c = a"),
    ]
    assert program(text).split("\n") == ["", "", "a = 1", *[""] * 8, "if a:", "    c = a"]
