// The list of pending requests, and their completion. MPI_Grequest_complete is called in the
// program's threads alone, by the owner of PendingList::polling.
#include "shims/mpi/requests/requests.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <vector>

#include "comm/bootstrap/vote.hpp"
#include "shims/mpi/abi/status.hpp"
#include "shims/mpi/args/gpu_memory.hpp"

namespace plait::mpi {

constinit std::atomic<int> pending{0};
constinit std::atomic<int> open_grequests{0};
constinit thread_local int ProgramThreadScope::depth [[gnu::tls_model("initial-exec")]] = 0;

namespace {

struct PendingList {
  /// Held by the thread that polls. No other thread removes requests.
  std::mutex polling;
  std::size_t next = 0;  ///< the next to poll; guarded by `polling`
  /// Guards `all`. Not held while a request is polled: polling may call the program's error
  /// handler, which may start requests.
  std::mutex mutex;
  std::vector<PendingRequest*> all;  ///< in the order of start; null = ended in the present sweep
  std::size_t reserved = 0;          ///< places for requests that are being started
  std::mutex sleeping;
  std::condition_variable ended;
  std::atomic<int> polled{0};  ///< operations that end without waking a waiter
};

PendingList& pending_list() {
  static auto* const one = new PendingList;
  return *one;
}

/// A native request on staging buffers, and the status after completion.
struct NativeRequest : PendingRequest {
  NativeRequest(Handle of_mpi, CallStaging buffers)
      : native_request(of_mpi), staging(std::move(buffers)) {}

  bool has_ended() override {
    int flag = 0;
    if (cancel_requested.exchange(false)) native().Cancel(&native_request);
    code = native().Test(&native_request, &flag, status.data());
    is_reported = code != 0;
    if (code == 0 && flag == 0) return false;
    if (code != 0) return true;
    try {
      staging.put_back(received_bytes(status.data()));
    } catch (const std::exception& error) {
      code = error_code(error);
    }
    return true;
  }
  void fill(void* out) const override {
    std::memcpy(out, status.data(), static_cast<std::size_t>(status_bytes()));
  }

  Handle native_request;
  CallStaging staging;
  Polled polled;
  alignas(8) std::array<std::byte, 32> status{};
};

/// A request that never ends. Reading the state makes the MPI progress on all work; a probe does
/// not: MPICH's non-blocking collectives stand still.
Handle progress_request = 0;

int query(void* extra, void* status) {
  const auto& one = *static_cast<const PendingRequest*>(extra);
  if (status != nullptr && status != native().abi.status_ignore) one.fill(status);
  return 0;
}

struct RequestError {
  Handle request;
  RetainedComm comm;
  int code;
  bool is_reported;
  std::exception_ptr thrown;
};

thread_local std::vector<RequestError> request_errors;

/// Runs in the thread that completes or frees the request.
int end(void* extra) {
  auto* const one = static_cast<PendingRequest*>(extra);
  if (one->code != 0)
    static_cast<void>(attempt([&] {
      request_errors.push_back(
          {one->request, one->comm, one->code, one->is_reported, std::move(one->thrown)});
    }));
  open_grequests.fetch_sub(1);
  release_request(one);
  return 0;
}

int cancel(void* extra, int complete) {
  if (extra != nullptr && complete == 0) static_cast<PendingRequest*>(extra)->cancel();
  return 0;
}

}  // namespace

namespace {

/// A place in the pending list: adding a request then needs no memory.
class ReservedPlace {
 public:
  ReservedPlace() {
    PendingList& list = pending_list();
    const std::lock_guard lock(list.mutex);
    const std::size_t wanted = list.all.size() + list.reserved + 1;
    if (wanted > list.all.capacity()) list.all.reserve(2 * wanted);
    ++list.reserved;
  }
  ~ReservedPlace() {
    const std::lock_guard lock(pending_list().mutex);
    --pending_list().reserved;
  }
  ReservedPlace(const ReservedPlace&) = delete;
  ReservedPlace& operator=(const ReservedPlace&) = delete;
};

}  // namespace

void release_request(PendingRequest* one) {
  if (one->references.fetch_sub(1) == 1) delete one;
}

void watch(PendingRequest& one) {
  const ReservedPlace place;
  const std::lock_guard lock(pending_list().mutex);
  pending_list().all.push_back(&one);
  one.references.fetch_add(1);
  pending.fetch_add(1);
}

int start_grequest(std::unique_ptr<PendingRequest> one, RetainedComm comm, void* request) {
  // A generalized request cannot be withdrawn, so its place in the list is reserved first. The
  // list's lock is not held while the MPI runs: the MPI's error handler may start requests too.
  const ReservedPlace place;
  const int code = native().Grequest_start(query, end, cancel, one.get(), request);
  if (code != 0) return code;
  open_grequests.fetch_add(1);
  one->comm = std::move(comm);
  one->request = native().abi.at(request, 0);
  const std::lock_guard lock(pending_list().mutex);
  pending_list().all.push_back(one.release());
  pending.fetch_add(1);
  return 0;
}

void clear_errors() { request_errors.clear(); }

int take_error(Handle request) {
  const auto at =
      std::find_if(request_errors.begin(), request_errors.end(), [&](const RequestError& one) {
        return native().abi.key(one.request) == native().abi.key(request);
      });
  if (at == request_errors.end()) return 0;
  const RequestError found = std::move(*at);
  request_errors.erase(at);  // before the handler runs, which may call the MPI
  if (found.thrown) std::rethrow_exception(found.thrown);
  return found.is_reported ? found.code : found.comm.call_errhandler(found.code);
}

bool let_mpi_progress() {
  if (ProgramThreadScope::depth == 0) return false;
  int flag = 0;
  native().Request_get_status(progress_request, &flag, native().abi.status_ignore);
  RevocationScope::look();
  return true;
}

void begin_progress() {
  Handle request = 0;
  native().Grequest_start([](void*, void*) { return 0; }, [](void*) { return 0; }, cancel, nullptr,
                          &request);
  progress_request = native().abi.at(&request, 0);
}

void end_progress() {
  Handle request = progress_request;
  native().Grequest_complete(progress_request);
  native().Wait(&request, native().abi.status_ignore);
}

Polled::Polled() { pending_list().polled.fetch_add(1); }
Polled::~Polled() { pending_list().polled.fetch_sub(1); }

std::unique_ptr<PendingRequest> make_native_request(Handle native_request, CallStaging staging) {
  return std::make_unique<NativeRequest>(native_request, std::move(staging));
}

void store_request(Handle handle, void* request) {
  std::memcpy(request, &handle, static_cast<std::size_t>(native().abi.handle_bytes));
}

int refuse_request(int code, void* request) {
  store_request(native().abi.no_request, request);
  return code;
}

int start_native(Handle comm, Handle native_request, CallStaging staging, void* request) {
  return start_grequest(make_native_request(native_request, std::move(staging)), RetainedComm(comm),
                        request);
}

void wake_sleepers() {
  {
    const std::lock_guard lock(pending_list().sleeping);
  }
  pending_list().ended.notify_all();
}

namespace {

/// Sets a flag for a scope.
class InsideScope {
 public:
  explicit InsideScope(bool& inside) : inside_(inside) { inside_ = true; }
  ~InsideScope() { inside_ = false; }
  InsideScope(const InsideScope&) = delete;
  InsideScope& operator=(const InsideScope&) = delete;

