"""What the late device cannot stand in for: names, numbers, NCCL's group; with a fake CUDA."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from paceline.simulator.errors import InputError
from paceline.validate.host import device as devices
from paceline.validate.host import machine
from paceline.validate.launch import launch, worker
from paceline.validate.torch_objective import determinism
from tests.helpers.worlds import scenario

GPU = "NVIDIA H100 80GB HBM3"
NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"


@pytest.fixture
def cuda(monkeypatch, tmp_path):
    """Put recorded answers of a machine with two GPUs in place of torch.cuda; return the calls."""
    calls = []
    properties = [SimpleNamespace(uuid=f"GPU-{index}") for index in range(2)]
    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: 1,
        "get_device_name": lambda *_: GPU,
        "get_device_properties": lambda device: properties[torch.device(device).index or 0],
        "can_device_access_peer": lambda i, j: (i, j) == (0, 1),
        "set_device": lambda device: calls.append(("set_device", str(device))),
        "Stream": lambda device: SimpleNamespace(device=device),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text(NVRM)
    devices.of.cache_clear()
    yield calls
    devices.of.cache_clear()


def test_the_gpus_and_their_libraries_are_described(cuda):
    found = machine.hardware("cuda")
    assert {key: found[key] for key in ("gpu", "gpus", "cuda", "nccl", "driver", "peers")} == {
        "gpu": GPU, "gpus": 2, "cuda": "12.8", "nccl": "2.27.5", "driver": "550.54.15",
        "peers": "1 of 1",
    }  # fmt: skip
    assert f"2 x {GPU}; driver 550.54.15; NCCL 2.27.5" in machine.describe(found)
    assert devices.in_use() == GPU


def test_names_of_devices(cuda):
    assert devices.find_device("auto") == devices.find_device("cuda") == "cuda"
    assert str(devices.numbered_device("cuda")) == "cuda:1"  # the current one
    with pytest.raises(InputError):
        devices.find_device("tpu")


def test_a_gpu_in_use_computes_in_float32_and_repeatably(cuda):
    of, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = of.deterministic, of.benchmark, of.allow_tf32, matmul.allow_tf32
    device = devices.place(3, "cuda")
    assert (str(device.where), device.identity()) == ("cuda:1", "GPU-1--")
    try:
        device.use()
        assert cuda == [("set_device", "cuda:1")]
        found = of.deterministic, of.benchmark, of.allow_tf32, matmul.allow_tf32
        assert found == (True, False, False, False)
    finally:
        of.deterministic, of.benchmark, of.allow_tf32, matmul.allow_tf32 = before


def test_nccl_leaves_ending_processes_to_us(cuda, monkeypatch):
    made = []

    class Group:
        class Options:
            pass

        def __init__(self, *arguments):
            made.append(arguments)

    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Group, raising=False)
    for key in devices.NCCL:
        monkeypatch.delenv(key, raising=False)
    devices.place(0, "cuda").group("store", 1, 2, 7.0)
    ((store, rank, size, options),) = made
    assert (store, rank, size, options._timeout.total_seconds()) == ("store", 1, 2, 7.0)
    assert {key: os.environ[key] for key in devices.NCCL} == {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seats", "native"),
    [
        pytest.param(["0", "1", "0"], True, id="the server shares a GPU with a worker"),
        pytest.param(["0", "1", "2"], True, id="the server has one of its own"),
        pytest.param(["0", "0", "1"], False, id="workers share one"),
    ],
)
def test_the_backend_is_chosen_by_the_gpus_of_the_workers(cuda, monkeypatch, seats, native):
    """Each rank may see its own GPU as the first: identities tell, not numbers."""
    kept = {}
    store = SimpleNamespace(set=kept.__setitem__, get=lambda key: kept[key])
    job = SimpleNamespace(scenario=scenario({"name": "asgd"}, workers=2), device="cuda")
    found = []
    for rank, seat in reversed([*enumerate(seats)]):
        for other, its in enumerate(seats):
            kept.setdefault(f"seat {other}", f"{machine.boot_id()} {its}")
        monkeypatch.setattr(devices.Accelerator, "identity", lambda device, seat=seat: seat)
        found.append(worker._place(job, rank, store).native)
    assert found == [native] * 3


def test_seeds_reach_the_gpus_own_generator(monkeypatch):
    """`seeded` restores the CPU's generator and seeds that of the device."""
    own = torch.Generator()
    monkeypatch.setattr(determinism, "generators", lambda device: [None, own])
    monkeypatch.setattr(determinism.torch.random, "fork_rng", fork := Fork())
    with determinism.seeded(5, torch.device("cuda:1")):
        assert own.initial_seed() == 5
    assert fork.asked == {"devices": [1], "device_type": "cuda"}


class Fork:
    def __call__(self, **asked):
        self.asked = asked
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


HANGS = """
import threading, types
from paceline.validate.training import transport

device = types.SimpleNamespace(land=lambda works: threading.Event().wait())
group = types.SimpleNamespace(size=lambda: 2)
transport.Native(group, device, 0.2)._land([])
"""


def test_a_wait_that_nothing_can_interrupt_has_a_time_limit():
    """The words are those by which `launch` looks for the process that hangs."""
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "RuntimeError: Timed out waiting 0.2 s for a collective\n"
    assert launch.ERROR.match(done.stderr)
