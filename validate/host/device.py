"""Use devices: their streams, events, pinned memory and native collectives.

A CPU has done its work when a call returns. A GPU processes queues, its streams, while the host
goes on; work of two streams has no order unless an event sets one. There are three kinds of
streams. The default one is for a program's arithmetic on all threads, and `branch` for a parallel
backward pass. A third one is for copies to the host, which thus delay neither.

A host waits for *blocking* events, at which its thread sleeps (cudaEventBlockingSync); a plain read
of a tensor spins on a core, and the run no longer counts as evidence. So every read comes after
such a wait. Numbers are true float32: TF32 is off, because predictions do not model its rounding.
"""

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.simulator.errors import InputError

DEVICES = ("auto", "cpu", "cuda")  # values of --device
DRIVER = Path("/proc/driver/nvidia/version")
NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""Environment in which NCCL's watchdog ends no process that waits for a dead or slow peer: that
would hide the cause, which the launcher reports (PyTorch's documentation, "ProcessGroupNCCL
Environment Variables"). `transport.Native` enforces the time limit."""


class Device:
    """A device whose work is done when a call returns, such as a CPU."""

    def __init__(self, where: torch.device) -> None:
        self.where = where

    def use(self) -> None:
        """Make this the process's device."""

    def mark(self) -> Any:
        """Return an event that occurs once this thread's issued work is done."""
        return None

    def then(self, call: Callable[[], object]) -> Future[Any] | None:
        """Call a function once the issued work is done, on this or another thread."""
        call()
        return None

    def branch(self, begin: Any) -> AbstractContextManager[None]:
        """Return a context for work parallel to the program's, after the event `begin`."""
        return nullcontext()

    def adopt(self, tensor: Tensor) -> Tensor:
        """Return a branch's finished tensor for use in this thread's stream."""
        return tensor

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Begin to copy a tensor to the host; the function returned waits for the copy."""
        return tensor.detach

    def land(self, works: Sequence[Any]) -> None:
        """Wait until collectives of a native group have ended. Raises RuntimeError."""
        for work in works:
            work.wait()

    def identity(self) -> str:
        """Return the device's identity on its machine, the same in every process."""
        return ""

    def group(self, store: Any, rank: int, size: int, timeout: float) -> Any:
        """Return a native process group, whose collectives work on the device's memory."""
        raise NotImplementedError

    native = False
    """Whether a native library of collectives exists."""


class Accelerator(Device):
    """A GPU, or another device whose torch module is like torch.cuda."""

    def __init__(self, where: torch.device) -> None:
        super().__init__(where)
        self._api = _module(where)
        self._copies, self._branch = self._api.Stream(where), self._api.Stream(where)
        self._landing = threading.local()
        self._completion = ThreadPoolExecutor(1, thread_name_prefix="completion")
        self.native = dist.is_nccl_available()

    def use(self) -> None:
        """Make this the process's device, with float32 and repeatable kernels."""
        self._api.set_device(self.where)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

    def mark(self) -> Any:
        """Record a blocking event."""
        return self._api.current_stream(self.where).record_event(self._api.Event(blocking=True))

    def _pass(self, event: Any) -> None:
        """Sleep until an event has occurred."""
        self._api.set_device(self.where)  # a new thread would begin a context on GPU 0
        event.synchronize()

    def then(self, call: Callable[[], object]) -> Future[Any]:
        """Call a function on another thread, so that this one can go on."""
        event = self.mark()

        def wait() -> None:
            self._pass(event)
            call()

        return self._completion.submit(wait)

    @contextmanager
    def branch(self, begin: Any) -> Iterator[None]:
        """Return a context on another stream, for which collectives do not wait."""
        with self._api.stream(self._branch):
            self._branch.wait_event(begin)
            yield

    def adopt(self, tensor: Tensor) -> Tensor:
        """Reserve a branch's tensor until this stream has used it."""
        tensor.record_stream(self._api.current_stream(self.where))
        return tensor

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Begin to copy a tensor to pinned memory on a separate stream."""
        host = self._pinned(tensor)
        self._copies.wait_event(self.mark())
        with self._api.stream(self._copies):
            host.copy_(tensor.detach(), non_blocking=True)
            arrived = self.mark()
        tensor.record_stream(self._copies)

        def wait() -> Tensor:
            self._pass(arrived)
            return host

        return wait

    def _pinned(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def land(self, works: Sequence[Any]) -> None:
        """Wait on the host, because wait() of a native group blocks only a stream."""
        if not hasattr(self._landing, "stream"):
            self._landing.stream = self._api.Stream(self.where)
        with self._api.stream(self._landing.stream):
            super().land(works)
            self._pass(self.mark())  # sleeps until all work issued by this thread is done

    def identity(self) -> str:
        """Return the GPU's place on the PCI bus, as NCCL reads it, or its UUID.

        Parts of a GPU (MIG) have different UUIDs, but NCCL refuses two ranks at one place.
        """
        about = self._api.get_device_properties(self.where)
        place = [str(getattr(about, f"pci_{of}_id", "")) for of in ("domain", "bus", "device")]
        identity = "-".join(place) if all(place) else str(getattr(about, "uuid", ""))
        return identity or f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')} {self.where}"

    def group(self, store: Any, rank: int, size: int, timeout: float) -> Any:
        """Return an NCCL group of processes that have a GPU each."""
        os.environ.update({key: os.environ.get(key, value) for key, value in NCCL.items()})
        kind: Any = dist.ProcessGroupNCCL
        options = kind.Options()
        options._timeout = timedelta(seconds=timeout)
        return kind(store, rank, size, options)


def _module(where: torch.device | str) -> Any:
    """Return the module of torch for a type of device: torch.cuda."""
    return getattr(torch, torch.device(where).type)


@cache
def of(where: torch.device) -> Device:
    """Return the one `Device` of this process for a torch device."""
    return (Device if where.type == "cpu" else Accelerator)(where)


def fetch(tensor: Tensor) -> Callable[[], Tensor]:
    """Begin to copy a tensor to the host; the function returned waits for the copy."""
    return of(tensor.device).fetch(tensor)


def host(tensor: Tensor) -> Tensor:
    """Return a tensor on the host, once it is computed."""
    return fetch(tensor)()


def put(tensor: Tensor, where: torch.device) -> Tensor:
    """Copy a host's tensor to a device; pageable memory is read before the return."""
    return tensor.to(where, non_blocking=True)


def place(local: int, device: str) -> Device:
    """Return the device of process number `local` of this machine.

    Workers come first, so a server shares a worker's GPU only if there is no free one.
    """
    if device == "cpu":
        return of(torch.device("cpu"))
    return of(torch.device(device, local % _module(device).device_count()))


def generators(where: torch.device) -> tuple[torch.Generator, ...]:
    """Return the generators of random numbers of a device, by index."""
    return tuple(_module(where).default_generators)


def device_types() -> tuple[str, ...]:
    """Return the types of device that torch can use here, the preferred one last."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def hardware() -> dict[str, Any]:
    """Return the GPUs, their driver and libraries."""
    about: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
    }
    if dist.is_nccl_available():
        api: Any = torch.cuda.nccl
        about["nccl"] = ".".join(map(str, api.version()))
    with suppress(OSError, IndexError):
        # "... x86_64 Kernel Module  VERSION", or "... Open Kernel Module for x86_64  VERSION"
        about["driver"] = re.findall(r"\b\d+(?:\.\d+)+", DRIVER.read_text())[0]
    return about


def _ask(query: str) -> list[list[str]]:
    """Return nvidia-smi's rows for a query, one per GPU or process; none if it fails."""
    ask = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[part.strip() for part in line.split(",")] for line in answer.splitlines()]


