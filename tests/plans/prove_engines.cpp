// Proves every case of `plait verify --all` on engines, or checks that a refusal has a reason.
#include "comm/choose/prove_engines.hpp"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "base/text.hpp"
#include "gpu/select/engines.hpp"
#include "unit/scale.hpp"

using namespace plait;

TEST_CASE("every call by engines is proved") {
  struct EngineTally {
    int proved = 0, refused = 0;
  };
  std::map<std::string, EngineTally> of_engine;
  std::set<std::string> reasons;
  std::uint64_t ops = 0;
  plait_test::Sample is_next_taken;
  for (const cuda::EngineCase& one : cuda::engine_cases()) {
    if (!is_next_taken()) continue;
    const EngineProof proof = prove(one);
    CHECK_MESSAGE(proof.findings.empty(), one.label);
    if (!proof.findings.empty())
      FAIL_CHECK(one.engine, ": ", one.label, ": ", proof.findings.size(), " findings, first ",
                 proof.findings.front().rule, ": ", proof.findings.front().sentence);
    ++(proof.refusal.empty() ? of_engine[one.engine].proved : of_engine[one.engine].refused);
    if (!proof.refusal.empty()) reasons.insert(proof.refusal);
    ops += proof.ops;
  }
  for (const auto& [engine, tally] : of_engine)
    MESSAGE(engine, ": ", tally.proved, " proved, ", tally.refused, " refused");
  for (const std::string& reason : reasons) MESSAGE("refused: ", reason);
  MESSAGE(ops, " ops");
  if (plait_test::takes_few()) return;
  CHECK(of_engine["in a row"].proved > plait_test::rounds(50));
  for (const cuda::Engine* const engine : cuda::engines())
    CHECK(of_engine[engine->info().name].proved > plait_test::rounds(50));
}
