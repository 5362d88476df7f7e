"""Links of the kernel: network namespaces, and a token bucket at each rank's way out.

With latency, `host.namespaces` joins the ranks over its relay. Without, veth devices and a bridge
do, in the kernel alone, for rates that no process in user space carries. Needs iproute2.
"""

import ctypes
import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from paceline.validate.host import namespaces
from paceline.validate.host.relay import NETWORK
from tests.lab.transport.cells import Cell

NET = Path("/proc/sys/net/ipv4")
INTERFACE = namespaces.INTERFACE
PR_SET_TIMERSLACK = 29  # in ns; the kernel's own is 50 us
SENT = ("bytes", "packets", "drops", "again")
"""What `sent` counts."""


def command(*words: object) -> None:
    """Run a command of iproute2. Raises RuntimeError with what it says."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


def isolate() -> None:
    """Move this process to an empty network of its own."""
    user, group = os.getuid(), os.getgid()
    try:
        namespaces._unshare(namespaces._CLONE_NEWNET)
    except PermissionError:
        namespaces._unshare(namespaces._CLONE_NEWUSER | namespaces._CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def bridge() -> None:
    """Make this process's network the one that joins the ranks."""
    command("ip", "link", "add", "hub", "type", "bridge")
    command("ip", "link", "set", "hub", "mtu", 9000, "up")


def plug(rank: int, process: int) -> None:
    """Join a rank, a process in a network of its own, to this network's bridge."""
    words = ("type", "veth", "peer", "name", INTERFACE, "netns", process)
    command("ip", "link", "add", f"rank{rank}", *words)
    command("ip", "link", "set", f"rank{rank}", "mtu", 9000, "master", "hub", "up")


def address(rank: int) -> str:
    """Return the address of a rank."""
    return f"{NETWORK}.{rank + 1}"


def dress(rank: int) -> None:
    """Give a rank that the bridge joins its address, and settings as over the relay."""
    for name, value in namespaces._SYSCTLS.items():
        path = Path("/proc/sys/net", name)
        if path.exists():
            path.write_text(value)
    command("ip", "link", "set", "lo", "up")
    command("ip", "addr", "add", f"{address(rank)}/24", "dev", INTERFACE)
    command("ip", "link", "set", INTERFACE, "txqueuelen", 10000, "up")


def shape(cell: Cell, rank: int) -> None:
    """Set this rank's token bucket, packet size and TCP.

    The congestion control is the route's, as a namespace's own can only be one that all users may
    choose (ip-sysctl: tcp_allowed_congestion_control).
    """
    route = ("dev", INTERFACE, "scope", "link", "src", address(rank), "congctl", cell.congestion)
    command("ip", "route", "replace", f"{NETWORK}.0/24", *route)
    (NET / "tcp_slow_start_after_idle").write_text(str(cell.after_idle))
    command("ip", "link", "set", INTERFACE, "mtu", cell.mtu)
    bucket = ("rate", f"{round(8 * cell.bandwidth)}bit", "burst", cell.burst, "limit", cell.queue)
    command("tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", *bucket)


def sent() -> tuple[int, int, int, int]:
    """Return bytes, packets and drops of this rank's token bucket, and segments sent again."""
    shown = subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", INTERFACE],
        capture_output=True,
        text=True,
        check=True,
    )
    bucket = json.loads(shown.stdout)[0]
    lines = Path("/proc/net/snmp").read_text("ascii").splitlines()
    tcp = [line.split()[1:] for line in lines if line.startswith("Tcp:")]
    again = int(dict(zip(*tcp, strict=True))["RetransSegs"])
    return bucket["bytes"], bucket["packets"], bucket["drops"], again


def real_time(on: bool) -> None:
    """Let other processes of this machine delay this one as little as is permitted, or as usual."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
    policy, priority = (os.SCHED_FIFO, 1) if on else (os.SCHED_OTHER, 0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, policy, os.sched_param(priority))
