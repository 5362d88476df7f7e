"""Hooks of mkdocs: the generated reference, links out of docs/, tables, equations.

mkdocs calls `on_files`, `on_page_markdown` and `on_page_content` (mkdocs.yml names this file).
"""

import csv
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
TABLE = re.compile(r'\[[^]]+\]\((\S+\.csv) "table"\)')
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

    def drawn(match: re.Match[str]) -> str:
        with (ROOT / "docs" / folder / match[1]).open(encoding="utf-8", newline="") as file:
            head, *rows = csv.reader(file)
        header = "".join(f"<th>{html.escape(name)}</th>" for name in head)
        lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
        body = "".join(f"<tr>{cells}</tr>" for cells in (header, *lines))
        name = html.escape(posixpath.basename(match[1]))
        return (
            f'<details class="table"><summary><a href="{name}">{name}</a>: {len(rows)} rows'
            f"</summary><table>{body}</table></details>"
        )

    return TABLE.sub(drawn, LINK.sub(words, markdown))


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Convert equations to MathML, which browsers show without a script."""
    return EQUATION.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match[2] == "div" else "inline"
    return match[1] + convert(html.unescape(match[3]), display=display) + match[4]
