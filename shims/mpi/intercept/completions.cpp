// Exports MPI_Init, MPI_Finalize and the completion functions (Wait, Test, Start ...). A completion
// function first completes plait's requests that have ended, then calls the native function; with
// no request of plait's pending, only the native function is called.
#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <optional>
#include <vector>

#include "shims/mpi/abi/status.hpp"
#include "shims/mpi/args/in_call.hpp"
#include "shims/mpi/collective/serve.hpp"
#include "shims/mpi/p2p/rendezvous.hpp"
#include "shims/mpi/requests/native_call.hpp"
#include "shims/mpi/requests/persistent.hpp"
#include "shims/mpi/requests/requests.hpp"

namespace plait::mpi {
namespace {

constexpr int kUndefined = -32766;  ///< MPI_UNDEFINED, in all ABIs

/// Element `index` of the program's statuses.
void* status_at(void* statuses, int index) { return Statuses(statuses, 0, false).at(index); }

/// Requests and statuses of a completion function (Wait, Testall ...). Keeps a copy of the
/// program's handles, since the MPI sets the handle of a completed request to null. Copies nothing
/// while plait has no request under way.
class CompletionScope {
 public:
  CompletionScope(const void* requests, int count, void* statuses, int most_statuses)
      : count_(requests == nullptr ? 0 : std::max(count, 0)),
        is_tracked_(has_persistent() || has_open_grequests() || uses_rendezvous()),
        statuses_(statuses, most_statuses, is_tracked_) {
    if (!is_tracked_) return;
    clear_errors();
    if (count_ > kFew) many_.resize(static_cast<std::size_t>(count_));
    for (int at = 0; at < count_; ++at) handles()[at] = native().abi.at(requests, at);
  }
  CompletionScope(const CompletionScope&) = delete;
  CompletionScope& operator=(const CompletionScope&) = delete;
  const Statuses& statuses() const { return statuses_; }

  /// Returns the code for the program after a function for a single request returned `code`.
  /// is_over: the function completed the request and did not only read the state.
  int one(int code, int at = 0, bool is_over = true) {
    if (!is_tracked_ || at < 0 || at >= count_ || statuses_.are_ignored()) return code;
    const int error = error_of(code, handles()[at], statuses_.at(0), is_over);
    return code != 0 ? code : error;
  }
  int all(int code) {
    return several(code, count_, [](int at) { return at; });
  }
  /// The same for the `some` requests at `indices`; `some` may be MPI_UNDEFINED.
  int indexed(int code, int some, const int* indices) {
    return several(code, some, [&](int at) { return indices[at]; });
  }

 private:
  static constexpr int kFew = 16;
  Handle* handles() { return count_ > kFew ? many_.data() : few_.data(); }

  /// Returns the error of a request after the function returned `code`. `status` holds the
  /// request's own code if the function returned MPI_ERR_IN_STATUS.
  static int error_of(int code, Handle request, void* status, bool is_over) {
    if (error_class(code) == native().abi.err_in_status) code = error_in(status);
    const int found = error_class(code);
    if (found == native().abi.err_pending) return 0;
    if (uses_rendezvous() && found == native().abi.err_truncate)
      complete_truncated_send(status, nullptr, 0);
    if (const int error = complete_persistent(request, code, status, is_over)) return error;
    return take_error(request);
  }

  /// The same for `count` requests with a status each. An exception of a handler leaves once all
  /// requests are completed.
  template <class Index>
  int several(int code, int count, const Index& index) {
    if (!is_tracked_ || statuses_.are_ignored()) return code;
    bool fails = code != 0;
    std::exception_ptr thrown;
    for (int at = 0; at < count; ++at) {
      int error = native().abi.err_other;
      try {
        error = error_of(code, handles()[index(at)], statuses_.at(at), true);
      } catch (...) {
        if (!thrown) thrown = std::current_exception();
      }
      if (error == 0) continue;
      for (int other = 0; !fails && other < count; ++other) error_in(statuses_.at(other)) = 0;
      error_in(statuses_.at(at)) = error;
      fails = true;
    }
    if (thrown) std::rethrow_exception(thrown);
    return fails && code == 0 ? native().abi.err_in_status : code;
  }

