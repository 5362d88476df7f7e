"""Run programs at tuned rates: equal tokens, equal progress on a learning curve.

The learning rate of a real optimizer is unrelated to a surrogate's scale. So the program first runs
on a `Probe`, on the scenario's cluster: its response to a constant gradient is its gain. Then its
rate is one over its gain, so that momentum, an outer step or a sum of gradients gives no speed-up.
The rate is constant, because the baseline already contains the schedule's effect. AdamW is replaced
by its first moment: a surrogate's coordinates count as already scaled by Adam.

The effect of a codec on the loss depends on steps, not on their times. So a surrogate with a codec
runs once, separately, and all runs of the algorithm have the mean loss of its seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from math import ceil, inf
from typing import Any

import numpy as np

from ..objectives.learning_curve.objective import Expected, Goal, expect, goal
from ..objectives.learning_curve.surrogate import Gains, Probe
from ..programs.codecs.codec import Raw
from ..programs.pieces.schedule import ConstantSchedule, FixedPeriod
from ..programs.pieces.transform import AdamW, FedAdam, Momentum
from ..results import store
from ..results.run import Run
from ..scenario.scenario import Algorithm, Scenario, World
from ..scenario.tables import RunSettings
from .observer import NEVER, POINTS

FEWEST, GRADIENTS = 128, 16_384  # local steps and gradients of a probe
ROUNDS = 96  # averages of a probe: an outer momentum of 0.9 has settled by the middle
LONGEST = 400_000  # most gradients of a run that measures the share of absent workers
COUNTED_ROUNDS = 8  # fewest rounds of a run that measures how many gradients are used
CODEC_ROUNDS = 48  # rounds after which a program that diverges with its codec has diverged ...
CODEC_SENDS = 16  # ... and the number of times that each entry was sent by then
FINER, LEAST = 4.0, 1e-6  # factor between the limits to try, and the lowest
HIGHEST_RISE = 0.02  # tolerated rise of the final loss above the least one, relative to it
IGNORED = {"title", "algorithm", "tune", "theory", "validation", "run", "cost"}
"""Tables without effect on a surrogate; [run] acts only by its end."""
TIMES = {"cluster", "network", "server", "overhead", "calibration", "recovery"}
"""Tables without effect if only the numbers of steps and workers matter."""
CODEC_SEEDS = 4  # seeds whose mean loss becomes the loss of all runs of a program with a codec
CODEC_STEPS = 65_536  # steps after which a codec's share of the loss moves by 0.0003 at most
AHEAD, FURTHER = 1.1, 1.5  # durations of a surrogate's first run, and the factor of later ones
SPEED_SHARE, SPEED_STEPS = 1 / 16, 256  # share of a run that shows its speed, and its fewest steps
_goals: dict[str, Goal | Expected] = {}

RunSeeds = Callable[[World, int], Sequence[Run]]


def normalised(world: World, run: RunSeeds) -> World:
    """Return a world with an objective that engines can build.

    The scenario's objective is a learning curve. The result is the same for every seed, engine and
    replicate, because a probe depends on the scenario as written. `run(world, seeds)` runs a world
    with that number of seeds. Raises InputError.
    """
    scenario, algorithm = world.scenario, world.algorithm
    expected = expect(world)
    if expected.direct and not _may_miss(world):
        return world.changed(objective=expected)
    ignored = IGNORED | TIMES if _by_steps(world) else IGNORED
    table = {key: value for key, value in scenario.table.items() if key not in ignored}
    ends = [expected.steps, scenario.run.steps, _may_miss(world) and scenario.run.duration]
    text = store.dump([table, algorithm.table, expected.workers, ends])
    key = sha256(text + repr(world.program).encode()).hexdigest()
    if key not in _goals:
        _goals[key] = _goal(world, expected, run)
    objective = _goals[key]
    if isinstance(objective, Goal):
        world = replace(world, algorithm=_at(algorithm, objective.rate))
    return world.changed(objective=objective)


def _goal(world: World, expected: Expected, run: RunSeeds) -> Goal | Expected:
    """Return a run's objective: its expected or followed loss, or a surrogate."""
    followed, whole = coded(world.algorithm) and _by_steps(world), world
    if followed and "buckets" in world.algorithm.parameters:  # its vectors are too small to cut
        world = replace(world, algorithm=_with(world.algorithm, buckets=1))
    if _may_miss(world):
        expected = expect(world, counted=_counted(world, expected, run))
    if expected.direct:
        return expected
    gains = _probed(world, expected, run)
    part = expected.workers / world.scenario.cluster.workers  # a probe has gradients of all workers
    gains = replace(gains, averaged=gains.averaged * part)
    target = expect(world, apart=gains.apart, counted=expected.workers)
    surrogate = goal(target, gains, world.algorithm)
    if coded(world.algorithm):
        tuned = replace(world, algorithm=_at(world.algorithm, surrogate.rate))
        surrogate = surrogate.limited(_settled(tuned, surrogate, run))
    return _followed(tuned, whole, surrogate, run) if followed else surrogate


