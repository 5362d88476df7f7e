# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Fit a cluster to the log of a job
#
# A log of step times shows how long computing takes, and what a mean costs over the job's link.
# Here the logs are invented, so that the fit can be compared with the truth: a step takes 100 ms on
# average, and a mean takes the time of its transfers.

# %%
import csv
from pathlib import Path

import numpy as np

import paceline

rng = np.random.default_rng(0)


def write(file, tau, mbit, steps=400):
    """Write the log of local-sgd on two workers, with a mean every `tau` steps."""
    seconds = 0.08 + rng.exponential(0.02, steps)
    mean = 4e6 * 8 / (mbit * 1e6) + 0.002
    seconds[tau - 1 :: tau] += mean
    with open(file, "w", newline="", encoding="utf-8") as opened:
        rows = enumerate(seconds, start=1)
        csv.writer(opened).writerows([("step", "seconds"), *rows])


write("slow.csv", 4, 200)
write("fast.csv", 4, 1000)

# %%
JOB = """
[[job]]
log = "{file}.csv"
algorithm = {{ name = "local-sgd", tau = 4 }}
workers = 2
network = {{ bandwidth = "{rate}", latency = "1 ms" }}
model = {{ parameters = 1_000_000, bytes_per_parameter = 4 }}
"""
jobs = [("slow", "200 Mbit/s"), ("fast", "1 Gbit/s")]
Path("jobs.toml").write_text("".join(JOB.format(file=f, rate=r) for f, r in jobs), "utf-8")
found = paceline.calibrate(["jobs.toml"])
print(found.sentence)
found.profile.tables["cluster"]

# %% [markdown]
# The profile predicts unseen settings, such as another period:

# %%
found.profile.write(Path("profile.toml"))
scenario = paceline.load(
    {
        "extends": "profile.toml",
        "cluster": {"workers": 2},
        "network": {"bandwidth": "200 Mbit/s", "latency": "1 ms"},
        "run": {"steps": 200},
        "algorithm": [{"name": "local-sgd", "tau": 16}, {"name": "ssgd"}],
    }
)
result = paceline.simulate(scenario)
result
