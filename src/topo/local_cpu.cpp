// A topology of CPU ranks over shared memory for this machine: every pair is linked directly, and
// all reach a single NUMA node, so that striped and relayed plans run on any machine. A process
// times a copy once; ranks' speeds derive from that time.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "topo/local.hpp"

namespace plait {
namespace {

constexpr int kLeastRanks = 16, kMostDefaultRanks = 64, kMostRanks = 256;
constexpr std::size_t kProbeBytes = 16U
                                    << 20;  // larger than the second-level cache; a few ms a pass
constexpr double kFlagLatencyNs = 200;      // a cache line from core to core

int core_count() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

/// Measures bytes per ns of a copying core: the best of four passes, since noise only slows down.
double timed_copy_gb_per_s() {
  std::vector<char> src(kProbeBytes, 1), dst(kProbeBytes, 2);
  double best_ns = 1e18;
  for (int pass = 0; pass < 4; ++pass) {
    src[static_cast<std::size_t>(pass)] =
        static_cast<char>(pass);  // keeps the compiler from removing the copy
    const auto begin = std::chrono::steady_clock::now();
    std::memcpy(dst.data(), src.data(), kProbeBytes);
    asm volatile("" : : "r"(dst.data()) : "memory");
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best_ns = std::min(best_ns, std::max(1.0, took.count()));
  }
  return static_cast<double>(kProbeBytes) / best_ns;
}

double copy_gb_per_s() {
  static const double measured = timed_copy_gb_per_s();
  return measured;
}

void add_parameters(Topology& topology, double copy, int cores) {
  const std::string here = "measured at start-up: one core's memcpy of 16 MiB";
  const std::string choice = "plait's choice for CPU ranks, no property of the machine";
  const std::string typical = "typical of one cache line between two cores; not measured";
  topology.parameters = {
      {"arena_scratch_bytes", {268435456, choice}},
      {"arena_ring_bytes", {8388608, choice}},
      {"ring_bytes", {8388608, choice}},
      {"copy_engines", {1, "each rank copies with one thread a lane"}},
      {"copy_launch_ns", {100, "a function call; not measured"}},
      {"cpu_copy_gb_per_s", {copy, here}},
      {"cpu_cores", {static_cast<double>(cores), "the operating system's count"}},
      {"cpu_reduce_gb_per_s", {2 * copy, here + ", read and written bytes counted"}},
      {"gpu_memory_gb_per_s", {2 * copy, here + ", read and written bytes counted"}},
      {"gpu_reduce_gb_per_s", {2 * copy, here + ", read and written bytes counted"}},
      {"graph_launch_ns", {0, "CPU ranks launch nothing"}},
      {"host_call_ns", {0, "the rank is on the host"}},
      {"kernel_launch_ns", {100, "a function call; not measured"}},
      {"signal_ns", {kFlagLatencyNs, typical}},
      {"stream_signal_ns", {kFlagLatencyNs, typical}},
  };
}

}  // namespace

int local_rank_count() { return std::clamp(core_count(), kLeastRanks, kMostDefaultRanks); }

Topology local_cpu(int ranks) {
  if (ranks < 1 || ranks > kMostRanks)
    throw Error(ErrorCode::invalid_argument,
                text("local-cpu: wanted 1 to {} ranks, found {}", kMostRanks, ranks));
  const double copy = copy_gb_per_s();
  const int cores = core_count();
  Topology topology;
  topology.name = "local-cpu";
  topology.source = "measured at start-up on this machine";
  for (int i = 0; i < ranks; ++i)
    topology.devices.push_back({DeviceKind::cpu, i, 0, 0, "CPU core", "", ""});
  topology.devices.push_back({DeviceKind::host, 0, 0, 0, "host memory", "", ""});
  for (int i = 0; i < ranks; ++i) topology.resources.push_back({text("cpu{}.core", i), copy});
  // Up to four cores are assumed to fill the memory controller; measuring that would slow the
  // start.
  topology.resources.push_back({"numa0.dram", copy * std::min(cores, 4)});
  const auto link = [&](int src, int dst, int core) {
    topology.links.push_back({LinkKind::shm, src, dst, 1, copy, kFlagLatencyNs, {core, ranks}});
  };
  for (int src = 0; src < ranks; ++src) {
    for (int dst = 0; dst < ranks; ++dst)
      if (src != dst) link(src, dst, src);
    link(src, ranks, src);
    link(ranks, src, src);
  }
  add_parameters(topology, copy, cores);
  return topology;
}

}  // namespace plait
