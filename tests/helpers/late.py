"""A late device: CPU tensors behind streams that work as late as the rules allow.

It replaces torch.cuda under `host.device.Accelerator`, whose code thus runs. An operation only
joins the queue of the current stream; when a host waits for it, only it and its predecessors run.
Until then its result is NaN. So work that is by chance done in time on a GPU, without a wait, is
never done here. Every thread belongs to a rank and has its own streams, like a process.

A native group's collectives run on a stream of the group, in order; `wait()` makes the current
stream wait, not the host. If ranks start different collectives, or one rank does not come, an error
names them after `PATIENCE`; a GPU hangs.

`late.md` cites the imitated behaviour; mutants in tests/validate/test_late_device.py show the
faults that it finds.
"""

import itertools
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map

from paceline.validate.host import device as devices

PATIENCE = 60.0  # seconds after which a rank counts as missing, not delayed by a busy machine
LOOK = 0.01  # seconds between looks at the ranks
LOCK = threading.Condition(threading.RLock())
ATEN: Any = torch.ops.aten
READ = {ATEN._local_scalar_dense.default}
SIZED_BY_VALUES = {ATEN.nonzero.default, ATEN.masked_select.default, ATEN.equal.default}
LOCAL = threading.local()


class Stream:
    """A queue of entries, numbered from 0; `done`: how many have been done."""

    def __init__(self, where: Any = None) -> None:
        self.home = home()
        self.queue: list[Any] = []
        self.done = 0

    def add(self, entry: Any) -> int:
        self.queue.append(entry)
        return len(self.queue)

    def run(self, upto: int) -> None:
        """Do the entries before number `upto`, and the work they wait for."""
        with LOCK:
            while self.done < upto:
                entry, number = self.queue[self.done], self.done
                if isinstance(entry, Event):
                    entry.pass_by()
                elif isinstance(entry, Collective):
                    entry.run()
                if self.done == number:  # no other thread has done it meanwhile
                    self.queue[number] = None
                    self.done += 1
                    if callable(entry):
                        entry()

    def wait_event(self, event: "Event") -> None:
        self.add(event.copy())

    def record_event(self, event: "Event") -> "Event":
        event.stream, event.number = self, len(self.queue)
        return event

    def __enter__(self) -> None:
        LOCAL.stacks = [*getattr(LOCAL, "stacks", ()), self]

    def __exit__(self, *_: object) -> None:
        LOCAL.stacks = LOCAL.stacks[:-1]


class Event:
    """A point of a stream; only blocking events let a waiting host sleep."""

    def __init__(self, blocking: bool = False) -> None:
        self.stream: Stream | None = None
        self.number, self.blocking = 0, blocking

    def copy(self) -> "Event":
        actual = Event(self.blocking)
        actual.stream, actual.number = self.stream, self.number
        return actual

    def pass_by(self) -> None:
        if self.stream is not None:
            self.stream.run(self.number)

    def synchronize(self) -> None:
        assert self.blocking, "a host spins"
        assert getattr(LOCAL, "chosen", False), "a context on the first device"
        self.pass_by()


class Home:
    """The state of a process: its streams, and `spins` (reads without a wait before).

    `pinned`: memory of the host, and the `most` bytes of it at once.

    Requests to native groups: `rehearsed` during the rehearsal, `asked` later.
    """

    def __init__(self) -> None:
        self.spins: list[str] = []
        self.pinned, self.most = list[Any](), 0
        self.rehearsed, self.asked = set[str](), set[str]()
        self.device: devices.Accelerator | None = None
        self.backward: Stream | None = None

    def start(self) -> None:
        LOCAL.home, LOCAL.chosen = self, True
        self.default = Stream()
        self.device = Device(torch.device("late:0"))


def home() -> Home:
    return LOCAL.home


def current() -> Stream:
    """Return the current stream, or in a backward pass the stream of the forward pass."""
    if stacks := getattr(LOCAL, "stacks", ()):
        return stacks[-1]
    return (home().backward if engine_thread() else None) or home().default


def engine_thread() -> bool:
    return isinstance(threading.current_thread(), threading._DummyThread)


