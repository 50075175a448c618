// staged CASE: device memory (emulated by tests/fake_cuda) that is staged for the native MPI.
// Prints a line of JSON a rank.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "device_ints.hpp"

namespace {

void exchange_with(int to, int from) {
  using Both = int(const void*, int, MPI_Datatype, int, int, void*, int, MPI_Datatype, int, int,
                   MPI_Comm, MPI_Request*);
  using InPlace = int(void*, int, MPI_Datatype, int, int, int, int, MPI_Comm, MPI_Request*);
  const int rank = rank_in(MPI_COMM_WORLD);
  const DeviceInts in(3000, rank), out(4000, -1), both(3000, rank);
  MPI_Request requests[2];
  MPI_Status statuses[2];
  named<Both>("MPI_Isendrecv")(in.device_ptr(), 3000, MPI_INT, to, 1, out.device_ptr(), 4000,
                               MPI_INT, from, 1, MPI_COMM_WORLD, &requests[0]);
  named<InPlace>("MPI_Isendrecv_replace")(both.device_ptr(), 3000, MPI_INT, to, 2, from, 2,
                                          MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, statuses);
  expect(in.holds(rank) && out.holds(from, 0, 3000) && out.holds(-1, 3000, 4000), "an exchange");
  expect(both.holds(from), "an exchange in place");
  for (const MPI_Status& status : statuses) {
    int count = 0;
    MPI_Get_count(&status, MPI_INT, &count);
    expect(count == 3000 && status.MPI_SOURCE == from, "status of a sendrecv");
  }
}

/// A program of a single rank, and a program that asks whether device memory may be passed.
void alone() {
  expect(named<int()>("MPIX_Query_cuda_support")() == 1, "device memory is taken");
  const DeviceInts in(5000, 7), out(5000, 0), sum(5000, 0);
  MPI_Sendrecv(in.device_ptr(), 5000, MPI_INT, 0, 3, out.device_ptr(), 5000, MPI_INT, 0, 3,
               MPI_COMM_SELF, MPI_STATUS_IGNORE);
  expect(out.holds(7), "data from the rank itself");
  MPI_Allreduce(in.device_ptr(), sum.device_ptr(), 5000, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(sum.holds(7), "a sum of one rank's");
  exchange_with(0, 0);
}

void exchanges() {
  const int rank = rank_in(MPI_COMM_WORLD), ranks = ranks_of(MPI_COMM_WORLD);
  exchange_with((rank + 1) % ranks, (rank + ranks - 1) % ranks);
}

/// One of several messages is too long for its receive.
void truncated() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int rank = rank_in(MPI_COMM_WORLD);
  for (const bool ignored : {false, true}) {
    if (rank == 0)
      for (int tag = 0; tag < 3; ++tag) {
        const DeviceInts in(100, tag + 1);
        MPI_Send(in.device_ptr(), 100, MPI_INT, 1, tag, MPI_COMM_WORLD);
      }
    if (rank != 1) continue;
    const DeviceInts out[3] = {DeviceInts(100, -1), DeviceInts(50, -1), DeviceInts(100, -1)};
    MPI_Request requests[3];
    for (int tag = 0; tag < 3; ++tag)
      MPI_Recv_init(out[tag].device_ptr(), tag == 1 ? 50 : 100, MPI_INT, 0, tag, MPI_COMM_WORLD,
                    &requests[tag]);
    MPI_Startall(3, requests);
    MPI_Status statuses[3];
    int code = MPI_SUCCESS;
    bool truncated = false, pending = true;
    while (pending) {
      code = MPI_Waitall(3, requests, ignored ? MPI_STATUSES_IGNORE : statuses);
      pending = false;
      for (int tag = 0; !ignored && code != MPI_SUCCESS && tag < 3; ++tag) {
        int kind = MPI_SUCCESS;
        MPI_Error_class(statuses[tag].MPI_ERROR, &kind);
        truncated = truncated || kind == MPI_ERR_TRUNCATE;
        pending = pending || kind == MPI_ERR_PENDING;
      }
      if (ignored && code != MPI_SUCCESS) {
        truncated = true;
        pending = !out[0].holds(1) || !out[2].holds(3);
      }
    }
    expect(truncated, "a message was too long");
    expect(out[0].holds(1) && out[2].holds(3), "data received with a truncated message");
    for (const DeviceInts& one : out) one.fill(9);
    for (MPI_Request& request : requests) {
      int flag = 0;
      MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    }
    for (const DeviceInts& one : out) expect(one.holds(9), "an inactive request writes nothing");
    for (MPI_Request& request : requests) MPI_Request_free(&request);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

/// A large message is longer than the receive buffer, by each receive function: the receiver gets
/// the error, the sender completes, and later messages complete.
void too_long() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int rank = rank_in(MPI_COMM_WORLD);
  for (int variant = 0; variant < 6; ++variant) {
    const DeviceInts in(40000, variant + 1);
    std::vector<int> on_host(40000, variant + 1);
    int* const from = variant % 2 == 0 ? in.device_ptr() : on_host.data();
    if (rank == 0)
      for (const int count : {40000, 30000})
        MPI_Send(from, count, MPI_INT, 1, variant, MPI_COMM_WORLD);
    if (rank != 1) continue;
    const DeviceInts out(30000, -1);
    std::vector<int> host_out(30000, -1);
    int* const to = variant < 4 ? out.device_ptr() : host_out.data();
    int code = MPI_SUCCESS, kind = MPI_SUCCESS;
    MPI_Request request;
    MPI_Status status;
    for (const bool fits : {false, true}) {
      if (variant % 3 == 0) {
        code = MPI_Recv(to, 30000, MPI_INT, 0, variant, MPI_COMM_WORLD, &status);
      } else if (variant % 3 == 1) {
        MPI_Irecv(to, 30000, MPI_INT, 0, variant, MPI_COMM_WORLD, &request);
        code = MPI_Wait(&request, &status);
      } else {
        MPI_Recv_init(to, 30000, MPI_INT, 0, variant, MPI_COMM_WORLD, &request);
        MPI_Start(&request);
        code = MPI_Wait(&request, &status);
        MPI_Request_free(&request);
      }
      MPI_Error_class(code, &kind);
      expect(kind == (fits ? MPI_SUCCESS : MPI_ERR_TRUNCATE), "a message was too long");
    }
    const int* const got = variant < 4 ? out.content() : host_out.data();
    expect(got[0] == variant + 1 && got[29999] == variant + 1,
           "the message after one that was too long");
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

/// Each receive function: the buffer is not read, and gets the message's bytes and no more.
void untouched() {
  const int rank = rank_in(MPI_COMM_WORLD);
  MPI_Datatype backwards, column;
  const int lengths[2] = {2, 1}, displs[2] = {1, 0};  // 3 ints; the first comes last
  MPI_Type_indexed(2, lengths, displs, MPI_INT, &backwards);
  MPI_Type_vector(50, 1, 2, MPI_INT, &column);
  MPI_Type_commit(&backwards);
  MPI_Type_commit(&column);
  for (int variant = 0; variant < 4; ++variant) {
    const DeviceInts in(40, 5);
    if (rank == 0)
      for (int tag = 0; tag < 3; ++tag)
        MPI_Send(in.device_ptr(), 40, MPI_INT, 1, tag, MPI_COMM_WORLD);
    if (rank != 1) continue;
    const DeviceInts plain(100, -1), holes(100, -1), turned(60, -1);
    const DeviceInts* const out[3] = {&plain, &holes, &turned};
    const MPI_Datatype types[3] = {MPI_INT, column, backwards};
    const int counts[3] = {100, 1, 20};
    const long before = copies_to_host();
    for (int tag = 0; tag < 3; ++tag) {
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Message message;
      int* const buffer = out[tag]->device_ptr();
      if (variant == 0)
        MPI_Recv(buffer, counts[tag], types[tag], 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      if (variant == 1)
        MPI_Irecv(buffer, counts[tag], types[tag], 0, tag, MPI_COMM_WORLD, &request);
      if (variant == 2) {
        MPI_Recv_init(buffer, counts[tag], types[tag], 0, tag, MPI_COMM_WORLD, &request);
        MPI_Start(&request);
      }
      if (variant == 3) {
        MPI_Mprobe(0, tag, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
        MPI_Mrecv(buffer, counts[tag], types[tag], &message, MPI_STATUS_IGNORE);
      }
      MPI_Wait(&request, MPI_STATUS_IGNORE);
      if (variant == 2) MPI_Request_free(&request);
    }
    expect(copies_to_host() == before, "a receive reads nothing");
    expect(plain.holds(5, 0, 40) && plain.holds(-1, 40, 100), "a message shorter than its buffer");
    bool right = true;
    for (int at = 0; at < 100; ++at)
      right = right && holes.content()[at] == (at % 2 == 0 && at < 80 ? 5 : -1);
    expect(right, "a short message in a type with holes");
    right = turned.holds(5, 0, 39) && turned.content()[39] == -1 && turned.content()[40] == 5;
    expect(right && turned.holds(-1, 41, 60), "a short message in a reversed type");
  }
  MPI_Type_free(&backwards);
  MPI_Type_free(&column);
}

/// Persistent collectives are started after the communicator's handle was freed and possibly
/// reused.
void persistent_freed() {
  const int rank = rank_in(MPI_COMM_WORLD), ranks = ranks_of(MPI_COMM_WORLD), root = ranks - 1;
  constexpr int kCount = 2000;
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  const DeviceInts in(kCount, 0), sum(kCount, -1), all(kCount * ranks, -1), one(kCount, -1);
  MPI_Request requests[3];
  const void* const from = in.device_ptr();
  make("MPI_Allreduce_init", &requests[0], from, static_cast<void*>(sum.device_ptr()),
       static_cast<int>(kCount), MPI_INT, MPI_SUM, comm);
  make("MPI_Gather_init", &requests[1], from, static_cast<int>(kCount), MPI_INT,
       static_cast<void*>(all.device_ptr()), static_cast<int>(kCount), MPI_INT,
       static_cast<int>(root), comm);
  const int each = kCount / ranks;
  make("MPI_Reduce_scatter_block_init", &requests[2], from, static_cast<void*>(one.device_ptr()),
       static_cast<int>(each), MPI_INT, MPI_SUM, comm);
  MPI_Comm_free(&comm);
  MPI_Comm next;
  MPI_Comm_dup(MPI_COMM_SELF, &next);
  for (int round = 1; round < 4; ++round) {
    in.fill(round * (rank + 1));
    MPI_Startall(3, requests);
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    const int expected = round * ranks * (ranks + 1) / 2;
    expect(sum.holds(expected), "a sum of a freed communicator");
    expect(one.holds(expected, 0, each), "a part of a sum of a freed communicator");
    for (int from_rank = 0; rank == root && from_rank < ranks; ++from_rank)
      expect(all.holds(round * (from_rank + 1), from_rank * kCount, (from_rank + 1) * kCount),
             "what was gathered in a freed communicator");
  }
  for (MPI_Request& request : requests) MPI_Request_free(&request);
  MPI_Comm_free(&next);
}

const DeviceInts* forgotten_in = nullptr;

/// A receive with a request that the program frees and does not query until MPI_Finalize: the
/// message is then in forgotten_in.
void forgotten() {
  const int rank = rank_in(MPI_COMM_WORLD);
  static const DeviceInts data(3000, rank == 0 ? 6 : -1);
  if (rank == 0) MPI_Send(data.device_ptr(), 3000, MPI_INT, 1, 4, MPI_COMM_WORLD);
  if (rank != 1) return;
  MPI_Request request;
  MPI_Irecv(data.device_ptr(), 3000, MPI_INT, 0, 4, MPI_COMM_WORLD, &request);
  MPI_Request_free(&request);
  forgotten_in = &data;
}

bool is_loaded(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find(library) != std::string::npos) return true;
  return false;
}

void exchange_with_peer(int* buffer, int peer) {
  MPI_Sendrecv_replace(buffer, 100, MPI_INT, peer, 0, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/// Rank 0 loads CUDA's driver after many calls, and after unrelated libraries were loaded and
/// closed.
void loaded_late() {
  const int rank = rank_in(MPI_COMM_WORLD), peer = 1 - rank;
  std::vector<int> host(100);
  const auto exchange_host = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      host.assign(100, round + rank);
      exchange_with_peer(host.data(), peer);
      expect(host == std::vector<int>(100, round + peer), "an exchange before CUDA is loaded");
    }
  };
  exchange_host(20);
  if (rank == 0) expect(!is_loaded("libcuda.so.1"), "CUDA is not loaded yet");
  if (rank == 0 && calls_served() >= 0)
    expect(is_loaded("libplait_mark.so"), "loaded libraries are noticed");
  for (const char* other : {"libanl.so.1", "libBrokenLocale.so.1", "libanl.so.1"}) {
    void* const library = dlopen(other, RTLD_NOW);  // a library of glibc that the test does not use
    expect(library != nullptr, "another library is loaded");
    exchange_host(3);
    if (library != nullptr) dlclose(library);
    exchange_host(3);
  }
  if (rank == 0) EmulatedCuda::now().begin(1);
  const DeviceInts device(100, rank + 7);
  exchange_with_peer(device.device_ptr(), peer);
  expect(device.holds(peer + 7), "an exchange of device memory once CUDA is loaded");
}

/// The first calls of a program, by several threads at once, are on device memory.
void first_of_threads() {
  constexpr int kThreads = 4;
  const int peer = 1 - rank_in(MPI_COMM_WORLD);
  std::vector<DeviceInts> buffers;
  for (int tag = 0; tag < kThreads; ++tag) buffers.emplace_back(100, 10 * tag + 1 - peer);
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int tag = 0; tag < kThreads; ++tag)
    threads.emplace_back([&, tag] {
      for (++ready; ready < kThreads;) {
      }
      MPI_Sendrecv_replace(buffers[static_cast<std::size_t>(tag)].device_ptr(), 100, MPI_INT, peer,
                           tag, peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    });
  for (std::thread& thread : threads) thread.join();
  for (int tag = 0; tag < kThreads; ++tag)
    expect(buffers[static_cast<std::size_t>(tag)].holds(10 * tag + peer),
           "an exchange of a thread");
}

/// MPI_Reduce_scatter or MPI_Allgatherv; rank r's part is kPart + r * more elements.
void parts(bool reduces, int more) {
  constexpr int kPart = 1 << 14;
  const int rank = rank_in(MPI_COMM_WORLD), ranks = ranks_of(MPI_COMM_WORLD);
  std::vector<int> counts, displs;
  int whole = 0;
  for (int one = 0; one < ranks; ++one) {
    displs.push_back(whole);
    counts.push_back(kPart + one * more);
    whole += counts.back();
  }
  const auto mine = static_cast<std::size_t>(rank);
  const DeviceInts in(reduces ? whole : counts[mine], rank + 1);
  const DeviceInts out(reduces ? counts[mine] : whole, -1);
  if (reduces)
    MPI_Reduce_scatter(in.device_ptr(), out.device_ptr(), counts.data(), MPI_INT, MPI_SUM,
                       MPI_COMM_WORLD);
  else
    MPI_Allgatherv(in.device_ptr(), counts[mine], MPI_INT, out.device_ptr(), counts.data(),
                   displs.data(), MPI_INT, MPI_COMM_WORLD);
  if (reduces) expect(out.holds(ranks * (ranks + 1) / 2), "a part of a sum");
  for (std::size_t one = 0; !reduces && one < counts.size(); ++one)
    expect(out.holds(static_cast<int>(one) + 1, displs[one], displs[one] + counts[one]),
           "a rank's part");
}

void ignore_error(MPI_Comm*, int*, ...) {}

/// A handler that returns, after which MPICH's functions return 0: the outputs of failed calls stay
/// unchanged.
void hidden_errors() {
  const int rank = rank_in(MPI_COMM_WORLD);
  exchange_with(rank, rank);  // leaves other bytes in the staging buffers
  MPI_Errhandler handler;
  MPI_Comm_create_errhandler(ignore_error, &handler);
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, handler);
  const DeviceInts in(3000, 7), out(3000, -1);
  MPI_Scan(in.device_ptr(), out.device_ptr(), 3000, MPI_INT, MPI_OP_NULL, comm);
  expect(out.holds(-1), "the output of a failed scan");
  MPI_Bcast(out.device_ptr(), 3000, MPI_INT, 7, comm);
  expect(out.holds(-1), "the output of a failed broadcast");
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibcast(out.device_ptr(), 3000, MPI_INT, 7, comm, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(out.holds(-1), "the output of a failed non-blocking broadcast");
  std::vector<int> host(3000), received(3000);
  const auto earlier_status = [&] {
    MPI_Status status;
    MPI_Sendrecv(host.data(), 3000, MPI_INT, rank, 0, received.data(), 3000, MPI_INT, rank, 0, comm,
                 &status);
    return status;
  };
  MPI_Status status = earlier_status();
  MPI_Recv(out.device_ptr(), 3000, MPI_INT, 7, 0, comm, &status);
  expect(out.holds(-1), "the output of a failed receive");
  MPI_Aint address = 0;
  int count = 3000;
  MPI_Datatype absolute;
  MPI_Get_address(out.device_ptr(), &address);
  MPI_Type_create_hindexed(1, &count, &address, MPI_INT, &absolute);
  MPI_Type_commit(&absolute);
  status = earlier_status();
  MPI_Recv(MPI_BOTTOM, 1, absolute, 7, 0, comm, &status);
  expect(out.holds(-1), "the output of a failed receive at an absolute address");
  MPI_Type_free(&absolute);
  MPI_Errhandler_free(&handler);
  MPI_Comm_free(&comm);
}

/// Before MPI_Init no other query works.
bool is_rank_0() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const char* const rank = std::getenv(name)) return std::atoi(rank) == 0;
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  const bool late = name == "loaded_late" || name == "loaded_late_threads";
  if (!late || !is_rank_0()) EmulatedCuda::now().begin(1);
  const int wanted =
      name.find("threads") != std::string::npos ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
  int level = wanted;
  MPI_Init_thread(&argc, &argv, wanted, &level);
  expect(level >= wanted, "threads may call at once");
  if (name == "alone") alone();
  if (name == "exchanges") exchanges();
  if (name == "truncated") truncated();
  if (name == "too_long") too_long();
  if (name == "untouched") untouched();
  if (name == "even_sums" || name == "even_parts") parts(name == "even_sums", 0);
  if (name == "uneven_sums" || name == "uneven_parts") parts(name == "uneven_sums", 16);
  if (name == "persistent_freed") persistent_freed();
  if (name == "forgotten") forgotten();
  if (name == "hidden_errors") hidden_errors();
  if (late) loaded_late();
  if (name == "first_of_threads") first_of_threads();
  const int rank = rank_in(MPI_COMM_WORLD);
  MPI_Finalize();
  if (forgotten_in != nullptr && !forgotten_in->holds(6)) ++wrong;
  std::printf("{\"rank\": %d, \"wrong\": %ld, \"served\": %ld}\n", rank, wrong, calls_served());
  std::fflush(stdout);
  return wrong == 0 ? 0 : 1;
}
