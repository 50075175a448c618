// The plans of calls by copy engines, as the engines' own code makes them.
#include "bind.hpp"
#include "exec/cuda/copies/copy_plans.hpp"

using namespace plait;

void bind_copy_plans(nb::module_& module) {
  module.def(
      "plan_of_copies",
      [](const Topology& topology, const Request& request, std::uint64_t inbox_bytes,
         std::uint64_t slot_bytes, std::uint64_t lent_bytes, std::uint64_t ring_bytes,
         std::uint32_t host_permille) {
        const cuda::CopyRoom room{lent_bytes, inbox_bytes, slot_bytes, lent_bytes, ring_bytes};
        cuda::CopyTuning tuning;
        tuning.host_permille = host_permille;
        return cuda::plan_of_copies(topology, checked(request, topology), room, tuning);
      },
      nb::arg("topology"), nb::arg("request"), nb::arg("inbox_bytes"), nb::arg("slot_bytes"),
      nb::arg("lent_bytes") = 0, nb::arg("ring_bytes") = 0, nb::arg("host_permille") = 0,
      nb::call_guard<nb::gil_scoped_release>(),
      "Two ranks exchange, an all_gather of more goes round a ring, what else there is rotates.");
}