def used_by_others() -> float | None:
    """Return the busiest GPU's utilisation in the last second (0 to 1), or None.

    Before this program uses a GPU, the utilisation is due to other programs.
    """
    shares = [float(used) for (used,) in _ask("gpu=utilization.gpu") if used.isdecimal()]
    return max(shares) / 100 if shares else None


def unseen() -> str:
    """Describe that torch sees no GPU; give the reason if nvidia-smi shows one."""
    shown, toolkit = len(_ask("gpu=uuid")), torch.version.cuda
    if not shown:
        return "torch sees no GPU here"
    if toolkit is None:
        return f"torch {torch.__version__} is a build for the CPU; nvidia-smi shows {shown} GPUs"
    return (
        f"torch sees none of the GPUs that nvidia-smi shows ({shown}): is the driver too old for "
        f"CUDA {toolkit}, or does CUDA_VISIBLE_DEVICES exclude them?"
    )


def find_device(name: str) -> str:
    """Return the type of device for --device `name`: "cpu" or "cuda".

    Raises InputError.
    """
    if name not in DEVICES:
        raise InputError(f"device {name!r}: unknown; choose one of: {', '.join(DEVICES)}")
    there = device_types()
    if name not in ("auto", *there):
        raise InputError(f"device 'cuda': {unseen()}; choose cpu")
    return there[-1] if name == "auto" else name


def numbered_device(name: str) -> torch.device:
    """Return the device that a scenario names: "cpu", "cuda" or "cuda:1".

    Raises LookupError if there is none; its message follows the name of the scenario's key.
    """
    there = device_types()
    try:
        device = torch.device(name)
        if device.type not in there:
            raise RuntimeError
        if device.type != "cpu":
            api = _module(device)
            api.get_device_properties(device)
            if device.index is None:
                device = torch.device(device.type, api.current_device())
    except (RuntimeError, AssertionError):
        why = "" if "cuda" in there else f" ({unseen()})"
        raise LookupError(f"not found; write one of: {', '.join(there)}{why}") from None
    return device
