"""Gates: points at a server where workers wait until the arrivals of others release them."""

from collections import Counter
from collections.abc import Iterable


class Gate:
    """A gate at which a worker waits once it is `lead` + 1 arrivals ahead of the slowest."""

    def __init__(self, workers: int, lead: int) -> None:
        self._lead, self._times = lead, [0] * workers
        self._least, self._ranks = 0, Counter({0: workers})  # workers by their arrivals
        self._waiting: list[int] = []

    def admit(self, worker: int) -> Iterable[int]:
        """Record an arrival; return the workers that may go on, in order of arrival.

        O(1) per arrival, amortised. All waiting workers are `lead` + 1 ahead, so one step of the
        slowest frees all of them.
        """
        times = self._times[worker] + 1
        self._times[worker] = times
        self._ranks[times] += 1
        self._ranks[times - 1] -= 1
        if not self._ranks[self._least]:
            del self._ranks[self._least]
            self._least = times
            free, self._waiting = [*self._waiting, worker], []
            return free
        if times - self._least <= self._lead:
            return [worker]
        self._waiting.append(worker)
        return []


def bounded_lead(workers: int, lead: int) -> Gate:
    """Make a gate that stops workers `lead` + 1 arrivals ahead of the slowest."""
    return Gate(workers, lead)
