// The reference executor: a single thread, plain loops, slow. Tests compare all other executors
// with the reference.
#pragma once
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// Runs the whole plan for all ranks in this thread. inputs[r] and outputs[r] hold input_bytes and
/// output_bytes(plan.request, r); equal pointers mean in place. scalars (premul_sum) may be empty.
/// Lanes take turns, one op at a time; Error(timeout) with rank, op and flag if no lane can
/// continue.
void run_reference(const Plan& plan, const std::vector<const void*>& inputs,
                   const std::vector<void*>& outputs, const std::vector<double>& scalars = {});

}  // namespace plait