 private:
  bool& inside_;
};

}  // namespace

/// MPICH's hook must call no MPI function if several threads call MPI at once.
bool has_hook() {
  if (native().progress_register != nullptr) return true;
  return native().Async_start != nullptr && native().abi.family == MpiFamily::mpich &&
         !threads_may_call_at_once();
}

void begin_hook() {
  if (native().progress_register != nullptr) {
    native().progress_register(+[] {
      complete_ended();
      return 0;
    });
    return;
  }
  constexpr int kNoStream = 0x3c000000;  // MPIX_STREAM_NULL
  native().Async_start(
      +[](void*) {
        static thread_local bool inside = false;  // a request completed twice is freed twice
        if (inside) return 0;
        const InsideScope here(inside);
        complete_ended();
        return is_serving() ? 0 : 1;  // 1 removes the hook
      },
      nullptr, kNoStream);
}

namespace {

constexpr std::size_t kSweep = 16;

/// The range [from, to) of the pending list during a sweep. The destructor removes ended requests,
/// also if the MPI throws an exception of the program.
class SweepRange {
 public:
  SweepRange(std::size_t from, std::size_t to) : from_(from), to_(to) {}
  ~SweepRange() {
    if (ended_ == 0) return;
    const std::lock_guard lock(pending_list().mutex);
    auto& all = pending_list().all;
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(to_);
    all.erase(std::remove(all.begin() + static_cast<std::ptrdiff_t>(from_), end, nullptr), end);
  }
  SweepRange(const SweepRange&) = delete;
  SweepRange& operator=(const SweepRange&) = delete;
  /// Completes the ended requests; returns the index after the remaining ones.
  std::size_t complete() {
    for (std::size_t at = from_; at < to_; at += kSweep) {
      const std::size_t count = std::min(kSweep, to_ - at);
      std::array<PendingRequest*, kSweep> some;
      {
        const std::lock_guard lock(pending_list().mutex);
        std::copy_n(pending_list().all.begin() + static_cast<std::ptrdiff_t>(at), count,
                    some.begin());
      }
      for (std::size_t each = 0; each < count; ++each) complete(*some[each], at + each);
    }
    return to_ - ended_;
  }

