// Turns a plan of copies into a list of driver calls for a single thread that enqueues all ranks'
// lanes on streams: copies, and event records and waits between lanes. Every wait comes after its
// record, so the work ends even if all streams share a single hardware queue.
#pragma once
#include <vector>

#include "plait/plan.hpp"

namespace plait::cuda {

struct CopyStep {
  enum class CopyStepKind { copy, record, wait };
  CopyStepKind kind = CopyStepKind::copy;
  int lane = 0;           ///< Index into CopySteps::lanes.
  Region dst{}, src{};    ///< Regions of a copy.
  std::size_t event = 0;  ///< record, wait: index into CopySteps::event_lanes.
  bool operator==(const CopyStep&) const = default;
};

struct CopyLane {
  int rank = 0;
  bool is_callers = false;  ///< Runs on the stream that the caller gave for the rank.
  bool operator==(const CopyLane&) const = default;
};

struct CopySteps {
  std::vector<CopyLane> lanes;
  std::vector<CopyStep> steps;
  std::vector<int> event_lanes;  ///< By event: the lane that records the event, once per call.
  bool borrows = false;          ///< Uses scratch or ring, shared by calls.
};

/// Error(unsupported) if the plan has ops besides copies; internal if waits cannot end.
CopySteps order_copies(const Plan& plan);

}  // namespace plait::cuda