class Device(devices.Accelerator):
    """The product's device, with pinned memory on which early reads are noticed."""

    def _pinned(self, like: torch.Tensor) -> torch.Tensor:
        memory = poisoned(torch.empty(like.shape, dtype=like.dtype))
        home().pinned.append((weakref.ref(memory), memory.nbytes))
        held = sum(size for one, size in home().pinned if one() is not None)
        home().most = max(home().most, held)
        return memory

    def group(self, store: Any, rank: int, size: int, timeout: float) -> Any:
        return Group(rank, size, store)


class Raw:
    """Memory of a stream. `uses`: last entry of each other stream that uses it."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.stream = current()
        self.uses, self.recorded = dict[Stream, int](), set[Stream]()
        about = memory, self.stream, self.uses, self.recorded
        weakref.finalize(self, reuse, *about).atexit = False


def reuse(memory: torch.Tensor, stream: Stream, uses: Any, recorded: Any) -> None:
    """Give freed memory to another tensor of the stream, although others still use it."""
    with LOCK:
        late = [key for key, until in uses.items() if key.done < until and key not in recorded]
        if late:
            stream.run(len(stream.queue))
            poisoned(memory)


def poisoned(memory: torch.Tensor) -> torch.Tensor:
    flat = memory.view(-1) if memory.is_contiguous() else memory
    return flat.fill_(float("nan") if memory.is_floating_point() else 77).view(memory.shape)


class Late(torch.Tensor):
    """A tensor whose entries exist once its stream has run."""

    raw: torch.Tensor
    owner: Raw
    home: Home

    @staticmethod
    def __new__(cls, raw: torch.Tensor, owner: Raw | None = None) -> "Late":
        actual = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(),
            dtype=raw.dtype, device="late:0",
        )  # fmt: skip
        actual.raw, actual.owner, actual.home = raw, owner or Raw(raw), home()
        return actual

    @property
    def data(self) -> Any:
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, other: "Late") -> None:
        torch.Tensor.data.__set__(self, other)
        self.raw, self.owner = other.raw, other.owner

    def record_stream(self, stream: Stream) -> None:
        self.owner.recorded.add(stream)

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def as_subclass(self, cls: Any) -> Any:
        both = Late if cls is torch.Tensor else type("Both", (cls, Late), {})
        return both(self.raw, self.owner)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        mine = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Late)]
        if engine_thread():
            LOCAL.home = mine[0].home
        assert all(tensor.home is home() for tensor in mine), "a tensor of another process"
        with LOCK:
            return dispatch(func, args, kwargs, mine)


def dispatch(func: Any, args: Any, kwargs: dict[str, Any], mine: list[Late]) -> Any:
    where = kwargs.pop("device", None)
    if func is ATEN._to_copy.default and where is not None and torch.device(where).type == "cpu":
        return read(func, mine[0]).clone().to(kwargs.get("dtype") or mine[0].dtype)
    if func in READ or func in SIZED_BY_VALUES:
        for tensor in mine:
            read(func, tensor)
        actual = func(*plain(args), **plain(kwargs))
        return wrapped(actual)
    if func is ATEN.copy_.default and not isinstance(args[0], Late):  # to the host
        return to_host(func, *args)
    if func is ATEN.copy_.default and not isinstance(args[1], Late):  # from pageable memory
        if not (args[2] if len(args) > 2 else False):
            spin(func)
        args = (args[0], args[1].clone(), *args[2:])
    if func.is_view or func is ATEN.detach.default:
        owner = mine[0].owner
        actual = func(*plain(args), **plain(kwargs))
        return wrapped(actual, owner)
    if func._schema.is_mutable:
        later(func, args, kwargs)
        return args[0]
    shapes = func(*meta(args), **meta(kwargs))
    out = tree_map(room, shapes)
    later(func, args, kwargs, out)
    return wrapped(out)


def later(func: Any, args: Any, kwargs: Any, out: Any = None) -> None:
    """Queue an operation; its closure keeps memory but not tensors, which may be freed."""
    for leaf in tree_flatten((args, kwargs))[0]:
        use(leaf)
    args, kwargs = plain(args), plain(kwargs)

    def work() -> None:
        with torch.no_grad():
            actual = func(*args, **kwargs)
            if out is not None:
                for to, tensor in zip(tree_flatten(out)[0], tree_flatten(actual)[0], strict=True):
                    to.copy_(tensor)

    current().add(work)


def use(tensor: Any) -> None:
    """Record that the next entry of the current stream uses a tensor."""
    stream = current()
    if isinstance(tensor, Late) and tensor.owner.stream is not stream:
        tensor.owner.uses[stream] = len(stream.queue) + 1


def read(func: Any, tensor: Late) -> torch.Tensor:
    """Return memory as a host reads it, after its thread has spun until the stream is done."""
    spin(func)
    return tensor.raw


def spin(func: Any) -> None:
    stream = current()
    if stream.done < len(stream.queue):
        where = [frame for frame in traceback.extract_stack() if "/validate/" in frame.filename]
        home().spins.append(f"{func} {where[-1:]}")
        stream.run(len(stream.queue))


def to_host(func: Any, memory: torch.Tensor, source: Late, non_blocking: bool = False) -> Any:
    raw = source.raw
    if not non_blocking:
        spin(func)
    if non_blocking:
        use(source)
        current().add(lambda: memory.copy_(raw))
    else:
        memory.copy_(raw)
    return memory


def plain(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.raw if isinstance(leaf, Late) else leaf, tree)


def meta(tree: Any) -> Any:
    def shape(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            raw = value.raw if isinstance(value, Late) else value
            return raw.to("meta")
        return value

    return tree_map(shape, tree)


def room(shape: Any) -> Any:
    if not isinstance(shape, torch.Tensor):
        return shape
    return poisoned(torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype))


def wrapped(tree: Any, owner: Raw | None = None) -> Any:
    return tree_map(lambda raw: Late(raw, owner) if isinstance(raw, torch.Tensor) else raw, tree)


class Collective:
    """One rank's part of a collective; all ranks do `what` in the same order."""

    def __init__(self, group: "Group", number: int, what: str, give: Any, take: Any) -> None:
        self.group, self.number, self.what, self.give, self.take = group, number, what, give, take
        self.over = False

    def run(self) -> None:
        parts, size = self.group.parts(self.number), self.group.size()
        end = time.monotonic() + PATIENCE
        while not self.over:
            if len(parts) < size:
                LOCK.wait(max(0.0, end - time.monotonic()))
                missing = sorted({*range(size)} - {*parts})
                if len(parts) < size and time.monotonic() >= end:
                    raise RuntimeError(f"ranks {missing} never start {self.number}: {self.what}")
                continue
            if len({part.what for part in parts.values()}) > 1:
                raise RuntimeError(
                    f"collective {self.number} differs: "
                    + ", ".join(f"rank {rank}: {part.what}" for rank, part in sorted(parts.items()))
                )
            for part in parts.values():
                part.group.stream.run(part.number * 2 + 1)  # up to it, without it
            if not self.over:
                gave = [parts[rank].give for rank in range(size)]
                for part in parts.values():
                    part.over = True
                actual = [torch.stack(gave).sum(dim=0)] if "sum" in self.what else gave
                for rank, part in parts.items():
                    if "exchange" in self.what:
                        actual = [one.view(size, -1)[rank] for one in gave]
                    for to, value in zip(part.take, [one.clone() for one in actual], strict=True):
                        to.copy_(value)


