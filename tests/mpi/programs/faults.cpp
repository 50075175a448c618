// faults NAME RANK [STEP]: a rank lacks a resource that plait needs for a call or a communicator
// (memory, a descriptor, a thread, a path in a folder), through functions of the C library that
// this program replaces. The call is then native, or an error on all ranks; later calls are right.
// Prints a line of JSON a rank.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "expect.hpp"
#include "handled_comm.hpp"
#include "host_or_gpu.hpp"

namespace {

// Faults of this rank, while set.
std::atomic<bool> no_thread{false}, no_socket{false}, no_bind{false}, no_memfd{false};
std::atomic<int> no_vote{0}, no_split{0};  ///< the n-th of plait's own calls of the MPI fails
std::atomic<std::size_t> no_room{0};       ///< the next allocation of this size fails
std::atomic<std::size_t> no_pages{0};      ///< the next mapping of this size fails

template <class Function>
Function* behind(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int failed(int error) {
  errno = error;
  return -1;
}

/// Ends a call of the MPI that has moved its data with an error of this rank alone.
int end_of_native(std::atomic<int>& fault, MPI_Comm comm, int code) {
  if (fault == 0 || --fault != 0) return code;
  MPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
  return MPI_ERR_OTHER;
}
decltype(&MPI_Allreduce) real_allreduce = nullptr;
int native_allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op,
                     MPI_Comm comm) {
  return end_of_native(no_vote, comm, real_allreduce(in, out, count, type, op, comm));
}
decltype(&MPI_Comm_split) real_split = nullptr;
int native_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  return end_of_native(no_split, comm, real_split(comm, color, key, made));
}

template <class Function>
void* replace(void* found, Function*& real, Function* fake) {
  real = reinterpret_cast<Function*>(found);
  return reinterpret_cast<void*>(fake);
}

}  // namespace

