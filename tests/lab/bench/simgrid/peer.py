"""The same cluster as actors of SimGrid's Python: peer.py local-sgd WORKERS STEPS TAU.

Run by the interpreter that has SimGrid; prints the wall seconds, and the simulated ones.
"""

import random
import sys
import time

import simgrid


def main(what: str, workers: int, steps: int, tau: int) -> None:
    engine = simgrid.Engine([sys.argv[0], "--log=root.thres:critical"])
    zone = simgrid.NetZone.create_full_zone("zone")
    host = zone.create_host("host", 1e9)
    zone.seal()
    barrier = simgrid.Barrier(workers)

    def worker(rank: int) -> None:
        draw = random.Random(rank).expovariate
        for step in range(1, steps + 1):
            simgrid.this_actor.sleep_for(draw(1.0))
            if step % tau == 0:
                barrier.wait()
                simgrid.this_actor.sleep_for(1.0)  # the average

    for rank in range(workers):
        simgrid.Actor.create("worker", host, worker, rank)
    begin = time.perf_counter()
    engine.run()
    print(time.perf_counter() - begin, simgrid.Engine.clock)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
