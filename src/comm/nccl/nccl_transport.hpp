// NCCL's communicators between nodes, of one rank: among all ranks, and among those with the same
// place in their node. Called in stream order, aborted once, from any thread.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/nccl/abi.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"

namespace plait::nccl {

/// "" where NCCL has what the request takes between nodes; else why not.
std::string why_no_call(const Request& request);

class NcclTransport {
 public:
  /// Held around what is asked of NCCL when ending: a drop-in must not take it for the program's.
  using Guard = std::function<std::shared_ptr<void>()>;
  /// whole: of all ranks; it may be another's, and none. rail: of the ranks at this one's place;
  /// none = this place has no rail, or each node one rank, so that it is the whole.
  NcclTransport(Comm whole, bool owns_whole, Comm rail, Guard guard = nullptr)
      : whole_(whole), rail_(rail), owns_whole_(owns_whole), guard_(std::move(guard)) {}

  /// This rank's part, as number `member` of the communicator's ranks; scalar: premul_sum. May wait
  /// for others when a communicator is used for the first time. Error(peer_lost, aborted,
  /// unsupported).
  void call(const Request& request, bool whole, int member, const void* src, void* dst,
            Stream stream, double scalar = 1.0);
  /// To and from one rank of all; a null pointer is left out. As call().
  void message(int peer, const void* sent, void* received, std::uint64_t bytes, Stream stream);
  /// Since when a call has been inside NCCL; 0 = none is. Any thread.
  std::int64_t inside_since_ns() const { return inside_since_ns_.load(); }
  /// What went wrong between nodes, as far as NCCL knows. Any thread.
  std::optional<Error> failure();
  /// NCCL's kernels end at once. NCCL frees what it aborts, so once; and it may wait there for
  /// ranks that do not come, so in a thread of its own.
  void abort() noexcept;
  /// Returns when that is over, or too late.
  void await_abort(double wait_s) const noexcept;
  /// The communicators are given back; nothing after abort(). Once.
  void end() noexcept;

 private:
  /// One that may be inside a call of NCCL's: who aborts waits for it.
  class Caller;
  void require_usable(const Request& request) const;
  /// Throws unless NCCL accepted the call. For a communicator that does not block, NCCL launches
  /// the call in a thread of its own, and this function returns when the call is on its stream.
  void require_launched(Result result, Comm comm, const char* what) const;
  void pass(const Request& request, Comm comm, const void* src, void* dst, Stream stream,
            double scalar) const;
  void messages(const Request& request, Comm comm, int member, const void* src, void* dst,
                Stream stream) const;

  Comm whole_, rail_;
  bool owns_whole_;
  Guard guard_;
  std::shared_ptr<std::atomic<int>> callers_ = std::make_shared<std::atomic<int>>(0);
  std::atomic<std::int64_t> inside_since_ns_{0};
  std::atomic<bool> aborted_{false};
  mutable std::atomic<bool> is_late_{false};  // NCCL launched a call in its own thread
  std::mutex asking_;                         // held while a call is inside NCCL
  std::shared_ptr<std::atomic<bool>> ended_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace plait::nccl