  int count_;
  bool is_tracked_;
  Statuses statuses_;
  std::array<Handle, kFew> few_;  // uninitialised while untracked: most calls track nothing
  std::vector<Handle> many_;
};

/// Waits for the requests in turn: MPICH's Testall fails after a native persistent collective has
/// ended.
int wait_in_turn(int count, void* requests, const Statuses& statuses) {
  std::vector<int> codes;
  for (int at = 0; at < count; ++at) {
    void* const request = static_cast<std::byte*>(requests) + at * native().abi.handle_bytes;
    void* const status = statuses.at(at);
    codes.push_back(wait_until([&](int* flag) { return native().Test(request, flag, status); },
                               [&] { return native().Wait(request, status); }));
  }
  if (std::all_of(codes.begin(), codes.end(), [](int code) { return code == 0; })) return 0;
  for (int at = 0; !statuses.are_ignored() && at < count; ++at)
    error_in(statuses.at(at)) = codes[static_cast<std::size_t>(at)];
  return native().abi.err_in_status;
}

int wait_all(int count, void* requests, const Statuses& statuses) {
  if (native().abi.family != MpiFamily::open_mpi && pending.load() != 0)
    return wait_in_turn(count, requests, statuses);
  return wait_until(
      [&](int* flag) { return native().Testall(count, requests, flag, statuses.all()); },
      [&] { return native().Waitall(count, requests, statuses.all()); });
}

int status_of(Handle request, int* flag, void* status) {
  CompletionScope scope(&request, 1, status, 1);
  const int code = native().Request_get_status(request, flag, scope.statuses().at(0));
  return code != 0 || *flag == 0 ? code : scope.one(code, 0, false);
}

/// The same for an element of an array of statuses: sets MPI_ERROR too.
int status_among(Handle request, int* flag, void* status) {
  const int code = status_of(request, flag, status);
  if (code == 0 && *flag != 0 && status != native().abi.status_ignore) error_in(status) = 0;
  return code;
}

/// The program's requests, parted: requests in plait's table of persistent requests, whose state
/// plait knows, and all others. MPI takes an inactive request for MPI_REQUEST_NULL.
class PartedRequests {
 public:
  PartedRequests(int count, const void* requests) : count_(count) {
    const Abi& abi = native().abi;
    const auto each = static_cast<std::size_t>(abi.handle_bytes);
    others_.resize(each * static_cast<std::size_t>(std::max(count, 0)));
    for (int at = 0; at < count; ++at) {
      const Handle request = abi.at(requests, at);
      const std::optional<bool> is_active = is_active_persistent(request);
      if (is_active.value_or(false)) active_.push_back(at);
      store_request(is_active ? abi.no_request : request,
                    others_.data() + each * static_cast<std::size_t>(at));
    }
  }
  /// Indices of the active requests of the table.
  const std::vector<int>& active() const { return active_; }
  /// All requests, with MPI_REQUEST_NULL in the place of a request of the table.
  const void* others() const { return others_.data(); }
  /// Calls visit(index, request) for each request among the others, until visit returns false.
  /// Returns the number of requests.
  template <class Visit>
  int visit_others(const Visit& visit) const {
    const Abi& abi = native().abi;
    int found = 0;
    for (int at = 0; at < count_; ++at) {
      const Handle request = abi.at(others_.data(), at);
      if (abi.key(request) == abi.key(abi.no_request)) continue;
      ++found;
      if (!visit(at, request)) break;
    }
    return found;
  }

