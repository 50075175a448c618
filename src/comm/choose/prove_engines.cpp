// Makes and proves the plans of engine cases.
#include "comm/choose/prove_engines.hpp"

#include "plait/error.hpp"

namespace plait {

EngineProof prove(const cuda::EngineCase& one) {
  EngineProof proof{one.engine, one.label, "", {}, 0};
  std::vector<Plan> plans;
  try {
    for (const auto& call : one.calls) plans.push_back(call());
  } catch (const Error& refusal) {
    if (refusal.code() != ErrorCode::unsupported) throw;
    proof.refusal = refusal.what();
    return proof;
  }
  std::vector<const Plan*> calls;
  for (const Plan& plan : plans) calls.push_back(&plan);
  const auto add = [&](const Report& report) {
    proof.findings.insert(proof.findings.end(), report.findings.begin(), report.findings.end());
    proof.ops += report.ops;
  };
  const bool is_row = calls.size() > 1;
  add(is_row ? verify_in_a_row(calls) : verify(plans.front()));
  if (one.in_graphs && proof.findings.empty())
    add(verify_in_a_graph(is_row ? calls : std::vector<const Plan*>{calls[0], calls[0]}));
  return proof;
}

}  // namespace plait