 private:
  void complete(PendingRequest& one, std::size_t at) {
    if (!has_ended(one)) return;
    {
      const std::lock_guard lock(pending_list().mutex);
      pending_list().all[at] = nullptr;
    }
    ++ended_;
    pending.fetch_sub(1);
    one.complete_in_mpi();
    release_request(&one);
  }
  /// A request whose error handler throws has ended with an error. The exception stays with the
  /// request: the MPI function that polls may run another call.
  static bool has_ended(PendingRequest& one) {
    try {
      return one.has_ended();
    } catch (...) {
      one.thrown = std::current_exception();
      one.code = native().abi.err_other;
      one.is_reported = true;
      return true;
    }
  }

  std::size_t from_, to_, ended_ = 0;
};

std::size_t size_of_list() {
  const std::lock_guard lock(pending_list().mutex);
  return pending_list().all.size();
}

}  // namespace

void complete_in_test() {
  static thread_local unsigned calls = 0;
  complete_ended(++calls % 4 == 0 ? Sweep::all : Sweep::some);
}

void complete_ended(Sweep sweep) {
  if (pending.load(std::memory_order_acquire) == 0) return;
  static thread_local bool inside = false;  // polling makes the MPI call this function again
  if (inside) return;
  const InsideScope here(inside);
  const std::unique_lock polling(pending_list().polling, std::try_to_lock);
  if (!polling.owns_lock()) return;
  std::size_t& next = pending_list().next;
  const std::size_t whole = size_of_list();
  const bool few = sweep == Sweep::all || whole <= 2 * kSweep;
  if (!few) SweepRange(whole - kSweep, whole).complete();
  const std::size_t others = few ? whole : whole - kSweep;
  if (few || next >= others) next = 0;
  next = SweepRange(next, few ? others : std::min(others, next + kSweep)).complete();
}

namespace {

bool any_must_end() {
  const std::lock_guard lock(pending_list().mutex);
  const auto& all = pending_list().all;
  return std::any_of(all.begin(), all.end(),
                     [](const PendingRequest* one) { return one != nullptr && one->must_end(); });
}

template <class Condition>
void progress_until(const Condition& condition) {
  for (int round = 0; !condition(); ++round) {
    complete_ended();
    let_mpi_progress();
    backoff_sleep(round);
  }
}

void ignore_error(void*, int*, ...) {}

/// Silences MPI_COMM_WORLD's handler while ranks end: lost ranks cause errors then.
class SilencedErrors {
 public:
  SilencedErrors() {
    Handle silent = 0;
    native().Comm_get_errhandler(native().abi.world, &handler_);
    native().Comm_create_errhandler(ignore_error, &silent);
    native().Comm_set_errhandler(native().abi.world, native().abi.at(&silent, 0));
    native().Errhandler_free(&silent);
  }
  ~SilencedErrors() {
    native().Comm_set_errhandler(native().abi.world, native().abi.at(&handler_, 0));
    native().Errhandler_free(&handler_);
  }
  SilencedErrors(const SilencedErrors&) = delete;
  SilencedErrors& operator=(const SilencedErrors&) = delete;

 private:
  Handle handler_ = 0;
};

/// Completes receives that have a message and a request freed by the program: the MPI may need some
/// steps to find them.
void put_back_arrived() {
  constexpr int kSteps = 50;
  for (int step = 0; pending.load() != 0 && step < kSteps; ++step) {
    complete_ended(Sweep::all);
    let_mpi_progress();
  }
}

}  // namespace

void end_requests() {
  progress_until([] { return !any_must_end(); });
  // A rank that has not arrived yet may still receive a message whose sender has freed the request,
  // or send a message that another rank receives into GPU memory.
  const SilencedErrors silenced;
  Handle request = 0;
  const Handle world = native().abi.world;
  const bool needs_barrier = (uses_rendezvous() || job_uses_gpus()) && fault_in(world) == 0;
  if (needs_barrier && native().Ibarrier(world, &request) == 0)
    progress_until([&] {  // the barrier may never end after a rank is lost
      int flag = 0;
      return native().Test(&request, &flag, native().abi.status_ignore) != 0 || flag != 0 ||
             fault_in(world) != 0;
    });
  put_back_arrived();
  progress_until([] { return !any_must_end(); });
  const std::lock_guard lock(pending_list().mutex);
  pending_list().all.clear();
  pending.store(0);
}

void backoff_sleep(int round) {
  if (round < 50) return;
  if (round < 100 || pending_list().polled.load() != 0) {
    ::sched_yield();
    return;
  }
  std::unique_lock lock(pending_list().sleeping);
  pending_list().ended.wait_for(lock, std::chrono::microseconds(std::min(round / 2, 500)));
}

}  // namespace plait::mpi
