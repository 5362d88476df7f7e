# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # From a cluster to a pick
#
# Six machines in two places train a small model. Which algorithm should they use, how sure is that,
# and what would another link change?

# %%
import paceline

scenario = paceline.load(
    {
        "title": "Six machines in two places",
        "model": {"parameters": 1_000_000},
        "objective": {"kind": "softmax", "data": "digits", "partition": {"dirichlet": 0.3}},
        "cluster": {
            "workers": 6,
            "compute": {"dist": "shifted-exponential", "shift": "80 ms", "mean": "100 ms"},
            "group": [
                {"name": "near", "workers": 4, "region": "frankfurt"},
                {"name": "far", "workers": 2, "region": "tokyo"},
            ],
        },
        "network": {
            "collective": "hierarchical",
            "latency": "200 us",
            "bandwidth": "1 Gbit/s",
            "link": [
                {
                    "between": ["frankfurt", "tokyo"],
                    "latency": "110 ms",
                    "bandwidth": "100 Mbit/s",
                }
            ],
        },
        "run": {"duration": "40 s", "target_loss": 0.3, "evaluate_every": 4},
        "algorithm": [{"name": "ssgd", "lr": 4.0}, {"name": "local-sgd", "lr": 4.0, "tau": 8}],
        "tune": {"ssgd": {"lr": [4.0, 8.0]}, "local-sgd": {"lr": [4.0, 8.0], "tau": [4, 8, 16]}},
    }
)

# %% [markdown]
# A result shows its answer, a table and the curves.

# %%
result = paceline.simulate(scenario, seeds=3)
result

# %%
axes = result.plot()
axes.figure.savefig("curves.png")

# %% [markdown]
# Sweep a key, and find the best parameters and how certain they are.

# %%
periods = paceline.sweep(scenario, {"algorithm.local-sgd.tau": [2, 8, 32]}, seeds=2)
periods

# %%
tuned = paceline.tune(scenario, seeds=2)
print(tuned)
tuned.study.best_trial.params

# %% [markdown]
# Its ranking is a list of rows; `to_pandas()` makes a data frame of them.

# %%
[(row["label"], row["value"], row["seeds"]) for row in tuned.records()]
