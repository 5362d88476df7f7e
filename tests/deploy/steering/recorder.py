"""Telemetry of a run in virtual time: a recorder stands between a program and its nodes."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from paceline.deploy.steering.telemetry import Telemetry


@dataclass
class Share:
    """One worker's part of a round."""

    steps: int
    seconds: float
    loss: float
    clock: float
    asked: float = 0.0


@dataclass
class Recorder:
    """Makes a record of each round once its mean has come, and shows it to the controller."""

    controller: Any
    rounds: dict[int, dict[int, Share]] = field(default_factory=lambda: defaultdict(dict))
    records: list[Telemetry] = field(default_factory=list)
    step: int = 0

    def node(self, me):
        """Return a node whose effects are recorded."""
        return RecordedNode(me, self)

    def came(self, number, me, asked):
        """Record the round whose mean has come on a first worker."""
        if number != len(self.records):
            return
        shares = [share for _, share in sorted(self.rounds.pop(number).items())]
        assert len(shares) == me.workers
        now, steps, many = me.clock(), shares[0].steps, len(shares)
        begun = max(share.clock for share in shares)
        self.step += steps
        self.records.append(
            Telemetry(
                self.step,
                steps,
                sum(share.clock for share in shares) / many,
                tuple(share.seconds / share.steps for share in shares),
                now - begun if now > asked else None,
                float(me.parameters * me.bytes_per_parameter),
                sum(share.loss for share in shares) / many,
            )
        )
        self.controller.observe(self.records[-1])


class RecordedNode:
    """A node; the one inside carries out its effects."""

    def __init__(self, me, recorder):
        self._me, self._recorder = me, recorder
        self._steps, self._seconds, self._loss, self._started = 0, 0.0, 0.0, 0
        self._numbers = {}

    def __getattr__(self, name):
        return getattr(self._me, name)

    async def gradient(self, x):
        return (await self.loss_and_gradient(x))[1]

    async def loss_and_gradient(self, x):
        began = self._me.clock()
        actual = await self._me.loss_and_gradient(x)
        self._seconds += self._me.clock() - began
        self._loss = self._loss if self._steps else actual[0]
        self._steps += 1
        return actual

    def start_mean(self, value):
        handle = self._me.start_mean(value)
        share = Share(self._steps, self._seconds, self._loss, self._me.clock())
        self._recorder.rounds[self._started][self._me.rank] = share
        self._numbers[id(handle)] = self._started, handle
        self._steps, self._seconds, self._loss = 0, 0.0, 0.0
        self._started += 1
        return handle

    async def wait(self, handle):
        began = self._me.clock()
        actual = await self._me.wait(handle)
        number, _ = self._numbers.pop(id(handle))
        self._recorder.came(number, self._me, began)
        return actual

    async def mean(self, value):
        return await self.wait(self.start_mean(value))
