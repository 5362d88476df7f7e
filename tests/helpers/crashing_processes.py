"""Train on processes that are killed and restarted while they run: the real side of a comparison.

Run as `python -m tests.helpers.crashing_processes SETTINGS.json`; prints what happened as JSON.

A coordinator starts each round and says, once enough workers are ready, whose mean it is
(`shrink`: of all that are alive; `quorum`: of so many, and those that come within a grace). It
learns of a death only as a real one would: the connection breaks. The team of a round averages over
gloo; when the team changes, a new generation of the process group meets in the store under a prefix
of its own. Workers that were late get the steps that they missed. A restarted one first gets the
parameters, over a link of so many bytes per second that all who join meanwhile share, and then the
steps that were taken since. After each round all of a team must have the same parameters, to the
last bit. Another thread kills and restarts workers by a calendar that nothing else reads.
"""

import hashlib
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
PARTS = 50  # of the parameters, on their way to who joins
processes = multiprocessing.get_context("fork")


def objective(settings):
    world = scenario(settings["algorithm"], **settings["world"])
    return build.build(world, world.algorithm[0], 0)


def digest(x):
    return hashlib.sha256(x).hexdigest()


def work(rank, settings, address, port):
    """Take part as one worker, until told to stop."""
    torch.set_num_threads(1)
    goal = objective(settings)
    source, x, lr = goal.source(rank), goal.start, settings["lr"]
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    talk = connection.Client(address)
    talk.send((rank, "hello", None))
    generation, step, parts = None, x, []
    while True:
        what, given = talk.recv()
        if what == "stop":
            os._exit(0)
        elif what == "part":
            parts.append(given)
        elif what == "whole":
            x = np.concatenate(parts)
            talk.send((rank, "joined", given))
        elif what == "begin":
            for missed in given:
                x = x - missed
            before = x
            step = source.gradient(x)
            if not talk.poll(settings["seconds"][rank]):  # else the round goes on without it
                talk.send((rank, "ready", None))
        elif what == "mean":
            number, team = given
            try:
                if generation != number and dist.is_initialized():
                    dist.destroy_process_group()
                if generation != number:
                    dist.init_process_group(
                        "gloo", store=dist.PrefixStore(f"generation {number}", store),
                        rank=team.index(rank), world_size=len(team), timeout=TIMEOUT,
                    )  # fmt: skip
                    generation = number
                total = torch.from_numpy(np.array(step))
                dist.all_reduce(total)
                taken = lr * total.numpy() / len(team)
                x = before - taken  # a mean that only some have had is taken anew
                talk.send((rank, "done", (digest(x), taken if rank == team[0] else None)))
            except RuntimeError:  # a peer died in it
                generation = None
                talk.send((rank, "failed", None))


class Coordinator:
    """Starts rounds, and decides whose contributions each takes."""

    began = None  # when the first round did

    def __init__(self, settings, listener):
        self.settings, self.listener = settings, listener
        self.talks, self.members, self.ready = {}, set(), set()
        self.answers, self.x = {}, objective(settings).start
        self.generation, self.met = 0, None  # of the process group, and the team that met in it
        self.steps, self.has = [], {}  # taken so far, and how many of them each who is up has
        self.joining, self.joins, self.startups = 0, [], []

    def hear(self, timeout):
        """Take what workers say, or that they are gone, within a time."""
        door = self.listener._listener._socket
        for ready in connection.wait([door, *self.talks.values()], timeout):
            if ready is door:
                talk = self.listener.accept()
                rank = talk.recv()[0]
                self.talks[rank] = talk
                if self.began is None:
                    self.has[rank] = 0
                else:
                    self.startups.append(time.monotonic() - started[rank])
                    given = rank, talk, self.x, len(self.steps)
                    threading.Thread(target=self.hand_over, args=given, daemon=True).start()
                continue
            try:
                rank, what, value = ready.recv()
            except (EOFError, ConnectionError):
                (rank,) = [rank for rank, talk in self.talks.items() if talk is ready]
                del self.talks[rank]
                self.has.pop(rank, None)
                self.ready.discard(rank)
                self.answers.pop(rank, None)
                continue
            if what == "joined":
                self.has[rank] = value
            elif what == "ready":
                self.ready.add(rank)
            else:
                self.answers[rank] = what, value

    def hand_over(self, rank, talk, x, taken):
        """Send the parameters to a worker that joins; those of before `taken` steps more."""
        began = due = time.monotonic()
        self.joining += 1
        with suppress(OSError):  # it is killed again
            for part in np.array_split(x, PARTS):
                due += self.joining * part.nbytes / self.settings["bytes_per_second"]
                time.sleep(max(0.0, due - time.monotonic()))
                talk.send(("part", part))
            talk.send(("whole", taken))
            self.joins.append((rank, began - self.began, time.monotonic() - began))
        self.joining -= 1

    def tell(self, rank, *message):
        with suppress(KeyError, OSError):  # `hear` will notice
            self.talks[rank].send(message)

    def round(self):
        self.ready, self.answers = set(), {}
        self.members = {*self.has}
        for rank in self.members:
            self.tell(rank, "begin", self.steps[self.has[rank] :])
            self.has[rank] = len(self.steps)
        team = self.team()
        while True:
            if team != self.met:
                self.generation, self.met = self.generation + 1, team
            self.answers = {}
            for rank in team:
                self.tell(rank, "mean", (self.generation, team))
            while any(rank in self.talks and rank not in self.answers for rank in team):
                self.hear(None)
            team = [rank for rank in team if rank in self.talks]
            done = [rank for rank in team if self.answers[rank][0] == "done"]
            if len(done) == len(team) > 0:
                self.members = set(team)
                actual, taken = zip(*(self.answers[rank][1] for rank in team), strict=True)
                self.x = self.x - taken[0]
                self.steps.append(taken[0])
                assert set(actual) == {digest(self.x)}
                self.has.update(dict.fromkeys(team, len(self.steps)))
                return
            self.met = None

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
            if quorum and len(self.has) >= quorum > len(self.ready) and self.ready >= expected:
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


running, started = {}, {}


def main(path):
    settings = json.loads(Path(path).read_text())
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/coordinator"
        coordinator = Coordinator(settings, connection.Listener(address, backlog=64))

        def start(rank):
            arguments = rank, settings, address, store.port
            running[rank] = processes.Process(target=work, args=arguments, daemon=True)
            started[rank] = time.monotonic()
            running[rank].start()

        workers = len(settings["seconds"])
        for rank in range(workers):
            start(rank)
        while len(coordinator.talks) < workers:
            coordinator.hear(None)
        began = coordinator.began = time.monotonic()
        threading.Thread(target=disturb, args=(settings, start, began), daemon=True).start()
        ends = []
        for _ in range(settings["steps"]):
            coordinator.round()
            ends.append(time.monotonic() - began)
        there = sorted(coordinator.members)
        for rank in list(coordinator.talks):
            coordinator.tell(rank, "stop", None)
        loss = objective(settings).evaluate(coordinator.x, settings["steps"])[0]
        actual = {"ends": ends, "loss": float(loss), "there": there, "joins": coordinator.joins}
        actual["startups"] = coordinator.startups  # of those that were restarted
        print(json.dumps(actual), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
