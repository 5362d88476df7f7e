"""Hooks of mkdocs: the generated reference, links out of docs/, equations.

mkdocs calls `on_files`, `on_page_markdown` and `on_page_content` (mkdocs.yml names this file).
"""

import html
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]  # docs/ is not installed

from docs import generated  # noqa: E402

LINK = re.compile(r"(?<!!)\[([^]]+)\]\(([^)#\s]+)[^)]*\)")
EQUATION = re.compile(r'(<(span|div) class="arithmatex">)\\[(\[](.*?)\\[)\]](</\2>)', re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the page generated from the command line."""
    files.append(File.generated(config, "reference/commands.md", content=generated.commands()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replace links to files outside docs/, which the site lacks, by their texts."""
    folder = posixpath.dirname(page.file.src_uri)

    def words(match: re.Match[str]) -> str:
        outside = posixpath.normpath(posixpath.join(folder, match[2])).startswith("..")
        return match[1] if outside else match[0]

    return LINK.sub(words, markdown)


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Convert equations to MathML, which browsers show without a script."""
    return EQUATION.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match[2] == "div" else "inline"
    return match[1] + convert(html.unescape(match[3]), display=display) + match[4]
