// Proves engines' calls case by case, for `plait verify --all`.
#pragma once
#include <string>
#include <vector>

#include "gpu/select/engine_cases.hpp"
#include "plait/report.hpp"

namespace plait {

struct EngineProof {
  std::string engine, label;      ///< of the case
  std::string refusal;            ///< why the engine does not serve the case; empty = it does
  std::vector<Finding> findings;  ///< empty = proved
  std::uint64_t ops = 0;
};

/// Proves a single call with verify(), also in a graph if the case says so, or calls in a row.
EngineProof prove(const cuda::EngineCase& one);

}  // namespace plait
