// requests CASE: the life of requests: what a request retains, when it is active, and what later
// messages find. Host memory, or an emulated GPU (TEST_LIBCUDA). Prints a line of JSON a rank.
#include <cstdio>
#include <cstdlib>
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

/// Looks up a function of MPI 4.1, which the drop-in exports for each MPI.
template <class Function>
Function* named(const char* name) {
  void* const found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) std::abort();
  return reinterpret_cast<Function*>(found);
}

/// MPI_Request_get_status_any and _some take an inactive persistent request for no request.
void inactive() {
  auto* const any =
      named<int(int, const MPI_Request*, int*, int*, MPI_Status*)>("MPI_Request_get_status_any");
  auto* const some =
      named<int(int, const MPI_Request*, int*, int*, MPI_Status*)>("MPI_Request_get_status_some");
  HostOrGpuVector<int> data(kMany, 1), large(kMany, -1);
  int small = 0, index = -1, flag = -1, ended = -1, indices[3] = {-1, -1, -1};
  const int other = 1 - me(), sent = 3;
  MPI_Status statuses[3];
  MPI_Request requests[3] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  const auto ask = [&] {
    index = flag = ended = indices[0] = -1;
    any(3, requests, &index, &flag, statuses);
    some(3, requests, &ended, indices, statuses);
  };
  MPI_Recv_init(device_ptr(large.data()), kMany, MPI_INT, other, 1, MPI_COMM_WORLD, &requests[0]);
  ask();
  expect(flag == 1 && index == MPI_UNDEFINED, "no active request by _any");
  expect_equal(ended, MPI_UNDEFINED, "no active request by _some");
  MPI_Irecv(&small, 1, MPI_INT, other, 2, MPI_COMM_WORLD, &requests[1]);
  ask();
  expect(flag == 0 && index == MPI_UNDEFINED, "a pending receive by _any");
  expect_equal(ended, 0, "a pending receive by _some");
  MPI_Start(&requests[0]);
  ask();
  expect(flag == 0 && index == MPI_UNDEFINED, "two pending receives by _any");
  expect_equal(ended, 0, "two pending receives by _some");
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Send(&sent, 1, MPI_INT, other, 2, MPI_COMM_WORLD);
  do ask();
  while (flag == 0 || ended == 0);
  expect(index == 1 && ended == 1 && indices[0] == 1, "the receive that has ended");
  MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
  ask();
  expect(flag == 0 && index == MPI_UNDEFINED, "a pending persistent receive by _any");
  expect_equal(ended, 0, "a pending persistent receive by _some");
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Request send;
  MPI_Isend(device_ptr(data.data()), kMany, MPI_INT, other, 1, MPI_COMM_WORLD, &send);
  do ask();
  while (flag == 0 || ended == 0);
  int count = 0;
  MPI_Get_count(&statuses[0], MPI_INT, &count);
  expect(index == 0 && ended == 1 && indices[0] == 0, "the persistent receive that has ended");
  expect_equal(count, kMany, "the size of the persistent receive");
  MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
  MPI_Wait(&send, MPI_STATUS_IGNORE);
  ask();
  expect(flag == 1 && index == MPI_UNDEFINED, "an inactive receive by _any");
  expect_equal(ended, MPI_UNDEFINED, "an inactive receive by _some");
  MPI_Request_free(&requests[0]);
}

/// A null pointer in the place of a result is an error of the MPI. Open MPI's probes crash.
void null_results() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  HostOrGpuVector<int> large(kMany, 0);
  int index = 0, flag = 0;
  MPI_Request request;  // plait takes part in the receive
  MPI_Irecv(device_ptr(large.data()), kMany, MPI_INT, 1 - me(), 3, MPI_COMM_WORLD, &request);
  const auto expect_refused = [](int code, const char* what) {
    int kind = 0;
    MPI_Error_class(code, &kind);
    expect_equal(kind, MPI_ERR_ARG, what);
  };
  int* const null = std::getenv("NO_SUCH_VARIABLE") == nullptr ? nullptr : &index;
  MPI_Message message;
  expect_refused(MPI_Waitany(1, &request, null, MPI_STATUS_IGNORE), "MPI_Waitany");
  expect_refused(MPI_Testany(1, &request, null, &flag, MPI_STATUS_IGNORE), "MPI_Testany");
  expect_refused(MPI_Testany(1, &request, &index, null, MPI_STATUS_IGNORE), "MPI_Testany's flag");
  expect_refused(MPI_Test(&request, null, MPI_STATUS_IGNORE), "MPI_Test");
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(version, &length);
  if (std::string(version).find("Open MPI") == std::string::npos) {
    expect_refused(MPI_Iprobe(1 - me(), 4, MPI_COMM_WORLD, null, MPI_STATUS_IGNORE), "MPI_Iprobe");
    expect_refused(MPI_Improbe(1 - me(), 4, MPI_COMM_WORLD, null, &message, MPI_STATUS_IGNORE),
                   "MPI_Improbe");
  }
  MPI_Cancel(&request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

const std::map<std::string, void (*)()> kCases = {
    {"outlived", outlived},
    {"inactive", inactive},
    {"null_results", null_results},
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