class Work:
    def __init__(self, stream: Stream, number: int, keep: Any) -> None:
        self.stream, self.number, self.keep = stream, number, keep

    def is_completed(self) -> bool:
        """Let one more operation run, as time passes between two polls."""
        with LOCK:
            if self.stream.done < self.number and ready(self.stream):
                self.stream.run(self.stream.done + 1)
            return self.stream.done >= self.number

    def wait(self) -> None:
        with LOCK:
            event = self.stream.record_event(Event())
            event.number = self.number
            current().wait_event(event)


def ready(stream: Stream) -> bool:
    entry = stream.queue[stream.done]
    return not isinstance(entry, Collective) or (
        entry.over or len(entry.group.parts(entry.number)) == entry.group.size()
    )


HUBS: dict[bytes, dict[int, dict[int, Collective]]] = {}
NUMBERS = itertools.count()


class Group:
    """A communicator of threads; its collectives are entries 1, 3, 5, ... of its stream."""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self._rank, self._size, self.count = rank, size, 0
        self.stream = Stream()
        if rank == 0:
            store.set("hub", str(next(NUMBERS)))
        self.hub = HUBS.setdefault(store.get("hub"), {})

    def size(self) -> int:
        return self._size

    def parts(self, number: int) -> dict[int, Collective]:
        return self.hub.setdefault(number, {})

    def allreduce(self, tensors: list[Late]) -> Work:
        (mine,) = tensors
        about = f"sum of {mine.numel()} {mine.dtype}"
        return self._start(about, mine.raw, [mine.raw], tensors)

    def allgather(self, outputs: list[list[Late]], tensors: list[Late]) -> Work:
        (mine,), (rows,) = tensors, outputs
        about = f"gather of {mine.numel()} {mine.dtype}"
        return self._start(about, mine.raw, [row.raw for row in rows], (outputs, tensors))

    def alltoall_base(self, output: Late, mine: Late, *_: list[int]) -> Work:
        about = f"exchange of {mine.numel()} {mine.dtype}"
        parts = output.raw.view(self._size, -1)
        return self._start(about, mine.raw, [*parts], (output, mine))

    def _start(self, what: str, give: torch.Tensor, take: list[torch.Tensor], keep: Any) -> Work:
        with LOCK:
            assert all(leaf.device.type == "late" for leaf in tree_flatten(keep)[0])
            home().asked.add(what)
            part = Collective(self, self.count, what, give, take)
            self.count += 1
            self.stream.wait_event(current().record_event(Event()))
            number = self.stream.add(part)
            self.parts(part.number)[self._rank] = part
            LOCK.notify_all()
            return Work(self.stream, number, keep)

    def shutdown(self) -> None:
        assert self.stream.done == len(self.stream.queue), "a collective is under way"


