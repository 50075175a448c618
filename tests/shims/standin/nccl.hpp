// Communicator of the stand-in, and the way from calls to tasks. A non-blocking communicator
// behaves like NCCL's (init.cc, group.cc): the work runs in a thread, joined by
// ncclCommGetAsyncError.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/shims/standin/segment.hpp"
#include "tests/shims/standin/standin.hpp"
#include "tests/shims/standin/streams.hpp"

namespace plait::nccl {

/// Work that a group of non-blocking communicators has started; each communicator holds the work
/// until the thread is joined. Each communicator has a separate result.
struct GroupJob {
  std::thread thread;
  ~GroupJob() {
    if (thread.joinable()) thread.join();
  }
};

struct CommTag {
  int rank = 0;
  int ranks = 1;
  int device = 0;
  bool blocks = true;  ///< from the configuration; children inherit it
  std::shared_ptr<GroupJob> job;
  std::atomic<int> inside{0};       ///< threads that read the job now
  standin::SegmentHandle grown_at;  ///< segment of ncclCommGrow; set on the root only
  standin::Segment* segment = nullptr;
  bool is_split = false;
  bool is_finalized = false;
  std::atomic<bool> is_made{false};
  bool suspended = false;
  std::atomic<bool> aborted{false};
  std::atomic<Result> error{ncclSuccess};
  std::vector<double> scalars;  // per pre-multiplied sum; NaN = the scalar lies at `scalar_places`
  std::vector<const void*> scalar_places;
  standin::StreamEvent last;      ///< end of the last call outside of captures
  std::shared_ptr<CommTag> self;  ///< until the program destroys it; running calls hold it too
  ~CommTag();
};

}  // namespace plait::nccl

namespace standin {

using namespace plait::nccl;

/// A side of a send/receive pair.
struct StandinMessage {
  bool sends = false;
  int peer = 0;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t bytes = 0;
  std::size_t at = 0;
  bool started = false;
  /// Moves a piece if possible; returns true when the message is complete.
  bool step(CommTag& comm);
};

inline void count(const char* name) { standin_count(name); }
Result submit(CommTag* comm, Stream stream, std::function<void()> collective);
Result submit(CommTag* comm, Stream stream, const StandinMessage& message);
/// Runs `make` at the end of the open group, or now. If `waiting` (the new communicator, or the
/// parent of a split or shrunk one) does not block, runs the work in a thread, and `waiting` is in
/// progress meanwhile. Returns NCCL's immediate result.
Result make_now_or_later(CommTag* waiting, std::function<Result()> make);
/// Returns the state for ncclCommGetAsyncError, and joins finished work.
Result state_of(CommTag* comm);

}  // namespace standin
