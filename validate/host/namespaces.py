"""Link processes of one host through a network namespace for each node.

The kernel's own TCP runs over them, and `host.relay` adds latency and bandwidth. Only namespaces
and TUN devices are needed, because veth, tbf and netem are often missing. Namespaces have no names
and devices are not persistent, so all of them vanish with their processes.
"""

import ctypes
import fcntl
import json
import os
import shutil
import socket as sockets
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path as Folder

from .relay import NETWORK, Path

INTERFACE = "paceline"
NODES = 254  # most nodes of a /24 network
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
_SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8922, 0x8943
_IFF_UP = 1
_SYSCTLS = {
    "ipv4/tcp_slow_start_after_idle": "0",  # because steps pause between their transfers
    "ipv4/tcp_ecn": "1",  # the relay marks packets rather than drop them
    "ipv4/tcp_no_metrics_save": "1",  # no connection depends on earlier ones
    "ipv4/tcp_congestion_control": "reno",
    "ipv4/tcp_rmem": "4096 4194304 67108864",  # min, default, max: no window limits a link
    "ipv4/tcp_wmem": "4096 65536 67108864",
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
}


class Links:
    """The links of a run while the context lasts; entered in the launching process.

    `paths` maps ordered pairs (from, to) of ranks below `nodes`; a pair without a path is joined
    without latency or limit. `socket` is the nodes' socket for `join`; `relay` is the process that
    carries packets (its CPU time is a cost of the emulation; no link outlives it). Enter in a
    thread that outlives the run, because the relay ends with the thread (see prctl(2)). Even if
    this process is killed, neither relay nor folder remains.
    """

    program = "paceline.validate.host.relay"

    def __init__(self, paths: Mapping[tuple[int, int], Path], nodes: int) -> None:
        self.paths, self.nodes, self.socket = dict(paths), nodes, ""

    def __enter__(self) -> "Links":
        folder = tempfile.mkdtemp(prefix="paceline-")
        self.socket = os.path.join(folder, "relay")
        # listening before the relay runs: nodes may report at once
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET) as listener:
            listener.bind(self.socket)
            listener.listen(self.nodes)
            numbers = map(str, (listener.fileno(), self.nodes, os.getpid()))
            self.relay = subprocess.Popen(
                [sys.executable, "-P", "-m", self.program, *numbers],
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
                text=True,
            )
        assert self.relay.stdin is not None
        # a relay that has ended already printed the reason, and nodes get a ConnectionError
        with suppress(BrokenPipeError), self.relay.stdin as stdin:
            json.dump([[*pair, *path] for pair, path in self.paths.items()], stdin)
        return self

    def __exit__(self, *_: object) -> None:
        self.relay.terminate()
        self.relay.wait()
        shutil.rmtree(os.path.dirname(self.socket), ignore_errors=True)


def join(rank: int, socket: str, timeout: float = 60.0) -> tuple[str, str]:
    """Move this process to a network linked to the other nodes of `Links`.

    Call it in the main thread before other threads start, which would stay in the old network. It
    waits until all nodes have joined, at most `timeout` seconds. Returns this node's address and
    interface (for gloo's GLOO_SOCKET_IFNAME); rank 0 has address 10.77.0.1. Raises OSError if
    namespaces are not possible (see `available`), TimeoutError and ConnectionError.
    """
    address = f"{NETWORK}.{rank + 1}"
    device = _isolate()
    for name, value in _SYSCTLS.items():
        with suppress(OSError):  # not in this kernel, or /proc is read-only: slower to settle
            Folder("/proc/sys/net", name).write_text(value)
    _configure("lo", _SIOCSIFFLAGS, struct.pack("h", _IFF_UP))
    _configure(INTERFACE, _SIOCSIFADDR, _address(address))
    _configure(INTERFACE, _SIOCSIFNETMASK, _address("255.255.255.0"))
    with suppress(PermissionError):  # in a user namespace: a large burst can lose packets
        _configure(INTERFACE, _SIOCSIFTXQLEN, struct.pack("i", 10000))
    _configure(INTERFACE, _SIOCSIFFLAGS, struct.pack("h", _IFF_UP))
    relay = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
    with relay:
        relay.settimeout(timeout)
        relay.connect(socket)
        sockets.send_fds(relay, [struct.pack("i", rank)], [device])
        os.close(device)
        try:
            answer = relay.recv(4)
        except TimeoutError:
            sentence = f"not all nodes joined within {timeout:g} s; see their logs"
            raise TimeoutError(sentence) from None
        if not answer:
            raise ConnectionError(f"the relay refused node {rank} or has ended; see its last lines")
        _configure(INTERFACE, _SIOCSIFMTU, answer)
        relay.detach()  # stays open until this process ends, which tells the relay
    return address, INTERFACE


@cache
def available() -> str:
    """Return "" if nodes can join on this machine, else the reason and a remedy."""
    if sys.platform != "linux":
        return "network namespaces need Linux; leave the links to the real network"
    command = [sys.executable, "-P", "-m", "paceline.validate.host.namespaces"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return tried.stderr.strip()


def _isolate() -> int:
    """Move this process to an empty namespace; return its TUN device's descriptor."""
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:  # in a user namespace every user is allowed to
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        Folder("/proc/self/setgroups").write_text("deny")
        Folder("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Folder("/proc/self/gid_map").write_text(f"{group} {group} 1")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    flags = struct.pack("16sH22x", INTERFACE.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(device, _TUNSETIFF, flags)
    return device


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "unshare")


def _address(address: str) -> bytes:
    return struct.pack("=HH4s8x", sockets.AF_INET, 0, sockets.inet_aton(address))


def _configure(interface: str, request: int, value: bytes) -> None:
    """Set a property of a network interface of this namespace (see netdevice(7))."""
    with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as control:
        fcntl.ioctl(control, request, struct.pack("16s24s", interface.encode(), value))


def _try() -> str:
    """Try to isolate this process; return "", or a sentence on the missing permission."""
    try:
        os.close(_isolate())
    except FileNotFoundError:
        return "no /dev/net/tun; run `modprobe tun`, or give it to the container as a device"
    except PermissionError as error:
        if error.filename == "/dev/net/tun":
            return "no permission for /dev/net/tun; run as root, or make it readable and writable"
        return (
            "no permission for network namespaces; run as root, in a container with the "
            "capabilities SYS_ADMIN and NET_ADMIN, or allow user namespaces"
        )
    except OSError as error:
        return f"no network namespaces ({error}); use a kernel that has them and TUN devices"
    return ""


if __name__ == "__main__":
    raise SystemExit(_try() or None)
