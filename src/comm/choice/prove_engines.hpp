// Proofs of engines' calls, case by case: what `plait verify --all` says of engines.
#pragma once
#include <string>
#include <vector>

#include "exec/cuda/engine_cases.hpp"
#include "plait/report.hpp"

namespace plait {

struct EngineProof {
  std::string engine, label;      ///< of the case
  std::string refusal;            ///< why the engine does not serve the case; empty = it does
  std::vector<Finding> findings;  ///< empty = proved
  std::uint64_t ops = 0;
};

/// A call by itself: verify(), and in a graph where the case says so. Calls in a row: that.
EngineProof prove(const cuda::EngineCase& one);

}  // namespace plait
