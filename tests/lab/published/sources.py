"""Scenarios of other people's measurements, with only their stated settings.

Each function takes a row of facts.csv and returns a scenario's table and the factor that turns its
seconds per step into the row's value (items/s rows: the negative sign stands for its inverse).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from paceline.simulator.scenario.hardware import link_kind
from paceline.simulator.scenario.tables import sizes as tensor_sizes

Row = Mapping[str, str]
BOX = 4  # GPUs of a node at HKBU


class Case(NamedTuple):
    """A scenario; a row's value is `factor` times its seconds per step, or the inverse."""

    table: dict[str, Any]
    factor: float
    inverse: bool = False


def bert(hidden: int, layers: int, vocabulary: int = 30_522) -> list[int]:
    """Return the parameters of each tensor of BERT (Devlin et al., arXiv:1810.04805)."""
    square, wide = hidden * hidden, 4 * hidden * hidden
    attention = [square, hidden] * 4 + [hidden, hidden]
    feed = [wide, 4 * hidden, wide, hidden, hidden, hidden]
    head = [vocabulary * hidden, 512 * hidden, 2 * hidden, hidden, hidden]
    return head + (attention + feed) * layers + [square, hidden]


MODELS: dict[str, tuple[Any, float]] = {  # tensors; items per second of one GPU
    "ResNet-50": ("resnet50", 253.1),
    "BERT-Base": ("bert-base", 212.8),
    "BERT-Large": (bert(1024, 24), 49.0),
}
CARDS = {
    "10GbE-TCP": {"card": "10gbe", "transport": "tcp"},
    "100Gb-TCP": {"card": "ipoib-edr", "transport": "tcp"},
    "100Gb-IB": {"card": "ib-edr"},
}


def hkbu(row: Row) -> Case | None:
    """Return HKBU-HPML/ddl-benchmarks: 8 nodes of 4 GPUs on PCIe 3.0 x16; skip "single" rows."""
    if row["method"] == "single":
        return None
    tensors, rate = MODELS[row["model"]]
    gpus, batch = int(row["workers"]), float(row["size"])
    boxes = max(1, gpus // BOX)
    method, _, kind = row["method"].partition("-")
    algorithm: dict[str, Any] = {"name": "ssgd" if method == "BSP" else "ssgd-bucketed"}
    if method == "WFBP":
        sizes = tensor_sizes(tensors)
        algorithm["buckets"] = [*reversed(sizes)]
    network: dict[str, Any] = {**CARDS[row["link"]]}
    cluster: dict[str, Any] = {"workers": gpus, "compute": f"{batch / rate} s"}
    if method == "BSP":
        cluster["forward_share"] = 0.999  # one fused mean: no gradient is sent before all are ready
    served = kind == "PS" and boxes > 1
    if served:
        cluster["workers"] = boxes
        cluster["group"] = [
            {"name": "boxes", "workers": boxes, "devices": BOX, "inner": "pcie3-host"}
        ]
        network["library"] = "byteps"
    else:
        groups = [{"name": f"box {n}", "workers": BOX, "region": f"box {n}"} for n in range(boxes)]
        cluster["group"] = groups
        network["library"] = "nccl"
        network["link"] = [
            {"between": [group["region"]] * 2, "card": "pcie3-host"} for group in groups
        ]
    table = {"model": {"tensors": tensors}, "cluster": cluster, "network": network}
    if served:
        rate = boxes * link_kind(network["card"]).bandwidth
        table["server"] = {"bandwidth": f"{8 * rate} bit/s"}
    return Case(_run(table, algorithm), 1 / (gpus * batch), inverse=True)


def tc(row: Row) -> Case | None:
    """BinhangYuan/tc_cluster_setting: all-reduce among V100 nodes with cards of 10 Gbit/s."""
    if row["model"] != "allreduce":
        return None
    latency, rate = _shaped(row["link"])
    network = {"library": row["method"], "transport": "tcp", "mtu": 9000, "latency": latency}
    cluster = {"workers": int(row["workers"]), "compute": "0 s", "allow_zero": True}
    model = {"parameters": int(row["size"]) * 2**18}
    table = {"model": model, "cluster": cluster, "network": {**network, "bandwidth": rate}}
    return Case(_run(table, {"name": "ssgd"}), 1e3 if row["unit"] == "ms" else 1.0)


def _shaped(link: str) -> tuple[str, str]:
    """Return latency and rate of "5ms-2Gbit"; by default cards have 10 Gbit/s, 0.1 ms apart."""
    if link == "default":
        return "100 us", "10 Gbit/s"
    delay, _, rate = link.partition("-")
    return delay.replace("ms", " ms"), rate.replace("Gbit", " Gbit/s")


def ft_diloco(row: Row) -> Case:
    """nicholicaron/ft-diloco: torchft's DiLoCo over gloo, 2 workers, 10 ms one way."""
    period, link = int(row["method"].removeprefix("H=")), row["link"]
    rate = "10 Gbit/s" if link == "open" else link.replace("Mbit", " Mbit/s")
    network = {"library": "gloo", "transport": "tcp", "latency": "10 ms", "bandwidth": rate}
    model = {"parameters": int(row["size"]) // 4}
    if link == "open":  # both on one host, without shaped links
        network["latency"] = "50 us"
    evaluations = 2.0 / max(250, period) if link == "open" else 0.0
    compute = 0.812 + 0.67 / period + evaluations
    table = {
        "model": model,
        "cluster": {"workers": 2, "compute": f"{compute} s"},
        "network": network,
    }
    steps = {"s/step": 1, "s/round": period, "s/3000 steps": 3000}[row["unit"]]
    algorithm = {"name": "diloco", "tau": period}
    return Case(_run(table, algorithm, max(20, 4 * period)), steps)


def _run(table: dict[str, Any], algorithm: dict[str, Any], steps: int = 20) -> dict[str, Any]:
    return {**table, "run": {"steps": steps}, "algorithm": [algorithm]}


SOURCES: dict[str, Callable[[Row], Case | None]] = {
    "hkbu": hkbu,
    "tc": tc,
    "tc-dp": tc,
    "ft-diloco": ft_diloco,
}
