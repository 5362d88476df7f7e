"""Run a script of docs/examples on the kernel's links, word for word, and write what it came to.

    python -m tests.deploy.examples cnn|gpt

A few steps of `ssgd` show what averages at every step cost, and a few local ones, in which all
processes compute at once, what a gradient takes. `paceline tune` picks, and the script trains with
the pick: predicted against measured, as a table and a figure.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import date
from itertools import permutations
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKERS, BANDWIDTH, LATENCY = 4, 10e6 / 8, 0.005  # bytes/s, seconds
PROBED, STEPS = 40, 800
SLOW = 5  # first steps, left out: they find their memory, and the links
SPACES = {
    "cnn": {name: {"tau": [1, 2, 4, 8, 16, 32, 64]} for name in ("local-sgd", "cocod-sgd")},
    "gpt": {"diloco": {"tau": [2, 4, 8, 16, 32, 64]}},
}
END = "<!-- to here -->"


def process(rank, socket, script, arguments):
    """Run the script in a namespace."""
    import runpy

    from paceline.validate.host.namespaces import join

    address, os.environ["GLOO_SOCKET_IFNAME"] = join(rank, socket)
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(WORKERS), "MASTER_PORT": "29500",
        "MASTER_ADDR": address.rpartition(".")[0] + ".1",
    }  # fmt: skip
    import torch

    torch.set_num_threads(1)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
    os._exit(0)  # threads of gloo, still there, may abort a process that ends


def launch(folder, script, *arguments):
    """Run a script in four processes; return each one's telemetry: rows of numbers."""
    import numpy as np
    import torch

    from paceline.validate.host.namespaces import Links
    from paceline.validate.host.namespaces import Path as Line

    every = {pair: Line(LATENCY, BANDWIDTH) for pair in permutations(range(WORKERS), 2)}
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with Links(every, WORKERS) as links:
        about = json.dumps([links.socket, str(script), list(map(str, arguments))])
        command = [sys.executable, "-m", "tests.deploy.examples", "--rank"]
        started = [
            subprocess.Popen([*command, str(rank), about], cwd=folder, env=environment)
            for rank in range(WORKERS)
        ]
        assert not any(process.wait(280) for process in started)
    paths = [folder / f"telemetry-{rank}.pt" for rank in range(WORKERS)]
    return np.array([torch.load(path) for path in paths])


def scenario(name, probed, parameters):
    """Write the scenario of what was probed."""
    import numpy as np

    computing = probed[:, SLOW:, 1]
    mean = float(computing.mean())
    shape = float(np.clip(1 / np.mean(computing.var(axis=1) / mean**2), 1, 1000))
    return {
        "model": {"parameters": parameters},
        "objective": {"kind": "quadratic", "dimension": 64, "noise": 1.0, "initial_gap": 1.0},
        "optimizer": {"lr": 0.002 if name == "gpt" else 0.05},
        "cluster": {
            "workers": WORKERS,
            "compute": {"dist": "gamma", "mean": f"{1e3 * mean:.1f} ms", "shape": round(shape, 1)},
        },
        "network": {"collective": "ring", "latency": "5 ms", "bandwidth": "10 Mbit/s"},
        "run": {"steps": STEPS, "target_loss": 0.05},
        "tune": SPACES[name],
    }  # fmt: skip


