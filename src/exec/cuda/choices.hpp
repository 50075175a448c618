// The rows of choices.def as values.
#pragma once
#include <span>
#include <string>

#include "plait/plan.hpp"

namespace plait::cuda {

/// A row of choices.def.
struct FusedChoice {
  Collective collective;
  int ranks;
  std::uint64_t from_bytes;
  std::uint64_t upto_bytes;
  const char* kernel;
  bool ahead;
  unsigned most_blocks;  ///< not 0: only where calls leave SMs to others and take no more than that

  bool is_about(const Request& request) const;
};

/// In their order. For a request the first row counts that is about it and whose kernel serves it.
std::span<const FusedChoice> choices();

/// The kinds of GPU and links (gpu_kind.hpp) that they were measured on.
std::span<const char* const> measured_kinds();
/// True where `kind` is one of them: elsewhere nobody knows what is ahead of NCCL.
bool is_measured(const std::string& kind);

/// What ranks that are a process each run where no tuning table, budget or mask says otherwise;
/// empty: a plan.
std::string usual_kernel(const Request& request);

}  // namespace plait::cuda
