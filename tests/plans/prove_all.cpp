// Proves every strategy x topology x collective x rank count x odd size, and checks that plans fit
// the arenas. Parameters rotate through the strategy's candidates.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "plait/error.hpp"
#include "plait/report.hpp"
#include "plans/cases.hpp"

namespace {

using namespace plait;

const std::vector<std::uint64_t> kCounts{0, 1, 2, 3, 5, 127, 1009, 65537, (1ULL << 20) + 3};
const DataType kTypes[] = {DataType::fp32, DataType::bf16, DataType::int8, DataType::fp64};

struct ProofTally {
  std::uint64_t proved = 0;
  std::uint64_t ops = 0;
  std::map<std::string, std::uint64_t> of_strategy;
  std::map<std::string, std::set<std::string>> refusals;  // by strategy: reasons
};

void check_bounds(const Plan& plan, const Topology& topology) {
  const auto scratch = static_cast<std::uint64_t>(
      parameter(topology, "arena_scratch_bytes", static_cast<double>(256ULL << 20)));
  for (const std::uint64_t bytes : plan.scratch_bytes) CHECK(bytes <= scratch);
  for (const std::uint64_t bytes : plan.ring_bytes) CHECK(bytes <= 64ULL << 20);
  CHECK(flags_per_pair(plan) <= 256);
}

void prove(const cases::PlanCase& one, const Params& params, ProofTally& tally) {
  const Plan plan = one.strategy.build(one.topology, one.request, params);
  const Report report = verify(plan);
  ++tally.proved;
  ++tally.of_strategy[plan.strategy];
  tally.ops += report.ops;
  if (report.proved()) return check_bounds(plan, one.topology);
  const Finding& first = report.findings.front();
  FAIL_CHECK(label(plan), " ", std::string(name_of(one.request.collective)), " on ",
             one.topology.name, ", ", one.request.ranks, " ranks, root ", one.request.root,
             ", count ", one.request.count, " of ", std::string(name_of(one.request.type)), ": ",
             report.findings.size(), " findings, first ", first.rule, ": ", first.sentence);
}

// A strategy may refuse a request, with a reason.
void prove_sizes(const cases::PlanCase& unsized, ProofTally& tally) {
  for (std::size_t i = 0; i < kCounts.size(); ++i) {
    cases::PlanCase one = unsized;
    const std::size_t turn = static_cast<std::size_t>(tally.proved) + i;
    one.request.count = kCounts[i];
    one.request.type = kTypes[turn % std::size(kTypes)];
    try {
      one.request = checked(one.request, one.topology);
      const std::vector<Params> sets = one.strategy.candidates(one.topology, one.request);
      REQUIRE(!sets.empty());
      prove(one, sets[turn % sets.size()], tally);
    } catch (const Error& refusal) {
      CHECK(refusal.code() == ErrorCode::unsupported);
      tally.refusals[one.strategy.info.name].insert(refusal.what());
    }
  }
}

}  // namespace

TEST_CASE("every plan of every strategy is proved") {
  ProofTally tally;
  for (const Topology& topology : cases::machines())
    cases::for_each_case(topology, [&](const cases::PlanCase& one) { prove_sizes(one, tally); });
  for (const Strategy* strategy : all_strategies()) {
    CAPTURE(strategy->info.name);
    if (!plait_test::takes_few()) CHECK(tally.of_strategy[strategy->info.name] > 0);
  }
  for (const auto& [strategy, proved] : tally.of_strategy)
    MESSAGE(strategy, ": ", proved, " plans");
  for (const auto& [strategy, reasons] : tally.refusals)
    MESSAGE(strategy, " refused for ", reasons.size(), " reasons, such as: ", *reasons.begin());
  MESSAGE(tally.proved, " plans proved, ", tally.ops, " ops");
  CHECK(tally.proved > static_cast<std::uint64_t>(plait_test::rounds(5000)));
}