def draw(ended, losses, curve):
    """Draw time over steps, measured and predicted, and the loss over time."""
    import matplotlib.figure
    import numpy as np

    figure = matplotlib.figure.Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(np.arange(1, len(ended) + 1), ended, label="measured")
    left.plot(curve["step"], curve["time"], "--", label="predicted")
    left.set(xlabel="step", ylabel="time (s)")
    left.legend(frameon=False)
    window = 20
    smooth = np.convolve(losses, np.ones(window) / window, "valid")
    right.plot(ended[window - 1 :], smooth)
    right.set(xlabel="measured time (s)", ylabel=f"training loss (mean of {window} steps)")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(name):
    """Probe, tune, train, compare."""
    import numpy as np

    import paceline
    from paceline.simulator.load.load import parse
    from paceline.simulator.studies.tune.tune import tune
    from paceline.validate.host import machine

    page = ROOT / "docs" / "examples" / f"{name}.md"
    text = page.read_text("utf-8")
    (code,) = re.findall(r'```python title="\S+"\n(.*?)```', text, re.S)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "script.py").write_text(code)
        probed = launch(folder, folder / "script.py", "ssgd", PROBED)
        parameters = round(float(probed[0, -1, 3]) / 4)
        table = scenario(name, probed, parameters)
        world = {key: value for key, value in table.items() if key != "tune"}
        local = world | {"algorithm": [{"name": "local-sgd", "tau": 2 * PROBED}]}
        paceline.simulate(parse(local), seeds=1, out=folder / "local")
        alone = launch(folder, folder / "script.py", folder / "local", PROBED)
        world["cluster"] = table["cluster"] = scenario(name, alone, parameters)["cluster"]
        found = tune(parse(table), seeds=4, out=folder / "tuned")
        pick = found.json()["pick"]
        rows = {row["label"]: row for row in found.json()["ranking"]}
        taken = {"name": rows[pick["label"]]["name"], **rows[pick["label"]]["parameters"]}
        result = paceline.simulate(parse(world | {"algorithm": [taken]}), seeds=8)
        measured = launch(folder, folder / "script.py", folder / "tuned", STEPS)[:, SLOW:]
    steps = STEPS - SLOW
    ended = measured[:, :, 1:3].sum(axis=2).cumsum(axis=1).mean(axis=0)
    pace = [run.duration / run.steps for run in result.runs]
    averages = int((measured[0, :, 3] > 0).sum())
    waited = measured[:, :, 2].sum(axis=1).mean() / ended[-1]
    lines = [
        f"The pick: {pick['sentence']}",
        "",
        "| | predicted | measured |",
        "|---|---|---|",
        f"| one step's computing | {table['cluster']['compute']['mean']} (probed) | "
        f"{1e3 * measured[:, :, 1].mean():.1f} ms |",
        f"| seconds per step, averages included | {1e3 * np.mean(pace):.1f} ms | "
        f"{1e3 * ended[-1] / steps:.1f} ms |",
        f"| {steps} steps | {np.mean(pace) * steps:.1f} s | {ended[-1]:.1f} s |",
        f"| with averages at every step (`ssgd`) | | "
        f"{1e3 * probed[:, SLOW:, 1:3].sum(axis=2).mean():.0f} ms per step, of {PROBED} |",
        f"| averages | {STEPS // int(taken['tau'])} | {averages} |",
        f"| share of time in waits | | {100 * waited:.0f} % |",
        f"| loss, first and last 20 steps | | {measured[:, :20, 4].mean():.3f}, "
        f"{measured[:, -20:, 4].mean():.3f} |",
        "",
        f"![Time over steps, predicted and measured; loss over measured time]({name}.png)",
        "",
        f"{parameters} parameters; {date.today()}, "
        f"{machine.describe(machine.hardware('cpu'))}, torch {machine.hardware('cpu')['torch']}; "
        f"four processes on them. The first {SLOW} steps are left out.",
    ]
    losses = measured[:, :, 4].mean(axis=0)
    draw(ended, losses, result.runs[0].curve).savefig(page.with_suffix(".png"), dpi=110)
    begin = f"<!-- python -m tests.deploy.examples {name} writes from here -->"
    before, rest = text.split(begin)
    written = f"{begin}\n\n" + "\n".join(lines) + f"\n\n{END}"
    page.write_text(before + written + rest.split(END)[1], "utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        process(int(sys.argv[2]), *json.loads(sys.argv[3]))
    main(sys.argv[1])
