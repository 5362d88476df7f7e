"""Simulated run directories that count as real ones, where tests need both in a second."""

import json
import shutil
from pathlib import Path


def given_as_real(folder: Path, out: Path | None = None) -> Path:
    """Let a run directory, or its copy in `out`, say that its runs are real; return it."""
    if out is not None:
        folder = Path(shutil.copytree(folder, out))
    document = json.loads((folder / "run.json").read_text())
    for row in (document["summary"], *document["summary"]["algorithms"]):
        row["engine"] = "real"
    document["settings"] = {"command": "validate"}
    (folder / "run.json").write_text(json.dumps(document))
    return folder