 private:
  int count_;
  std::vector<int> active_;
  std::vector<std::byte> others_;
};

/// Request_get_status_some over the requests that are not in plait's table. For MPIs before 4.1,
/// which do not tell inactive persistent requests from completed ones.
int status_of_some_others(int count, const PartedRequests& requests, int* ended, int* indices,
                          void* statuses) {
  if (const auto function = native().Request_get_status_some)
    return function(count, requests.others(), ended, indices, statuses);
  int found = 0, code = 0;
  const int all = requests.visit_others([&](int at, Handle request) {
    int flag = 0;
    code = status_among(request, &flag, status_at(statuses, found));
    if (code == 0 && flag != 0) indices[found++] = at;
    return code == 0;
  });
  *ended = all == 0 ? kUndefined : found;
  return code;
}

/// The same for Request_get_status_any.
int status_of_any_other(int count, const PartedRequests& requests, int* index, int* flag,
                        void* status) {
  if (const auto function = native().Request_get_status_any)
    return function(count, requests.others(), index, flag, status);
  int code = 0;
  *flag = 0;
  *index = kUndefined;
  const int all = requests.visit_others([&](int at, Handle request) {
    code = status_among(request, flag, status);
    if (*flag != 0) *index = at;
    return code == 0 && *flag == 0;
  });
  return all == 0 ? status_among(native().abi.no_request, flag, status) : code;
}

int status_of_some(int count, const void* requests, int* ended, int* indices, void* statuses) {
  const PartedRequests parted(count, requests);
  int found = 0, others = 0;
  for (const int at : parted.active()) {
    int flag = 0;
    const Handle request = native().abi.at(requests, at);
    if (const int code = status_among(request, &flag, status_at(statuses, found))) return code;
    if (flag != 0) indices[found++] = at;
  }
  if (const int code = status_of_some_others(count, parted, &others, indices + found,
                                             status_at(statuses, found)))
    return code;
  const bool is_any_active = !parted.active().empty() || others != kUndefined;
  *ended = is_any_active ? found + (others == kUndefined ? 0 : others) : kUndefined;
  return 0;
}

int status_of_any(int count, const void* requests, int* index, int* flag, void* status) {
  const PartedRequests parted(count, requests);
  for (const int at : parted.active()) {
    *index = at;
    if (const int code = status_among(native().abi.at(requests, at), flag, status)) return code;
    if (*flag != 0) return 0;
  }
  const int code = status_of_any_other(count, parted, index, flag, status);
  if (*index != kUndefined || parted.active().empty()) return code;
  *flag = 0;  // a request of the table is under way
  return code;
}

int status_of_all(int count, const void* requests, int* flag, void* statuses) {
  *flag = 1;
  for (int at = 0; at < count && *flag != 0; ++at)
    if (const int code = status_among(native().abi.at(requests, at), flag, status_at(statuses, at)))
      return code;
  return 0;
}

int serve_after_init() {
  return guarded(native().abi.world, [] {
    begin_serving();
    return 0;
  });
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// A null pointer in the place of a result is the MPI's error.

int MPI_Init(int* argc, char*** argv) {
  const int code = native().Init(argc, argv);
  return code != 0 ? code : serve_after_init();
}
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const int code = native().Init_thread(argc, argv, required, provided);
  return code != 0 ? code : serve_after_init();
}
int MPI_Finalize() {
  const int code = guarded(native().abi.world, [] {
    end_serving();
    free_private_self();
    return 0;
  });
  const int ended = native().Finalize();
  return ended != 0 ? ended : code;
}

int MPI_Wait(void* request, void* status) {
  constexpr Native<&NativeFunctions::Wait> mpi;
  const InCall inside(words_of_requests(mpi, 1, request));
  return guarded(native().abi.world, [&] {
    CompletionScope scope(request, 1, status, 1);
    void* const filled = scope.statuses().all();
    return scope.one(wait_until([&](int* flag) { return native().Test(request, flag, filled); },
                                [&] { return native().Wait(request, filled); }));
  });
}
int MPI_Waitall(int count, void* requests, void* statuses) {
  constexpr Native<&NativeFunctions::Waitall> mpi;
  const InCall inside(words_of_requests(mpi, count, requests));
  return guarded(native().abi.world, [&] {
    CompletionScope scope(requests, count, statuses, count);
    return scope.all(wait_all(count, requests, scope.statuses()));
  });
}
int MPI_Waitany(int count, void* requests, int* index, void* status) {
  if (index == nullptr) return native().Waitany(count, requests, index, status);
  constexpr Native<&NativeFunctions::Waitany> mpi;
  const InCall inside(words_of_requests(mpi, count, requests));
  return guarded(native().abi.world, [&] {
    CompletionScope scope(requests, count, status, 1);
    void* const filled = scope.statuses().all();
    *index = kUndefined;
    const int code = wait_until(
        [&](int* flag) { return native().Testany(count, requests, index, flag, filled); },
        [&] { return native().Waitany(count, requests, index, filled); });
    return scope.one(code, *index);
  });
}
int MPI_Waitsome(int count, void* requests, int* some, int* indices, void* statuses) {
  if (some == nullptr) return native().Waitsome(count, requests, some, indices, statuses);
  constexpr Native<&NativeFunctions::Waitsome> mpi;
  const InCall inside(words_of_requests(mpi, count, requests));
  return guarded(native().abi.world, [&] {
    CompletionScope scope(requests, count, statuses, count);
    void* const filled = scope.statuses().all();
    *some = kUndefined;
    const int code = wait_until(
        [&](int* flag) {
          const int tested = native().Testsome(count, requests, some, indices, filled);
          *flag = tested == 0 && *some != 0 ? 1 : 0;
          return tested;
        },
        [&] { return native().Waitsome(count, requests, some, indices, filled); });
    return scope.indexed(code, *some, indices);
  });
}
int MPI_Test(void* request, int* flag, void* status) {
  if (flag == nullptr) return native().Test(request, flag, status);
  return guarded(native().abi.world, [&] {
    complete_in_test();
    CompletionScope scope(request, 1, status, 1);
    const int code = native().Test(request, flag, scope.statuses().all());
    return code != 0 || *flag != 0 ? scope.one(code) : code;
  });
}
int MPI_Testall(int count, void* requests, int* flag, void* statuses) {
  if (flag == nullptr) return native().Testall(count, requests, flag, statuses);
  return guarded(native().abi.world, [&] {
    complete_in_test();
    CompletionScope scope(requests, count, statuses, count);
    const int code = native().Testall(count, requests, flag, scope.statuses().all());
    return code != 0 || *flag != 0 ? scope.all(code) : code;
  });
}
int MPI_Testany(int count, void* requests, int* index, int* flag, void* status) {
  if (index == nullptr || flag == nullptr)
    return native().Testany(count, requests, index, flag, status);
  return guarded(native().abi.world, [&] {
    complete_in_test();
    CompletionScope scope(requests, count, status, 1);
    *index = kUndefined;
    const int code = native().Testany(count, requests, index, flag, scope.statuses().all());
    return code != 0 || *flag != 0 ? scope.one(code, *index) : code;
  });
}
int MPI_Testsome(int count, void* requests, int* some, int* indices, void* statuses) {
  if (some == nullptr) return native().Testsome(count, requests, some, indices, statuses);
  return guarded(native().abi.world, [&] {
    complete_in_test();
    CompletionScope scope(requests, count, statuses, count);
    *some = kUndefined;
    const int code = native().Testsome(count, requests, some, indices, scope.statuses().all());
    return scope.indexed(code, *some, indices);
  });
}
int MPI_Request_get_status(Handle request, int* flag, void* status) {
  return guarded(native().abi.world, [&] {
    complete_in_test();
    return status_of(request, flag, status);
  });
}
int MPI_Request_get_status_all(int count, const void* requests, int* flag, void* statuses) {
  return guarded(native().abi.world, [&] {
    complete_in_test();
    const auto native_function = native().Request_get_status_all;
    const bool mine = native_function == nullptr || has_persistent();
    return (mine ? status_of_all : native_function)(count, requests, flag, statuses);
  });
}
int MPI_Request_get_status_any(int count, const void* requests, int* index, int* flag,
                               void* status) {
  return guarded(native().abi.world, [&] {
    complete_in_test();
    const auto native_function = native().Request_get_status_any;
    const bool mine = native_function == nullptr || has_persistent();
    return (mine ? status_of_any : native_function)(count, requests, index, flag, status);
  });
}
int MPI_Request_get_status_some(int count, const void* requests, int* some, int* indices,
                                void* statuses) {
  return guarded(native().abi.world, [&] {
    complete_in_test();
    const auto native_function = native().Request_get_status_some;
    const bool mine = native_function == nullptr || has_persistent();
    return (mine ? status_of_some : native_function)(count, requests, some, indices, statuses);
  });
}

int MPI_Startall(int count, void* requests) {
  return guarded(native().abi.world, [&] {
    for (int at = 0; has_persistent() && at < count; ++at)
      if (const int code = stage_persistent(native().abi.at(requests, at))) return code;
    const int code = native().Startall(count, requests);
    for (int at = 0; has_persistent() && at < count; ++at)
      if (code == 0) start_persistent(native().abi.at(requests, at));
    return code;
  });
}
int MPI_Start(void* request) { return MPI_Startall(1, request); }
int MPI_Request_free(void* request) {
  return guarded(native().abi.world, [&] {
    if (has_persistent()) free_persistent(native().abi.at(request, 0));
    return native().Request_free(request);
  });
}
int MPI_Cancel(void* request) {
  return guarded(native().abi.world, [&] {
    if (has_persistent() && cancel_persistent(native().abi.at(request, 0))) return 0;
    return native().Cancel(request);
  });
}

int PMPI_Init(int*, char***) __attribute__((alias("MPI_Init")));
int PMPI_Init_thread(int*, char***, int, int*) __attribute__((alias("MPI_Init_thread")));
int PMPI_Finalize() __attribute__((alias("MPI_Finalize")));
int PMPI_Wait(void*, void*) __attribute__((alias("MPI_Wait")));
int PMPI_Waitall(int, void*, void*) __attribute__((alias("MPI_Waitall")));
int PMPI_Waitany(int, void*, int*, void*) __attribute__((alias("MPI_Waitany")));
int PMPI_Waitsome(int, void*, int*, int*, void*) __attribute__((alias("MPI_Waitsome")));
int PMPI_Test(void*, int*, void*) __attribute__((alias("MPI_Test")));
int PMPI_Testall(int, void*, int*, void*) __attribute__((alias("MPI_Testall")));
int PMPI_Testany(int, void*, int*, int*, void*) __attribute__((alias("MPI_Testany")));
int PMPI_Testsome(int, void*, int*, int*, void*) __attribute__((alias("MPI_Testsome")));
int PMPI_Start(void*) __attribute__((alias("MPI_Start")));
int PMPI_Startall(int, void*) __attribute__((alias("MPI_Startall")));
int PMPI_Request_free(void*) __attribute__((alias("MPI_Request_free")));
int PMPI_Cancel(void*) __attribute__((alias("MPI_Cancel")));
int PMPI_Request_get_status(Handle, int*, void*) __attribute__((alias("MPI_Request_get_status")));
int PMPI_Request_get_status_all(int, const void*, int*, void*)
    __attribute__((alias("MPI_Request_get_status_all")));
int PMPI_Request_get_status_any(int, const void*, int*, int*, void*)
    __attribute__((alias("MPI_Request_get_status_any")));
int PMPI_Request_get_status_some(int, const void*, int*, int*, void*)
    __attribute__((alias("MPI_Request_get_status_some")));

/// Programs pass GPU memory to MPI if this function returns 1.
int MPIX_Query_cuda_support() {
  if (job_uses_gpus()) return 1;
  const auto native_function = native().Query_cuda_support;
  return native_function == nullptr ? 0 : native_function();
}

/// Number of calls that plait has served in this process, for tests and measurements.
std::uint64_t plait_mpi_calls_served() { return calls_served.load(); }

}  // extern "C"
#pragma GCC visibility pop
}  // namespace plait::mpi
