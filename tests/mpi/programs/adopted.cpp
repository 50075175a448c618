// adopted DRIVER ROUNDS: plait's one communicator of MPI_COMM_WORLD serves host memory, then adopts
// the ranks' GPUs and serves both kinds of memory. The GPUs are those of tests/fake_cuda, which
// record calls instead of running them. Ranks start persistent calls in different orders, between
// other calls, and make calls in place that engines refuse. Prints a line of JSON a rank.
#include <string>
#include <thread>
#include <vector>

#include "expect.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "program.hpp"

namespace {

constexpr int kMany = 50000;
// The fake driver takes these for device memory.
void* const kIn = reinterpret_cast<void*>(std::uintptr_t{1} << 30);
void* const kOut = reinterpret_cast<void*>(std::uintptr_t{1} << 34);

plait_test::FakeCuda& fake() {
  static auto* const found =
      reinterpret_cast<plait_test::FakeCuda& (*)()>(dlsym(RTLD_DEFAULT, "fake_cuda"));
  if (found == nullptr) std::abort();
  return found();
}

long kernels() {
  long found = 0;
  for (const plait_test::FakeNote& note : fake().notes.all())
    found += note.what.rfind("plait_", 0) == 0 ? 1 : 0;
  return found;
}

void sum_on_host() {
  const int ranks = ranks_of(MPI_COMM_WORLD);
  std::vector<int> in(kMany, rank_in(MPI_COMM_WORLD) + 1), out(kMany);
  MPI_Allreduce(in.data(), out.data(), kMany, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(out == std::vector<int>(kMany, ranks * (ranks + 1) / 2), "a sum on host memory");
}

void sum_on_gpus() {
  const long before = kernels();
  expect(MPI_Allreduce(kIn, kOut, kMany, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS,
         "the code of a sum on GPUs");
  expect(kernels() > before, "the engines run a sum on GPUs");
}

/// Calls that engines refuse in MPI's layout: the result is at the start of the input's memory.
/// The calls are staged, and start no kernel.
void in_place() {
  const long before = kernels();
  const std::vector<int> counts(static_cast<std::size_t>(ranks_of(MPI_COMM_WORLD)), kMany);
  expect(MPI_Reduce_scatter_block(MPI_IN_PLACE, kOut, kMany, MPI_INT, MPI_SUM, MPI_COMM_WORLD) ==
             MPI_SUCCESS,
         "the code of a Reduce_scatter_block in place");
  expect(MPI_Reduce_scatter(MPI_IN_PLACE, kOut, counts.data(), MPI_INT, MPI_SUM, MPI_COMM_WORLD) ==
             MPI_SUCCESS,
         "the code of a Reduce_scatter in place");
  expect(
      MPI_Alltoall(MPI_IN_PLACE, 0, MPI_INT, kOut, kMany, MPI_INT, MPI_COMM_WORLD) == MPI_SUCCESS,
      "the code of an Alltoall in place");
  MPI_Request requests[4];
  MPI_Ireduce_scatter_block(MPI_IN_PLACE, kOut, kMany, MPI_INT, MPI_SUM, MPI_COMM_WORLD,
                            &requests[0]);
  MPI_Ialltoall(MPI_IN_PLACE, 0, MPI_INT, kOut, kMany, MPI_INT, MPI_COMM_WORLD, &requests[1]);
  make("MPI_Reduce_scatter_block_init", &requests[2], MPI_IN_PLACE, kOut, static_cast<int>(kMany),
       MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  make("MPI_Alltoall_init", &requests[3], MPI_IN_PLACE, 0, MPI_INT, kOut, static_cast<int>(kMany),
       MPI_INT, MPI_COMM_WORLD);
  MPI_Startall(2, requests + 2);
  expect(MPI_Waitall(4, requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS,
         "the code of started calls in place");
  MPI_Request_free(&requests[2]);
  MPI_Request_free(&requests[3]);
  expect_equal(kernels(), before, "kernels of calls in place");
}

/// Calls that plait's thread runs: on the engines, staged since rank 0 has host memory, and the end
/// of a communicator with a GPU. The program may capture a graph meanwhile, in another thread.
void beside_captures() {
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Allreduce(kIn, kOut, kMany, MPI_INT, MPI_SUM, comm);
  std::vector<int> host(kMany, 1);
  const bool has_host = rank_in(comm) == 0;
  for (void* const out : {kOut, has_host ? static_cast<void*>(host.data()) : kOut}) {
    MPI_Request request;
    MPI_Iallreduce(MPI_IN_PLACE, out, kMany, MPI_INT, MPI_SUM, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  const int streams = fake().streams;
  MPI_Comm_free(&comm);
  sum_on_host();  // the last use of the communicator's record by this thread was before
  while (fake().streams == streams) std::this_thread::yield();
  for (const std::string& function : fake().unsafe.of_others()) {
    ++wrong;
    std::fprintf(stderr, "plait's thread calls %s, which ends captures\n", function.c_str());
  }
}

MPI_Request persistent_sum() {
  MPI_Request request;
  make("MPI_Allreduce_init", &request, static_cast<const void*>(kIn), kOut, static_cast<int>(kMany),
       MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return request;
}

/// One rank's memory is of another context than the primary, which the engines use: all ranks stage
/// the calls. Memory of the primary context is for the engines.
void other_context() {
  // The fake driver has this primary context.
  const auto primary = reinterpret_cast<plait::cuda::Context>(0x100);
  const auto other = reinterpret_cast<plait::cuda::Context>(0x200);
  const bool is_other = rank_in(MPI_COMM_WORLD) == 1;
  fake().owner = is_other ? other : primary;
  const long before = kernels();
  expect(MPI_Allreduce(kIn, kOut, kMany, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS,
         "the code of a sum of memory of another context");
  MPI_Request requests[2] = {MPI_REQUEST_NULL, persistent_sum()};
  MPI_Iallreduce(kIn, kOut, kMany, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[0]);
  MPI_Start(&requests[1]);
  expect(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS,
         "the code of started sums of memory of another context");
  expect_equal(kernels(), before, "kernels of sums of memory of another context");
  MPI_Request_free(&requests[1]);
  fake().owner = primary;
  sum_on_gpus();
  fake().owner = nullptr;
}

/// Even ranks start the first request before the other calls and the second after; odd ranks the
/// other way round.
void round_of(MPI_Request* requests) {
  const int first = rank_in(MPI_COMM_WORLD) % 2;
  fake().notes.clear();
  MPI_Start(&requests[first]);
  sum_on_gpus();
  sum_on_host();
  MPI_Request begun;
  MPI_Iallreduce(kIn, kOut, kMany, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &begun);
  MPI_Start(&requests[1 - first]);
  sum_on_gpus();
  MPI_Wait(&begun, MPI_STATUS_IGNORE);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  expect(kernels() >= 5, "the engines run all calls on GPUs");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 1;
  if (argc < 2 || dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) == nullptr) std::abort();
  MPI_Init(&argc, &argv);
  const int rank = rank_in(MPI_COMM_WORLD);
  fake().gpu.number = static_cast<char>(rank);
  sum_on_host();
  expect_equal(static_cast<long>(fake().memory.bytes), 0, "GPU memory before a call on GPUs");
  sum_on_gpus();
  sum_on_host();
  const std::size_t adopted = fake().memory.bytes;
  expect(adopted > 0, "GPU memory of the communicator");
  in_place();
  MPI_Request requests[2] = {persistent_sum(), persistent_sum()};
  for (int round = 0; round < rounds; ++round) round_of(requests);
  expect_equal(static_cast<long>(fake().memory.bytes), static_cast<long>(adopted),
               "GPU memory with persistent requests");
  in_place();
  for (MPI_Request& request : requests) MPI_Request_free(&request);
  sum_on_gpus();
  beside_captures();
  other_context();
  std::printf("{\"rank\": %d, \"wrong\": %ld, \"served\": %ld}\n", rank, wrong, calls_served());
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
