"""Fork server of a real run: imports torch once, then forks a process for each node.

Run as `python -m paceline.validate.launch.fork JOB NODES`. The seconds and the memory of importing
torch are thus spent once. This process has no threads when it forks, so that each child can still
enter a network namespace of its own. The exit status of each is written as a line to a file of the
job's folder.
"""

import faulthandler
import os
import signal
import sys
import traceback
from pathlib import Path

from ..host import namespaces
from ..training import clock
from .hangs import ENDED, STARTED


def main(path: str, nodes: int) -> None:
    """Start a process for each node, and stay until all have ended, or the parent has."""
    clock.die_with_parent()
    clock.use_precise_timers()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    from . import worker  # noqa: PLC0415 - a failure goes to the log

    worker.preload(path)
    ranks = {_fork(path, rank): rank for rank in range(nodes)}
    started = "".join(f"{rank} {process}\n" for process, rank in ranks.items())
    (Path(path).parent / STARTED).write_text(started)
    with (Path(path).parent / ENDED).open("w") as file:
        while ranks:
            process, status = os.wait()
            rank = ranks.pop(process)
            file.write(f"{rank} {os.waitstatus_to_exitcode(status)}\n")
            file.flush()


def _fork(path: str, rank: int) -> int:
    parent = os.getpid()
    if process := os.fork():
        return process
    status = 1
    try:
        clock.die_with_parent()
        clock.name_process(f"rank {rank}")
        if os.getppid() != parent:
            os._exit(1)
        log = os.open(Path(path).parent / f"rank-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        faulthandler.register(signal.SIGUSR1, all_threads=False)  # writes the stack to the log
        os.environ["RANK"] = str(rank)
        if "PACELINE_LINKS" in os.environ:
            _, interface = namespaces.join(rank, os.environ["PACELINE_LINKS"])
            os.environ["GLOO_SOCKET_IFNAME"] = interface
        from . import worker  # noqa: PLC0415

        status = worker.main(path)
    except BaseException:
        traceback.print_exc()
    os._exit(status)  # skips torch's destructors, which can wait for ever


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