def _by_steps(world: World) -> bool:
    """Return whether the loss depends only on steps, because no worker acts on times."""
    program = world.program
    timed = program.server or program.gossips or program.pooled or program.asks
    chosen = world.scenario.cluster.sampling is not None
    return not (timed or chosen or program.needs_loss or _may_miss(world))


def _followed(world: World, whole: World, surrogate: Goal, run: RunSeeds) -> Expected:
    """Return a surrogate's loss by steps, from one run with `CODEC_SEEDS` seeds.

    So runs of the algorithm need no vectors. `whole`: the world whose steps are followed. Points of
    the loss lie at the same steps for any duration, so a loss does not depend on earlier ones.
    """
    ends, expected = world.scenario.run, surrogate.expected
    known: dict[str, Any] = {"steps": (-1.0,), "ratios": (0.0,), "times": AHEAD}
    most = min(ends.steps or inf, max(CODEC_STEPS, ROUNDS * expected.period))
    every = max(1, int(min(expected.steps, most, NEVER)) // POINTS)

    @cache
    def length() -> float:
        """Return the steps of a run; under a duration, from the speed of its first part."""
        if ends.duration is None:
            return float(ends.steps or 1)
        for share in (SPEED_SHARE, 1.0):
            end = {"duration": share * ends.duration, "steps": None}
            timed = replace(whole, algorithm=_at(whole.algorithm, surrogate.rate))
            settings = ends.model_copy(update=end | {"evaluate_every": None})
            (brief,) = run(_calm(timed, expected, settings), 1)
            if brief.steps >= SPEED_STEPS:
                break
        return float(brief.steps / share)

    def follow(times: float) -> tuple[Sequence[float], Sequence[float]]:
        steps = int(min(most, every * ceil(times * length() / every)))
        settings = {"steps": steps, "evaluate_every": every, "sampling": "aggregate"}
        update = settings | {"duration": None}
        share = 1.0
        while True:
            limited = surrogate.limited(share)
            coded_world = _calm(world, limited, ends.model_copy(update=update))
            runs = run(coded_world, CODEC_SEEDS)
            points = min(len(run_.curve["step"]) for run_ in runs)
            done = np.array(runs[0].curve["step"][:points])
            losses = np.mean([run_.curve["loss"][:points] for run_ in runs], axis=0)
            if share <= LEAST or _stays(losses):
                break
            share /= FINER  # a loss that grows slowly shows only in the whole run
        if expected.evident:  # the evidence includes the program's cost without its codec
            raw = replace(coded_world, algorithm=_with(world.algorithm, codec=Raw()))
            plain = np.array(run(raw, 1)[0].curve["loss"][:points])
            losses *= expected.parallel(done) * expected.ratio(done) / plain
        return done.tolist(), losses.tolist()

    def loss(step: float) -> float:
        """Return the loss after `step` steps; its ratio is constant beyond `most`."""
        while step > known["steps"][-1] and known["steps"][-1] < most:
            known["steps"], losses = follow(known["times"])
            known["times"] *= FURTHER
            with np.errstate(divide="ignore", invalid="ignore"):
                known["ratios"] = np.log(losses / expected.parallel(np.array(known["steps"])))
        ratio = np.interp(step, known["steps"], known["ratios"])
        return float(expected.parallel(step) * np.exp(ratio))

    return replace(expected, followed=loss)


def _timeless(scenario: Scenario) -> dict[str, Any]:
    """Return tables with which all steps take equally long, and messages no time."""
    cluster, network = type(scenario.cluster), type(scenario.network)
    return {
        "cluster": cluster.model_validate({"workers": scenario.cluster.workers, "compute": "1 s"}),
        "network": network.model_validate({"latency": "0 s", "bandwidth": "1 GB/s"}),
        "overhead": (),
        "codec": (),
    }


def _may_miss(world: World) -> bool:
    """Return whether contributions of workers or selected clients may be missing."""
    scenario, algorithm = world.scenario, world.algorithm
    cluster = scenario.cluster
    away = scenario.unstable or cluster.drops
    if cluster.sampling is None:
        policy = (algorithm.recovery or scenario.recovery).policy
        leaves_out = policy == "backup" or (away and policy in ("shrink", "quorum"))
        return leaves_out and not algorithm.served  # a server uses every report
    return algorithm.samples and (away or cluster.sampling.deadline is not None)


def _counted(world: World, expected: Expected, run: RunSeeds) -> float:
    """Return the mean number of workers whose gradients count, from the first rounds."""
    scenario, algorithm = world.scenario, world.algorithm
    period = _fixed(algorithm)
    end = expected.steps
    least = max(FEWEST, COUNTED_ROUNDS * period, min(ROUNDS * expected.period, end))
    steps = period * int(-(-least // period))  # whole rounds: gradients count at their end
    if scenario.cluster.sampling is None:
        steps = int(max(steps, min(end, LONGEST / expected.workers)))
    settings = RunSettings(steps=steps, evaluate_every=max(1, steps // 8))
    settings = settings.model_copy(update={"duration": scenario.run.duration})
    recovery = algorithm.recovery or scenario.recovery  # `run` removes the algorithm's
    (measured,) = run(world.changed(objective=expected, run=settings, recovery=recovery), 1)
    return measured.contributing or expected.workers


def _fixed(algorithm: Algorithm) -> int:
    """Return the local steps between two reports; 1 if that number varies."""
    tau = algorithm.parameters.get("tau")
    return tau.value if isinstance(tau, FixedPeriod) else 1


def coded(algorithm: Algorithm) -> bool:
    """Return whether an algorithm compresses its messages."""
    return getattr(algorithm.parameters.get("codec"), "kind", "raw") != "raw"


def _settled(world: World, surrogate: Goal, run: RunSeeds) -> float:
    """Return the share of the curvatures' limit at which a codec stays stable."""
    codec = world.algorithm.parameters["codec"]
    rounds = max(CODEC_ROUNDS, CODEC_SENDS / getattr(codec, "ratio", 1.0))
    steps = int(max(FEWEST, min(rounds * surrogate.expected.period, surrogate.expected.steps)))
    share = 1.0
    while share > LEAST:
        (tried,) = run(_calm(world, surrogate.limited(share), _brief(steps)), 1)
        if _stays(np.array(tried.curve["loss"])):
            return share if share == 1 else share / FINER
        share /= FINER
    return share


def _stays(loss: np.ndarray) -> bool:
    """Return whether a loss neither diverges nor rises again."""
    return bool(np.isfinite(loss).all() and loss[-1] <= loss.min() * (1 + HIGHEST_RISE))


def _with(algorithm: Algorithm, **changed: Any) -> Algorithm:
    return algorithm.model_copy(update={"parameters": algorithm.parameters | changed})


def _at(algorithm: Algorithm, rate: float, **changed: Any) -> Algorithm:
    """Return the algorithm with a constant rate, and Adam's first moment for AdamW."""
    parameters: dict[str, Any] = {
        key: Momentum(value.beta1) if isinstance(value, AdamW | FedAdam) else value
        for key, value in algorithm.parameters.items()
    }
    if "lr" in parameters:
        changed["lr"] = ConstantSchedule(rate)
        if parameters.get("mu"):  # it pulls by mu times the rate
            highest = max(map(parameters["lr"], range(0, 10**4, 10)))
            changed["mu"] = parameters["mu"] * float(highest) / rate
    return _with(algorithm.model_copy(update={"parameters": parameters}), **changed)


def _probed(world: World, expected: Expected, run: RunSeeds) -> Gains:
    """Measure a program's response to gradients, without codec and failures."""
    algorithm, program = world.algorithm, world.program
    workers, most = world.scenario.cluster.workers, int(min(expected.steps, NEVER))
    plain = _at(algorithm, 1.0, **({"codec": Raw()} if coded(algorithm) else {}))
    reports = COUNTED_ROUNDS * _fixed(algorithm) if program.server else 0
    steps = max(FEWEST, min(1024, GRADIENTS // workers), reports)
    meets = program.averages and not (program.server or program.gossips)
    while True:
        probe = Probe(workers, lambda step: float(expected.parallel(step)), program.gossips)
        (probed,) = run(replace(_calm(world, probe, _brief(steps)), algorithm=plain), 1)
        tau = np.array(probed.curve["tau"])
        periods = tau[np.isfinite(tau)]
        period = float(periods.mean()) if periods.size else np.nan
        late = _lateness(probed)
        enough = ROUNDS * (period + late) if meets else steps
        most = most if periods.size or not meets else 10**7  # the run may reach its target earlier
        if steps >= min(most, 10**7) or steps >= enough:
            break
        longer = 8 * steps if np.isnan(enough) else ROUNDS * int(period + np.ceil(late))
        steps = max(FEWEST, min(most, max(longer, steps + 8)))
    apart = (period if meets and np.isfinite(period) else 1.0) + late
    gains = probe.gains(bool(program.server) or program.pooled, apart)
    codec: Any = algorithm.parameters.get("codec")
    if getattr(codec, "carries_momentum", False):  # sending an entry clears its momentum
        momentum, rest = codec.momentum, 1 - codec.momentum
        effective = 1 - momentum * (1 - momentum ** (1 / codec.ratio)) * codec.ratio / rest
        gains.signal *= effective / rest
    return gains


def _lateness(run: Run) -> float:
    """Return the mean number of local steps by which a contribution is late."""
    counts = run.staleness
    total = sum(counts.values())
    if not total or run.staleness_unit == "averagings":
        return 0.0
    mean = sum(age * count for age, count in counts.items()) / total
    return mean * run.steps / run.updates if run.staleness_unit == "updates" else mean


def _brief(steps: int) -> RunSettings:
    return RunSettings(steps=steps, evaluate_every=max(1, steps // 8), sampling="aggregate")


def _calm(world: World, probe: Probe | Goal | Expected, settings: RunSettings) -> World:
    """Return the world of a probe: no failing node, and no time if steps alone matter."""
    scenario = world.scenario
    cluster = scenario.cluster
    steady = {"failures": None, "membership": None, "drop": None}
    groups = tuple(part.model_copy(update=steady) for part in cluster.group)
    sampling = cluster.sampling if world.algorithm.served else None
    calm_cluster = steady | {"crash": (), "group": groups, "sampling": sampling}
    calm = world.changed(
        objective=probe,
        run=settings,
        calibration=None,
        cluster=cluster.model_copy(update=calm_cluster),
        server=scenario.server.model_copy(update={"failures": None}),
        recovery=type(scenario.recovery)(),
    )
    timed = isinstance(probe, Expected) or not _by_steps(world)
    return calm if timed else calm.changed(**_timeless(scenario))
