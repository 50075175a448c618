// Engines' kernels by their price, all else by the event clock.
#include "plait/timeline.hpp"
#include "sim/kernel_price.hpp"

namespace plait {

double predicted_ns(const Plan& plan, const Topology& topology, Launch launch) {
  if (sim::is_kernel_call(plan)) return sim::kernel_call_ns(plan, topology, launch);
  return simulate(plan, topology).total_ns;
}

}  // namespace plait
