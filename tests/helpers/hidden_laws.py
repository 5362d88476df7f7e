"""Write logs of jobs under a hidden law of links, without the simulator."""

from dataclasses import dataclass, replace

import numpy as np

GIGABIT = 125e6


@dataclass(frozen=True)
class HiddenLaw:
    """The true law of links, which calibration has to find.

    `efficiency` of 1 Gbit/s, `slope`: its change per factor of 10, seconds of `setup` and of every
    `hop` beyond latency, bytes per second that a host `copies`. `unsteady`: relative standard
    deviations of compute times and communication between equal runs.
    """

    efficiency: float = 0.93
    slope: float = 0.03
    setup: float = 1e-3
    hop: float = 5e-5
    copies: float = 2e10
    compute: float = 0.2
    spread: float = 0.03
    unsteady: float = 0.0

    def collective(self, workers, size, bandwidth, latency):
        """Return the seconds of a ring all-reduce of `size` bytes; `bandwidth` in bytes/s."""
        efficiency = self.efficiency + self.slope * np.log10(bandwidth / GIGABIT)
        volume = 2 * (workers - 1) / workers * size
        passed = volume / (bandwidth * efficiency) + volume / self.copies
        return self.setup + 2 * (workers - 1) * (latency + self.hop) + passed

    def steps(self, rng, *, tau, workers, size, bandwidth, latency, steps, ranks=1):
        """Return step times (s) of the first `ranks` workers, which average every tau steps."""
        shape = 1 / self.spread**2
        drawn = rng.gamma(shape, self.compute / shape, (workers, steps))
        factors = np.exp(self.unsteady * rng.standard_normal(2)) if self.unsteady else (1.0, 1.0)
        drawn = drawn * factors[0]
        lasted = self.collective(workers, size, bandwidth, latency) * factors[1]
        actual = drawn.copy()
        for end in range(tau, steps + 1, tau):
            factors = drawn[:, end - tau : end].sum(axis=1)
            actual[:, end - 1] += factors.max() - factors + lasted
        return actual[:ranks]

    def pace(self, **job):
        """Return the mean seconds per step of many steps."""
        steps = 20_000 // job["tau"] * job["tau"]
        usual = replace(self, unsteady=0.0)
        return float(usual.steps(np.random.default_rng(0), steps=steps, **job).mean())


def drawn(rng):
    """Draw a law like those of real systems."""
    return HiddenLaw(
        efficiency=rng.uniform(0.85, 0.98),
        slope=rng.uniform(-0.01, 0.05),
        setup=10 ** rng.uniform(-4, -2.3),
        hop=10 ** rng.uniform(-5, -3.7),
        copies=10 ** rng.uniform(9.7, 10.7),
        compute=10 ** rng.uniform(-1.3, 0),
        spread=rng.uniform(0.01, 0.1),
        unsteady=0.0015,  # as equal runs are: docs/evidence/validation/README.md
    )


def log(lasted, first=1, unit=1.0, name="seconds"):
    """Return a rank's steps as CSV."""
    rows = (f"{k},{seconds / unit:.6f}" for k, seconds in enumerate(lasted, start=first))
    return "\n".join([f"step,{name}", *rows, ""])


def job(file, *, tau, workers, size, bandwidth, latency, name="local-sgd", extra=""):
    """Return the [[job]] table of a log."""
    algorithm = f'{{ name = "{name}", tau = {tau} }}' if tau > 1 else '{ name = "ssgd" }'
    speed, late = f"{8e-6 * bandwidth:.12g} Mbit/s", f"{1e6 * latency:.12g} us"
    return (
        f'[[job]]\nlog = "{file}"\nalgorithm = {algorithm}\nworkers = {workers}\n'
        f'network = {{ bandwidth = "{speed}", latency = "{late}" }}\n'
        f"model = {{ parameters = {round(size / 4)}, bytes_per_parameter = 4 }}\n{extra}\n"
    )
