// Every engine of engines.def by one body (conformance.hpp). An engine whose work goes through the
// queue is covered by being in the list; one with a kernel of its own says here how that is traced.
#include <doctest/doctest.h>

#include "conformance/conformance.hpp"

using namespace plait_test;
using namespace plait_test::conformance;

TEST_CASE("every engine refuses a call with a reason, or does what its plan says" *
          doctest::skip(kLooksForRaces)) {
  const Traces traces{{"one_shot", trace_lines},
                      {"two_shot", trace_lines},
                      {"hop", trace_lines},
                      {"tiled", trace_tiles}};
  for (const Engine* const engine : engines()) check_engine(*engine, traces);
}
