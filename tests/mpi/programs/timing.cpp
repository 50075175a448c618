// timing [MOST_BYTES]: time of collectives in host memory by size, and the cost of a forwarded
// call. Run the program bare and with the drop-in, in turn; rank 0 prints CSV.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "program.hpp"

namespace {

constexpr int kBatches = 60;  // short ones: on a busy machine some run undisturbed

/// Microseconds a call: the fastest batch of the slowest rank.
template <class Call>
double best_us(int calls, const Call& call) {
  double best = 1e30;
  for (int batch = 0; batch < kBatches; ++batch) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < calls; ++i) call();
    double took = (MPI_Wtime() - begin) / calls * 1e6, slowest = 0;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    best = std::min(best, slowest);
  }
  return best;
}

void print(const char* what, std::size_t bytes, double us) {
  if (rank_in(MPI_COMM_WORLD) == 0) std::printf("%s,%zu,%.3f\n", what, bytes, us);
  std::fflush(stdout);
}

/// Times each collective with a message of `bytes`, as plait counts a message.
void collectives(std::size_t bytes, int calls) {
  const int ranks = ranks_of(MPI_COMM_WORLD);
  std::vector<float> in(bytes / 4, 1.0f), out(bytes / 4);
  const int all = static_cast<int>(bytes / 4), part = all / ranks;
  const MPI_Comm world = MPI_COMM_WORLD;
  const auto time = [&](const char* name, const auto& call) {
    print(name, bytes, best_us(calls, call));
  };
  time("all_reduce", [&] { MPI_Allreduce(in.data(), out.data(), all, MPI_FLOAT, MPI_SUM, world); });
  time("iall_reduce", [&] {
    MPI_Request request;
    MPI_Iallreduce(in.data(), out.data(), all, MPI_FLOAT, MPI_SUM, world, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  });
  time("reduce", [&] { MPI_Reduce(in.data(), out.data(), all, MPI_FLOAT, MPI_SUM, 0, world); });
  time("broadcast", [&] { MPI_Bcast(in.data(), all, MPI_FLOAT, 0, world); });
  time("reduce_scatter",
       [&] { MPI_Reduce_scatter_block(in.data(), out.data(), part, MPI_FLOAT, MPI_SUM, world); });
  time("all_gather",
       [&] { MPI_Allgather(in.data(), part, MPI_FLOAT, out.data(), part, MPI_FLOAT, world); });
  time("all_to_all",
       [&] { MPI_Alltoall(in.data(), part, MPI_FLOAT, out.data(), part, MPI_FLOAT, world); });
  time("gather",
       [&] { MPI_Gather(in.data(), part, MPI_FLOAT, out.data(), part, MPI_FLOAT, 0, world); });
  time("scatter",
       [&] { MPI_Scatter(in.data(), part, MPI_FLOAT, out.data(), part, MPI_FLOAT, 0, world); });
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const std::size_t most = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 16 << 20;
  MPI_Request none = MPI_REQUEST_NULL;
  float one = 1, sum = 0;
  print("wait_for_nothing", 0, best_us(20000, [&] { MPI_Wait(&none, MPI_STATUS_IGNORE); }));
  print("all_reduce_of_one_rank", 4,
        best_us(20000, [&] { MPI_Allreduce(&one, &sum, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_SELF); }));
  print("all_reduce", 8,
        best_us(2000, [&] { MPI_Allreduce(&one, &sum, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }));
  for (std::size_t bytes = 16 << 10; bytes <= most; bytes *= 4)
    collectives(bytes, std::max(1, static_cast<int>((1 << 20) / bytes)));
  MPI_Finalize();
  return 0;
}
