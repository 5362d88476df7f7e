"""The machine of a measured run: its hardware, and its use during the run."""

import os
import platform
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

BOOT = Path("/proc/sys/kernel/random/boot_id")
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Cores that this process may use; counted here, so that a job need not load the simulator."""
USED = ("user", "nice", "system", "irq", "softirq", "steal")  # share of the cores' seconds


def boot_id() -> str:
    """Return an id of this boot, equal for processes with the same monotonic clock."""
    return BOOT.read_text().strip() if BOOT.is_file() else socket.gethostname()


def machine_cpu_seconds() -> float:
    """Return CPU seconds of all processes since the machine started."""
    spent = psutil.cpu_times()._asdict()
    return float(sum(spent.get(kind, 0.0) for kind in USED))


def process_cpu_seconds(process: int) -> float:
    """Return CPU seconds that a process has used; 0 if there is none."""
    with suppress(psutil.NoSuchProcess):
        spent = psutil.Process(process).cpu_times()
        return float(spent.user + spent.system)
    return 0.0


def hardware(device: str) -> dict[str, Any]:
    """Return processor, cores, system, torch and GPU of this machine."""
    import torch  # noqa: PLC0415 - a second

    about: dict[str, Any] = {
        "processor": _processor(),
        "cores": CORES,
        "system": f"{platform.system()} {platform.release()}",
        "torch": str(torch.__version__),
    }
    if device.startswith("cuda"):
        from . import device as devices  # noqa: PLC0415 - imports torch

        about |= devices.hardware()
    return about


def describe(about: Mapping[str, Any]) -> str:
    """Describe a result of `hardware`, or a part of it, in a line."""
    parts = [str(about["processor"])] if "processor" in about else []
    if "cores" in about:
        parts.append(f"{about['cores']} cores")
    words = [", ".join(parts)]
    if "gpu" in about:
        words.append(f"{about['gpus']} x {about['gpu']}" if "gpus" in about else str(about["gpu"]))
    names = {"driver": "driver", "nccl": "NCCL"}
    words += [f"{name} {about[key]}" for key, name in names.items() if key in about]
    if "collectives" in about:
        words.append(f"collectives by {about['collectives']}")
    return "; ".join(filter(None, words))


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


class ResourceUse:
    """CPU seconds from now on: of this process, of the relay, and of all processes."""

    def __init__(self) -> None:
        self._relay = int(os.environ.get("PACELINE_RELAY", "0"))
        self._since, self._own = time.monotonic(), time.process_time()
        self._all = machine_cpu_seconds()
        self._of_relay = process_cpu_seconds(self._relay)

    def own(self) -> float:
        """Return CPU seconds of this process."""
        return time.process_time() - self._own

    def machine(self) -> dict[str, Any]:
        """Return CPU seconds of all processes and the relay."""
        return {
            "host": boot_id(),
            "busy": machine_cpu_seconds() - self._all,
            "relay": process_cpu_seconds(self._relay) - self._of_relay,
            "elapsed": time.monotonic() - self._since,
            "cores": CORES,
        }
