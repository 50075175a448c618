// Random damage to a correct plan: verify() reports it, or the plan is still correct. verify()
// never crashes. The seed is printed, so that a failure can be repeated.
#include <cstdint>
#include <limits>
#include <random>

#include "unit/cpu_time.hpp"
#include "unit/scale.hpp"
#include "unit/verify/example.hpp"

namespace plait {
namespace {

using Random = std::mt19937_64;

template <class Items>
auto& any(Items& items, Random& random) {
  return items[random() % items.size()];
}

std::uint64_t wild(Random& random) {
  constexpr std::uint64_t kWild[] = {0,
                                     1,
                                     3,
                                     128,
                                     1ULL << 31,
                                     1ULL << 32,
                                     1ULL << 62,
                                     std::numeric_limits<std::uint64_t>::max() - 7,
                                     std::numeric_limits<std::uint64_t>::max()};
  return kWild[random() % std::size(kWild)];
}

void damage(Region& region, Random& random) {
  switch (random() % 4) {
    case 0: region.space = static_cast<Space>(random() % 7); break;
    case 1: region.rank = static_cast<int>(wild(random)); break;
    case 2: region.offset = wild(random); break;
    default: region.bytes = wild(random);
  }
}

void damage(Plan& plan, Random& random) {
  Lane& lane = any(plan.lanes, random);
  if (lane.ops.empty()) return;
  Op& op = any(lane.ops, random);
  switch (random() % 12) {
    case 0: op.kind = static_cast<OpKind>(random() % 7); break;
    case 1: damage(op.dst, random); break;
    case 2:
      if (!op.srcs.empty()) damage(any(op.srcs, random), random);
      break;
    case 3: op.srcs.clear(); break;
    case 4: op.path = static_cast<int>(wild(random)); break;
    case 5: op.flag.index = static_cast<int>(wild(random)); break;
    case 6: op.value = static_cast<std::uint32_t>(wild(random)); break;
    case 7: std::swap(op, any(lane.ops, random)); break;
    case 8: lane.ops.push_back(op); break;
    case 9: lane.rank = static_cast<int>(random() % 5) - 1; break;
    case 10: any(plan.scratch_bytes, random) = wild(random); break;
    default: lane.ops.erase(lane.ops.begin() + static_cast<std::ptrdiff_t>(&op - lane.ops.data()));
  }
}

}  // namespace

TEST_CASE("whatever is damaged, verify returns") {
  const std::uint64_t seed = std::random_device{}();
  MESSAGE("seed " << seed);
  Random random(seed);
  int found = 0;
  const int trials = plait_test::rounds(3000);
  for (int trial = 0; trial < trials; ++trial) {
    Plan plan = example::direct(trial % 2 == 0 ? Collective::all_reduce : Collective::all_gather, 3,
                                64, trial % 3 == 0 ? Space::inbox : Space::scratch);
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n) damage(plan, random);
    const Report report = verify(plan);
    found += report.proved() ? 0 : 1;
    for (const Finding& finding : report.findings) CHECK_FALSE(finding.sentence.empty());
    CHECK(verify(plan) == report);
  }
  CHECK(found > trials / 2);  // most damage matters
}

// In the example every op is needed: waits, signals and moves.
TEST_CASE("every op of the direct plan is missed") {
  for (const Space slots : {Space::scratch, Space::inbox})
    for (const Collective collective : {Collective::all_reduce, Collective::all_gather}) {
      const Plan right = example::direct(collective, 4, 64, slots);
      for (std::size_t i = 0; i < right.lanes.size(); ++i)
        for (std::size_t k = 0; k < right.lanes[i].ops.size(); ++k) {
          Plan plan = right;
          plan.lanes[i].ops.erase(plan.lanes[i].ops.begin() + static_cast<std::ptrdiff_t>(k));
          CAPTURE(i);
          CAPTURE(print(right.lanes[i].ops[k], right));
          CHECK_FALSE(verify(plan).proved());
        }
    }
}

TEST_CASE("16 ranks with 1000 ops each are proved well under a second") {
  // 16 ranks with 60 ops a round do not reach 1000, hence the exchange repeats on fresh bytes.
  Plan plan = example::direct(Collective::all_reduce, 16, 64);
  const Plan once = plan;
  const std::uint32_t rounds = 16;
  const std::uint32_t epochs = epochs_per_call(once);
  for (std::uint32_t round = 1; round < rounds; ++round)
    for (std::size_t i = 0; i < plan.lanes.size(); ++i)
      for (Op op : once.lanes[i].ops) {
        op.value += round * epochs;
        // In place the sum overwrites the input, hence copies of later rounds use slots only.
        if (op.kind == OpKind::signal || op.kind == OpKind::wait) plan.lanes[i].ops.push_back(op);
      }
  CHECK(op_count(plan) > 15000);
  const double start_s = plait_test::cpu_s();
  const Report report = verify(plan);
  const double took_s = plait_test::cpu_s() - start_s;
  INFO(print(report));
  CHECK(report.proved());
  MESSAGE(op_count(plan) << " ops proved in " << took_s << " s");
  CHECK(took_s < 1.0);
}

}  // namespace plait
