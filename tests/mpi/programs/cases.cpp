// cases NAME: a property of the drop-in. Prints a line of JSON a rank; exits 1 if an expectation
// fails.
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "call_audit.hpp"
#include "expect.hpp"
#include "host_or_gpu.hpp"

namespace {

constexpr int kMany = 100000;

int sum_of_ranks(MPI_Comm comm) {
  const int mine = rank_in(comm) + 1;
  int all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, comm);
  return all;
}

int expected_sum(MPI_Comm comm) {
  const int ranks = ranks_of(comm);
  return ranks * (ranks + 1) / 2;
}

/// A large message is under way while the sender waits in a collective: the MPI completes the
/// message.
void progress() {
  const int rank = rank_in(MPI_COMM_WORLD);
  expect(sum_of_ranks(MPI_COMM_WORLD) == expected_sum(MPI_COMM_WORLD), "the first sum");
  std::vector<int> data(kMany * 40, rank);
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank == 0) MPI_Isend(data.data(), kMany * 40, MPI_INT, 1, 7, MPI_COMM_WORLD, &request);
  if (rank == 1) {
    MPI_Recv(data.data(), kMany * 40, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    expect(data[0] == 0 && data[kMany * 40 - 1] == 0, "received data");
  }
  expect(sum_of_ranks(MPI_COMM_WORLD) == expected_sum(MPI_COMM_WORLD), "the sum");
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/// A native non-blocking call ends on a rank while the peers are in a call that plait serves.
void native_alongside() {
  MPI_Comm other;
  MPI_Comm_dup(MPI_COMM_WORLD, &other);
  sum_of_ranks(MPI_COMM_WORLD);
  std::vector<int> in(kMany, 1), out(kMany);
  MPI_Request request;
  MPI_Iallreduce(in.data(), out.data(), kMany, MPI_INT, MPI_SUM, other, &request);
  if (rank_in(MPI_COMM_WORLD) == 0) MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(sum_of_ranks(MPI_COMM_WORLD) == expected_sum(MPI_COMM_WORLD), "the concurrent sum");
  if (rank_in(MPI_COMM_WORLD) != 0) MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(out[kMany - 1] == ranks_of(MPI_COMM_WORLD), "its result");
  MPI_Comm_free(&other);
}

/// A communicator and a datatype are freed while a call with both is pending; handles are reused.
void freed_early() {
  for (int round = 0; round < 20; ++round) {
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    expect(sum_of_ranks(comm) == expected_sum(comm), "a sum on a dup");
    MPI_Datatype holes;
    MPI_Type_vector(kMany / 10, 1, 2, MPI_INT, &holes);
    MPI_Type_commit(&holes);
    const int root = round % ranks_of(comm);
    std::vector<int> data(kMany, rank_in(comm) == root ? round : -1);
    MPI_Request request;
    MPI_Ibcast(data.data(), 1, holes, root, comm, &request);
    MPI_Type_free(&holes);
    if (calls_served() > 0) MPI_Comm_free(&comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect(data[0] == round && data[kMany / 5 - 2] == round, "broadcast data");
    if (comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
  }
}

/// Communicators are freed in pairs. Hence plait's thread of the first is the last to use the
/// communicator's record, which has the communicator's error handler.
void freed_in_pairs() {
  for (int round = 0; round < 20; ++round) {
    MPI_Comm pair[2];
    for (MPI_Comm& comm : pair) MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    for (const MPI_Comm comm : pair)
      expect(sum_of_ranks(comm) == expected_sum(comm), "a sum on one of a pair");
    for (MPI_Comm& comm : pair) MPI_Comm_free(&comm);
  }
}

/// A persistent sum of ints over all ranks.
struct SumAgain {
  SumAgain(MPI_Comm comm, int count)
      : in(static_cast<std::size_t>(count)), out(in.size()), of(comm) {
    make("MPI_Allreduce_init", &request, static_cast<const void*>(in.data()),
         static_cast<void*>(out.data()), count, MPI_INT, MPI_SUM, comm);
  }
  void start(int value) {
    std::fill(in.begin(), in.end(), value + rank_in(of));
    MPI_Start(&request);
  }
  void end(int value) {
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    const int ranks = ranks_of(of);
    const int wanted = ranks * value + ranks * (ranks - 1) / 2;
    expect(std::count(out.begin(), out.end(), wanted) == static_cast<long>(out.size()),
           "a persistent sum");
  }
  void run(int value) {
    start(value);
    end(value);
  }
  void free() { MPI_Request_free(&request); }
  std::vector<int> in, out;
  MPI_Comm of;
  MPI_Request request = MPI_REQUEST_NULL;
};

/// Requests are made, freed and made again: in turn, freed in different orders, and freed by rank 0
/// before and by the other ranks after the next request is made.
void persistent_again() {
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  const bool first = rank_in(comm) == 0;
  for (int round = 0; round < 40; ++round) {
    SumAgain sum(comm, 1 + 700 * (round % 3));
    for (int start = 0; start < round % 3; ++start) sum.run(round + start);
    sum.free();
  }
  for (int round = 0; round < 10; ++round) {
    SumAgain one(comm, 10), other(comm, 2000);
    (first ? one : other).start(round);
    (first ? other : one).start(round);
    one.end(round);
    other.end(round);
    (first ? one : other).free();
    (first ? other : one).free();
  }
  for (int round = 0; round < 10; ++round) {
    SumAgain one(comm, 100);
    one.run(round);
    if (first) one.free();
    SumAgain next(comm, 100);
    if (!first) one.free();
    next.run(round);
    next.free();
  }
  MPI_Comm_free(&comm);
}

int last_sum(MPI_Comm comm, int, void*, void*) {
  expect(sum_of_ranks(comm) == expected_sum(comm), "a sum in a delete callback");
  const int ranks = ranks_of(comm), rank = rank_in(comm);
  std::vector<int> sent(kMany, rank), got(kMany, -1);
  MPI_Request requests[2];
  MPI_Irecv(got.data(), kMany, MPI_INT, (rank + ranks - 1) % ranks, 3, comm, &requests[0]);
  MPI_Isend(sent.data(), kMany, MPI_INT, (rank + 1) % ranks, 3, comm, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  expect(got[kMany - 1] == (rank + ranks - 1) % ranks, "a message in a delete callback");
  return MPI_SUCCESS;
}

/// The program's delete callback uses the communicator that is freed, before or after the drop-in's
/// attributes are deleted. More communicators than plait attaches at once.
void used_while_freed() {
  int keyval = MPI_KEYVAL_INVALID;
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, last_sum, &keyval, nullptr);
  constexpr int kRounds = 75;
  for (int round = 0; round < kRounds; ++round) {
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    const bool first = round % 8 != 0;
    if (first) MPI_Comm_set_attr(comm, keyval, nullptr);
    const long before = calls_served();
    expect(sum_of_ranks(comm) == expected_sum(comm), "a sum before");
    if (before >= 0) expect(calls_served() == before + 1, "the sum is served");
    if (!first) MPI_Comm_set_attr(comm, keyval, nullptr);
    if (round % 4 < 2)
      MPI_Comm_free(&comm);
    else
      MPI_Comm_disconnect(&comm);
  }
  MPI_Comm_free_keyval(&keyval);
}

/// A thread of the program calls MPI, and ends after the communicator is freed.
void thread_ends() {
  for (int round = 0; round < 10; ++round) {
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    std::promise<void> called, freed;
    std::thread caller([&] {
      ::prctl(PR_SET_NAME, kCaller);
      expect(sum_of_ranks(comm) == expected_sum(comm), "a sum in a thread");
      ::prctl(PR_SET_NAME, "ends");
      called.set_value();
      freed.get_future().wait();
    });
    called.get_future().wait();
    MPI_Comm_free(&comm);
    freed.set_value();
    caller.join();
  }
}

/// Ranks with different arguments get an error through the communicator's handler, and continue.
void mismatch() {
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  expect(sum_of_ranks(comm) == expected_sum(comm), "the first sum");
  std::vector<int> in(20, 1), out(20);
  const int count = rank_in(comm) == 0 ? 10 : 20;
  const int code = MPI_Allreduce(in.data(), out.data(), count, MPI_INT, MPI_SUM, comm);
  char words[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (code != MPI_SUCCESS) MPI_Error_string(code, words, &length);
  expect(std::strstr(words, "plait: ranks disagree") != nullptr, "the error's text");
  expect(sum_of_ranks(comm) == expected_sum(comm), "the sum after an error");
  MPI_Comm_free(&comm);
}

/// The text of an error code that a program keeps does not change with later errors.
void retained_codes() {
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  expect(sum_of_ranks(comm) == expected_sum(comm), "the first sum");
  const std::vector<int> in(400, 1);
  std::vector<int> out(400), codes;
  std::vector<std::string> words;
  const auto words_of = [](int code) {
    char found[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code != MPI_SUCCESS) MPI_Error_string(code, found, &length);
    return std::string(found);
  };
  for (int count = 1; count < 320; ++count) {
    const int mine = rank_in(comm) == 0 ? count : 400;
    codes.push_back(MPI_Allreduce(in.data(), out.data(), mine, MPI_INT, MPI_SUM, comm));
    words.push_back(words_of(codes.back()));
    expect(words.back().find("plait: ranks disagree") != std::string::npos, "an error's text");
    expect(count == 1 || words.back() != words[0], "errors differ");
    const std::size_t first = codes.size() > 200 ? codes.size() - 200 : 0;
    for (std::size_t at = first; at < codes.size(); at += 13)
      expect(words_of(codes[at]) == words[at], "text of an error code kept");
  }
  MPI_Comm_free(&comm);
}

/// Rank 1 runs without the drop-in.
void without_it() {
  if (calls_served() >= 0) return;
  ::sleep(4);
  MPI_Abort(MPI_COMM_WORLD, 7);
}

/// Corner cases that stay native: a single rank, no elements, a constant as a root's buffer, a
/// user's operation, a type of two parts.
void corners() {
  static const int constant[4] = {1, 2, 3, 4};
  int got[4] = {1, 2, 3, 4};
  const bool is_root = rank_in(MPI_COMM_WORLD) == 0;
  void* const buffer = is_root ? const_cast<int*>(constant) : got;
  expect(MPI_Bcast(buffer, 4, MPI_INT, 0, MPI_COMM_WORLD) == MPI_SUCCESS && got[3] == 4,
         "a broadcast of constants");
  expect(sum_of_ranks(MPI_COMM_SELF) == 1, "a sum of one rank");
  MPI_Allreduce(nullptr, nullptr, 0, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  struct {
    double value;
    int place;
  } in{1.0 + rank_in(MPI_COMM_WORLD), rank_in(MPI_COMM_WORLD)}, out{0, 0};
  MPI_Allreduce(&in, &out, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD);
  expect(out.place == ranks_of(MPI_COMM_WORLD) - 1, "index of the largest");
  MPI_Op made;
  MPI_Op_create(
      [](void* a, void* b, int* count, MPI_Datatype*) {
        for (int i = 0; i < *count; ++i) static_cast<int*>(b)[i] += static_cast<int*>(a)[i];
      },
      1, &made);
  int one = 1, all = 0;
  MPI_Allreduce(&one, &all, 1, MPI_INT, made, MPI_COMM_WORLD);
  expect(all == ranks_of(MPI_COMM_WORLD), "a sum by an operation of the program's own");
  MPI_Op_free(&made);
  all = 0;
  PMPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(all == ranks_of(MPI_COMM_WORLD), "a sum by its PMPI name");
}

/// Counts that two ranks alone know: all ranks agree whether the call is large enough, and a rank
/// with an empty part may pass a null buffer.
void uneven() {
  const int rank = rank_in(MPI_COMM_WORLD), ranks = ranks_of(MPI_COMM_WORLD);
  for (const int part : {4, 0, kMany}) {  // part of the last rank; the others get one element
    std::vector<int> sent(static_cast<std::size_t>(ranks), 1), got(sent), displs(sent);
    sent.back() = part;
    if (rank == ranks - 1) got.assign(got.size(), part);
    for (int peer = 0; peer < ranks; ++peer) displs[static_cast<std::size_t>(peer)] = peer * kMany;
    std::vector<int> in(static_cast<std::size_t>(ranks * kMany), rank + 1), out(in.size());
    const long before = calls_served();
    MPI_Alltoallv(in.data(), sent.data(), displs.data(), MPI_INT, out.data(), got.data(),
                  displs.data(), MPI_INT, MPI_COMM_WORLD);
    expect(calls_served() == before + (part == kMany ? 1 : 0), "large calls alone are plait's");
    for (int peer = 0; peer < ranks; ++peer) {
      const int* const first = out.data() + peer * kMany;
      const int count = got[static_cast<std::size_t>(peer)];
      expect(count == 0 || (first[0] == peer + 1 && first[count - 1] == peer + 1), "a part");
      expect(count == kMany || first[count] == 0, "bytes behind a part");
    }
  }
  std::vector<int> counts(static_cast<std::size_t>(ranks), 0), displs(counts), out(kMany);
  counts[1] = kMany;
  std::vector<int> in(kMany, 7);
  MPI_Allgatherv(rank == 1 ? in.data() : nullptr, rank == 1 ? kMany : 0, MPI_INT, out.data(),
                 counts.data(), displs.data(), MPI_INT, MPI_COMM_WORLD);
  expect(out[0] == 7 && out[kMany - 1] == 7, "the one part that was gathered");
}

/// Two threads use a communicator each.
void threads() {
  MPI_Comm comms[2];
  for (MPI_Comm& comm : comms) MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  const auto work = [](MPI_Comm comm) {
    for (int round = 0; round < 100; ++round) {
      std::vector<int> in(1000, round), out(1000);
      MPI_Request request = MPI_REQUEST_NULL;
      if (round % 3 == 2)
        MPI_Iallreduce(in.data(), out.data(), 1000, MPI_INT, MPI_SUM, comm, &request);
      else
        MPI_Allreduce(in.data(), out.data(), 1000, MPI_INT, MPI_SUM, comm);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
      expect(out[999] == round * ranks_of(comm), "a sum in a thread");
    }
  };
  std::thread second(work, comms[1]);
  work(comms[0]);
  second.join();
  for (MPI_Comm& comm : comms) MPI_Comm_free(&comm);
}

/// The job ends after a rank is killed during calls.
void killed() {
  for (int round = 0;; ++round) {
    if (round == 50 && rank_in(MPI_COMM_WORLD) == 1) ::raise(SIGKILL);
    sum_of_ranks(MPI_COMM_WORLD);
  }
}

/// A communicator over several nodes is served like a communicator of a node, in as many pieces as
/// the size takes. Non-blocking calls on this communicator are native, and the messages make
/// progress meanwhile.
void nodes() {
  const int rank = rank_in(MPI_COMM_WORLD);
  MPI_Comm turned;  // ranks in another order than in the world
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &turned);
  for (const MPI_Comm comm : {MPI_COMM_WORLD, turned}) {
    long before = calls_served();
    expect(sum_of_ranks(comm) == expected_sum(comm), "the sum of all");
    expect(calls_served() == before + 1, "plait serves the sum over all ranks");
    before = calls_served();
    std::vector<int> in(kMany, 1), out(kMany);
    MPI_Request request;
    MPI_Iallreduce(in.data(), out.data(), kMany, MPI_INT, MPI_SUM, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect(out[kMany - 1] == ranks_of(comm), "a non-blocking sum");
    expect(calls_served() == before, "the non-blocking sum is native");
    in.assign(kMany * 60, rank + 1);
    out.assign(in.size(), 0);
    MPI_Allreduce(in.data(), out.data(), kMany * 60, MPI_INT, MPI_SUM, comm);
    for (const int one : out)
      if (one != expected_sum(comm)) return expect(false, "a long sum");
  }
  MPI_Comm_free(&turned);
}

/// A rank is late in a call over nodes; a message awaited by other ranks is moved by the ranks in
/// the call.
void nodes_progress() {
  const int rank = rank_in(MPI_COMM_WORLD), last = ranks_of(MPI_COMM_WORLD) - 1;
  expect(sum_of_ranks(MPI_COMM_WORLD) == expected_sum(MPI_COMM_WORLD), "the first sum");
  std::vector<int> data(kMany * 40, rank);
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank == 0) MPI_Isend(data.data(), kMany * 40, MPI_INT, last, 7, MPI_COMM_WORLD, &request);
  if (rank == last) {
    MPI_Recv(data.data(), kMany * 40, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    expect(data[0] == 0 && data[kMany * 40 - 1] == 0, "received data");
  }
  expect(sum_of_ranks(MPI_COMM_WORLD) == expected_sum(MPI_COMM_WORLD), "the sum");
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/// Many communicators over nodes, in sequence and at once, some never freed.
void nodes_many() {
  for (int round = 0; round < 12; ++round) {
    MPI_Comm comms[3];
    for (MPI_Comm& comm : comms) MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    for (const MPI_Comm comm : comms)
      expect(sum_of_ranks(comm) == expected_sum(comm), "a sum of one of many");
    for (int at = 0; at < (round % 3 == 0 ? 2 : 3); ++at) MPI_Comm_free(&comms[at]);
  }
}

/// The node has a GPU that the program does not use: all calls are native.
void without_gpus() {
  std::vector<int> in(kMany, 1), out(kMany);
  for (int round = 0; round < 20; ++round) {
    MPI_Allreduce(in.data(), out.data(), kMany, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    expect(out[kMany - 1] == ranks_of(MPI_COMM_WORLD), "a sum without GPUs");
  }
  expect(calls_served() == 0, "plait has served none");
}

/// Persistent calls outlive the communicator's handle. Two requests are never freed, the last while
/// active.
void persistent_left() {
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  std::vector<int> in(kMany), out(kMany);
  MPI_Request started, never;
  for (MPI_Request* const one : {&started, &never})
    make("MPI_Allreduce_init", one, static_cast<const void*>(in.data()),
         static_cast<void*>(out.data()), static_cast<int>(kMany), MPI_INT, MPI_SUM, comm);
  MPI_Comm_free(&comm);
  for (int round = 0; round < 3; ++round) {
    in.assign(in.size(), round);
    MPI_Start(&started);
    MPI_Wait(&started, MPI_STATUS_IGNORE);
    expect(out[kMany - 1] == round * ranks_of(MPI_COMM_WORLD), "a persistent sum");
  }
  static std::vector<int> last_in(kMany), last_out(kMany);
  MPI_Request last;
  make("MPI_Allreduce_init", &last, static_cast<const void*>(last_in.data()),
       static_cast<void*>(last_out.data()), static_cast<int>(kMany), MPI_INT, MPI_SUM,
       MPI_COMM_WORLD);
  MPI_Start(&last);
  MPI_Request_free(&last);  // MPI_Finalize waits for this request
}

/// Persistent collectives of a communicator match by requests and not by the order of starts. The
/// order differs between ranks. The smaller request must not match the larger.
void persistent_orders() {
  const int rank = rank_in(MPI_COMM_WORLD), ranks = ranks_of(MPI_COMM_WORLD);
  constexpr int kRequests = 3;
  const int counts[kRequests] = {1000, 1000, kMany};
  std::vector<int> in[kRequests], out[kRequests];
  MPI_Request requests[kRequests];
  for (int at = 0; at < kRequests; ++at) {
    in[at].resize(static_cast<std::size_t>(counts[at]));
    out[at].resize(in[at].size());
    make("MPI_Allreduce_init", &requests[at], static_cast<const void*>(in[at].data()),
         static_cast<void*>(out[at].data()), static_cast<int>(counts[at]), MPI_INT, MPI_SUM,
         MPI_COMM_WORLD);
  }
  for (int round = 0; round < 20; ++round) {
    for (int at = 0; at < kRequests; ++at) in[at].assign(in[at].size(), 100 * round + at);
    for (int step = 0; step < kRequests; ++step)
      MPI_Start(&requests[rank == 0 ? step : (2 * kRequests - 1 - step + round) % kRequests]);
    MPI_Waitall(kRequests, requests, MPI_STATUSES_IGNORE);
    for (int at = 0; at < kRequests; ++at)
      for (const int sum : {out[at].front(), out[at].back()})
        expect(sum == ranks * (100 * round + at), "a sum of its own request's data");
  }
  for (MPI_Request& request : requests) MPI_Request_free(&request);
}

/// A rank starts to use the GPU after many calls: from some call on plait serves calls on GPU
/// memory, and all results are right.
void gpus_late() {
  without_gpus();
  const bool uses = rank_in(MPI_COMM_WORLD) == 0;
  if (uses) EmulatedCuda::now().use();
  for (int round = 0; round < 40; ++round) {
    auto* in = static_cast<int*>(EmulatedCuda::now().content(kMany * sizeof(int)));
    std::vector<int> out(kMany);
    std::fill(in, in + kMany, round);
    MPI_Allreduce(uses ? device_ptr(in) : in, out.data(), kMany, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    expect(out[kMany - 1] == round * ranks_of(MPI_COMM_WORLD), "a sum in GPU memory");
  }
  expect(calls_served() > 20, "plait has served the latter half");
}

/// Floats with a sum that depends on the order of addition: all calls give the same sum.
void one_order() {
  const int rank = rank_in(MPI_COMM_WORLD);
  const std::vector<float> in(4, rank == 0 ? 16777216.0f : 1.0f);
  std::vector<float> first(4);
  for (int round = 0; round < 12; ++round) {
    std::vector<float> out(4), least(4), most(4);
    MPI_Allreduce(in.data(), out.data(), 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (round == 0) first = out;
    expect(out == first, "a sum equals the first one");
    MPI_Allreduce(out.data(), least.data(), 4, MPI_FLOAT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(out.data(), most.data(), 4, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    expect(least == most, "ranks have one sum");
  }
}

/// A NaN of any rank, at any index, is the result at that index on all ranks.
template <class T>
void nans_of(MPI_Datatype type) {
  const int rank = rank_in(MPI_COMM_WORLD), ranks = ranks_of(MPI_COMM_WORLD);
  for (const int count : {1, 37})
    for (int at = 0; at < count; ++at)
      for (int from = 0; from < ranks; ++from)
        for (const MPI_Op op : {MPI_MAX, MPI_MIN}) {
          std::vector<T> in(static_cast<std::size_t>(count), static_cast<T>(rank)), out(in.size());
          if (rank == from) in[static_cast<std::size_t>(at)] = static_cast<T>(NAN);
          MPI_Allreduce(in.data(), out.data(), count, type, op, MPI_COMM_WORLD);
          bool right = true;
          const T wanted = static_cast<T>(op == MPI_MAX ? ranks - 1 : 0);
          for (int one = 0; one < count; ++one) {
            const T got = out[static_cast<std::size_t>(one)];
            right = right && (one == at ? std::isnan(got) : got == wanted);
          }
          expect(right, "a NaN is the result");
        }
}

void nans() {
  nans_of<float>(MPI_FLOAT);
  nans_of<double>(MPI_DOUBLE);
}

/// An overflowing sum or product is the same in a small (forwarded) call and in a large call.
template <class T>
void narrow(MPI_Datatype type, MPI_Op op, int mine, const char* what) {
  long first = 0;
  for (const int count : {64, 1 << 17}) {
    const std::vector<T> in(static_cast<std::size_t>(count), static_cast<T>(mine));
    std::vector<T> out(in.size());
    MPI_Allreduce(in.data(), out.data(), count, type, op, MPI_COMM_WORLD);
    if (count == 64) first = static_cast<long>(out[0]);
    expect(
        std::all_of(out.begin(), out.end(), [&](T one) { return static_cast<long>(one) == first; }),
        what);
  }
}

void narrow_integers() {
  narrow<unsigned char>(MPI_UNSIGNED_CHAR, MPI_SUM, 200, "one sum of unsigned char");
  narrow<signed char>(MPI_SIGNED_CHAR, MPI_SUM, 100, "one sum of signed char");
  narrow<std::uint8_t>(MPI_UINT8_T, MPI_SUM, 200, "one sum of uint8_t");
  narrow<std::int8_t>(MPI_INT8_T, MPI_SUM, -100, "one sum of int8_t");
  narrow<unsigned short>(MPI_UNSIGNED_SHORT, MPI_SUM, 40000, "one sum of unsigned short");
  narrow<short>(MPI_SHORT, MPI_SUM, 30000, "one sum of short");
  narrow<std::uint16_t>(MPI_UINT16_T, MPI_SUM, 40000, "one sum of uint16_t");
  narrow<std::int16_t>(MPI_INT16_T, MPI_SUM, -30000, "one sum of int16_t");
  narrow<int>(MPI_INT, MPI_SUM, 2000000000, "one sum of int");
  narrow<long>(MPI_LONG, MPI_SUM, -1, "one sum of long");
  narrow<unsigned char>(MPI_UNSIGNED_CHAR, MPI_PROD, 20, "one product of unsigned char");
  narrow<short>(MPI_SHORT, MPI_PROD, 300, "one product of short");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  int given = 0;
  EmulatedCuda::now().begin(1);
  if (name == "threads")
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
  else if (name == "thread_ends")
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &given);
  else
    MPI_Init(&argc, &argv);
  if (name == "progress")
    progress();
  else if (name == "native_alongside")
    native_alongside();
  else if (name == "freed_early")
    freed_early();
  else if (name == "freed_in_pairs")
    freed_in_pairs();
  else if (name == "persistent_again")
    persistent_again();
  else if (name == "used_while_freed")
    used_while_freed();
  else if (name == "thread_ends")
    thread_ends();
  else if (name == "persistent_left")
    persistent_left();
  else if (name == "persistent_orders")
    persistent_orders();
  else if (name == "mismatch")
    mismatch();
  else if (name == "corners")
    corners();
  else if (name == "uneven")
    uneven();
  else if (name == "threads")
    threads();
  else if (name == "retained_codes")
    retained_codes();
  else if (name == "without_it")
    without_it();
  else if (name == "one_order")
    one_order();
  else if (name == "nans")
    nans();
  else if (name == "narrow_integers")
    narrow_integers();
  else if (name == "killed")
    killed();
  else if (name == "nodes")
    nodes();
  else if (name == "nodes_progress")
    nodes_progress();
  else if (name == "nodes_many")
    nodes_many();
  else if (name == "without_gpus")
    without_gpus();
  else if (name == "gpus_late")
    gpus_late();
  else
    ++wrong;
  std::printf("{\"rank\": %d, \"wrong\": %ld, \"served\": %ld}\n", rank_in(MPI_COMM_WORLD), wrong,
              calls_served());
  std::fflush(stdout);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
