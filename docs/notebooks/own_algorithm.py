# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # An algorithm of your own
#
# An algorithm is a coroutine that runs on every worker. This one averages less and less often:
# every `first` steps, then every `first + grow`, and so on.

# %%
import paceline


async def slower(me, *, lr: float, first: int = 2, grow: int = 1):
    """Average after a period that grows by `grow` steps at each mean."""
    x, period = me.start, first
    while True:
        for _ in range(period):
            x = x - lr * await me.gradient(x)
            me.mark(x)
        x = await me.mean(x)
        period += grow


mine = {"slower": slower}

# %% [markdown]
# Compare it with two others on eight machines of an office, for 20 seconds:

# %%
scenario = paceline.load(
    "quickstart",
    [
        'algorithm=[{ name = "slower" }, { name = "local-sgd", tau = 8 }, { name = "ssgd" }]',
        "optimizer.lr=4.0",
        'run.duration="20 s"',
        "run.target_loss=0.5",
        "tune={ slower = { first = [2, 8], grow = [0, 1, 4] } }",
    ],
    programs=mine,
)
result = paceline.simulate(scenario, seeds=3)
result

# %%
tuned = paceline.tune(scenario, seeds=2)
tuned
