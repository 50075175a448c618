// Simulation of a plan on a SimMachine that the caller reuses for several plans.
#pragma once
#include "plait/timeline.hpp"
#include "sim/machine.hpp"

namespace plait::sim {

/// The same as plait::simulate(plan, machine.topology()).
Timeline simulate(const Plan& plan, const SimMachine& machine);

}  // namespace plait::sim
