// Plans of calls by copy engines, written by the engines' own code.
#include "bind.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/select/engines.hpp"
#include "gpu/tile/tile_memory.hpp"

using namespace plait;

void bind_copy_plans(nb::module_& module) {
  module.def(
      "plan_of_copies",
      [](const Topology& topology, const Request& request, std::uint64_t inbox_bytes,
         std::uint64_t borrowed_bytes, std::uint64_t ring_bytes, int host_permille) {
        cuda::Group group;
        group.ranks = request.ranks;
        group.sizes[cuda::kCopyMemory] = inbox_bytes;
        group.sizes[cuda::kTileMemory] = borrowed_bytes;
        group.host_bytes = ring_bytes;
        cuda::Tuning tuning;
        tuning.host_permille = host_permille;
        const Request placed = checked(request, topology);
        return cuda::engine_named("rotation", placed)->plan(topology, placed, tuning, group);
      },
      nb::arg("topology"), nb::arg("request"), nb::arg("inbox_bytes"),
      nb::arg("borrowed_bytes") = 0, nb::arg("ring_bytes") = 0, nb::arg("host_permille") = 0,
      nb::call_guard<nb::gil_scoped_release>(),
      "Plan by copy engines: exchange of two ranks, ring for all_gather of more, else rotation.");
}
