"""Background jobs: runs beside the run that is measured (the host), over the same lines."""

from typing import Any

from paceline.simulator.engines.virtual.flows import FlowSimulation
from paceline.simulator.programs import catalogue
from paceline.simulator.scenario.scenario import BackgroundJob

SEED_DISTANCE = 10**9  # between seeds of a run and of its jobs, so that no streams coincide


class HostSimulation(FlowSimulation):
    """A run with background jobs, which never end; it ends when it has nothing left to do."""

    def run(self) -> None:
        """Run to the end, beside the background jobs."""
        self.background = [
            BackgroundSimulation(self, job, index) for index, job in enumerate(self.scenario.job)
        ]
        for job in self.background:
            job.release_at(0.0, job.nodes)
        try:
            super().run()
        finally:
            for job in self.background:
                for node in job.nodes:
                    node.coroutine.close()

    def idle(self) -> bool:
        """Whether the run has nothing left to do, which ends it."""
        return not (self._events or self.pending)

    def jobs(self) -> list[dict[str, Any]]:
        """Return the progress of each background job, as `Run.jobs`."""
        return [job.progress(self.ended) for job in self.background]


class BackgroundSimulation(FlowSimulation):
    """A job beside a run, with nodes and network cards of its own."""

    def __init__(self, host: HostSimulation, job: BackgroundJob, index: int) -> None:
        self.host, self.index, self.label = host, index, job.algorithm.label
        program, seed = catalogue()[job.algorithm.name], host.seed + (index + 1) * SEED_DISTANCE
        super().__init__(program, job.algorithm, job.scenario, seed)
        self.env, self.ready, self.deadline = host.env, host.ready, host.deadline

    @property
    def _next_event(self) -> float:
        """Time of SimPy's next event, which all runs share."""
        return self.host._next_event

    @_next_event.setter
    def _next_event(self, time: float) -> None:
        self.host._next_event = time

    def share(self) -> None:
        """Use the host's fabric."""
        host = self.host
        self.shared_network, self.transfers, self.network_events = (
            host.shared_network,
            host.transfers,
            host.network_events,
        )
        self.topology = host.shared_network.others[self.index]

    def idle(self) -> bool:
        """Whether the host's run is over."""
        return self.host.idle()

    def progress(self, end: float) -> dict[str, Any]:
        """Return the job's steps up to `end`, and its seconds per step."""
        served = len(self.nodes) > self.workers
        steps = self.nodes[-1].step / (self.workers if served else 1)
        return {
            "job": self.index,
            "algorithm": self.label,
            "steps": steps,
            "seconds_per_step": end / steps if steps else None,
        }
