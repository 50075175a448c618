// A plan of copies -> the calls by which one thread puts all ranks' lanes on streams: copies, and
// events where one lane waits for another. No call comes before the one it waits for, so the calls
// could all go through one hardware queue and would still end.
#pragma once
#include <vector>

#include "plait/plan.hpp"

namespace plait::cuda {

struct CopyStep {
  enum class StepKind { copy, record, wait };
  StepKind kind = StepKind::copy;
  int lane = 0;           ///< index into CopySteps::lanes
  Region dst{}, src{};    ///< copy
  std::size_t event = 0;  ///< record, wait: index into CopySteps::event_lanes
  bool operator==(const CopyStep&) const = default;
};

struct CopyLane {
  int rank = 0;
  bool is_callers = false;  ///< on the stream that the caller gave for the rank
  bool operator==(const CopyLane&) const = default;
};

struct CopySteps {
  std::vector<CopyLane> lanes;
  std::vector<CopyStep> steps;
  std::vector<int> event_lanes;  ///< by event: the lane that records it, once a call
  bool borrows = false;          ///< uses scratch or ring, which calls share
};

/// Error(unsupported) where the plan does more than copy; internal where its waits cannot end.
CopySteps order_copies(const Plan& plan);

}  // namespace plait::cuda
