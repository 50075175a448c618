// Cases of ranks that wait for others: absent, stopped, or in unlike calls. Each ends by itself.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/shims/programs/rank.hpp"

namespace program {
namespace {

constexpr int kHangMs = 5000;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

/// Stops this process; a child continues it later.
void stop_for_a_while() {
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    sleep_ms(kHangMs);
    ::kill(parent, SIGCONT);
    ::_exit(0);
  }
  ::raise(SIGSTOP);
  ::waitpid(child, nullptr, 0);
}

void sum(const TestRank& r, std::size_t count) {
  std::vector<std::int32_t> value(count, 1);
  MUST(nccl().ncclAllReduce(value.data(), value.data(), count, kInt32, kSum, r.comm, r.stream));
  r.wait();
}

/// Makes a call that cannot end, and aborts it.
template <class Call>
std::string abort_call(TestRank& r, const Call& call) {
  std::vector<std::int32_t> value(64, 1);
  call(value.data());
  sleep_ms(kHangMs);
  MUST(nccl().ncclCommAbort(r.comm));
  r.comm = nullptr;
  r.wait();
  return number("pid", static_cast<std::uint64_t>(::getpid()));
}

void all_reduce(const TestRank& r, std::int32_t* value, std::size_t count) {
  MUST(nccl().ncclAllReduce(value, value, count, kInt32, kSum, r.comm, r.stream));
}

void broadcast(const TestRank& r, std::int32_t* value, int root) {
  MUST(nccl().ncclBroadcast(value, value, 8, kInt32, root, r.comm, r.stream));
}

void all_reduce_within(const TestRank& r, std::int32_t* value, int max_ctas) {
  CallConfig config{sizeof(CallConfig), kConfigMagic, 23203};
  config.max_ctas = max_ctas;
  MUST(nccl().ncclAllReduceConfig(value, value, 16, kInt32, kSum, r.comm, r.stream, &config));
}

/// Makes calls that are not made after all: those of a simulated group.
void make_no_call(const TestRank& r) {
  std::vector<std::int32_t> value(8, 1);
  MUST(nccl().ncclGroupStart());
  broadcast(r, value.data(), 0);
  all_reduce(r, value.data(), 8);
  MUST(nccl().ncclGroupSimulateEnd(nullptr));
}

/// The last rank comes late or is stopped for a while, after a first sum of all; or all idle.
std::string hang_late(const TestJob& job, int rank) {
  TestRank r(job, rank);
  sum(r, 8);
  meet(job);  // call 1 has ended on all ranks
  if (job.name == "hang_simulated" && rank == 0) make_no_call(r);
  if (rank == r.ranks - 1 || job.name == "hang_idle") {
    if (job.name == "hang_stopped")
      stop_for_a_while();
    else
      sleep_ms(kHangMs);
  }
  sum(r, 16);
  return number("pid", static_cast<std::uint64_t>(::getpid()));
}

/// The last rank never comes, and the others make unlike calls.
std::string hang_unlike(const TestJob& job, int rank) {
  TestRank r(job, rank);
  sum(r, 8);
  meet(job);
  return abort_call(r, [&](std::int32_t* value) {
    if (rank == r.ranks - 1) return;
    if (job.name == "hang_count") return all_reduce(r, value, rank == 0 ? 16 : 32);
    if (job.name == "hang_root") return broadcast(r, value, rank);
    if (job.name == "hang_limit") return all_reduce_within(r, value, 4 + 4 * rank);
    if (rank == 0) all_reduce(r, value, 16);
    broadcast(r, value, 0);
    if (rank != 0) all_reduce(r, value, 16);
  });
}

/// The last rank dies; the others' calls fail, at once if the death is known by then.
std::string hang_dead(const TestJob& job, int rank) {
  TestRank r(job, rank);
  sum(r, 8);
  if (rank == r.ranks - 1) ::kill(::getpid(), SIGKILL);
  return abort_call(r, [&](std::int32_t* value) {
    nccl().ncclAllReduce(value, value, 16, kInt32, kSum, r.comm, r.stream);
  });
}

/// Rank 0 waits for a message that the last rank never sends.
std::string hang_message(const TestJob& job, int rank) {
  TestRank r(job, rank);
  sum(r, 8);
  meet(job);
  return abort_call(r, [&](std::int32_t* value) {
    if (rank == 0) MUST(nccl().ncclRecv(value, 16, kInt32, r.ranks - 1, r.comm, r.stream));
  });
}

}  // namespace

std::string hang(const TestJob& job, int rank) {
  if (job.name == "hang_dead") return hang_dead(job, rank);
  if (job.name == "hang_message") return hang_message(job, rank);
  const bool is_unlike = job.name == "hang_count" || job.name == "hang_root" ||
                         job.name == "hang_limit" || job.name == "hang_order";
  return is_unlike ? hang_unlike(job, rank) : hang_late(job, rank);
}

}  // namespace program
