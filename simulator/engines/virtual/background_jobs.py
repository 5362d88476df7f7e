"""Other jobs on the same network: runs that go on beside one, over the same lines."""

from typing import Any

from paceline.simulator.engines.virtual.flows import FlowSimulation
from paceline.simulator.programs import catalogue
from paceline.simulator.scenario.scenario import BackgroundJob

SEED_DISTANCE = (
    10**9
)  # between the seeds of a run and of its guests: none of their numbers are the same


class HostSimulation(FlowSimulation):
    """A run that has guests; it ends when nothing of its own is to come, as they never end."""

    def run(self) -> None:
        """Run to the end, beside the guests."""
        self.guests = [
            BackgroundSimulation(self, job, index) for index, job in enumerate(self.scenario.job)
        ]
        for guest in self.guests:
            guest.release_at(0.0, guest.nodes)
        try:
            super().run()
        finally:
            for guest in self.guests:
                for node in guest.nodes:
                    node.coroutine.close()

    def idle(self) -> bool:
        """Whether nothing of its own is to come: then the run is over."""
        return not (self._events or self.pending)

    def jobs(self) -> list[dict[str, Any]]:
        """How far each guest has come, as `Run.jobs`."""
        return [guest.pace(self.ended) for guest in self.guests]


class BackgroundSimulation(FlowSimulation):
    """A job beside a run: it has its own nodes and network cards."""

    def __init__(self, host: HostSimulation, job: BackgroundJob, index: int) -> None:
        self.host, self.index, self.label = host, index, job.algorithm.label
        program, seed = catalogue()[job.algorithm.name], host.seed + (index + 1) * SEED_DISTANCE
        super().__init__(program, job.algorithm, job.scenario, seed)
        self.env, self.ready, self.deadline = host.env, host.ready, host.deadline

    @property
    def _next_event(self) -> float:
        """When SimPy's next event is, whosever it is."""
        return self.host._next_event

    @_next_event.setter
    def _next_event(self, time: float) -> None:
        self.host._next_event = time

    def share(self) -> None:
        """Use the host's fabric."""
        host = self.host
        self.ground, self.tickets, self.weather = host.ground, host.tickets, host.weather
        self.topology = host.ground.others[self.index]

    def idle(self) -> bool:
        """Whether the host's run is over."""
        return self.host.idle()

    def pace(self, end: float) -> dict[str, Any]:
        """How far it has come."""
        served = len(self.nodes) > self.workers
        steps = self.nodes[-1].step / (self.workers if served else 1)
        return {
            "job": self.index,
            "algorithm": self.label,
            "steps": steps,
            "seconds_per_step": end / steps if steps else None,
        }
