// Messages over links, as flows.py writes them to the standard input: the plain max-min model.
// LINKS, their bandwidths; PATHS, each: latency, limit, number of links, links;
// MESSAGES, each: start, path, bytes, how many it waits for, how many wait for it, which.
// Prints when each message arrived, and at last the wall seconds of the simulation.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <limits>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

struct Path {
  sg::Host* from;
  sg::Host* to;
};

struct Message {
  double start, bytes, arrived = 0;
  int path, waits;
  std::vector<int> followers;
  sg::SemaphorePtr ready;
};

int main(int argc, char** argv)
{
  sg::Engine engine(&argc, argv);
  sg::NetZone* zone = sg::create_full_zone("zone");
  int count;
  std::cin >> count;
  std::vector<sg::Link*> links;
  for (int i = 0; i < count; i++) {
    double bandwidth;
    std::cin >> bandwidth;
    links.push_back(zone->create_link("line" + std::to_string(i), bandwidth)->set_latency(0)->seal());
  }
  std::cin >> count;
  std::vector<Path> paths;
  for (int i = 0; i < count; i++) {
    double latency, limit;
    int hops;
    std::cin >> latency >> limit >> hops;
    const std::string name = std::to_string(i);
    sg::Host* from = zone->create_host("from" + name, 1e9)->seal();
    sg::Host* to = zone->create_host("to" + name, 1e9)->seal();
    std::vector<sg::LinkInRoute> route;
    route.emplace_back(zone->create_link("own" + name, limit)
                           ->set_latency(latency)
                           ->set_sharing_policy(sg::Link::SharingPolicy::FATPIPE)
                           ->seal());
    for (int hop = 0; hop < hops; hop++) {
      int line;
      std::cin >> line;
      route.emplace_back(links[line]);
    }
    zone->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, route, false);
    paths.push_back({from, to});
  }
  zone->seal();
  std::cin >> count;
  std::vector<Message> messages(count);
  for (Message& message : messages) {
    int followers;
    std::cin >> message.start >> message.path >> message.bytes >> message.waits >> followers;
    message.followers.resize(followers);
    for (int& follower : message.followers)
      std::cin >> follower;
    message.ready = sg::Semaphore::create(0);
  }
  for (Message& message : messages)
    sg::Actor::create("message", paths[message.path].from, [&message, &messages, &paths] {
      for (int i = 0; i < message.waits; i++)
        message.ready->acquire();
      sg::this_actor::sleep_until(message.start);
      sg::Comm::sendto_init(paths[message.path].from, paths[message.path].to)
          ->set_payload_size(static_cast<uint64_t>(message.bytes))
          ->wait();
      message.arrived = sg::Engine::get_clock();
      for (int follower : message.followers)
        messages[follower].ready->release();
    });
  const auto begin = std::chrono::steady_clock::now();
  engine.run();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (const Message& message : messages)
    std::printf("%.17g\n", message.arrived);
  std::printf("%.9g\n", took.count());
}
