"""`python -m tests.lab.fuzz READER FOLDER SECONDS`: a coverage-guided fuzzer over one reader.

Inputs that raise anything but InputError are kept in FOLDER/crashes; counts go to
FOLDER/counts.json as they grow, so that a fuzzer that had to be killed has them, too.
"""

import contextlib
import hashlib
import io
import json
import resource
import shutil
import sys
import time
from pathlib import Path

import atheris

MEMORY = 4 << 30  # bytes of address space, libraries among them
SLOW = 10  # seconds of one input: a hang
LONGEST = 1 << 16  # bytes of an input

with atheris.instrument_imports(include=["paceline", "tomllib"]):
    from paceline.simulator.errors import InputError
    from paceline.simulator.scenario.scenario import json_schema
    from tests.lab.fuzz.readers import READERS, seeds


def main(name: str, folder: Path, seconds: int) -> None:
    """Fuzz one reader for a time."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    read, work = READERS[name], folder / "work"
    corpus, crashes = folder / "inputs", folder / "crashes"
    for each in (work, corpus, crashes):
        each.mkdir(parents=True, exist_ok=True)
    for data in seeds()[name]:
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    (folder / "words").write_text(words())
    counts = {"tried": 0, "handled": 0, "refused": 0}
    saved = time.monotonic()

    def one(data: bytes) -> None:
        nonlocal saved
        shutil.rmtree(work)
        work.mkdir()
        counts["tried"] += 1
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                read(data, work)
            counts["handled"] += 1
        except InputError:
            counts["handled"] += 1
            counts["refused"] += 1
        except Exception as error:
            kept = f"{name}-{type(error).__name__}-{place(error)}"
            (crashes / kept).write_bytes(data)
        if time.monotonic() - saved > 0.5:
            saved = time.monotonic()
            (folder / "counts.json").write_text(json.dumps(counts))

    atheris.Setup(
        [
            "fuzz", f"-max_total_time={seconds}", f"-timeout={SLOW}", f"-max_len={LONGEST}",
            "-rss_limit_mb=3000", f"-dict={folder / 'words'}", "-print_final_stats=0",
            f"-artifact_prefix={crashes}/{name}-", str(corpus),
        ],
        one,
    )  # fmt: skip
    atheris.Fuzz()


def place(error: BaseException) -> str:
    """The line that raised it, so that each defect is kept once."""
    trace = error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).stem}-{trace.tb_lineno}"


def words() -> str:
    """A dictionary: keys and names of scenarios, and what profilers write."""
    found = {"traceEvents", "ProfilerStep#1", "ncclDevKernel", "cpu_op", "kernel", "dur", "ts"}
    found |= {"nan", "inf", "-1", "1e308", "9999999999", "'''", '"""', "[[", "]]", "\\u0000"}
    found |= {" ms", " Gbit/s", "extends = ", "1e-320", "true", "null", "<zone ", "<link "}

    def walk(node: object) -> None:
        if isinstance(node, dict):
            found.update(node.get("properties", {}))
            found.update(each for each in node.get("enum", ()) if isinstance(each, str))
            if isinstance(node.get("const"), str):
                found.add(node["const"])
        for each in node.values() if isinstance(node, dict) else node:
            if isinstance(each, dict | list):
                walk(each)

    walk(json_schema())
    said = (json.dumps(word) for word in sorted(found) if word.isascii() and "$" not in word)
    return "".join(f"{each}\n" for each in said if "\\u" not in each)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
