// persistent SEED ROUNDS: persistent collectives on host memory and on a GPU that is played, made
// once and started several times, with new data each time. Prints one line of JSON a rank.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <list>

#include "somewhere.hpp"

namespace {

/// Looked up, since headers before MPI 4 have none: the drop-in has each where the MPI has it under
/// any name.
template <class... Arguments>
using Init = int(Arguments..., MPI_Info, MPI_Request*);
template <class... Arguments>
int make(const char* name, MPI_Request* request, Arguments... arguments) {
  auto* const found = reinterpret_cast<Init<Arguments...>*>(dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) std::abort();
  return found(arguments..., MPI_INFO_NULL, request);
}

int word(std::uint64_t seed, int a, int b, int at) {
  return static_cast<int>(mixed(seed, static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b),
                                static_cast<std::uint64_t>(at)) %
                          1000);
}

/// One request, its memory, and what a start's data are and its results must be.
struct Kept {
  MPI_Request request = MPI_REQUEST_NULL;
  Memory<int> in, out;
  std::vector<int> counts, places;
  std::function<void(std::uint64_t seed)> fill;
  std::function<bool(std::uint64_t seed)> right;
};

void sum(Kept& one, bool of_those_before, int count) {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  one.in.resize(static_cast<std::size_t>(count));
  one.out.resize(one.in.size());
  const void* const in = passed(one.in.data());
  void* const out = passed(one.out.data());
  make(of_those_before ? "MPI_Scan_init" : "MPI_Allreduce_init", &one.request, in, out, count,
       MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  one.fill = [&one, rank](std::uint64_t seed) {
    int at = 0;
    for (int& each : one.in) each = word(seed, rank, 0, at++);
  };
  const int summed = of_those_before ? rank + 1 : ranks;
  one.right = [&one, summed](std::uint64_t seed) {
    for (std::size_t at = 0; at < one.out.size(); ++at) {
      int all = 0;
      for (int from = 0; from < summed; ++from) all += word(seed, from, 0, static_cast<int>(at));
      if (one.out[at] != all) return false;
    }
    return true;
  };
}

void broadcast(Kept& one, int root, int count) {
  const bool is_root = rank_in(MPI_COMM_WORLD) == root;
  one.out.resize(static_cast<std::size_t>(count));
  make("MPI_Bcast_init", &one.request, static_cast<void*>(passed(one.out.data())), count, MPI_INT,
       root, MPI_COMM_WORLD);
  one.fill = [&one, is_root, root](std::uint64_t seed) {
    int at = 0;
    for (int& each : one.out) each = is_root ? word(seed, root, 0, at++) : -1;
  };
  one.right = [&one, root](std::uint64_t seed) {
    int at = 0;
    for (const int each : one.out)
      if (each != word(seed, root, 0, at++)) return false;
    return true;
  };
}

/// Rank r's parts have r elements less than the most; gaps between them stay as they are.
void all_to_all(Kept& one, int most) {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  one.in.resize(static_cast<std::size_t>(most * ranks));
  one.out.resize(one.in.size());
  one.counts.assign(static_cast<std::size_t>(ranks), most - rank);
  for (int peer = 0; peer < ranks; ++peer) one.places.push_back(peer * most);
  for (int peer = 0; peer < ranks; ++peer) one.counts.push_back(most - peer);
  const void* const in = passed(one.in.data());
  void* const out = passed(one.out.data());
  const int *sent = one.counts.data(), *got = sent + ranks, *places = one.places.data();
  make("MPI_Alltoallv_init", &one.request, in, sent, places, MPI_INT, out, got, places, MPI_INT,
       MPI_COMM_WORLD);
  one.fill = [&one, rank, ranks, most](std::uint64_t seed) {
    for (int at = 0; at < most * ranks; ++at) {
      one.in[static_cast<std::size_t>(at)] = word(seed, rank, at / most, at % most);
      one.out[static_cast<std::size_t>(at)] = -1;
    }
  };
  one.right = [&one, rank, ranks, most](std::uint64_t seed) {
    for (int at = 0; at < most * ranks; ++at) {
      const int from = at / most, place = at % most;
      const int expected = place < most - from ? word(seed, from, rank, place) : -1;
      if (one.out[static_cast<std::size_t>(at)] != expected) return false;
    }
    return true;
  };
}

}  // namespace

int main(int argc, char** argv) {
  PlayedGpu::now().begin(static_cast<std::uint64_t>(::getpid()));
  MPI_Init(&argc, &argv);
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 10;
  Dice all(seed);
  long wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    std::list<Kept> kept(4);
    auto at = kept.begin();
    sum(*at++, false, 1 + all.below(20000));
    sum(*at++, true, 1 + all.below(3000));
    broadcast(*at++, all.below(ranks_of(MPI_COMM_WORLD)), 1 + all.below(9000));
    all_to_all(*at++, ranks_of(MPI_COMM_WORLD) + all.below(4000));
    for (int start = 0; start < 3; ++start) {
      const std::uint64_t of_start =
          mixed(seed, static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(start));
      std::array<MPI_Request, 4> requests{};
      auto next = requests.begin();
      for (Kept& one : kept) {
        one.fill(of_start);
        *next++ = one.request;
      }
      MPI_Startall(4, requests.data());
      MPI_Waitall(4, requests.data(), MPI_STATUSES_IGNORE);
      for (Kept& one : kept) wrong += one.right(of_start) ? 0 : 1;
    }
    for (Kept& one : kept) MPI_Request_free(&one.request);
  }
  std::printf("{\"rank\": %d, \"wrong\": %ld}\n", rank_in(MPI_COMM_WORLD), wrong);
  std::fflush(stdout);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
