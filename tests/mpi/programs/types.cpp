// types CASE: buffers of derived datatypes: made by functions for large counts, on an emulated GPU
// (tests/fake_cuda) by MPI_BOTTOM and absolute addresses, and of more than 2 GiB. Prints a line of
// JSON a rank.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "device_ints.hpp"

namespace {

constexpr int kMany = 1 << 16;  ///< ints per buffer

/// Uses the function for large counts if available in the MPI.
MPI_Datatype row(int count, MPI_Datatype of) {
  MPI_Datatype made;
  if (auto* const large =
          named<int(MPI_Count, MPI_Datatype, MPI_Datatype*)>("MPI_Type_contiguous_c"))
    large(count, of, &made);
  else
    MPI_Type_contiguous(count, of, &made);
  return made;
}

MPI_Datatype every_second(int count) {
  MPI_Datatype made;
  using Large = int(MPI_Count, MPI_Count, MPI_Count, MPI_Datatype, MPI_Datatype*);
  if (auto* const large = named<Large>("MPI_Type_vector_c"))
    large(count, 1, 2, MPI_INT, &made);
  else
    MPI_Type_vector(count, 1, 2, MPI_INT, &made);
  return made;
}

/// Ints at a byte offset from a buffer.
MPI_Datatype at_places(int length, const std::vector<MPI_Aint>& displs) {
  MPI_Datatype made;
  const int parts = static_cast<int>(displs.size());
  using Large = int(MPI_Count, const MPI_Count*, const MPI_Count*, MPI_Datatype, MPI_Datatype*);
  if (auto* const large = named<Large>("MPI_Type_create_hindexed_c")) {
    const std::vector<MPI_Count> lengths(displs.size(), length), wide(displs.begin(), displs.end());
    large(parts, lengths.data(), wide.data(), MPI_INT, &made);
  } else {
    const std::vector<int> lengths(displs.size(), length);
    MPI_Type_create_hindexed(parts, lengths.data(), displs.data(), MPI_INT, &made);
  }
  return made;
}

/// Returns whether every `step`th of the first `length` ints is `value`, and no int in between.
bool is_there(const int* data, int length, int step, int value) {
  for (int at = 0; at < length; at += step)
    if (data[at] != value) return false;
  return step == 1 || data[1] != value;
}

/// Each type in a served collective and in a message, in host memory and on the GPU.
void made_c() {
  const int rank = rank_in(MPI_COMM_WORLD), peer = 1 - rank;
  const MPI_Datatype inner = row(kMany / 2, MPI_INT);
  const MPI_Aint half = kMany / 2 * static_cast<MPI_Aint>(sizeof(int));
  const struct {
    MPI_Datatype type;
    int length, step;
  } kinds[] = {{row(kMany, MPI_INT), kMany, 1},
               {every_second(kMany / 2), kMany, 2},
               {at_places(kMany / 2, {half, 0}), kMany, 1},
               {row(2, inner), kMany, 1},
               {row(2, at_places(kMany / 4, {0, 2 * half / 4})), kMany, 1}};
  for (const auto& kind : kinds) {
    MPI_Datatype type = kind.type;
    MPI_Type_commit(&type);
    for (const bool on_gpu : {false, true}) {
      std::vector<int> host(kMany, rank == 0 ? 7 : -1), got(kMany, -1);
      const DeviceInts gpu(kMany, rank == 0 ? 7 : -1), gpu_got(kMany, -1);
      MPI_Bcast(on_gpu ? gpu.device_ptr() : host.data(), 1, type, 0, MPI_COMM_WORLD);
      const int* const all = on_gpu ? gpu.content() : host.data();
      expect(rank == 0 || is_there(all, kind.length, kind.step, 7), "broadcast data");
      MPI_Sendrecv(on_gpu ? gpu.device_ptr() : host.data(), 1, type, peer, 1,
                   on_gpu ? gpu_got.device_ptr() : got.data(), 1, type, peer, 1, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
      const int* const received = on_gpu ? gpu_got.content() : got.data();
      expect(is_there(received, kind.length, kind.step, 7), "received data");
    }
    MPI_Type_free(&type);
  }
}

MPI_Aint address_of(const int* at) {
  MPI_Aint address = 0;
  MPI_Get_address(at, &address);
  return address;
}

/// The first and the last 100 of 300 ints, by absolute addresses.
MPI_Datatype two_parts(const int* from) {
  MPI_Datatype made;
  const int lengths[] = {100, 0, 100};
  const MPI_Aint displs[] = {address_of(from), 0, address_of(from + 200)};
  const MPI_Datatype types[] = {MPI_INT, MPI_INT, MPI_INT};
  MPI_Type_create_struct(3, lengths, displs, types, &made);
  MPI_Type_commit(&made);
  return made;
}

bool has_two_parts(const DeviceInts& buffer, int value) {
  return buffer.holds(value, 0, 100) && buffer.holds(-1, 100, 200) && buffer.holds(value, 200, 300);
}

/// Device memory by MPI_BOTTOM, in collectives and messages, on both sides of a call; and relative
/// to a buffer in host memory.
void bottom() {
  const int rank = rank_in(MPI_COMM_WORLD), peer = 1 - rank;
  const DeviceInts in(300, rank), out(300, -1);
  MPI_Datatype from = two_parts(in.device_ptr()), to = two_parts(out.device_ptr());
  MPI_Sendrecv(MPI_BOTTOM, 1, from, peer, 0, MPI_BOTTOM, 1, to, peer, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  expect(has_two_parts(out, peer), "an exchange by absolute addresses");
  out.fill(-1);
  MPI_Request requests[2];
  MPI_Irecv(MPI_BOTTOM, 1, to, peer, 0, MPI_COMM_WORLD, &requests[0]);
  MPI_Isend(MPI_BOTTOM, 1, from, peer, 0, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  expect(has_two_parts(out, peer), "a message by absolute addresses");
  out.fill(-1);
  MPI_Bcast(MPI_BOTTOM, 1, rank == 1 ? from : to, 1, MPI_COMM_WORLD);
  expect(rank == 1 || has_two_parts(out, 1), "a broadcast by absolute addresses");
  out.fill(-1);
  const int none[] = {0, 0};
  const int given[] = {rank == 0 ? 0 : 1, rank == 0 ? 1 : 0};  // to the peer alone
  const MPI_Datatype froms[] = {from, from}, tos[] = {to, to};
  MPI_Alltoallw(MPI_BOTTOM, given, none, froms, MPI_BOTTOM, given, none, tos, MPI_COMM_WORLD);
  expect(has_two_parts(out, peer), "an all-to-all by absolute addresses");
  out.fill(-1);
  int here = 0;  // the nominal buffer is in host memory
  MPI_Datatype reaching;
  const int lengths[] = {100};
  const MPI_Aint displs[] = {address_of(out.device_ptr()) - address_of(&here)};
  MPI_Type_create_hindexed(1, lengths, displs, MPI_INT, &reaching);
  MPI_Type_commit(&reaching);
  MPI_Sendrecv(in.device_ptr(), 100, MPI_INT, peer, 0, &here, 1, reaching, peer, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  expect(out.holds(peer, 0, 100) && out.holds(-1, 100, 300), "data reached from a host address");
  MPI_Datatype behind;  // the nominal buffer is in front of the allocation
  const int ints[] = {100}, places[] = {1 << 20};
  MPI_Type_indexed(1, ints, places, MPI_INT, &behind);
  MPI_Type_commit(&behind);
  out.fill(rank);
  const MPI_Aint front = address_of(out.device_ptr()) - (MPI_Aint{4} << 20);
  MPI_Bcast(reinterpret_cast<void*>(front), 1, behind, 0, MPI_COMM_WORLD);
  expect(out.holds(0, 0, 100) && out.holds(rank, 100, 300), "data behind the buffer's address");
  for (MPI_Datatype* one : {&from, &to, &reaching, &behind}) MPI_Type_free(one);
}

/// 100 ints of each of two allocations, a GiB apart, as one element.
void apart() {
  const int rank = rank_in(MPI_COMM_WORLD), peer = 1 - rank;
  const DeviceInts in(100, rank), out(100, -1);
  EmulatedCuda::now().content(std::size_t{1} << 30);
  const DeviceInts between(100, -1), in_too(100, rank + 10), out_too(100, -1);
  const MPI_Datatype from =
      at_places(100, {address_of(in.device_ptr()), address_of(in_too.device_ptr())});
  const MPI_Datatype to =
      at_places(100, {address_of(out.device_ptr()), address_of(out_too.device_ptr())});
  MPI_Datatype whole[2];
  MPI_Type_dup(from, &whole[0]);
  MPI_Type_create_resized(to, 0, 4, &whole[1]);
  for (MPI_Datatype& one : whole) MPI_Type_commit(&one);
  const auto check = [&](int value, const char* what) {
    expect(out.holds(value) && out_too.holds(value + 10) && between.holds(-1), what);
    out.fill(-1);
    out_too.fill(-1);
  };
  MPI_Sendrecv(MPI_BOTTOM, 1, whole[0], peer, 0, MPI_BOTTOM, 1, whole[1], peer, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  check(peer, "an exchange of what lies in two allocations");
  MPI_Bcast(MPI_BOTTOM, 1, whole[rank == 0 ? 0 : 1], 0, MPI_COMM_WORLD);
  if (rank == 1) check(0, "a broadcast of what lies in two allocations");
  const int given[] = {rank == 0 ? 0 : 1, rank == 0 ? 1 : 0}, none[] = {0, 0};
  const MPI_Datatype froms[] = {whole[0], whole[0]}, tos[] = {whole[1], whole[1]};
  MPI_Alltoallw(MPI_BOTTOM, given, none, froms, MPI_BOTTOM, given, none, tos, MPI_COMM_WORLD);
  check(peer, "an all-to-all of what lies in two allocations");
  MPI_Request requests[2];
  MPI_Recv_init(MPI_BOTTOM, 1, whole[1], peer, 0, MPI_COMM_WORLD, &requests[0]);
  MPI_Send_init(MPI_BOTTOM, 1, whole[0], peer, 0, MPI_COMM_WORLD, &requests[1]);
  for (int round = 0; round < 2; ++round) {
    in.fill(rank + round);
    in_too.fill(rank + round + 10);
    MPI_Startall(2, requests);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    check(peer + round, "a persistent message of what lies in two allocations");
  }
  for (MPI_Request& one : requests) MPI_Request_free(&one);
}

/// Derived types of inner types that the program has not committed: MPI asks for the outer type's
/// commit alone. Each type in messages, a broadcast and a gather, on the GPU.
void nested() {
  const int rank = rank_in(MPI_COMM_WORLD), peer = 1 - rank;
  constexpr int kRows = 10, kWidth = 8;
  MPI_Datatype column, block, twice;
  MPI_Type_vector(kRows, 1, kWidth, MPI_INT, &column);
  const int sizes[] = {kRows, kWidth}, parts[] = {kRows, 1}, starts[] = {0, 0};
  MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_INT, &block);
  const int lengths[] = {1, 1};
  const MPI_Aint displs[] = {0, sizeof(int)};
  const MPI_Datatype inner[] = {column, block};
  MPI_Type_create_struct(2, lengths, displs, inner, &twice);
  const struct {
    MPI_Datatype type;
    int columns;  ///< per element
  } kinds[] = {{column, 1}, {block, 1}, {twice, 2}};
  for (const auto& kind : kinds) {
    MPI_Datatype type;
    MPI_Type_create_resized(kind.type, 0, kind.columns * static_cast<MPI_Aint>(sizeof(int)), &type);
    MPI_Type_commit(&type);
    const int elements = 4 / kind.columns, half = elements / 2;
    const DeviceInts in(kRows * kWidth, rank), out(kRows * kWidth, -1);
    const auto check = [&](int first, int second, const char* what) {
      bool right = true;
      for (int at = 0; at < kRows * kWidth; ++at) {
        const int x = at % kWidth;
        right = right && out.content()[at] == (x < 2 ? first : x < 4 ? second : -1);
      }
      expect(right, what);
      out.fill(-1);
    };
    MPI_Sendrecv(in.device_ptr(), elements, type, peer, 1, out.device_ptr(), elements, type, peer,
                 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    check(peer, peer, "received columns");
    if (rank == 1) out.fill(7);
    MPI_Bcast(out.device_ptr(), elements, type, 1, MPI_COMM_WORLD);
    if (rank == 0) check(7, 7, "broadcast columns");
    out.fill(-1);
    const int counts[] = {half, half}, places[] = {0, half};
    MPI_Gatherv(in.device_ptr(), half, type, out.device_ptr(), counts, places, type, 0,
                MPI_COMM_WORLD);
    if (rank == 0) check(0, 1, "gathered columns");
    MPI_Type_free(&type);
  }
  for (MPI_Datatype* one : {&column, &block, &twice}) MPI_Type_free(one);
}

/// Parts in host memory before and after a part on the GPU: an error, no crash.
void split() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const DeviceInts there(100, 1);
  std::vector<int> heap(100, 1);
  int stack[100] = {};
  for (const bool both : {false, true}) {
    MPI_Datatype type;
    const int lengths[] = {100, 100, 100};
    const MPI_Aint displs[] = {address_of(heap.data()), address_of(there.device_ptr()),
                               address_of(stack)};
    MPI_Type_create_hindexed(both ? 3 : 2, lengths, displs, MPI_INT, &type);
    MPI_Type_commit(&type);
    const int code = MPI_Send(MPI_BOTTOM, 1, type, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
    char words[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code != MPI_SUCCESS) MPI_Error_string(code, words, &length);
    expect(std::strstr(words, "all in host memory or all on one GPU") != nullptr,
           "the error's text");
    MPI_Type_free(&type);
  }
}

/// An element of more than 2 GiB, with a hole.
void large() {
  constexpr int kHalf = (1 << 30) + (1 << 27), kHole = 64;
  MPI_Datatype type;
  MPI_Type_vector(2, kHalf, kHalf + kHole, MPI_BYTE, &type);
  MPI_Type_commit(&type);
  const bool is_root = rank_in(MPI_COMM_WORLD) == 0;
  std::vector<char> data(2 * std::size_t{kHalf} + kHole, is_root ? 1 : 0);
  if (is_root) data[kHalf - 1] = data[kHalf + kHole] = data.back() = 3;
  MPI_Bcast(data.data(), 1, type, 0, MPI_COMM_WORLD);
  expect(data[0] == 1 && data[kHalf - 1] == 3 && data[kHalf + kHole] == 3 && data.back() == 3,
         "a broadcast of more than 2 GiB");
  expect(data[kHalf] == (is_root ? 1 : 0), "a hole stays unchanged");
  MPI_Type_free(&type);
}

/// Rank 0 gets its parts at MPI_BOTTOM and absolute displacements, which MPI_Aint holds.
void displaced() {
  const int rank = rank_in(MPI_COMM_WORLD), ranks = ranks_of(MPI_COMM_WORLD);
  std::vector<char> in(kMany, static_cast<char>(rank + 1)), out(in.size() * ranks);
  MPI_Aint first = 0;
  MPI_Get_address(out.data(), &first);
  const std::vector<MPI_Count> counts(ranks, kMany);
  std::vector<MPI_Aint> displs;
  for (int from = 0; from < ranks; ++from)
    displs.push_back((rank == 0 ? first : 0) + static_cast<MPI_Aint>(from) * kMany);
  void* const to = rank == 0 ? MPI_BOTTOM : out.data();
  using Gather = int(const void*, MPI_Count, MPI_Datatype, void*, const MPI_Count*, const MPI_Aint*,
                     MPI_Datatype, MPI_Comm);
  using GatherToRoot = int(const void*, MPI_Count, MPI_Datatype, void*, const MPI_Count*,
                           const MPI_Aint*, MPI_Datatype, int, MPI_Comm);
  for (const bool to_all : {true, false}) {
    std::fill(out.begin(), out.end(), 0);
    if (to_all)
      named<Gather>("MPI_Allgatherv_c")(in.data(), kMany, MPI_BYTE, to, counts.data(),
                                        displs.data(), MPI_BYTE, MPI_COMM_WORLD);
    else
      named<GatherToRoot>("MPI_Gatherv_c")(in.data(), kMany, MPI_BYTE, to, counts.data(),
                                           displs.data(), MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int from = 0; (to_all || rank == 0) && from < ranks; ++from) {
      const auto begin = out.begin() + static_cast<std::ptrdiff_t>(from) * kMany;
      expect(std::count(begin, begin + kMany, from + 1) == kMany, "parts at displacements");
    }
  }
}

/// The same with parts in device memory.
void displaced_gpus() {
  const int rank = rank_in(MPI_COMM_WORLD), ranks = ranks_of(MPI_COMM_WORLD);
  const DeviceInts in(kMany, rank), out(ranks * kMany, -1);
  const std::vector<MPI_Count> counts(ranks, kMany);
  std::vector<MPI_Aint> displs;
  for (int from = 0; from < ranks; ++from)
    displs.push_back((rank == 0 ? address_of(out.device_ptr()) / MPI_Aint{sizeof(int)} : 0) +
                     static_cast<MPI_Aint>(from) * kMany);
  void* const to = rank == 0 ? MPI_BOTTOM : out.device_ptr();
  using Gather = int(const void*, MPI_Count, MPI_Datatype, void*, const MPI_Count*, const MPI_Aint*,
                     MPI_Datatype, MPI_Comm);
  named<Gather>("MPI_Allgatherv_c")(in.device_ptr(), kMany, MPI_INT, to, counts.data(),
                                    displs.data(), MPI_INT, MPI_COMM_WORLD);
  for (int from = 0; from < ranks; ++from)
    expect(out.holds(from, from * kMany, (from + 1) * kMany), "device parts at displacements");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name != "large" && name != "displaced") EmulatedCuda::now().begin(1);
  MPI_Init(&argc, &argv);
  if (name == "made_c") made_c();
  if (name == "bottom") bottom();
  if (name == "apart") apart();
  if (name == "nested") nested();
  if (name == "split") split();
  if (name == "displaced") displaced();
  if (name == "displaced_gpus") displaced_gpus();
  if (name == "large") large();
  std::printf("{\"rank\": %d, \"wrong\": %ld, \"served\": %ld}\n", rank_in(MPI_COMM_WORLD), wrong,
              calls_served());
  std::fflush(stdout);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
