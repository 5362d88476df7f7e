"""Run the commands shown on a page: `python docs/console.py docs/tutorial.md`.

Blocks with a title, ```toml title="my.toml", are files. A ```console block is a command after `$ `,
then its output on stdout and stderr. This script rewrites the outputs; tests/docs/test_site.py runs
the same commands and compares.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

FILE = re.compile(r'^```\w+ title="([\w.-]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
PROGRESS = re.compile(r"^paceline: [\w ]+: [\d.]+ of \d+ .*\n", re.MULTILINE)
BLOCK = re.compile(r"^```console\n\$ ([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def outputs(page: str, folder: Path) -> Iterator[str]:
    """Run a page's commands in a folder with its files; yield each output.

    Raises RuntimeError if a command fails.
    """
    for name, text in FILE.findall(page):
        (folder / name).write_text(text, "utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    surroundings = os.environ | {"PATH": path, "COLUMNS": "80"}
    surroundings["DASK_LOGGING__DISTRIBUTED"] = "critical"  # a stopping worker logs
    for command, _ in BLOCK.findall(page):
        ran = subprocess.run(
            command, shell=True, cwd=folder, env=surroundings, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
        )  # fmt: skip
        if ran.returncode:
            raise RuntimeError(f"{command}: exit status {ran.returncode}\n{ran.stdout}")
        shown = PROGRESS.sub("", ran.stdout)  # progress of a slow machine
        yield "".join(line.rstrip() + "\n" for line in shown.splitlines())


def filled(page: str, wrote: list[str]) -> str:
    """Return the page with new outputs of its commands, in order."""
    rest = iter(wrote)
    return BLOCK.sub(lambda block: f"```console\n$ {block[1]}\n{next(rest)}```", page)


def main() -> None:
    """Rewrite the outputs on the pages given on the command line."""
    for page in map(Path, sys.argv[1:]):
        text = page.read_text("utf-8")
        with tempfile.TemporaryDirectory() as folder:
            wrote = list(outputs(text, Path(folder)))
        page.write_text(filled(text, wrote), "utf-8")


if __name__ == "__main__":
    main()
