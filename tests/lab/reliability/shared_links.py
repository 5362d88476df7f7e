"""Random runs over shared links: that every program ends, and accounts for its workers' time."""

import random
import time
from collections import Counter
from typing import Any

import numpy as np

from paceline.simulator.engines.virtual import run as virtual
from paceline.simulator.programs import catalogue
from tests.helpers.programs import cases
from tests.helpers.worlds import scenario

TITLE = "Runs over shared links"
HOW = "python -m tests.lab.reliability shared_links --seconds 3600"
PER_SECOND = 0.25  # scenarios, about
MOST = 500  # of them
STEPS = 1000
PLACES = "abc"
COLLECTIVES = ("ring", "tree", "star", "hierarchical", "recursive-doubling", "halving-doubling")


def measure(seconds: float) -> list[dict[str, Any]]:
    """Run random scenarios, one program each in turn; `seconds` buy up to `MOST` of them."""
    tried = Counter[str]()
    slowest, missed = 0.0, []
    for number in range(min(MOST, max(1, int(PER_SECOND * seconds)))):
        begin, name = time.perf_counter(), program(number)["name"]
        tried[name] += 1
        try:
            check(number, STEPS)
        except Exception as error:
            missed.append(f"{number} ({name}): {type(error).__name__}: {error}")
        slowest = max(slowest, time.perf_counter() - begin)
    return [
        {
            "what": f"random clusters and networks, {STEPS:,} steps of one program each",
            "tried": tried.total(),
            "handled": tried.total() - len(missed),
            "note": f"{len(tried)} programs, each {min(tried.values())} times or more; "
            f"the slowest run took {slowest:.0f} s",
            "missed": missed,
            "how": HOW,
        }
    ]


def program(number: int) -> dict[str, Any]:
    """Return the algorithm of a scenario: every program in turn, in each of its variants."""
    names = [*catalogue()]
    turn, place = divmod(number, len(names))
    variants = [case for case in cases() if case["name"] == names[place]]
    return variants[turn % len(variants)]


def check(number: int, steps: int) -> None:
    """Run a scenario twice; demand that it ends, the same way, and that its accounts add up."""
    made = world(number, steps)
    result, again = (virtual.run(made.algorithm[0], made, number) for _ in range(2))
    assert (result.curve["time"], result.workers) == (again.curve["time"], again.workers)
    np.testing.assert_equal(result.curve, again.curve)
    assert result.steps >= steps, result.notes
    assert np.diff(result.curve["time"]).min() >= 0
    spent = np.array([*result.workers.values()])
    assert spent.min() >= -1e-9 * result.duration
    assert spent.sum(axis=0).max() <= result.duration * (1 + 1e-9)


def world(number: int, steps: int) -> Any:
    """Draw a scenario: where workers are, how fast, what crashes, and what the network is like."""
    draw = random.Random(number)
    case = program(number)
    workers = draw.randint(3, 6)
    groups = [
        {"name": place, "workers": workers // 3 + (index < workers % 3), "region": place}
        for index, place in enumerate(PLACES)
    ]
    cluster: dict[str, Any] = {"group": groups}
    if draw.random() < 0.3:
        groups[1]["compute"] = _law(draw, 1.0)
    recovery: dict[str, Any] = {}
    trouble = draw.random()
    if trouble < 0.2:
        cluster["device"] = [{"name": "gpu", "shared_by": groups[0]["workers"]}]
        groups[0]["device"] = "gpu"
    elif trouble < 0.5:
        cluster["failures"] = {"between": "200 s", "repair": "3 s"}
        policy = draw.choice(catalogue()[case["name"]].recovers)
        recovery = {"policy": policy}
        if policy == "restart":
            recovery["checkpoint"] = {"every": 20, "cost": "100 ms"}
        elif policy == "shrink":
            recovery |= {"timeout": draw.choice(["0 s", "200 ms"]), "backup": draw.choice([0, 1])}
    elif trouble < 0.6 and "shrink" in catalogue()[case["name"]].recovers:
        recovery = {"backup": 1}
    server: dict[str, Any] = {
        "region": draw.choice(PLACES), "apply": draw.choice(["0 s", "3 ms"]),
    }  # fmt: skip
    if "failures" in cluster and catalogue()[case["name"]].server and draw.random() < 0.5:
        server["failures"] = {"between": "300 s", "repair": "2 s"}
    return scenario(
        case, workers=workers, steps=steps, compute=_law(draw, 0.5), cluster=cluster,
        network=network(draw), recovery=recovery, lr=0.01,
        server=server,
        objective=_objective(case, draw), run={"evaluate_every": 1},
    )  # fmt: skip


def _objective(case: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    if catalogue()[case["name"]].needs_loss or draw.random() < 0.5:
        return {"kind": "quadratic", "dimension": 6, "shift": 1.0}
    return {"kind": "none"}


def _law(draw: random.Random, mean: float) -> Any:
    return draw.choice(
        [
            f"{mean} s",
            f"{mean / 3} s",
            {"dist": "exponential", "mean": f"{mean} s"},
            {"dist": "uniform", "low": f"{mean / 2} s", "high": f"{2 * mean} s"},
            {"dist": "pareto", "minimum": f"{mean / 3} s", "alpha": 1.5},
        ]
    )


def network(draw: random.Random) -> dict[str, Any]:
    """Draw three places in a row, "b" in the middle, and what disturbs the links between."""
    links = []
    for between in (["a", "b"], ["b", "c"]):
        link: dict[str, Any] = {
            "between": between,
            "bandwidth": draw.choice(["100 kbit/s", "700 kbit/s", "2 Mbit/s"]),
            "latency": draw.choice(["0 s", "5 ms", "33 ms"]),
        }
        if draw.random() < 0.2:
            low = draw.choice([0, 0.3])
            link["profile"] = {"at": ["0 s", "20 s", "40 s"], "factor": [1, low, 1]}
        if draw.random() < 0.2:
            link["outages"] = {"between": "60 s", "repair": "500 ms"}
        if draw.random() < 0.3:
            link["sharing"] = draw.choice(["half-duplex", "full-duplex"])
        if draw.random() < 0.3:
            link["jitter"] = {"dist": "exponential", "mean": "3 ms"}
        links.append(link)
    made: dict[str, Any] = {
        "model": "flows", "collective": draw.choice(COLLECTIVES), "link": links,
        "latency": draw.choice(["0 s", "1 ms"]),
        "bandwidth": draw.choice(["300 kbit/s", "1 Mbit/s", "1 Gbit/s"]),
    }  # fmt: skip
    if draw.random() < 0.2:
        kinds = [{"rate": "50 kbit/s"}, {"flows": 2}, {"flows": 1, "on": "1 s", "off": "1 s"}]
        made["background"] = [{"between": ["a", "c"], **draw.choice(kinds)}]
    if draw.random() < 0.2:
        made["slow_start"] = "1 KiB"
    if draw.random() < 0.2:
        made["outage"] = [{"between": ["b", "c"], "at": "5 s", "lasts": "3 s"}]
    return made
