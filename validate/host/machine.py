"""The machine that a run is measured on: what it is, and who uses it meanwhile."""

import os
import platform
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.simulator.studies.executors import cores
from paceline.validate.host import namespaces

BOOT = Path("/proc/sys/kernel/random/boot_id")
STAT = Path("/proc/stat")


def boot_id() -> str:
    """What processes that share a monotonic clock have in common."""
    return BOOT.read_text().strip() if BOOT.is_file() else socket.gethostname()


def machine_cpu_seconds() -> float:
    """CPU seconds that all processes have used since the machine started; 0 if nobody says."""
    if not STAT.is_file():
        return 0.0
    user, nice, system, _, _, irq, soft, steal, *_ = map(int, STAT.read_text().split()[1:11])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def process_cpu_seconds(process: int) -> float:
    """CPU seconds that a process has used; 0 where nobody says."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.is_file():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def hardware(device: str) -> dict[str, Any]:
    """What runs were measured on."""
    import torch  # noqa: PLC0415 - a second

    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.release()}",
        "torch": str(torch.__version__),
    }
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name()
        found["gpus"] = torch.cuda.device_count()
        found["cuda"] = torch.version.cuda
    return found


def describe(found: Mapping[str, Any]) -> str:
    """What `hardware` has found, or as much of it as is known, in a line."""
    parts = [str(found["processor"])] if "processor" in found else []
    if "cores" in found:
        parts.append(f"{found['cores']} cores")
    whole = [", ".join(parts)]
    if "gpu" in found:
        whole.append(f"{found['gpus']} x {found['gpu']}" if "gpus" in found else str(found["gpu"]))
    return "; ".join(filter(None, whole))


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


class ResourceUse:
    """CPU time from now on: this process's, the relay's of the run, and everybody's.

    Of a network namespace of its own also what came and went.
    """

    def __init__(self) -> None:
        self._relay = int(os.environ.get("PACELINE_RELAY", "0"))
        self._since, self._own, self._all = (
            time.monotonic(),
            time.process_time(),
            machine_cpu_seconds(),
        )
        self._of_relay, self._passed = process_cpu_seconds(self._relay), self._interface()

    def own(self) -> float:
        """Seconds of this process."""
        return time.process_time() - self._own

    def machine(self) -> dict[str, Any]:
        """Seconds of all processes of this machine, of how many cores; bytes of this process."""
        received, sent = (
            now - then for now, then in zip(self._interface(), self._passed, strict=True)
        )
        return {
            "host": boot_id(),
            "busy": machine_cpu_seconds() - self._all,
            "relay": process_cpu_seconds(self._relay) - self._of_relay,
            "received_bytes": received,
            "sent_bytes": sent,
            "elapsed": time.monotonic() - self._since,
            "cores": cores(),
        }

    def _interface(self) -> tuple[int, int]:
        """Bytes that came and went, where this process has a network of its own."""
        return namespaces.counters(namespaces.INTERFACE) if self._relay else (0, 0)
