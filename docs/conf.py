"""The site: `sphinx-build -W docs build/site`. Its navigation is the list of links in index.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

import txfiles  # noqa: E402

project = "txfiles"
author = "the txfiles contributors"
version = release = txfiles.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

myst_heading_anchors = 3  # of #fragments, as code hosts make them
autoclass_content = "both"  # the arguments are told by the constructors
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # of fsspec and others
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 88

copybutton_prompt_text = r">>> |\.\.\. "  # is not copied, nor is the output of what begins with it
copybutton_prompt_is_regexp = True

pygments_dark_style = "github-dark"  # the default underlines modules as if they were links
html_theme = "furo"
html_title = f"txfiles {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False

# Pages of the repository that the site has, too.
_ELSEWHERE = {"../README.md": "index.md", "../SECURITY.md": "security.md", "../CHANGELOG.md": "changelog.md"}


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    for there, here in _ELSEWHERE.items():
        source[0] = source[0].replace(f"]({there}", f"]({here}")
    if page == "index":
        source[0] += _navigation(source[0])


def _navigation(index: str) -> str:
    """A hidden toctree for every section of the index."""
    out = ""
    for section in index.split("\n## ")[1:]:
        caption, _, body = section.partition("\n")
        pages = re.findall(r"\]\(([\w-]+)\.(?:md|rst)\)", body)
        if pages:
            out += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
    return out


def _docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """`code` in a docstring is code, and a link if it is a name of this package."""
    lines[:] = [re.sub(r"(?<!`)`([^`]+)`(?!`)", _code, line) for line in lines]


def _code(found: re.Match[str]) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*", found[1]):
        return f"``{found[1]}``"
    anywhere = "." if found[1][0].isupper() else ""  # a class, in whatever module
    return f":py:obj:`{anywhere}{found[1]}`"


def setup(app: Sphinx) -> None:
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _docstring)
