// The plans of calls by lines: every kernel, collective, number of ranks and root, sizes that cut
// units and shards short, and inboxes so small that a call takes many pieces.
#include <doctest/doctest.h>

#include "base/text.hpp"
#include "exec/cuda/lines/line_plan.hpp"
#include "plait/report.hpp"
#include "plans/cases.hpp"

namespace {

using namespace plait;
using namespace plait::cuda;

struct Kind {
  LineKernel kernel;
  LineKind line;
};
constexpr Kind kKinds[] = {{LineKernel::one_shot, LineKind::bare},
                           {LineKernel::one_shot, LineKind::flagged},
                           {LineKernel::two_shot, LineKind::bare},
                           {LineKernel::two_shot, LineKind::flagged},
                           {LineKernel::hop, LineKind::escaped}};
const std::vector<std::uint64_t> kCounts{0, 1, 3, 5, 127, 1009, 65537};
constexpr DataType kTypes[] = {DataType::fp32, DataType::bf16, DataType::uint8, DataType::fp64};

std::string first_finding(const Report& report) {
  return report.findings.empty() ? ""
                                 : text(report.findings[0].rule, ": ", report.findings[0].sentence);
}

}  // namespace

TEST_CASE("every plan of a call by lines is proved, of one piece or of many") {
  const Topology topology = cases::wide_machine();
  int plans = 0, in_pieces = 0;
  for (const Kind& kind : kKinds)
    for (int c = 0; c <= static_cast<int>(Collective::copy); ++c)
      for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 16}) {
        const auto collective = static_cast<Collective>(c);
        if (kind.kernel != LineKernel::hop && collective != Collective::all_reduce) continue;
        for (const int root : cases::roots(collective, ranks))
          for (const std::uint64_t count : kCounts)
            for (const std::uint64_t pieces : {1, 2, 3, 6}) {
              Request request;
              request.collective = collective;
              request.ranks = ranks;
              request.root = root;
              request.peer = (root + 1) % ranks;
              request.count = count;
              request.type = kTypes[plans % 4];
              request = checked(request, topology);
              const std::uint64_t units = count * plait::bytes_of(request.type) / 16 + 1;
              const std::uint64_t half = (units / pieces + 2) *
                                         static_cast<std::uint64_t>(2 * ranks) *
                                         plait::cuda::bytes_of(kind.line);
              const Plan plan = line_plan(topology, request, kind.kernel, kind.line, half);
              CAPTURE(text(label(plan), " ", name_of(collective), ", ", ranks, " ranks, ", count,
                           " ", name_of(request.type), ", half ", half));
              CHECK(first_finding(verify(plan)) == "");
              ++plans;
              const std::uint64_t bytes = count * plait::bytes_of(request.type);
              in_pieces += bytes != 0 &&
                           bytes / 2 > static_cast<std::uint64_t>(plan.params.at("piece_bytes"));
            }
      }
  MESSAGE(plans, " plans proved, ", in_pieces, " of them of three pieces or more");
  CHECK(in_pieces > 100);
}
