// One plan on a machine that others are simulated on too, which is then looked through once.
#pragma once
#include "plait/timeline.hpp"
#include "sim/machine.hpp"

namespace plait::sim {

/// As plait::simulate(plan, machine.topology()).
Timeline simulate(const Plan& plan, const SimMachine& machine);

}  // namespace plait::sim