API = SimpleNamespace(
    Stream=Stream,
    Event=Event,
    current_stream=lambda where=None: current(),
    stream=lambda stream: stream,
    set_device=lambda where: setattr(LOCAL, "chosen", True),
    device_count=lambda: 1,
    current_device=lambda: 0,
    is_available=lambda: True,
    is_initialized=lambda: True,
    _is_in_bad_fork=lambda: False,
    manual_seed_all=lambda seed: None,
    get_device_properties=lambda where: SimpleNamespace(uuid=id(home())),
)
LIBRARY: list[Any] = []  # kept, because its operators need it


def register() -> None:
    """Register the device type "late" with torch, once for the whole process."""
    if LIBRARY:
        return
    backend_registration._setup_privateuseone_for_python_backend("late", API)
    library = torch.library.Library("aten", "IMPL")
    LIBRARY.append(library)

    def empty(size: Any, *, dtype: Any = None, **_: Any) -> Late:
        return Late(poisoned(torch.empty(size, dtype=dtype)))

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Late:
        return Late(poisoned(torch.empty_strided(size, stride, dtype=dtype)))

    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")


@contextmanager
def device(monkeypatch: Any) -> Iterator[None]:
    """Let new threads belong to the rank of the thread that starts them."""
    register()
    started, run = threading.Thread.start, torch.autograd.backward
    actual = devices.of

    def start(thread: threading.Thread) -> None:
        mine, inner = getattr(LOCAL, "home", None), thread.run

        def within() -> None:
            LOCAL.home = mine
            inner()

        if mine is not None:
            thread.run = within  # type: ignore[method-assign]
        started(thread)

    def backward(*args: Any, **kwargs: Any) -> None:
        if hasattr(LOCAL, "home"):
            for root in tree_flatten(args[0])[0]:
                assert root.owner.stream is current(), "its forward pass is on another stream"
            home().backward = current()
        run(*args, **kwargs)

    def of(where: torch.device) -> devices.Device:
        return home().device if where.type == "late" else actual(where)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(torch.autograd, "backward", backward)
    monkeypatch.setattr(devices, "of", of)
    monkeypatch.setattr(devices, "device_types", lambda: ("cpu", "late"))
    yield


def ranks(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Do work on one thread per rank; return the results, or raise the first error."""
    actual: list[Any] = [None] * count

    def one(rank: int) -> None:
        try:
            Home().start()
            LOCAL.rank = rank
            actual[rank] = work(rank)
        except BaseException as error:
            actual[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if errors := [outcome for outcome in actual if isinstance(outcome, BaseException)]:
            raise errors[0]  # the others may wait for this rank forever
        for thread in threads:
            thread.join(LOOK)
    if errors := [outcome for outcome in actual if isinstance(outcome, BaseException)]:
        raise errors[0]
    return actual
