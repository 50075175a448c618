// MPI_Grequest_complete is called in the program's threads alone, under one lock.
#include "shims/mpi/requests.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace plait::mpi {

constinit std::atomic<int> pending{0};
constinit thread_local int InProgram::depth [[gnu::tls_model("initial-exec")]] = 0;

namespace {

struct Begun {
  std::mutex mutex;
  std::vector<Operation*> operations;
  std::mutex sleeping;
  std::condition_variable ended;
};

Begun& begun() {
  static auto* const all = new Begun;
  return *all;
}

/// Whoever asks for the state of a request that has not ended lets all of the MPI's work go on;
/// probing for messages does not: MPICH's non-blocking collectives stand still.
Handle never_ends = 0;

int query(void* extra, void* status) {
  const auto& operation = *static_cast<const Operation*>(extra);
  const Abi& abi = real().abi;
  if (status != nullptr && status != abi.status_ignore) {
    real().Status_set_elements(status, abi.byte, 0);
    real().Status_set_cancelled(status, 0);
    auto* const source = reinterpret_cast<int*>(static_cast<std::byte*>(status) + abi.source_at);
    source[0] = abi.any_source;
    source[1] = abi.any_tag;
  }
  return operation.code;
}

int end(void* extra) {
  delete static_cast<Operation*>(extra);
  return 0;
}

/// A collective cannot be cancelled: it ends as if nobody had asked.
int cancel(void*, int) { return 0; }

}  // namespace

bool let_mpi_progress() {
  if (InProgram::depth == 0) return false;
  int flag = 0;
  real().Request_get_status(never_ends, &flag, real().abi.status_ignore);
  return true;
}

void begin_progress() {
  Handle request = 0;
  real().Grequest_start([](void*, void*) { return 0; }, [](void*) { return 0; }, cancel, nullptr,
                        &request);
  never_ends = real().abi.at(&request, 0);
}

void end_progress() {
  Handle request = never_ends;
  real().Grequest_complete(never_ends);
  real().Wait(&request, real().abi.status_ignore);
}

int begin_served(const Served& call, const Asked& asked, void* request) {
  const InProgram here;
  try {
    auto operation = std::make_unique<Operation>(call.state->shared_from_this(),
                                                 Job(asked, call.shape, call.state->place()));
    operation->job.keep_types();
    const int code = real().Grequest_start(query, end, cancel, operation.get(), request);
    if (code != 0) return code;
    operation->request = real().abi.at(request, 0);
    {
      const std::lock_guard lock(begun().mutex);
      begun().operations.push_back(operation.get());
      pending.fetch_add(1);
    }
    call.state->begin(std::move(operation));
    calls_served.fetch_add(1, std::memory_order_relaxed);
    return 0;
  } catch (const Error& error) {
    return report(asked.comm, error);
  }
}

void operation_ended(Operation& operation) {
  operation.ended.store(true, std::memory_order_release);
  {
    const std::lock_guard lock(begun().sleeping);
  }
  begun().ended.notify_all();
}

void complete_ended() {
  if (pending.load(std::memory_order_acquire) == 0) return;
  const std::unique_lock lock(begun().mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;  // another thread is at it
  auto& all = begun().operations;
  for (std::size_t at = 0; at < all.size();) {
    Operation& one = *all[at];
    if (!one.ended.load(std::memory_order_acquire)) {
      ++at;
      continue;
    }
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(at));
    one.job.end();
    if (one.error) one.code = error_code(*one.error);
    pending.fetch_sub(1);
    real().Grequest_complete(one.request);  // may end it
  }
}

void nap(int round) {
  if (round < 50) return;
  if (round < 100) {
    ::sched_yield();
    return;
  }
  std::unique_lock lock(begun().sleeping);
  begun().ended.wait_for(lock, std::chrono::microseconds(std::min(round / 2, 500)));
}

}  // namespace plait::mpi
