// requests CASE: the life of requests: what a request retains, when it is active, and what later
// messages find. Host memory, or an emulated GPU (TEST_LIBCUDA). Prints a line of JSON a rank.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "expect.hpp"
#include "host_or_gpu.hpp"

namespace {

constexpr int kMany = 20000;

int me() { return rank_in(MPI_COMM_WORLD); }

/// A persistent send is started after the program has freed the datatype and the communicator, and
/// has made other types, which may get the freed handle. More sends start at once than plait has
/// slots.
void outlived() {
  constexpr int kSends = 80;
  for (const bool frees_comm : {false, true}) {
    MPI_Comm comm;
    MPI_Datatype type, others[4];
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Type_contiguous(kMany, MPI_INT, &type);
    MPI_Type_commit(&type);
    std::vector<HostOrGpuVector<int>> data;
    std::vector<MPI_Request> requests(kSends);
    for (int at = 0; at < kSends; ++at) data.emplace_back(kMany, -1);
    for (int at = 0; at < kSends; ++at) {
      int* const buffer = device_ptr(data[at].data());
      if (me() == 0)
        (at % 2 == 0 ? MPI_Send_init : MPI_Rsend_init)(buffer, 1, type, 1, at, comm, &requests[at]);
      else
        MPI_Recv_init(buffer, kMany, MPI_INT, 0, at, comm, &requests[at]);
    }
    MPI_Type_free(&type);
    if (frees_comm) MPI_Comm_free(&comm);
    for (MPI_Datatype& other : others) {
      MPI_Type_contiguous(kMany / 2, MPI_INT, &other);
      MPI_Type_commit(&other);
    }
    for (int round = 0; round < 2; ++round) {
      for (int at = 0; at < kSends; ++at)
        for (int& one : data[at]) one = me() == 0 ? 100 * round + at : -1;
      if (me() == 1) MPI_Startall(kSends, requests.data());
      MPI_Barrier(MPI_COMM_WORLD);  // a ready send needs a started receive
      if (me() == 0) MPI_Startall(kSends, requests.data());
      MPI_Waitall(kSends, requests.data(), MPI_STATUSES_IGNORE);
      for (int at = 0; at < kSends; ++at)
        for (const int one : data[at]) {
          if (one == 100 * round + at) continue;
          expect_equal(one, 100 * round + at, "data of a persistent message");
          break;
        }
    }
    for (MPI_Request& request : requests) MPI_Request_free(&request);
    for (MPI_Datatype& other : others) MPI_Type_free(&other);
    if (!frees_comm) MPI_Comm_free(&comm);
  }
}

const std::map<std::string, void (*)()> kCases = {
    {"outlived", outlived},
};

}  // namespace

int main(int argc, char** argv) {
  EmulatedCuda::now().begin(1);
  MPI_Init(&argc, &argv);
  kCases.at(argc > 1 ? argv[1] : "")();
  const int rank = me();
  std::printf("{\"rank\": %d, \"wrong\": %ld, \"served\": %ld}\n", rank, wrong, calls_served());
  std::fflush(stdout);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
