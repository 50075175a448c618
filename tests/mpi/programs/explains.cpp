// explains CASE: calls that go to the native MPI, for the reasons that PLAIT_DEBUG=EXPLAIN logs.
// Prints a line of JSON a rank.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device_ints.hpp"

namespace {

constexpr int kCount = 1 << 15;

std::vector<int> in(kCount, 1), out(8 * kCount, 0);

int sum(int count, MPI_Comm comm, MPI_Datatype type = MPI_INT, MPI_Op op = MPI_SUM) {
  return MPI_Allreduce(in.data(), out.data(), count, type, op, comm);
}

void started_sum(MPI_Comm comm) {
  MPI_Request request;
  MPI_Iallreduce(in.data(), out.data(), kCount, MPI_INT, MPI_SUM, comm, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

void add(void* from, void* to, int* count, MPI_Datatype*) {
  for (int at = 0; at < *count; ++at) static_cast<int*>(to)[at] += static_cast<int*>(from)[at];
}

void own_operation() {
  MPI_Op op;
  MPI_Op_create(add, 1, &op);
  sum(kCount, MPI_COMM_WORLD, MPI_INT, op);
  MPI_Op_free(&op);
}

void short_sums() { sum(kCount, MPI_COMM_WORLD, MPI_SHORT); }

void persistent_sum() {
  MPI_Request request;
  make("MPI_Allreduce_init", &request, static_cast<const void*>(in.data()),
       static_cast<void*>(out.data()), kCount, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Start(&request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Request_free(&request);
}

void intercommunicator() {
  MPI_Comm half, both;
  const int rank = rank_in(MPI_COMM_WORLD);
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 1, &both);
  sum(kCount, both);
  MPI_Comm_free(&both);
  MPI_Comm_free(&half);
}

/// 64 communicators of this job can be attached.
void many_communicators() {
  std::vector<MPI_Comm> all(66);
  for (MPI_Comm& comm : all) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    sum(kCount, comm);
  }
  for (MPI_Comm& comm : all) MPI_Comm_free(&comm);
}

void uneven_parts() {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  std::vector<int> counts, displs;
  for (int one = 0; one < ranks; ++one) {
    displs.push_back(one * kCount);
    counts.push_back(kCount / (one + 1));
  }
  MPI_Allgatherv(in.data(), counts[static_cast<std::size_t>(rank)], MPI_INT, out.data(),
                 counts.data(), displs.data(), MPI_INT, MPI_COMM_WORLD);
}

void uneven_exchange() {
  const std::vector<int> counts(static_cast<std::size_t>(ranks_of(MPI_COMM_WORLD)), 16384);
  std::vector<int> displs;
  for (std::size_t one = 0; one < counts.size(); ++one)
    displs.push_back(static_cast<int>(one) * 16384);
  MPI_Alltoallv(in.data(), counts.data(), displs.data(), MPI_INT, out.data(), counts.data(),
                displs.data(), MPI_INT, MPI_COMM_WORLD);
}

/// The ranks start to use CUDA before the calls.
void with_gpu(const std::function<void()>& call) {
  const DeviceInts used(16, 1);
  call();
}

/// Sums in device memory: of a blocking call, then of a non-blocking call in place.
void device_sums() {
  const DeviceInts from(kCount, 1), to(2 * kCount, 1);
  MPI_Allreduce(from.device_ptr(), to.device_ptr(), kCount, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Request request;
  MPI_Ireduce_scatter_block(MPI_IN_PLACE, to.device_ptr(), kCount, MPI_INT, MPI_SUM, MPI_COMM_WORLD,
                            &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  to.fill(1);
  MPI_Reduce_scatter_block(MPI_IN_PLACE, to.device_ptr(), kCount, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(to.holds(2, 0, kCount), "sums in device memory");
}

void send(int count, MPI_Datatype type = MPI_INT) {
  if (rank_in(MPI_COMM_WORLD) == 0)
    MPI_Send(in.data(), count, type, 1, 5, MPI_COMM_WORLD);
  else
    MPI_Recv(out.data(), count, type, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

void send_to_itself() {
  const int rank = rank_in(MPI_COMM_WORLD);
  MPI_Request request;
  MPI_Irecv(out.data(), kCount, MPI_INT, rank, 5, MPI_COMM_WORLD, &request);
  MPI_Send(in.data(), kCount, MPI_INT, rank, 5, MPI_COMM_WORLD);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

void send_with_holes() {
  MPI_Datatype type;
  MPI_Type_vector(kCount / 2, 1, 2, MPI_INT, &type);
  MPI_Type_commit(&type);
  send(1, type);
  MPI_Type_free(&type);
}

const std::map<std::string, std::function<void()>> cases = {
    {"sum", [] { sum(kCount, MPI_COMM_WORLD); }},
    {"small_twice", [] { sum(4, MPI_COMM_WORLD), sum(8, MPI_COMM_WORLD); }},
    {"no_data", [] { sum(0, MPI_COMM_WORLD); }},
    {"gathered",
     [] {
       MPI_Allgather(in.data(), kCount, MPI_INT, out.data(), kCount, MPI_INT, MPI_COMM_WORLD);
     }},
    {"type", [] { sum(kCount / 4, MPI_COMM_WORLD, MPI_LONG_DOUBLE); }},
    {"logical", [] { sum(kCount, MPI_COMM_WORLD, MPI_INT, MPI_LAND); }},
    {"own_operation", own_operation},
    {"short_sums", short_sums},
    {"intercommunicator", intercommunicator},
    {"one_rank", [] { sum(kCount, MPI_COMM_SELF); }},
    {"many_communicators", many_communicators},
    {"started_sum", [] { started_sum(MPI_COMM_WORLD); }},
    {"started_after", [] { sum(kCount, MPI_COMM_WORLD), started_sum(MPI_COMM_WORLD); }},
    {"persistent_sum", persistent_sum},
    {"uneven_parts", uneven_parts},
    {"uneven_exchange", uneven_exchange},
    {"device_sums", device_sums},
    {"sum_beside_gpu", [] { with_gpu([] { sum(kCount, MPI_COMM_WORLD); }); }},
    {"started_beside_gpu",
     [] {
       with_gpu([] {
         sum(kCount, MPI_COMM_WORLD);
         const DeviceInts data(kCount, 1);
         MPI_Allreduce(MPI_IN_PLACE, data.device_ptr(), kCount, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
         started_sum(MPI_COMM_WORLD);
       });
     }},
    {"send_small", [] { send(256); }},
    {"send_to_itself", send_to_itself},
    {"send_with_holes", send_with_holes},
};

}  // namespace

int main(int argc, char** argv) {
  EmulatedCuda::now().begin(1);
  MPI_Init(&argc, &argv);
  cases.at(argv[1])();
  std::printf("{\"rank\": %d, \"wrong\": %ld, \"served\": %ld}\n", rank_in(MPI_COMM_WORLD), wrong,
              calls_served());
  std::fflush(stdout);
  MPI_Finalize();
}
