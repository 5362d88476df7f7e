"""The controller of a deployed run: telemetry in, settings of the next rounds out."""

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import TypeAdapter

from paceline.deploy.steering.policies import Decision, Policy
from paceline.deploy.steering.telemetry import LEVELS, Settings, Telemetry
from paceline.deploy.steering.watch import Watch
from paceline.simulator.errors import InputError
from paceline.simulator.programs.codecs.channel import Channel
from paceline.simulator.programs.codecs.codec import CodecOf
from paceline.simulator.programs.codecs.message_codec import MessageChannel
from paceline.simulator.programs.effects import Node, Payload
from paceline.simulator.programs.pieces.schedule import FixedPeriod, OwnPeriod

codec_of = TypeAdapter[Any](CodecOf).validate_python


class Controller:
    """Steers one run, and watches it.

    `observe` takes in each round once all ranks have agreed on its record. `at(n)` is what round n
    (0, 1, ...) runs with: settled when first asked for, hence the same for every worker, and a
    change never touches a round under way. Where each rank is a process of its own, rank 0 decides
    and the session tells the others its `settings`. Without `steers` the `log` is advice. `said`:
    what was said.
    """

    KEPT: ClassVar = ("settings", "policy", "watch", "log", "said")

    def __init__(
        self, settings: Settings, policy: Policy, watch: Watch | None = None, *, steers: bool = True
    ) -> None:
        self.settings, self.policy, self.watch, self._steers = settings, policy, watch, steers
        self.log: list[Decision] = []
        self.said: list[str] = []
        self._rounds: list[Settings] = []

    def observe(self, record: Telemetry) -> list[str]:
        """Take in a round; return what is to be said of it now, and only now."""
        decision = self.policy(self.settings, record)
        if decision:
            self.log.append(decision)
            if self._steers:
                self.settings = decision.now
        best = self.log[-1].now if self.log else self.settings
        news = self.watch(record, best) if self.watch else []
        self.said += news
        return news

    def at(self, number: int) -> Settings:
        """Return the settings of a round."""
        while len(self._rounds) <= number:
            self._rounds.append(self.settings)
        return self._rounds[number]


class SteeredPeriod(OwnPeriod):
    """A communication period that a controller sets, at the start of each round.

    Means under way are those of finished rounds, with the steps that these had: programs that act
    on them a round later (cocod-sgd, overlap-local-sgd, delayed- and eager-diloco) do so at the
    end of the new round. Momenta over averages and what codecs have kept back stay as they are, as
    both are per round.
    """

    __slots__ = ("_controller", "_rounds")

    def __init__(self, controller: Controller) -> None:
        self._controller, self._rounds = controller, Counter[int]()

    def phase(self, me: Node) -> Callable[[int], float]:
        """Return the period of the worker's next round."""
        number = self._rounds[me.rank]
        self._rounds[me.rank] += 1
        return FixedPeriod(int(self._controller.at(number)["tau"]))


class SteeredCodec:
    """A codec whose level a controller sets, at each message; its kind stays.

    What error feedback has kept back stays, too, and is sent later, at the new level. Raises
    InputError for codecs whose state has the shape of their level.
    """

    def __init__(self, controller: Controller, codec: Any) -> None:
        if getattr(codec, "kind", "") not in LEVELS:
            raise InputError(
                f"codec {getattr(codec, 'kind', codec)!r}: has no level to steer; use one of "
                f"{', '.join(LEVELS)}"
            )
        self._controller, self._codec = controller, codec

    def open(self, me: Node) -> Channel:
        """Open a channel of one node."""
        return _LevelChannel(me, self._codec, self._controller)


class _LevelChannel(MessageChannel):
    """A channel that asks for its codec before each of its messages, one per round."""

    def __init__(self, me: Node, codec: Any, controller: Controller) -> None:
        super().__init__(me, codec)
        self._controller, self._sent = controller, 0

    def _pack(self, value: Payload) -> Payload:
        codec = codec_of(self._controller.at(self._sent)["codec"])
        if type(codec) is not type(self._codec):
            raise InputError("codec: its level may be steered, its kind may not")
        self._codec, self._sent = codec, self._sent + 1
        return super()._pack(value)
