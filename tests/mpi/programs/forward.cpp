// forward: nanoseconds that the drop-in adds to native calls. Batches of the native function,
// looked up in the MPI's library, alternate with batches of the exported name in a single process;
// rank 0 prints CSV: the median of the former, and of the differences of pairs.
//
//   TEST_LIBCUDA=.../libcuda.so.1 TEST_CUDA_LATE=1 LD_PRELOAD=libplait_mpi.so mpirun -n 2 forward
//
// puts a GPU into the job that the program does not use, so that plait might serve calls from 16
// KiB on.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "host_or_gpu.hpp"

namespace {

using Allreduce = int(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm);
using Send = int(const void*, int, MPI_Datatype, int, int, MPI_Comm);
using Irecv = int(void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);
using Wait = int(MPI_Request*, MPI_Status*);
using Recv = int(void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status*);

/// Looked up in the MPI's library: the drop-in exports both the MPI_ and the PMPI_ name.
template <class Function>
Function* native(const char* name) {
  for (const char* library : {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12"})
    if (void* const found = dlopen(library, RTLD_NOLOAD | RTLD_LAZY))
      return reinterpret_cast<Function*>(dlsym(found, name));
  std::abort();
}

double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<long>(all.size() / 2), all.end());
  return all[all.size() / 2];
}

template <class Bare, class Passing>
void compare(const char* what, std::size_t bytes, MPI_Comm comm, int calls, const Bare& bare,
             const Passing& passing) {
  const auto nanoseconds = [&](const auto& call) {
    native<int(MPI_Comm)>("PMPI_Barrier")(comm);
    const double begin = MPI_Wtime();
    for (int at = 0; at < calls; ++at) call();
    return (MPI_Wtime() - begin) / calls * 1e9;
  };
  std::vector<double> of_bare, differences;
  for (int pair = 0; pair < 400; ++pair) {
    const bool first = pair % 2 == 0;
    double took[2];
    for (const bool turn : {first, !first})
      took[turn ? 1 : 0] = turn ? nanoseconds(passing) : nanoseconds(bare);
    of_bare.push_back(took[0]);
    differences.push_back(took[1] - took[0]);
  }
  if (rank_in(MPI_COMM_WORLD) == 0)
    std::printf("%s,%zu,%.1f,%.1f\n", what, bytes, median(of_bare), median(differences));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  EmulatedCuda::now().begin(1);
  MPI_Init(&argc, &argv);
  auto* const reduce = native<Allreduce>("PMPI_Allreduce");
  auto* const send = native<Send>("PMPI_Send");
  auto* const receive = native<Recv>("PMPI_Recv");
  const MPI_Comm world = MPI_COMM_WORLD, self = MPI_COMM_SELF;
  std::vector<float> in(1 << 18, 1.0f), out(in.size());
  const int other = 1 - rank_in(world);
  if (rank_in(world) == 0) std::printf("call,bytes,bare_ns,more_ns\n");
  // Reads `swept` bytes between calls: this evicts the calls' own data from the caches.
  for (const std::size_t swept : {std::size_t{64} << 10, std::size_t{4} << 20}) {
    const std::vector<char> other_data(swept, 1);
    const auto cold = [&](Allreduce* function, MPI_Comm comm) {
      return [=, &in, &out, &other_data] {
        long sum = 0;
        for (std::size_t at = 0; at < swept; at += 64) sum += other_data[at];
        in[0] = static_cast<float>(sum);
        function(in.data(), out.data(), 2, MPI_FLOAT, MPI_SUM, comm);
      };
    };
    compare(swept < 1 << 20 ? "after_64_KiB" : "after_4_MiB", 8, self, swept < 1 << 20 ? 50 : 4,
            cold(reduce, self), cold(MPI_Allreduce, self));
  }
  for (const std::size_t bytes : {8, 1024, 2048, 16384, 65536, 262144, 1048576}) {
    const int count = static_cast<int>(bytes / 4), calls = bytes < 4096      ? 200
                                                           : bytes < 1 << 18 ? 30
                                                                             : 4;
    const auto sum = [&](Allreduce* function, MPI_Comm comm) {
      return [=, &in, &out] { function(in.data(), out.data(), count, MPI_FLOAT, MPI_SUM, comm); };
    };
    compare("allreduce_of_one", bytes, self, calls, sum(reduce, self), sum(MPI_Allreduce, self));
    if (ranks_of(world) != 2) continue;
    compare("allreduce", bytes, world, calls, sum(reduce, world), sum(MPI_Allreduce, world));
    const auto ping = [&](Send* to, Recv* from) {
      return [=, &in, &out] {
        if (other == 1) to(in.data(), count, MPI_FLOAT, other, 1, world);
        from(out.data(), count, MPI_FLOAT, other, 1, world, MPI_STATUS_IGNORE);
        if (other == 0) to(in.data(), count, MPI_FLOAT, other, 1, world);
      };
    };
    const auto begun = [&](Send* to, Irecv* from, Wait* wait) {
      return [=, &in, &out] {
        MPI_Request request;
        from(out.data(), count, MPI_FLOAT, other, 2, world, &request);
        to(in.data(), count, MPI_FLOAT, other, 2, world);
        wait(&request, MPI_STATUS_IGNORE);
      };
    };
    if (bytes <= 2048)  // a larger send waits for the receiver
      compare("begun_receive", bytes, world, calls,
              begun(send, native<Irecv>("PMPI_Irecv"), native<Wait>("PMPI_Wait")),
              begun(MPI_Send, MPI_Irecv, MPI_Wait));
    compare("send_and_receive", bytes, world, calls, ping(send, receive), ping(MPI_Send, MPI_Recv));
  }
  MPI_Finalize();
  return 0;
}
