// The rows of choices.def as values.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "exec/cuda/engine.hpp"

namespace plait::cuda {

/// A row of choices.def.
struct BuiltInChoice {
  Collective collective;
  int ranks;
  std::uint64_t from_bytes;
  std::uint64_t upto_bytes;
  const Engine& (*engine)();
  bool beats_nccl;       ///< or is as fast, all over the row
  unsigned most_blocks;  ///< not 0: only where calls leave SMs to others and take no more than that
  Tuning tuning;  ///< how the engine does it; a request that it so refuses goes by a later row
  bool in_graphs_alone = false;  ///< only where the call is captured, of just so many ranks

  bool is_about(const Request& request) const;
};

/// In their order. For a request the first row counts that is about it and whose engine takes it.
std::span<const BuiltInChoice> choices();

/// A kind of GPU and links (gpu_kind.hpp) that they were measured on, with so many ranks at most.
struct MeasuredKind {
  std::string_view kind;
  int ranks;
};
std::span<const MeasuredKind> measured_kinds();
/// True where so many GPUs of that kind were measured: elsewhere nobody knows what beats NCCL.
bool is_measured(const std::string& kind, int ranks);
/// The same where a GPU's model alone is known: with whatever links.
bool is_measured_model(const std::string& model, int ranks);

}  // namespace plait::cuda
