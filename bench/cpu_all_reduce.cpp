// A CPU all_reduce with threads as ranks: GB/s (algbw) of each parameter set of a strategy, and the
// processor time of the busiest rank, which a machine that does other work as well disturbs less.
// usage: cpu_all_reduce [ranks=2] [KiB=65536] [strategy=direct] [name=value ...]
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "exec/cpu/cpu.hpp"
#include "plait/error.hpp"

namespace {

using namespace plait;
constexpr int kRuns = 12;

struct Calm : Watch {
  void check(const std::string&) override {}
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double thread_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

// Memory as processes share it: shmem pages.
std::byte* shared_memory(std::uint64_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(at);
}

// Median and least of the slowest rank's times.
void measure(const Plan& plan) {
  const int ranks = plan.request.ranks;
  const std::uint64_t bytes = input_bytes(plan.request, 0);
  Arenas arenas{sizes_for(plan), {}};
  for (int rank = 0; rank < ranks; ++rank)
    arenas.base.push_back(shared_memory(arena_bytes(arenas.sizes)));
  std::vector<double> times(kRuns, 0.0), used(kRuns * static_cast<std::size_t>(ranks), 0.0);
  std::barrier line(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      std::vector<float> in(bytes / 4, 1.0f), out(bytes / 4, 0.0f);
      Calm calm;
      for (int run = 0; run < kRuns; ++run) {
        line.arrive_and_wait();
        const double begin = seconds_now();
        const double used_before = thread_seconds();
        const std::int64_t deadline_ns = static_cast<std::int64_t>((begin + 60) * 1e9);
        run_cpu(plan, rank, arenas,
                {in.data(),
                 out.data(),
                 {},
                 epochs_per_call(plan) * static_cast<std::uint32_t>(run),
                 run % 2,
                 deadline_ns},
                calm);
        used[static_cast<std::size_t>(run * ranks + rank)] = thread_seconds() - used_before;
        line.arrive_and_wait();
        if (rank == 0) times[static_cast<std::size_t>(run)] = seconds_now() - begin;
      }
      if (out.back() != static_cast<float>(ranks)) std::printf("WRONG ");
    });
  for (std::thread& thread : threads) thread.join();
  for (std::byte* base : arenas.base) ::munmap(base, arena_bytes(arenas.sizes));
  std::sort(times.begin(), times.end());
  std::vector<double> busiest;
  for (auto at = used.begin(); at != used.end(); at += ranks)
    busiest.push_back(*std::max_element(at, at + ranks));
  std::sort(busiest.begin(), busiest.end());
  const double size = static_cast<double>(bytes);
  std::printf("%-56s best %6.2f  median %6.2f GB/s  processor %8.3f ms\n", label(plan).c_str(),
              size / times[0] / 1e9, size / times[kRuns / 2] / 1e9, busiest[kRuns / 2] * 1e3);
}

}  // namespace

int main(int count, char** words) try {
  Request request;
  request.ranks = count > 1 ? std::atoi(words[1]) : 2;
  request.count = (count > 2 ? std::strtoull(words[2], nullptr, 10) : 65536) << 8;
  const std::string strategy = count > 3 ? words[3] : "";
  const Topology topology = local_cpu(request.ranks);
  request = checked(request, topology);
  if (count > 4) {
    std::map<std::string, std::int64_t> params;
    for (int i = 4; i < count; ++i) {
      const std::string word = words[i];
      const std::size_t equals = word.find('=');
      params[word.substr(0, equals)] = std::atoll(word.c_str() + equals + 1);
    }
    measure(propose_one(topology, request, strategy, params));
    return 0;
  }
  for (const Plan& plan : propose(topology, request))
    if (!plan.symmetric && (strategy.empty() || plan.strategy == strategy)) measure(plan);
} catch (const plait::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
