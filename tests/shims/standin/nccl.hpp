// The stand-in's communicator, and how its calls become tasks.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "tests/shims/standin/segment.hpp"
#include "tests/shims/standin/standin.hpp"
#include "tests/shims/standin/streams.hpp"

namespace plait::nccl {

struct CommTag {
  int rank = 0;
  int ranks = 1;
  int device = 0;
  standin::Segment* segment = nullptr;
  bool is_split = false;
  std::atomic<bool> aborted{false};
  std::atomic<Result> error{ncclSuccess};
  std::vector<double> scalars;  // of pre-multiplied sums; NaN = the scalar lies at `scalar_places`
  std::vector<const void*> scalar_places;
  standin::Event last;            ///< end of the last call outside of captures
  std::shared_ptr<CommTag> self;  ///< until the program destroys it; calls under way have it too
  ~CommTag();
};

}  // namespace plait::nccl

namespace standin {

using namespace plait::nccl;

/// Half of a send/receive pair.
struct Message {
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
Result submit(CommTag* comm, Stream stream, const Message& message);
/// In a group at its end; else now, or in a thread of its own where `blocking` is false.
Result make_now_or_later(CommTag* comm, bool blocking, std::function<Result()> make);

}  // namespace standin
