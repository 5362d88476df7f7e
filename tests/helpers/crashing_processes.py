"""Train on processes that are killed and restarted while they run: the real side of a comparison.

Run as `python -m tests.helpers.crashing_processes SETTINGS.json`; prints what happened as JSON.

A coordinator starts each round and says, once enough workers are ready, whose mean it is
(`shrink`: of all that are alive; `quorum`: of so many, and those that come within a grace). It
learns of a death only as a real one would: the connection breaks. The team of a round averages over
gloo; when the team changes, a new generation of the process group meets in the store under a prefix
of its own. Workers that were not in the team, late or restarted, get the parameters of one that
was. Another thread kills and restarts workers by a calendar that nothing else reads.
"""

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from paceline.simulator.objectives import build
from tests.helpers.worlds import scenario

TIMEOUT = timedelta(seconds=20)
processes = multiprocessing.get_context("fork")


def objective(settings):
    world = scenario(settings["algorithm"], **settings["world"])
    return build.build(world, world.algorithm[0], 0)


def work(rank, settings, address, port):
    """Take part as one worker, until told to stop."""
    torch.set_num_threads(1)
    goal = objective(settings)
    source, x, lr = goal.source(rank), goal.start, settings["lr"]
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    talk = connection.Client(address)
    talk.send((rank, "hello", None))
    generation, step = None, x
    while True:
        what, given = talk.recv()
        if what == "stop":
            os._exit(0)
        elif what == "begin":
            x = x if given is None else given
            step = source.gradient(x)
            if not talk.poll(settings["seconds"][rank]):  # else the round goes on without it
                talk.send((rank, "ready", None))
        elif what == "mean":
            number, team = given
            try:
                if generation != team and dist.is_initialized():
                    dist.destroy_process_group()
                if generation != team:
                    dist.init_process_group(
                        "gloo", store=dist.PrefixStore(f"generation {number}", store),
                        rank=team.index(rank), world_size=len(team), timeout=TIMEOUT,
                    )  # fmt: skip
                    generation = team
                total = torch.from_numpy(np.array(step))
                dist.all_reduce(total)
                x = x - lr * total.numpy() / len(team)
                talk.send((rank, "done", x))
            except RuntimeError:  # a peer died in it
                generation = None
                talk.send((rank, "failed", None))


class Coordinator:
    """Starts rounds, and decides whose contributions each takes."""

    def __init__(self, settings, listener):
        self.settings, self.listener = settings, listener
        self.talks, self.members, self.ready = {}, set(), set()
        self.answers, self.generation, self.x = {}, 0, None

    def hear(self, timeout):
        """Take what workers say, or that they are gone, within a time."""
        door = self.listener._listener._socket
        for each in connection.wait([door, *self.talks.values()], timeout):
            if each is door:
                talk = self.listener.accept()
                self.talks[talk.recv()[0]] = talk
                continue
            try:
                rank, what, value = each.recv()
            except (EOFError, ConnectionError):
                (rank,) = [rank for rank, talk in self.talks.items() if talk is each]
                del self.talks[rank]
                self.ready.discard(rank)
                self.answers.pop(rank, None)
                continue
            if what == "ready":
                self.ready.add(rank)
            else:
                self.answers[rank] = what, value

    def tell(self, rank, *message):
        with suppress(KeyError, OSError):  # `hear` will notice
            self.talks[rank].send(message)

    def round(self):
        fresh, self.ready, self.answers = self.members, set(), {}
        self.members = set(self.talks)
        for rank in self.members:
            self.tell(rank, "begin", None if rank in fresh else self.x)
        team = self.team()
        while True:
            self.generation += 1
            self.answers = {}
            for rank in team:
                self.tell(rank, "mean", (self.generation, team))
            while any(rank in self.talks and rank not in self.answers for rank in team):
                self.hear(None)
            team = [rank for rank in team if rank in self.talks]
            done = [rank for rank in team if self.answers[rank][0] == "done"]
            if len(done) == len(team) > 0:
                self.members = set(team)
                found = [self.answers[rank][1] for rank in team]
                assert all((each == found[0]).all() for each in found)
                self.x = found[0]
                return

    def team(self):
        recovery, until = self.settings["recovery"], None
        quorum = recovery.get("quorum", 0)
        while True:
            expected = self.members & self.talks.keys()
            if quorum and until is None and len(self.ready) >= quorum:
                until = time.monotonic() + recovery.get("grace_s", 0.0)
            left = None if until is None else until - time.monotonic()
            enough = len(self.ready) >= max(quorum, 1)
            if enough and (self.ready >= expected or (left is not None and left <= 0)):
                return sorted(self.ready)
            if quorum and len(self.talks) >= quorum > len(self.ready) and self.ready >= expected:
                return sorted(self.ready)  # enough are up: those that are back count at once
            self.hear(left)


def disturb(settings, start, began):
    """Kill and restart workers by the calendar."""
    events = [(at, rank, False) for rank, at, _ in settings["calendar"]]
    events += [(at + lasts, rank, True) for rank, at, lasts in settings["calendar"]]
    for at, rank, restart in sorted(events):
        time.sleep(max(0.0, began + at - time.monotonic()))
        if restart:
            start(rank)
        else:
            os.kill(running[rank].pid, signal.SIGKILL)


running = {}


def main(path):
    settings = json.loads(Path(path).read_text())
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/coordinator"
        coordinator = Coordinator(settings, connection.Listener(address, backlog=64))

        def start(rank):
            arguments = rank, settings, address, store.port
            running[rank] = processes.Process(target=work, args=arguments, daemon=True)
            running[rank].start()

        workers = len(settings["seconds"])
        for rank in range(workers):
            start(rank)
        while len(coordinator.talks) < workers:
            coordinator.hear(None)
        coordinator.members = set(coordinator.talks)
        began = time.monotonic()
        threading.Thread(target=disturb, args=(settings, start, began), daemon=True).start()
        ends = []
        for _ in range(settings["steps"]):
            coordinator.round()
            ends.append(time.monotonic() - began)
        there = sorted(coordinator.members)
        for rank in list(coordinator.talks):
            coordinator.tell(rank, "stop", None)
        loss = objective(settings).evaluate(coordinator.x, settings["steps"])[0]
        print(json.dumps({"ends": ends, "loss": float(loss), "there": there}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
