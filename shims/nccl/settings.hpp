// Settings of the drop-in from PLAIT_* variables, read once a process. A bad value does not end the
// program: this rank, and hence all ranks, stay on NCCL.
#pragma once
#include <cstdint>
#include <string>

#include "base/env.hpp"

namespace plait::nccl {

struct Settings {
  Env env;
  std::uint32_t served = 0;  ///< bit by Collective: PLAIT_OPS
  std::string refusal;       ///< why this process does not take part; empty = takes part
  bool strict = false;       ///< PLAIT_BITWISE_STRICT; valid even if another variable is wrong
  std::string shared;        ///< settings that must be equal on all ranks, as text
};

const Settings& settings();

/// Returns NCCL_GRAPH_MIXING_SUPPORT if it is 0 or 1, else `configured`.
bool mixes_graphs(bool configured);

}  // namespace plait::nccl
