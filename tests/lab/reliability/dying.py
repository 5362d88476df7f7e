"""Tasks and programs that end their process; few imports, so that processes start fast."""

import os
import signal
import time
from pathlib import Path
from typing import Any


def does(folder: Path, number: int) -> int:
    """Do a task; the third one is killed as often as the folder says."""
    (folder / f"{number}-{time.monotonic_ns()}").touch()
    deaths = int((folder / "deaths").read_text())
    if number == 3 and len([*folder.glob("3-*")]) <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


async def deadly(me: Any, *, lr: float, tau: int = 1) -> None:
    """End its process."""
    await me.gradient(me.start)
    os._exit(7)
