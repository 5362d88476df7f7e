"""The processes of a real run: imports once and forks each, as a process of its own:
`python -m paceline.validate.launch.fork JOB NODES`.

Importing torch takes seconds, which are thus paid once, and memory for it, too. It has no threads
yet, so that each process may still go into a network namespace of its own. How each one ends is
written, a line each, to a file of the job's folder.
"""

import faulthandler
import os
import signal
import sys
import traceback
from pathlib import Path

from paceline.validate.host import namespaces
from paceline.validate.launch.hangs import STARTED
from paceline.validate.training import clock

ENDED = "ended"


def main(path: str, nodes: int) -> None:
    """Start a process for each node, and stay until all have ended, or the parent has."""
    clock.die_with_parent()
    clock.use_precise_timers()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started this
    from paceline.validate.launch import worker  # noqa: PLC0415 - where it fails, that is said in the log

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
    """Start one node's process; return its id."""
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
        faulthandler.register(signal.SIGUSR1, all_threads=False)  # says where it stands
        os.environ["RANK"] = str(rank)
        if "PACELINE_LINKS" in os.environ:
            _, interface = namespaces.join(rank, os.environ["PACELINE_LINKS"])
            os.environ["GLOO_SOCKET_IFNAME"] = interface
        from paceline.validate.launch import worker  # noqa: PLC0415

        status = worker.main(path)
    except BaseException:
        traceback.print_exc()
    os._exit(status)  # not through torch's destructors, which wait for what may never come


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
