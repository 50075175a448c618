// persistent SEED ROUNDS [ENDS]: persistent collectives in host memory and on an emulated GPU, made
// once and started several times with new data, by each rank in a different order. The first ENDS
// functions of end() complete the requests. Prints a line of JSON a rank.
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <list>

#include "host_or_gpu.hpp"

namespace {

int word(std::uint64_t seed, int a, int b, int at) {
  return static_cast<int>(mixed(seed, static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b),
                                static_cast<std::uint64_t>(at)) %
                          1000);
}

/// A persistent request with buffers, inputs for a start and the check of results.
struct PersistentSum {
  MPI_Request request = MPI_REQUEST_NULL;
  HostOrGpuVector<int> in, out;
  std::vector<int> counts, displs;
  std::function<void(std::uint64_t seed)> fill;
  std::function<bool(std::uint64_t seed)> right;
};

void sum(PersistentSum& one, bool of_those_before, int count) {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  one.in.resize(static_cast<std::size_t>(count));
  one.out.resize(one.in.size());
  const void* const in = device_ptr(one.in.data());
  void* const out = device_ptr(one.out.data());
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

/// Odd ranks have a hole in each pair. The type is freed while the request lives.
void broadcast(PersistentSum& one, int root, int pairs) {
  const int rank = rank_in(MPI_COMM_WORLD), each = rank % 2 == 1 ? 3 : 2;
  one.out.resize(static_cast<std::size_t>(each * pairs));
  MPI_Datatype type;
  MPI_Type_vector(2, 1, each - 1, MPI_INT, &type);
  MPI_Type_commit(&type);
  make("MPI_Bcast_init", &one.request, static_cast<void*>(device_ptr(one.out.data())), pairs, type,
       root, MPI_COMM_WORLD);
  MPI_Type_free(&type);
  const auto at = [each](int word) {
    return static_cast<std::size_t>(word / 2 * each + word % 2 * (each - 1));
  };
  one.fill = [&one, at, rank, root, pairs](std::uint64_t seed) {
    for (int& any : one.out) any = -1;
    for (int word_at = 0; rank == root && word_at < 2 * pairs; ++word_at)
      one.out[at(word_at)] = word(seed, root, 0, word_at);
  };
  one.right = [&one, at, each, root, pairs](std::uint64_t seed) {
    for (int word_at = 0; word_at < 2 * pairs; ++word_at)
      if (one.out[at(word_at)] != word(seed, root, 0, word_at)) return false;
    for (int pair = 0; each == 3 && pair < pairs; ++pair)
      if (one.out[static_cast<std::size_t>(3 * pair + 1)] != -1) return false;
    return true;
  };
}

/// Rank r's part is r elements shorter than the longest; gaps stay unchanged. The arrays are
/// overwritten while the request lives, as by mpi4py.
void all_to_all(PersistentSum& one, int most) {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  one.in.resize(static_cast<std::size_t>(most * ranks));
  one.out.resize(one.in.size());
  one.counts.assign(static_cast<std::size_t>(ranks), most - rank);
  for (int peer = 0; peer < ranks; ++peer) one.displs.push_back(peer * most);
  for (int peer = 0; peer < ranks; ++peer) one.counts.push_back(most - peer);
  const void* const in = device_ptr(one.in.data());
  void* const out = device_ptr(one.out.data());
  const int *sent = one.counts.data(), *got = sent + ranks, *displs = one.displs.data();
  make("MPI_Alltoallv_init", &one.request, in, sent, displs, MPI_INT, out, got, displs, MPI_INT,
       MPI_COMM_WORLD);
  for (int& any : one.counts) any = -1;
  for (int& any : one.displs) any = -1;
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

/// An inactive request completes at once and stays.
bool is_inactive(MPI_Request request) {
  int flag = 0, told = 0;
  MPI_Request_get_status(request, &told, MPI_STATUS_IGNORE);
  MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
  return flag == 1 && told == 1 && request != MPI_REQUEST_NULL;
}

/// The order of starts differs between ranks.
bool blocking_sum_is_right() {
  int all = 0;
  const int rank = rank_in(MPI_COMM_WORLD), ranks = ranks_of(MPI_COMM_WORLD);
  MPI_Allreduce(&rank, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return all == ranks * (ranks - 1) / 2;
}

using Requests = std::vector<MPI_Request>;
int ends = 4;

void start(Requests& all, Dice& own) {
  if (own.one_in(2)) return void(MPI_Startall(static_cast<int>(all.size()), all.data()));
  for (MPI_Request& one : all) MPI_Start(&one);
}

void end(Requests& all, Dice& own) {
  const int count = static_cast<int>(all.size());
  int index = 0, flag = 0, some = 0;
  std::vector<int> indices(all.size());
  switch (own.below(ends)) {
    case 0: MPI_Waitall(count, all.data(), MPI_STATUSES_IGNORE); break;
    case 1:
      for (MPI_Request& one : all)
        for (flag = 0; flag == 0;) MPI_Test(&one, &flag, MPI_STATUS_IGNORE);
      break;
    case 2:
      for (int ended = 0; ended < count; ++ended)
        MPI_Waitany(count, all.data(), &index, MPI_STATUS_IGNORE);
      break;
    default:
      for (int ended = 0; ended < count; ended += some)
        MPI_Waitsome(count, all.data(), &some, indices.data(), MPI_STATUSES_IGNORE);
  }
}

/// Runs the same requests again with new data; returns the number of wrong results.
long started(std::list<PersistentSum>& kept, std::uint64_t seed, Dice& own) {
  Requests requests;
  for (PersistentSum& one : kept) {
    one.fill(seed);
    requests.insert(requests.begin() + own.below(static_cast<int>(requests.size()) + 1),
                    one.request);
  }
  const bool before = own.one_in(2);
  long wrong = before && !blocking_sum_is_right() ? 1 : 0;
  start(requests, own);
  if (!before && !blocking_sum_is_right()) ++wrong;
  end(requests, own);
  for (PersistentSum& one : kept) wrong += one.right(seed) && is_inactive(one.request) ? 0 : 1;
  return wrong;
}

/// Exceeds the number that plait takes at once.
long many(std::uint64_t seed, Dice& own) {
  std::list<PersistentSum> kept(60);
  for (PersistentSum& one : kept) sum(one, false, 300);
  const long wrong = started(kept, seed, own);
  for (PersistentSum& one : kept) MPI_Request_free(&one.request);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  EmulatedCuda::now().begin(static_cast<std::uint64_t>(::getpid()));
  MPI_Init(&argc, &argv);
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 10;
  if (argc > 3) ends = std::atoi(argv[3]);
  Dice all(seed), own(mixed(seed, static_cast<std::uint64_t>(rank_in(MPI_COMM_WORLD)), 99));
  long wrong = many(seed, own);
  for (int round = 0; round < rounds; ++round) {
    std::list<PersistentSum> kept(5);
    auto at = kept.begin();
    sum(*at++, false, 1 + all.below(all.one_in(5) ? 500000 : 20000));
    sum(*at++, true, 1 + all.below(3000));
    broadcast(*at++, all.below(ranks_of(MPI_COMM_WORLD)), 1 + all.below(5000));
    all_to_all(*at++, ranks_of(MPI_COMM_WORLD) + all.below(4000));
    sum(*at, false, 1 + all.below(20000));  // never started
    wrong += is_inactive(at->request) ? 0 : 1;
    MPI_Request_free(&at->request);
    kept.erase(at);
    for (int start = 0; start < 3; ++start) {
      const auto a = static_cast<std::uint64_t>(round), b = static_cast<std::uint64_t>(start);
      wrong += started(kept, mixed(seed, a, b), own);
    }
    for (PersistentSum& one : kept) MPI_Request_free(&one.request);
  }
  std::printf("{\"rank\": %d, \"wrong\": %ld, \"served\": %ld}\n", rank_in(MPI_COMM_WORLD), wrong,
              calls_served());
  std::fflush(stdout);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
