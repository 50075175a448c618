// ncclGroupStart .. ncclGroupEnd, as each thread sees it: calls that plait takes and communicators
// made meanwhile are noted, and dealt with when the outermost group ends.
#pragma once
#include <vector>

#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

/// A collective as the program asked for it.
struct Call {
  Request request;
  const void* input = nullptr;
  void* output = nullptr;
  Stream stream = nullptr;
};

struct Noted {
  CommTable::Pin pin;
  Call call;
};

struct Group {
  int depth = 0;
  std::vector<Noted> calls;
  std::vector<Comm*> made;  ///< where handles are, or will be, written
};

/// This thread's.
Group& group();

/// While one lives, this thread is inside the real library: what that calls of its own public names
/// (ncclBcast calls ncclBroadcast, ...) goes straight on.
class InReal {
 public:
  InReal() { ++depth(); }
  ~InReal() { --depth(); }
  InReal(const InReal&) = delete;
  InReal& operator=(const InReal&) = delete;
  static int& depth();
};

}  // namespace plait::nccl
