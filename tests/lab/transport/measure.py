"""Measure cells: fork a process for each rank, join them, repeat the collective, and record."""

import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from operator import sub
from pathlib import Path as Folder
from threading import BrokenBarrierError
from typing import Any

from paceline.validate.host import machine, namespaces
from paceline.validate.host.relay import Path
from tests.lab.transport import links, wire
from tests.lab.transport.cells import Cell

FILE = Folder(__file__).parents[3] / "docs" / "evidence" / "transport.jsonl"
REPEATS = (5, 25)
BUDGET = 4.0  # seconds of repetitions in a cell, if that is enough for the fewest
LIMIT = 150.0  # seconds after which a cell is given up
AHEAD, EARLY = 0.01, 2e-4  # seconds: of the start that all agree on, and of polling for it
SLOW, CALM, UNEVEN = 50.0, 0.15, 0.01  # Mbit/s; of the CPU; of the median
FORK = multiprocessing.get_context("fork")


def versions() -> dict[str, str]:
    """Return the versions that times depend on."""
    import torch

    return {
        "kernel": platform.release(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def disturbed(record: dict[str, Any]) -> bool:
    """Whether other processes may have changed the times.

    Fast links need the processor, and gloo's threads do not run in real time as the sockets' ranks
    do, whose times over slow links show by their spread whether they were kept waiting.
    """
    if record["rate"] > SLOW or record["kind"] == "gloo":
        return bool(record["others"] > CALM)
    return bool(spread(record) > UNEVEN and record["others"] > CALM)


def spread(record: dict[str, Any]) -> float:
    """Return half the distance between the quartiles of the later half, relative to the median.

    The first repetitions differ, as buckets and windows are not yet as they will be.
    """
    later = record["each"][1 + len(record["each"]) // 2 :]
    low, middle, high = statistics.quantiles(later, n=4, method="inclusive")
    return (high - low) / 2 / middle


def read(path: Folder = FILE) -> dict[int, dict[str, Any]]:
    """Return the least disturbed record of each cell, by number."""
    found: dict[int, dict[str, Any]] = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        record = json.loads(line)
        known = found.get(record["number"])
        if known is None or record["others"] <= known["others"]:
            found[record["number"]] = record
    return dict(sorted(found.items()))


def write(records: dict[int, dict[str, Any]], path: Folder = FILE) -> None:
    """Write the records, a line each, at once."""
    fresh = path.with_suffix(".new")
    text = "".join(json.dumps(each) + "\n" for _, each in sorted(records.items()))
    fresh.write_text(text, "utf-8")
    fresh.replace(path)


class World:
    """What the processes of a cell share, made before they are forked."""

    def __init__(self, cell: Cell, socket: str, store: str) -> None:
        self.cell, self.socket, self.store = cell, socket, store
        self.everyone = FORK.Barrier(cell.ranks + 1, timeout=wire.PATIENCE)
        self.together = FORK.Barrier(cell.ranks, timeout=wire.PATIENCE)
        self.answers = FORK.SimpleQueue()
        self._start = FORK.Value("d", 0.0, lock=False)

    def time(self, run: Callable[[], None], rank: int) -> tuple[float, float]:
        """Run a function on all ranks at one moment; return that, and when it ends here."""
        self.together.wait()
        if not rank:
            self._start.value = time.monotonic() + AHEAD
        self.together.wait()
        start = float(self._start.value)
        while (left := start - time.monotonic()) > 0:
            time.sleep(max(0.0, left - EARLY))
        run()
        return start, time.monotonic()


def measure(cell: Cell) -> dict[str, Any]:
    """Measure a cell in processes of their own. Raises RuntimeError."""
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_cell, args=(cell, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(LIMIT):
            raise RuntimeError(f"nothing after {LIMIT:g} s")
        found = ours.recv()
    except EOFError:
        raise RuntimeError("its process has ended") from None
    finally:
        process.terminate()
        process.join()
    if isinstance(found, str):
        raise RuntimeError(found)
    return cell.table | dict(found) | versions() | {"date": time.strftime("%Y-%m-%d")}


def _cell(cell: Cell, report: Any) -> None:
    """Join the ranks of a cell, and report its record, or a sentence."""
    os.setpgid(0, 0)
    try:
        report.send(_joined(cell))
    except BaseException:
        report.send(traceback.format_exc())
    finally:
        for child in multiprocessing.active_children():
            child.kill()


def _joined(cell: Cell) -> dict[str, Any]:
    pairs = [(a, b) for a in range(cell.ranks) for b in range(cell.ranks) if a != b]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-"))
        socket, relay = "", 0
        if cell.latency:
            paths = {pair: Path(cell.latency) for pair in pairs}
            joined = stack.enter_context(namespaces.Links(paths, cell.ranks))
            socket, relay = joined.socket, joined.relay.pid
        else:
            links.isolate()
            links.bridge()
        world = World(cell, socket, str(Folder(folder, "store")))
        ranks = [
            FORK.Process(target=_rank, args=(world, rank), daemon=True)
            for rank in range(cell.ranks)
        ]
        for each in ranks:
            each.start()
        with suppress(BrokenBarrierError):  # a rank says why
            if not cell.latency:
                world.everyone.wait()  # every rank has a network of its own
                for number, each in enumerate(ranks):
                    links.plug(number, each.pid or 0)
                world.everyone.wait()
            world.everyone.wait()  # connected
        since, busy = time.monotonic(), machine.machine_cpu_seconds()
        before = machine.process_cpu_seconds(relay)
        found = []
        for _ in ranks:
            found.append(world.answers.get())
            if "error" in found[-1]:
                raise RuntimeError(found[-1]["error"])
        found.sort(key=lambda each: int(each["rank"]))
        elapsed = time.monotonic() - since
        carried = machine.process_cpu_seconds(relay) - before
        others = machine.machine_cpu_seconds() - busy - carried - sum(e["cpu"] for e in found)
    begins = [max(each) for each in zip(*(each["begins"] for each in found), strict=True)]
    ends = [max(each) for each in zip(*(each["ends"] for each in found), strict=True)]
    seconds = [end - begin for begin, end in zip(begins, ends, strict=True)]
    gaps = [begin - end for begin, end in zip(begins[1:], ends, strict=False)]
    count = len(seconds) - 1
    most = max(found, key=lambda each: each["bytes"])
    return {
        "seconds": round(statistics.median(seconds[1:]), 6),
        "each": [round(each, 6) for each in seconds],
        "ping": round(found[0]["ping"], 6),
        "gap": round(statistics.median(gaps), 4),
        "bytes": round(most["bytes"] / count),
        "packets": round(most["packets"] / count, 1),
        "drops": round(sum(each["drops"] for each in found) / count, 2),
        "again": round(sum(each["again"] for each in found) / count, 2),
        "others": round(max(0.0, others) / elapsed / (os.cpu_count() or 1), 3),
        "relay": round(carried / elapsed, 3),
    }


def _rank(world: World, rank: int) -> None:
    """Be one rank of a cell."""
    try:
        world.answers.put(_measured(world, rank) | {"rank": rank})
    except BaseException:
        world.answers.put({"rank": rank, "error": f"rank {rank}: {traceback.format_exc()}"})
        world.everyone.abort()
        world.together.abort()


def _measured(world: World, rank: int) -> dict[str, Any]:
    cell = world.cell
    if cell.latency:
        namespaces.join(rank, world.socket)
    else:
        links.isolate()
        world.everyone.wait()
        world.everyone.wait()
        links.dress(rank)
    links.shape(cell, rank)
    sockets = wire.Wire(rank, cell.ranks, world.together.wait)
    links.real_time(True)
    ping = sockets.ping()
    if cell.kind == "gloo":
        links.real_time(False)  # its threads would keep others from the processor
        run = wire.gloo(cell, rank, world.store)
    else:
        run = wire.collective(cell, rank, sockets)
    world.everyone.wait()
    cpu = time.process_time()
    spans = [world.time(run, rank)]
    count = min(max(REPEATS[0], round(BUDGET / (cell.ideal + cell.idle))), REPEATS[1])
    world.together.wait()
    before = links.sent()
    for _ in range(count):
        time.sleep(cell.idle)
        spans.append(world.time(run, rank))
    world.together.wait()
    passed = dict(zip(links.SENT, map(sub, links.sent(), before), strict=True))
    begins, ends = zip(*spans, strict=True)
    return {"ping": ping, "begins": begins, "ends": ends, "cpu": time.process_time() - cpu} | passed
