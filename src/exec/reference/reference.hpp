// The obvious executor: one thread, plain loops, no speed. What all others are compared with.
#pragma once
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// Runs the whole plan for all ranks in this thread. inputs[r] and outputs[r] hold input_bytes and
/// output_bytes(plan.request, r); equal pointers mean in place. scalars (premul_sum) may be empty.
/// Lanes take turns, an op at a time; Error(timeout) naming rank, op and flag where none can go on.
void run_reference(const Plan& plan, const std::vector<const void*>& inputs,
                   const std::vector<void*>& outputs, const std::vector<double>& scalars = {});

}  // namespace plait
