// Rows of choices.def as values, read by select.cpp.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "gpu/engine/engine.hpp"

namespace plait::cuda {

/// Row of choices.def.
struct BuiltInChoice {
  Collective collective;
  int ranks;
  std::uint64_t from_bytes;
  std::uint64_t upto_bytes;
  const Engine& (*engine)();
  bool beats_nccl;  ///< NCCL was slower or equal all over the row.
  /// If not 0: only for calls that leave SMs to other work and use at most this many blocks.
  unsigned most_blocks;
  /// Engine parameters. A request that the engine refuses with this tuning uses a later row.
  Tuning tuning;
  bool in_graphs_alone = false;  ///< Only for captured calls of exactly `ranks` ranks.

  bool is_about(const Request& request) const;
};

/// All rows in order. The first row that matches a request and names an engine that accepts it
/// wins.
std::span<const BuiltInChoice> choices();

/// A kind of GPU and links (gpu_kind.hpp) that rows were measured on, and the most ranks measured.
struct MeasuredKind {
  std::string_view kind;
  int ranks;
};
std::span<const MeasuredKind> measured_kinds();
/// True if `ranks` GPUs of this kind were measured. Elsewhere no comparison with NCCL is known.
bool is_measured(const std::string& kind, int ranks);
/// The same for a GPU model alone, with any links.
bool is_measured_model(const std::string& model, int ranks);

}  // namespace plait::cuda
