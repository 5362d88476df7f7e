"""The first lines of a process of a real run: `python -m validate.rank JOB`.

Nothing heavy is imported before them: a process with threads may not change its namespace.
"""

import os
import signal
import sys
import traceback

from validate import namespaces, pace


def main() -> None:
    """Do a job's part of the rank that the environment (RANK) says, and exit at once."""
    pace.die_with_parent()
    pace.be_exact()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started it
    if "PACELINE_LINKS" in os.environ:
        _, interface = namespaces.join(int(os.environ["RANK"]), os.environ["PACELINE_LINKS"])
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    status = 1
    try:
        from validate import worker  # noqa: PLC0415 - torch, which has threads

        status = worker.main(sys.argv[1])
    except BaseException:
        traceback.print_exc()
    os._exit(status)  # not through torch's destructors, which wait for what may never come


if __name__ == "__main__":
    main()
