// The stand-in's communicator, and how its calls become tasks. A communicator that does not block
// does so as NCCL's (init.cc, group.cc): what is begun on it runs in a thread, which
// ncclCommGetAsyncError joins.
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

/// What a group of communicators that do not block has begun: each of them has it until it is
/// joined. The result is the communicators' own.
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
  bool blocks = true;  ///< of its configuration; children without one inherit it
  std::shared_ptr<GroupJob> job;
  std::atomic<int> inside{0};       ///< threads that look at the job now
  standin::SegmentHandle grown_at;  ///< where ncclCommGrow meets: the root's alone
  standin::Segment* segment = nullptr;
  bool is_split = false;
  std::atomic<bool> aborted{false};
  std::atomic<Result> error{ncclSuccess};
  std::vector<double> scalars;  // of pre-multiplied sums; NaN = the scalar lies at `scalar_places`
  std::vector<const void*> scalar_places;
  standin::StreamEvent last;      ///< end of the last call outside of captures
  std::shared_ptr<CommTag> self;  ///< until the program destroys it; calls under way have it too
  ~CommTag();
};

}  // namespace plait::nccl

namespace standin {

using namespace plait::nccl;

/// Half of a send/receive pair.
struct StandinMessage {
  bool sends = false;
  int peer = 0;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t bytes = 0;
  std::size_t at = 0;
  bool started = false;
  /// Moves a piece if it can; true when all has been moved.
  bool step(CommTag& comm);
};

inline void count(const char* name) { standin_count(name); }
Result submit(CommTag* comm, Stream stream, std::function<void()> collective);
Result submit(CommTag* comm, Stream stream, const StandinMessage& message);
/// At the end of the group, if there is one. Where `waiting` does not block, in a thread, and
/// `waiting` is in progress meanwhile: a new communicator itself, the parent of a split or shrunk
/// one. What NCCL's functions return, whatever the thread finds.
Result make_now_or_later(CommTag* waiting, std::function<Result()> make);
/// What ncclCommGetAsyncError finds, and joins.
Result state_of(CommTag* comm);

}  // namespace standin
