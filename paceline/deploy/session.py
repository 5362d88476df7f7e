"""A session, which runs one process's part of a program in the user's training loop."""

import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from paceline.simulator.errors import InputError, ProgramError, RunError
from paceline.simulator.programs.codecs.codec import Raw
from paceline.validate.training.transport import CHUNK, Staged

from . import plan as plans
from .attached import GRADIENT, AttachedNode, Period, UserLoop
from .live import live_parameters
from .local_steps import (
    REMEDY,
    SeveralOptimizers,
    UserRate,
    UserSteps,
    demand_plain,
    parts,
    plain_sgd,
    scaler_of,
)
from .steering.telemetry import StepRecord
from .transport import Transport, place

RECORDS = 4096  # steps with stored telemetry
VERSION = 7


class Options(NamedTuple):
    """Options of `deploy`: the plan's `parameters`, a seed, seconds to wait, a mesh of islands."""

    parameters: Mapping[str, Any]
    seed: int = 1
    timeout: float = 1800.0
    mesh: Any = None


class Session:
    """One process's part of a program; `telemetry`: the last steps' records, oldest first."""

    def __init__(
        self, model: nn.Module, optimizer: Any, plan: plans.Source, options: Options
    ) -> None:
        if isinstance(optimizer, list | tuple):
            optimizer = SeveralOptimizers(optimizer)
        demand_plain(optimizer)
        self._model, self._optimizer, self._options = model, optimizer, options
        self.place, self._own_step = place(options.mesh), optimizer.step
        self._live = live = live_parameters(model, optimizer, self.place.members)
        self._rate = UserRate(optimizer)
        self.plan = self._read(plan, options.parameters)
        self._parameters, self._decay = dict(self.plan.parameters), 0.0
        self._local = self._replace_local()
        self._settings, self._period = self.plan.settings, None
        if "tau" in self._settings and callable(tau := self._parameters["tau"]):
            self._parameters["tau"] = self._period = Period(tau)
        # settings at the program's start
        self._fresh = self._settings.keys() - ({"tau"} if self._period else set())
        self.telemetry: deque[StepRecord] = deque(maxlen=RECORDS)
        self._steering: Any = None
        self._watcher: ThreadPoolExecutor | None = None
        self._closed = False
        self._open()
        self._agree()
        self._transport.broadcast([live.start, *live.others, *model.buffers()])
        live.begin()

    def _replace_local(self) -> UserSteps | None:
        """Replace the program's optimizer by the user's; return this as a transform."""
        plan, parameters, optimizer = self.plan, self._parameters, self._optimizer
        name, key = plan.program.name, plan.program.local_momentum
        if "lr" in parameters:
            parameters["lr"] = self._rate
        local = None
        if plan.local is not None:
            coded = parameters.get("codec", Raw()) != Raw()
            local = UserSteps(self._live, optimizer, self._own_step, keeps=plan.keeps, coded=coded)
            parameters[plan.local] = local
        if not plan.sgd:
            return local
        momentum, decay = plain_sgd(optimizer, name, plan.sgd, strict=plan.strict)
        if local is None:
            self._decay = decay
            if key in parameters:
                parameters[key], momentum = momentum, 0.0
        if momentum and plan.strict:
            raise InputError(
                f"optimizer: {name} has no place for momentum {momentum:g} ({plan.sgd}); use "
                f"torch.optim.SGD without momentum, or {REMEDY}"
            )
        return local

    def _open(self) -> None:
        """Connect to the other processes; start the program."""
        self._transport = Transport(self.place, self._live.start, self._options.timeout)
        self._start()

    def _agree(self) -> None:
        """Raise InputError on all ranks if their plans or models differ."""
        trained = set(map(id, self._live.parameters))
        model = [
            (name, tuple(one.shape), str(one.dtype), id(one) in trained)
            for name, one in (*self._model.named_parameters(), *self._model.named_buffers())
        ]
        hashes = [
            float(zlib.crc32(repr(value).encode()))
            for value in (sorted(self.plan.table.items()), model)
        ]
        columns = zip(*self.share(hashes), strict=True)
        for what, column in zip(("plan", "model"), columns, strict=True):
            if others := [rank for rank, value in enumerate(column) if value != column[0]]:
                raise InputError(f"{what}: rank {others[0]} has another {what} than rank 0")

    def _start(self) -> None:
        """Start the program from the beginning."""
        program = self.plan.program
        loop = UserLoop(self._live, self._local, self._rate, self._decay, self._period)
        self._node = AttachedNode(loop, self._transport, self._options.seed)
        self._node.watcher = self._watcher
        raw = self.plan.parameters.get("codec", Raw()) == Raw()
        self._node.plain = raw and program.rounds and self.plan.built_in
        self._node.unread = self._node.plain and self._local is not None
        if self._local is not None:
            self._local.begun = False
        parameters = dict(self._parameters)
        if "codec" in parameters:
            parameters["codec"] = Listed(parameters["codec"], self._node)
        self._coroutine = program.start(program.worker, self._node, parameters)
        self._begun, self._since, self._waited = False, nan, 0.0

    def _go_on(self) -> None:
        """Run the program up to its next gradient."""
        try:
            with torch.no_grad():
                awaited = self._coroutine.send(None)
        except StopIteration:
            raise ProgramError("the program has ended, but training continues") from None
        if awaited is not GRADIENT:
            raise ProgramError("a program may await only methods of its node (`me`)")

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._go_on()

    def step(self, loss: Any = None, scaler: Any = None) -> None:
        """Take one step of the program, from the parameters' gradients.

        It replaces `optimizer.step()`. `loss`: this step's loss, for programs that use it, and for
        telemetry; `scaler`: the torch.amp.GradScaler that scaled it; the loop still calls its
        `update`.
        """
        if self._closed:
            raise ProgramError("the session is closed: deploy again to continue")
        with self._telling():
            self._step(loss, scaler if scaler is not None and scaler.is_enabled() else None)
            for report in self._steering.after(self) if self._steering else ():
                logging.getLogger("paceline").warning(report)

    def _step(self, loss: Any, scaler: Any) -> None:
        node = self._node
        self._live.check(may_freeze=self._local is not None)
        if self._local is not None:
            self._local.scaler = scaler
        elif scaler is not None or any(map(scaler_of, parts(self._optimizer))):
            raise InputError(
                f"scaler: {self.plan.program.name} reads the gradients itself, so a "
                "GradScaler cannot skip its steps; use torch.bfloat16, which needs none"
            )
        else:
            self._optimizer._opt_called = True  # it never steps, so schedules would warn
        if all(parameter.grad is None for parameter in self._live.parameters):
            raise ProgramError("no parameter has a gradient: call loss.backward() before the step")
        self._begin()
        node.loss = loss.detach() if isinstance(loss, Tensor) else loss
        moved, took = self._transport.network.bytes, len(node.took)
        node.step += 1
        self._transport.step = node.step
        self._go_on()
        now, waiting = time.monotonic(), node.waited - self._waited
        self.telemetry.append(
            StepRecord(
                node.step, now - self._since - waiting, waiting,
                self._transport.network.bytes - moved, node.loss, tuple(node.took[took:]),
            )
        )  # fmt: skip
        self._since, self._waited = now, node.waited

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell the other processes if this process fails, so that none waits for it."""
        if self._transport.failed:
            raise RunError(self._transport.lost())
        try:
            yield
        except Exception as error:
            self._transport.fail(error)
            raise

    def _meet(self, what: str) -> None:
        """Wait until all processes do this; raise RunError on all if they differ."""
        with self._telling(), self._node.waiting():
            self._transport.meet(what, self.settings)

    def steer(self, make: Callable[[], Any]) -> None:
        """Watch and steer this session with the controller that rank 0 makes.

        Raises InputError on every rank if rank 0 cannot make one, or no setting can change.
        """
        from .steering.attach import Steering

        if not self._settings:
            raise InputError(f"adapt: {self.plan.program.name} has no setting that can be changed")
        controller, why = None, ""
        if self._transport.rank == 0:
            try:
                controller = make()
            except InputError as error:
                why = str(error)
        if any(failed for (failed,) in self.share([float(bool(why))])):
            raise InputError(why or "adapt: rank 0 cannot steer; its message says why")
        self._steering = Steering(controller)
        self._watcher = self._node.watcher = ThreadPoolExecutor(1, thread_name_prefix="watcher")

    @property
    def decisions(self) -> list[Any]:
        """Return the controller's decisions so far (on rank 0)."""
        controller = self._steering and self._steering.controller
        return controller.log if controller else []

    @property
    def memory(self) -> dict[str, float]:
        """Return the bytes that this session adds, at most; a codec's memory comes on top.

        On the parameters' device: "held" between steps, and at the "peak" of a step. On the "host":
        pinned copies of a GPU's vectors that gloo sends.
        """
        size, links = self._live.dimension * self._live.start.element_size(), self._transport
        held, peak, sent = self.plan.vectors
        host = sent * -(-size // CHUNK) * CHUNK if isinstance(links.team, Staged) else 0
        return {"held": held * size, "peak": peak * size, "host": host}

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that `change` may change, as written in a scenario."""
        tau = {} if self._period is None else {"tau": int(self._period(self._node.step))}
        return self._settings | tau

    def change(self, **settings: Any) -> None:
        """Change some of the `settings`, written as in a scenario.

        tau applies to the local phase under way, which ends with the next step if it is already
        that long; for cycles of fragments it applies from the next cycle on. Period, delay and
        overlap apply from the next mean on, after everything under way has arrived, because the
        program then restarts from its state. Every process must call this between the same two
        steps, with the same values.
        """
        name, now = self.plan.program.name, self.settings
        for key in settings:
            if key not in now:
                raise InputError(f"{key}: {name} has no {key} that can change")
        plan = self._read(self.plan.table | now | settings)
        self._settings = now | settings
        if self._period is not None and "tau" in settings:
            self._period.now = settings["tau"]
        if fresh := self._fresh & settings.keys():
            self._begin()
            state = self._node.state()
            self._parameters |= {key: plan.parameters[key] for key in fresh}
            self._coroutine.close()
            self._start()
            self._resume(state)

    def _read(self, plan: plans.Source, parameters: Mapping[str, Any] = {}) -> plans.Plan:
        workers, islands = self.place.workers, len(self.place.members) > 1
        return plans.read(plan, parameters, workers, self._live.dimension, islands=islands)

    def share(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers that every process passes to this call, by rank."""
        with self._telling(), self._node.waiting():
            shared: list[list[float]] = self._transport.collectives.tell(numbers).wait().tolist()
        return shared

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Replace the model by the mean of all processes' models, buffers included.

        Use it to evaluate or save the model, because models differ between two means. Every process
        must enter it between the same two steps.
        """
        live = self._live
        live.check(may_freeze=True)
        self._meet("averages its model")
        frozen = [one.detach() for one in live.others if one.is_floating_point()]
        sums = self.share([float((one.double() + 1).square().sum()) for one in frozen])
        # parameters that are equal on all ranks, such as frozen ones, need no mean
        buffers = [one for one, *its in zip(frozen, *sums, strict=True) if len(set(its)) > 1] + [
            buffer for buffer in self._model.buffers() if buffer.is_floating_point()
        ]
        copies, at = [buffer.clone() for buffer in buffers], live.now()
        with torch.no_grad():
            with self._telling(), self._node.waiting():
                handle = self._transport.collectives.mean((at, *copies), 0)
                self._transport.collectives.settle(handle)
            x, *means = handle.result
            for buffer, mean in zip(buffers, means, strict=True):
                buffer.copy_(mean)
        live.go_to(x)
        try:
            yield
        finally:
            live.go_to(at)
            self._since = nan
            with torch.no_grad():
                for buffer, before in zip(buffers, copies, strict=True):
                    buffer.copy_(before)

    def state_dict(self) -> dict[str, Any]:
        """Return this process's state, for saving beside the model's.

        Every process must call this between the same two steps, because means under way are
        completed first. The tensors are in use: save or copy them before the next step.
        """
        self._live.check(may_freeze=True)
        self._meet("saves its state")
        self._begin()
        name, self._since = self.plan.program.name, nan
        return self._node.state() | {
            "version": VERSION, "program": name, "rank": self.place.rank,
            "workers": self.place.workers, "settings": self.settings,
            "plan": dict(self.plan.table),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that equally many processes saved; all must call this.

        It must have been saved under this session's plan. Raises InputError.
        """
        try:
            self._load(state)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise InputError(
                f"state: differs from what session.state_dict() returned ({type(error).__name__}: "
                f"{error}); load another checkpoint into a new session"
            ) from error

    def _load(self, state: Mapping[str, Any]) -> None:
        self._demand_kin(state)
        theirs = self._read(state["plan"])
        if differing := theirs.differing(self.plan):
            both = (", ".join(f"{key} = {plan.table.get(key, 'default')}" for key in differing)
                    for plan in (theirs, self.plan))  # fmt: skip
            raise InputError(
                'state: saved under {}, and the plan has {}; deploy state["plan"], load the state, '
                "and then use session.change".format(*both)
            )
        self._settings |= state["settings"]
        plan = self._read(self.plan.table | self._settings)
        self._parameters |= {key: plan.parameters[key] for key in self._fresh}
        if self._begun:
            self._close()
            self._open()
        else:
            self._coroutine.close()
            self._start()
        self._transport.step = int(state["step"])
        self._meet("loads a state")
        self._resume(state)

    def _demand_kin(self, state: Mapping[str, Any]) -> None:
        """Raise InputError for a state of another version, program, model or process."""
        place, x, start = self.place, state["x"], self._live.start
        alone = "load only the model and the optimizer, before deploy"
        for what, theirs, mine, remedy in (
            ("version", state["version"], VERSION, "continue with the Paceline that saved it"),
            ("number of processes", state["workers"], place.workers, f"start as many, or {alone}"),
            ("process", state["rank"], place.rank, "load every process's own state"),
            ("program", state["program"], self.plan.program.name,
             f'deploy state["plan"], or {alone}'),
            ("model", f"{len(x)} of {x.dtype}", f"{len(start)} of {start.dtype}",
             "load it with the trained model"),
        ):  # fmt: skip
            if theirs != mine:
                raise InputError(f"state: its {what} is {theirs}, here it is {mine}; {remedy}")

    def _resume(self, state: Mapping[str, Any]) -> None:
        """Let a program that has not started begin from a state."""
        self._node.restore({**state, "x": state["x"].to(self._live.start.device, copy=True)})
        self._live.vector = None
        self._begin()
        self._node.saved = None
        if self._local is not None:
            self._local.begun = True
        self._since, self._waited = nan, self._node.waited

    def close(self) -> None:
        """Complete everything under way, once every process has called this."""
        if not self._closed:
            self._closed = True
            self._live.leave()
            try:
                self._close()
            finally:
                if self._watcher is not None:
                    self._watcher.shutdown()

    def _close(self) -> None:
        self._coroutine.close()
        if not self._transport.failed:
            self._meet("closes its session")
        with self._node.waiting():
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # the others must notice that this process is gone
            self._coroutine.close()
            self._live.leave()
            self._transport.fail(repr(error))


class Listed:
    """A codec that lists its channels for a node, so that a checkpoint saves their state."""

    def __init__(self, codec: Any, node: AttachedNode) -> None:
        self._codec, self._node = codec, node

    def open(self, me: Any) -> Any:
        """Open a channel."""
        channel = self._codec.open(me)
        if channel is not me:
            self._node.channels.append(channel)
        return channel


def deploy(  # noqa: PLR0913
    model: nn.Module,
    optimizer: Any,
    plan: plans.Source,
    adapt: bool = False,
    *,
    mesh: Any = None,
    seed: int = 1,
    timeout: float = 1800.0,
    **parameters: Any,
) -> Session:
    """Attach a program to a training loop: `session.step()` replaces each step.

    Every process calls this with its model and optimizer, and starts from rank 0's model. `plan`: a
    run folder (its pick), an [[algorithm]] table, or a program's name with `parameters`. `adapt`:
    whether a controller changes period or delay when another is now better. It needs a run folder,
    from whose scenario it predicts the rest of the run. `mesh`: a DeviceMesh whose first dimension
    is the workers, and on whose others FSDP2 or DistributedDataParallel splits up each worker's
    work. `seed`: for random numbers of codecs and graphs. `timeout`: seconds after which a silent
    process counts as failed. Raises InputError.
    """
    folder = Path(plan) if isinstance(plan, str | Path) else None
    if adapt and (folder is None or not folder.is_dir()):
        raise InputError("adapt: needs a scenario to predict from; name the run folder of a pick")
    if adapt and parameters.keys() - {"label"}:
        raise InputError("adapt: the folder predicts other parameters; simulate with these first")
    if adapt and mesh is not None:
        raise InputError("adapt: a controller sees single processes, not islands; leave out adapt")
    session = Session(model, optimizer, plan, Options(parameters, seed, timeout, mesh))
    if adapt and folder:
        from .steering.attach import controller

        label, workers = parameters.get("label"), session.place.workers
        session.steer(partial(controller, folder, workers, label))
    return session
