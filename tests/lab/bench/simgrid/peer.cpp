// The same clusters as actors of SimGrid, time only: what we measure ourselves against.
// peer local-sgd WORKERS STEPS TAU | peer server WORKERS UPDATES TRANSIT SERVICE
// Prints the wall seconds that the simulation took, and the simulated ones.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <simgrid/s4u.hpp>
#include <string>

namespace sg = simgrid::s4u;

static void local_sgd(sg::BarrierPtr barrier, int rank, int steps, int tau)
{
  std::mt19937_64 generator(rank);
  std::exponential_distribution<double> compute(1.0);
  for (int step = 1; step <= steps; step++) {
    sg::this_actor::sleep_for(compute(generator));
    if (step % tau == 0) {
      barrier->wait();
      sg::this_actor::sleep_for(1.0);  // the average
    }
  }
}

static void worker(sg::SemaphorePtr server, int rank, int updates, double transit, double service,
                   int* count)
{
  std::mt19937_64 generator(rank);
  std::exponential_distribution<double> compute(1.0);
  while (*count < updates) {
    sg::this_actor::sleep_for(compute(generator) + transit);
    server->acquire();
    sg::this_actor::sleep_for(service);
    server->release();
    ++*count;
    if (transit > 0)
      sg::this_actor::sleep_for(transit);
  }
}

int main(int argc, char** argv)
{
  sg::Engine engine(&argc, argv);
  sg::NetZone* zone = sg::create_full_zone("zone");
  sg::Host* host = zone->create_host("host", 1e9);
  zone->seal();
  const std::string what = argv[1];
  const int workers = std::atoi(argv[2]), amount = std::atoi(argv[3]);
  auto barrier = sg::Barrier::create(workers);
  auto server = sg::Semaphore::create(1);
  int count = 0;
  for (int rank = 0; rank < workers; rank++) {
    if (what == "local-sgd")
      sg::Actor::create("worker", host, local_sgd, barrier, rank, amount, std::atoi(argv[4]));
    else
      sg::Actor::create("worker", host, worker, server, rank, amount, std::atof(argv[4]),
                        std::atof(argv[5]), &count);
  }
  const auto begin = std::chrono::steady_clock::now();
  engine.run();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%.9g %.9g\n", took.count(), sg::Engine::get_clock());
}