extern "C" {
/// The drop-in looks up the functions of the MPI.
void* dlsym(void* library, const char* name) noexcept {
  static auto* const real =
      reinterpret_cast<decltype(dlsym)*>(::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  void* const found = real(library, name);
  const std::string wanted = name;
  if (wanted == "PMPI_Allreduce") return replace(found, real_allreduce, native_allreduce);
  if (wanted == "PMPI_Comm_split") return replace(found, real_split, native_split);
  return found;
}
void* __libc_malloc(std::size_t bytes);
void* malloc(std::size_t bytes) {
  std::size_t wanted = bytes;
  if (bytes == 0 || !no_room.compare_exchange_strong(wanted, 0)) return __libc_malloc(bytes);
  errno = ENOMEM;
  return nullptr;
}
void* mmap(void* at, std::size_t bytes, int may, int kind, int file, off_t from) noexcept {
  static auto* const real = behind<decltype(mmap)>("mmap");
  std::size_t wanted = bytes;
  if (!no_pages.compare_exchange_strong(wanted, 0)) return real(at, bytes, may, kind, file, from);
  errno = ENOMEM;
  return MAP_FAILED;
}
int pthread_create(pthread_t* thread, const pthread_attr_t* with, void* (*work)(void*),
                   void* argument) {
  static auto* const real = behind<decltype(pthread_create)>("pthread_create");
  return no_thread ? EAGAIN : real(thread, with, work, argument);
}
int socket(int domain, int type, int protocol) {
  static auto* const real = behind<decltype(socket)>("socket");
  return no_socket && domain == AF_UNIX ? failed(EMFILE) : real(domain, type, protocol);
}
int bind(int one, const sockaddr* address, socklen_t bytes) {
  static auto* const real = behind<decltype(bind)>("bind");
  return no_bind && address->sa_family == AF_UNIX ? failed(ENOSPC) : real(one, address, bytes);
}
int memfd_create(const char* name, unsigned flags) {
  static auto* const real = behind<int(const char*, unsigned)>("memfd_create");
  return no_memfd ? failed(EMFILE) : real(name, flags);
}
}

namespace {

constexpr int kMany = 99991;  ///< ints; no other allocation has this size
constexpr std::size_t kBytes = kMany * sizeof(int);
int at_rank = 1;

bool is_at_fault() { return rank_in(MPI_COMM_WORLD) == at_rank; }

/// A sum of `count` ints, blocking or not; by_plait: whether plait is expected to serve the sum.
void sum(MPI_Comm comm, int count, bool begins, bool by_plait, const char* what) {
  const int ranks = ranks_of(comm);
  const long before = calls_served();
  std::vector<int> in(static_cast<std::size_t>(count), rank_in(comm) + 1), out(in.size());
  MPI_Request request = MPI_REQUEST_NULL;
  if (begins)
    MPI_Iallreduce(in.data(), out.data(), count, MPI_INT, MPI_SUM, comm, &request);
  else
    MPI_Allreduce(in.data(), out.data(), count, MPI_INT, MPI_SUM, comm);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(out.front() == ranks * (ranks + 1) / 2 && out.back() == out.front(), what);
  if (before >= 0)
    expect(calls_served() == before + (by_plait ? 1 : 0), "which library serves the call");
}

/// If calls paired with different calls, the sums would be wrong.
void expect_in_step(MPI_Comm comm) {
  for (int round = 1; round < 4; ++round) {
    int all = 0;
    MPI_Allreduce(&round, &all, 1, MPI_INT, MPI_SUM, comm);
    expect(all == round * ranks_of(comm), "later calls pair up");
  }
}

/// A communicator that cannot be attached is native; the next communicator is served.
void unattached(std::atomic<bool>& fault) {
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  fault = is_at_fault();
  for (const bool begins : {false, true}) sum(comm, 1000, begins, false, "a sum by the MPI");
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  expect(sigismember(&blocked, SIGUSR1) == 0, "the program gets its signals");
  fault = false;
  MPI_Barrier(MPI_COMM_WORLD);
  sum(comm, 1000, false, false, "a later sum by the MPI");
  MPI_Comm_free(&comm);
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  sum(comm, 1000, false, true, "a sum of another communicator");
  MPI_Comm_free(&comm);
}

int calls_of_handler = 0;
void count_call(MPI_Comm*, int*, ...) { ++calls_of_handler; }

/// The n-th exchange of plait's, or the split of a communicator, fails on one rank alone. The MPI
/// calls the handler once, and the program goes on with its next call, whose sum would be wrong if
/// the call paired with an exchange, or with another call.
void exchange_fails(std::atomic<int>& fault, int step) {
  MPI_Comm comm = handled_comm(count_call);
  if (is_at_fault()) fault = step;
  for (int round = 1; round < 5; ++round) {
    int all = 0;
    expect(MPI_Allreduce(&round, &all, 1, MPI_INT, MPI_SUM, comm) == MPI_SUCCESS, "a call's end");
    expect_equal(all, round * ranks_of(comm), "a sum");
    expect(!fault, "the exchange was made");
    expect(calls_of_handler == (is_at_fault() ? 1 : 0), "the MPI's error, once");
  }
  MPI_Comm_free(&comm);
  expect_in_step(MPI_COMM_WORLD);
}

/// A persistent sum of the ranks' numbers, made, started twice and freed.
void persistent_sum(MPI_Comm comm) {
  const int rank = rank_in(comm), ranks = ranks_of(comm);
  int all = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  make("MPI_Allreduce_init", &request, static_cast<const void*>(&rank), static_cast<void*>(&all), 1,
       MPI_INT, MPI_SUM, comm);
  for (int start = 0; start < 2; ++start) {
    all = -1;
    MPI_Start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect_equal(all, ranks * (ranks - 1) / 2, "a persistent sum");
  }
  MPI_Request_free(&request);
}

/// The n-th exchange about a spare of a freed persistent request fails on one rank alone.
void choice_fails(int step) {
  MPI_Comm comm = handled_comm(count_call);
  persistent_sum(comm);
  if (is_at_fault()) no_vote = step;
  for (int round = 0; round < 3; ++round) {
    persistent_sum(comm);
    expect(no_vote == 0, "the exchange was made");
    expect(calls_of_handler == (is_at_fault() ? 1 : 0), "the MPI's error, once");
  }
  expect_in_step(comm);
  MPI_Comm_free(&comm);
}

/// No descriptor is left for the shared memory of a larger call.
void grow() {
  sum(MPI_COMM_WORLD, 1000, false, true, "the first sum");
  no_memfd = is_at_fault();
  for (int round = 0; round < 2; ++round)
    sum(MPI_COMM_WORLD, kMany, false, false, "a larger sum by the MPI");
  no_memfd = false;
  MPI_Barrier(MPI_COMM_WORLD);
  sum(MPI_COMM_WORLD, kMany, false, true, "a larger sum");
  expect_in_step(MPI_COMM_WORLD);
}

struct Strided {
  Strided() {
    MPI_Type_vector(kMany, 1, 2, MPI_INT, &type);
    MPI_Type_commit(&type);
    expect_in_step(MPI_COMM_WORLD);  // attaches
    if (is_at_fault()) no_room = kBytes;
  }
  ~Strided() { MPI_Type_free(&type); }
  Strided(const Strided&) = delete;
  Strided& operator=(const Strided&) = delete;
  bool has(int value) const { return data.front() == value && data[2 * kMany - 2] == value; }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  std::vector<int> data = std::vector<int>(2 * kMany, rank_in(MPI_COMM_WORLD) == 0 ? 7 : -1);
};

void hold_refused(int code) {
  char words[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (code != MPI_SUCCESS) MPI_Error_string(code, words, &length);
  expect(std::strstr(words, "plait: out of memory") != nullptr, "an error of all ranks");
}

/// No memory is left to pack a strided type: the call is native.
void staged() {
  Strided strided;
  const int code = MPI_Bcast(strided.data.data(), 1, strided.type, 0, MPI_COMM_WORLD);
  expect(code == MPI_SUCCESS && strided.has(7), "a broadcast by the MPI");
  expect(no_room == 0, "the allocation was attempted");
  expect_in_step(MPI_COMM_WORLD);
}

/// The same for a call with counts that two ranks alone know.
void staged_uneven() {
  Strided strided;
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  strided.data.assign(strided.data.size(), rank);
  std::vector<int> got(static_cast<std::size_t>(ranks) * kMany),
      counts(static_cast<std::size_t>(ranks), kMany), displs;
  for (int peer = 0; peer < ranks; ++peer) displs.push_back(peer * kMany);
  const int code = MPI_Gatherv(strided.data.data(), 1, strided.type, got.data(), counts.data(),
                               displs.data(), MPI_INT, 0, MPI_COMM_WORLD);
  expect(code == MPI_SUCCESS && (rank != 0 || got.back() == ranks - 1), "a gather by the MPI");
  expect(no_room == 0, "the allocation was attempted");
  expect_in_step(MPI_COMM_WORLD);
}

/// A started call cannot become native: the call fails on all ranks.
void staged_nonblocking() {
  Strided strided;
  MPI_Request request = MPI_REQUEST_NULL;
  expect(
      MPI_Ibcast(strided.data.data(), 1, strided.type, 0, MPI_COMM_WORLD, &request) == MPI_SUCCESS,
      "the call begins");
  hold_refused(MPI_Wait(&request, MPI_STATUS_IGNORE));
  expect(strided.has(rank_in(MPI_COMM_WORLD) == 0 ? 7 : -1), "buffers stay unchanged");
  expect_in_step(MPI_COMM_WORLD);
}

/// The first start of a persistent call fails in that way, the next start succeeds.
void staged_started() {
  Strided strided;
  MPI_Request request = MPI_REQUEST_NULL;
  make("MPI_Bcast_init", &request, static_cast<void*>(strided.data.data()), 1, strided.type, 0,
       MPI_COMM_WORLD);
  expect(MPI_Start(&request) == MPI_SUCCESS, "the call starts");
  hold_refused(MPI_Wait(&request, MPI_STATUS_IGNORE));
  MPI_Start(&request);
  expect(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS && strided.has(7), "the next start");
  MPI_Request_free(&request);
  expect_in_step(MPI_COMM_WORLD);
}

/// No host memory is left for the staging buffer of a call with buffers on GPUs.
void staged_device() {
  constexpr int kPages = 1 << 19;  // ints; the staging buffer has 2 MiB
  EmulatedCuda& gpu = EmulatedCuda::now();
  auto* const in = static_cast<int*>(gpu.content(kPages * sizeof(int)));
  auto* const out = static_cast<int*>(gpu.content(kPages * sizeof(int)));
  const auto call = [&](int count) {
    return MPI_Allreduce(device_ptr(in), device_ptr(out), count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  };
  in[0] = in[kPages - 1] = 1;
  expect(call(1000) == MPI_SUCCESS && out[0] == ranks_of(MPI_COMM_WORLD), "a sum on GPUs");
  out[0] = -1;
  if (is_at_fault()) no_pages = kPages * sizeof(int);
  hold_refused(call(kPages));
  expect(no_pages == 0, "the allocation was attempted");
  expect(out[0] == -1, "buffers stay unchanged");
  expect(call(kPages) == MPI_SUCCESS && out[kPages - 1] == ranks_of(MPI_COMM_WORLD),
         "the next sum");
  expect_in_step(MPI_COMM_WORLD);
}

/// In another container, a rank 0 with the same process id may listen in the same folder.
void place_taken() {
  const std::string folder = std::string(std::getenv("XDG_RUNTIME_DIR")) + "/plait";
  ::mkdir(folder.c_str(), 0700);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder + "/mpi-" + std::to_string(::getpid()) + "-0";
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  const int other = ::socket(AF_UNIX, SOCK_STREAM, 0);
  expect(::bind(other, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
             ::listen(other, 8) == 0,
         "the other listens");
  sum(MPI_COMM_WORLD, 1000, false, true, "a sum alongside another job");
  ::close(other);
}

}  // namespace

int main(int argc, char** argv) {
  ::alarm(30);  // ends a job that hangs
  const std::string name = argc > 1 ? argv[1] : "";
  if (argc > 2) at_rank = std::atoi(argv[2]);
  const int step = argc > 3 ? std::atoi(argv[3]) : 1;
  EmulatedCuda::now().begin(1);
  MPI_Init(&argc, &argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (name == "thread")
    unattached(no_thread);
  else if (name == "listen")
    unattached(no_bind);
  else if (name == "connect")
    unattached(no_socket);
  else if (name == "vote")
    exchange_fails(no_vote, step);
  else if (name == "choice")
    choice_fails(step);
  else if (name == "split")
    exchange_fails(no_split, step);
  else if (name == "grow")
    grow();
  else if (name == "staged")
    staged();
  else if (name == "staged_uneven")
    staged_uneven();
  else if (name == "staged_nonblocking")
    staged_nonblocking();
  else if (name == "staged_started")
    staged_started();
  else if (name == "staged_device")
    staged_device();
  else if (name == "place_taken")
    place_taken();
  else
    ++wrong;
  std::printf("{\"rank\": %d, \"wrong\": %ld}\n", rank_in(MPI_COMM_WORLD), wrong);
  std::fflush(stdout);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
