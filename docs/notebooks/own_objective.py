# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # The loss of your own model
#
# The log of one run, a CSV of steps and losses as W&B or TensorBoard export it, becomes the
# objective of a scenario: predictions are then in the loss of your model. Here the log is made up.

# %%
import csv

import numpy as np

import paceline

rng = np.random.default_rng(0)
steps = np.arange(10, 2000, 10)
losses = 2.1 + 6.0 * (steps + 40.0) ** -0.3 + rng.normal(0, 0.01, steps.size)
with open("my-run.csv", "w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("step", "loss"), *zip(steps, losses, strict=True)])

# %% [markdown]
# Four workers made it, with 8192 tokens each in a step. The same training over a slow link:

# %%
scenario = paceline.load(
    {
        "title": "My model on four sites",
        "model": {"parameters": 100_000_000},
        "objective": {
            "kind": "learning-curve",
            "tokens": 8192,
            "curve": {"file": "my-run.csv", "workers": 4},
        },
        "cluster": {"workers": 4, "compute": "400 ms"},
        "network": {"latency": "30 ms", "bandwidth": "1 Gbit/s"},
        "run": {"steps": 2000, "target_loss": 2.9},
        "algorithm": [{"name": "ssgd"}, {"name": "diloco", "tau": 32}],
    }
)
result = paceline.simulate(scenario)
result

# %% [markdown]
# How far the curve can be trusted is said in the notes.

# %%
for note in result.notes:
    print(note)
print(result.records()[-1])
