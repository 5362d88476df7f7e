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
from paceline.validate.probe import doctor
from paceline.validate.probe.doctor import Finding
from paceline.validate.torch_objective import gradients
from tests.helpers.cases import looped
from tests.helpers.worlds import scenario

GPU = "NVIDIA H100 80GB HBM3"
SMI = {
    "gpu=utilization.gpu": "1\n2\n",
}
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
    actual = machine.hardware("cuda")
    assert {key: actual[key] for key in ("gpu", "gpus", "cuda", "nccl", "driver")} == {
        "gpu": GPU, "gpus": 2, "cuda": "12.8", "nccl": "2.27.5", "driver": "550.54.15",
    }  # fmt: skip
    assert f"2 x {GPU}; driver 550.54.15; NCCL 2.27.5" in machine.describe(actual)
    opened = "NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@host)"
    devices.DRIVER.write_text(f"NVRM version: {opened}\nGCC version: gcc 13.3.0\n")
    devices.of.cache_clear()
    assert machine.hardware("cuda")["driver"] == "580.159.04"


def test_the_doctor_of_two_gpus(cuda, monkeypatch):
    """The whole report, line by line; what it trains is trained by tests on real GPUs."""
    seen = []

    def asked(command, **_):
        (said,) = [said for what, said in SMI.items() if command[1].startswith(f"--query-{what}")]
        return subprocess.CompletedProcess(command, 0, said)

    def train(device, workers):
        seen.append((device, workers))
        yield Finding("mean, 2 processes", "works; 1 ms per step")

    monkeypatch.setattr(devices.subprocess, "run", asked)
    monkeypatch.setattr(doctor.namespaces, "available", lambda: "")
    monkeypatch.setattr(doctor, "_others", lambda: 0.0)
    monkeypatch.setattr(doctor, "_smoke", train)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(total=2**26))
    report = doctor.diagnose(device="cuda")
    assert seen == [("cuda", 2)]
    lines = {line.what: (line.found, line.good) for line in report.machine}
    about, _ = lines.pop("GPUs")
    assert f"2 x {GPU}; driver 550.54.15; NCCL 2.27.5" in about
    assert lines["shared memory"][1] is False
    assert lines["collectives"] == ("NCCL where each worker has a GPU, else gloo", True)
    assert lines["evidence"] == ("others use 2%: a run now counts", True)
    assert len([*doctor.tables(report)]) == 2
    assert report.sentence == "Real runs work here. Check the marked lines: shared memory."
    monkeypatch.setattr(devices, "used_by_others", lambda: 0.2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    busy = {line.what: line for line in doctor.diagnose(device="cuda", smoke=False).machine}
    assert not busy["evidence"].good
    assert busy["collectives"].found.endswith("gloo, because this torch has no NCCL")
    left = {line.what: line.found for line in doctor.diagnose(device="cpu", smoke=False).machine}
    assert left["GPUs"] == "not used, by your choice"


def test_names_of_devices(cuda):
    assert devices.find_device("auto") == devices.find_device("cuda") == "cuda"
    assert str(devices.numbered_device("cuda")) == "cuda:1"  # the current one
    with pytest.raises(InputError):
        devices.find_device("tpu")


def test_what_nvidia_smi_does_not_say_is_unknown(cuda, monkeypatch):
    def said(answer):
        def run(command, **_):
            if answer is None:
                raise FileNotFoundError(command[0])
            return subprocess.CompletedProcess(command, 0, answer)

        monkeypatch.setattr(devices.subprocess, "run", run)

    said(None)  # there is no such program
    assert devices.used_by_others() is None
    said("[N/A]\n")  # as of a GPU in parts (MIG)
    assert devices.used_by_others() is None
    said("[N/A]\n20\n")
    assert devices.used_by_others() == 0.2


def test_copies_to_the_host_go_to_pinned_memory(cuda, monkeypatch):
    made = []
    monkeypatch.setattr(devices.torch, "empty", lambda *size, **how: made.append((*size, how)))
    devices.place(0, "cuda")._pinned(torch.zeros(3, dtype=torch.float64))
    assert made == [((3,), {"dtype": torch.float64, "pin_memory": True})]


def test_a_gpu_without_room_is_said_by_the_obituary(tmp_path):
    log = tmp_path / "rank-1.log"
    last = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a"
    log.write_text(f"Traceback (most recent call last):\n  File ...\n{last}\n")
    assert launch._log_tail(log).startswith(f"  {last}\n")


@looped(
    ("toolkit", "shown", "message"),
    [
        ("12.8", "", "torch sees no GPU here"),
        (None, "GPU-0\n", "is a build for the CPU; nvidia-smi shows 1 GPUs"),
        ("12.8", "GPU-0\nGPU-1\n", r"shows \(2\): is the driver too old for CUDA 12\.8, or"),
    ],
)
def test_why_torch_sees_no_gpu(cuda, monkeypatch, toolkit, shown, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", toolkit)
    answer = subprocess.CompletedProcess([], 0, shown)
    monkeypatch.setattr(devices.subprocess, "run", lambda *_, **__: answer)
    monkeypatch.setattr(doctor, "_others", lambda: 0.0)
    monkeypatch.setattr(doctor.namespaces, "available", lambda: "")
    with pytest.raises(InputError, match=message):
        devices.find_device("cuda")
    with pytest.raises(LookupError, match=message):
        devices.numbered_device("cuda:1")
    (actual,) = (
        line for line in doctor._here("cpu", machine.hardware("cpu")) if line.what == "GPUs"
    )
    assert (actual.found, actual.good) == (devices.unseen(), not shown)


def test_parts_of_a_gpu_are_one_place(cuda, monkeypatch):
    """MIG: NCCL would refuse ranks that share a GPU, whatever the UUIDs of its parts."""
    parts = [
        SimpleNamespace(uuid=f"MIG-{k}", pci_domain_id=0, pci_bus_id=0x59, pci_device_id=0)
        for k in range(2)
    ]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: parts[device.index])
    assert {devices.place(k, "cuda").identity() for k in range(2)} == {"0-89-0"}


def test_a_gpu_in_use_computes_in_float32_and_repeatably(cuda):
    of, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = of.deterministic, of.benchmark, of.allow_tf32, matmul.allow_tf32
    device = devices.place(3, "cuda")
    assert (str(device.where), device.identity()) == ("cuda:1", "GPU-1")
    try:
        device.use()
        assert cuda == [("set_device", "cuda:1")]
        actual = of.deterministic, of.benchmark, of.allow_tf32, matmul.allow_tf32
        assert actual == (True, False, False, False)
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


@looped(
    ("seats", "native"),
    [
        (["0", "1", "0"], True),  # the server shares a GPU with a worker
        (["0", "1", "2"], True),  # the server has a GPU for itself
        (["0", "0", "1"], False),  # workers share one
    ],
)
def test_the_backend_is_chosen_by_the_gpus_of_the_workers(cuda, monkeypatch, seats, native):
    """Each rank may see its own GPU as the first: identities tell, not numbers."""
    calls = {}
    store = SimpleNamespace(set=calls.__setitem__, get=lambda key: calls[key])
    job = SimpleNamespace(scenario=scenario({"name": "asgd"}, workers=2), device="cuda")
    results = []
    for rank, seat in reversed([*enumerate(seats)]):
        for other, its in enumerate(seats):
            calls.setdefault(f"seat {other}", f"{machine.boot_id()} {its}")
        monkeypatch.setattr(devices.Accelerator, "identity", lambda device, seat=seat: seat)
        results.append(worker._place(job, rank, store).native)
    assert results == [native] * 3


def test_seeds_reach_the_gpus_own_generator(monkeypatch):
    """`seeded` restores the CPU's generator and seeds that of the device."""
    generator = torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (None, generator))
    monkeypatch.setattr(gradients.torch.random, "fork_rng", fork := Fork())
    with gradients.seeded(5, torch.device("cuda:1")):
        assert generator.initial_seed() == 5
    assert fork.asked == {"devices": [1], "device_type": "cuda"}


class Fork:
    def __call__(self, **options):
        self.asked = options
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
