"""Hypothesis strategies: scenarios whose compute and network times differ."""

import tomllib
from typing import Any

from hypothesis import strategies as st

from tests.helpers.cases import beside
from tests.helpers.worlds import EXPONENTIAL

STEPS = 20
OVERHEAD = tomllib.loads(beside(__file__, "overhead.toml"))

seconds = st.sampled_from(["0 s", "1 ms", "300 ms", "1 s", "7 s"])
laws = st.one_of(
    seconds,
    st.sampled_from(
        [
            EXPONENTIAL,
            {"dist": "uniform", "low": "0 s", "high": "2 s"},
            {"dist": "lognormal", "mean": "1 s", "sd": "3 s"},
            {"dist": "pareto", "minimum": "100 ms", "alpha": 1.1},
            {"dist": "normal", "mean": "1 s", "sd": "1 s", "negative": "clip"},
            {"dist": "mixture", "components": [
                {"weight": 9, "dist": "constant", "value": "1 s"},
                {"weight": 1, "dist": "gamma", "mean": "20 s", "shape": 0.5},
            ]},
        ]
    ),
)  # fmt: skip


@st.composite
def delays(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the tables of a scenario that set its times, and how often it is evaluated."""
    workers = draw(st.integers(1, 6))
    groups, left = [], workers
    for region in draw(st.sampled_from([(), ("a",), ("a", "b")])):
        size = draw(st.integers(1, 3))
        if size <= left:
            groups.append(
                {"name": region, "workers": size, "region": region, "compute": draw(laws)}
            )
            left -= size
    network = {
        "collective": draw(st.sampled_from(["ring", "tree", "star", "hierarchical", "given"])),
        "latency": draw(laws),
    }
    if network["collective"] == "given":
        network["duration"] = draw(laws)
    for key, values in (
        ("jitter", laws),
        ("bandwidth", st.sampled_from(["20 kbit/s", "1 Gbit/s"])),
        ("tcp_window", st.just("4 KiB")),
    ):
        if draw(st.booleans()):
            network[key] = draw(values)
    cluster = {"allow_zero": True, "region": "home", "group": groups}
    if draw(st.booleans()):
        cluster |= {"extra": draw(laws), "extra_share": draw(st.sampled_from([0.5, 1.0]))}
    cluster["forward_share"] = draw(st.sampled_from([0.0, 1 / 3, 0.9]))
    cluster["accumulation"] = draw(st.sampled_from([1, 4]))
    return {
        "overhead": draw(st.sampled_from([[], [], [OVERHEAD]])),
        "workers": workers,
        "compute": draw(laws),
        "cluster": cluster,
        "network": network,
        "run": {"evaluate_every": draw(st.integers(1, STEPS))},
    }
