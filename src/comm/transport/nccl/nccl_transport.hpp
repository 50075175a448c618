// NCCL's communicators of a rank between nodes: among all ranks, and among ranks of equal place in
// the nodes (a rail). Calls come in stream order; any thread may abort once.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/transport/nccl/abi.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"

namespace plait::nccl {

/// Returns "" if NCCL can run the request between nodes, else the reason.
std::string why_no_call(const Request& request);

class NcclTransport {
 public:
  /// Held during NCCL calls at the end, so that a drop-in does not treat them as calls of the
  /// program.
  using Guard = std::function<std::shared_ptr<void>()>;
  /// whole: communicator of all ranks; null or borrowed (owns_whole). rail: a rank per node, of
  /// this rank's place; null if the place has no rail, or if nodes have a single rank each and
  /// `whole` is the rail.
  NcclTransport(Comm whole, bool owns_whole, Comm rail, Guard guard = nullptr)
      : whole_(whole), rail_(rail), owns_whole_(owns_whole), guard_(std::move(guard)) {}

  /// Runs this rank's part as number `member` of the communicator. scalar: premul_sum's. May wait
  /// for peers when a communicator is first used. Throws Error(peer_lost, aborted,
  /// unsupported).
  void call(const Request& request, bool whole, int member, const void* src, void* dst,
            Stream stream, double scalar = 1.0);
  /// Sends to and receives from a single rank of all; a null pointer is skipped. Throws as call().
  void message(int peer, const void* sent, void* received, std::uint64_t bytes, Stream stream);
  /// Start time of a call that is inside NCCL; 0 = none. Any thread.
  std::int64_t inside_since_ns() const { return inside_since_ns_.load(); }
  /// Returns the error between nodes that NCCL reports. Any thread.
  std::optional<Error> failure();
  /// Ends NCCL's kernels at once. Only the first call acts, since NCCL frees the aborted
  /// communicators. The abort runs in a new thread, since NCCL may wait for missing ranks.
  void abort() noexcept;
  /// Waits until the abort has ended, at most wait_s.
  void await_abort(double wait_s) const noexcept;
  /// Destroys the communicators, once; does nothing after abort().
  void end() noexcept;

 private:
  /// Marks a thread that may be inside an NCCL call: abort() waits for the thread.
  class Caller;
  void require_usable(const Request& request) const;
  /// Throws unless NCCL accepted the call. NCCL launches calls of a non-blocking communicator in a
  /// thread of NCCL's; this function then waits until the call is on the stream.
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
  mutable std::atomic<bool> is_late_{false};  // NCCL launched a call in a thread of its own
  std::mutex asking_;                         // held while a call is inside NCCL
  std::shared_ptr<std::atomic<bool>> ended_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace plait::nccl
