// PLAIT_* variables -> what the drop-in goes by, read once a process. A bad value is no reason to
// end somebody's program: it is this rank's reason to stay on NCCL, and so everybody's.
#pragma once
#include <cstdint>
#include <string>

#include "base/env.hpp"

namespace plait::nccl {

struct Settings {
  Env env;
  std::uint32_t served = 0;  ///< bit by Collective: PLAIT_OPS
  std::string refusal;       ///< why this process cannot or must not take part; empty = it can
  bool strict = false;       ///< PLAIT_BITWISE_STRICT, also where another variable is wrong
  std::string shared;        ///< all that peers must have alike, as text
};

const Settings& settings();

/// Most blocks (CTAs) of a call, as NCCL was told: NCCL_MAX_CTAS, else `configured`, and no more
/// than NCCL_MAX_NCHANNELS; 0 = nothing was said. Read when NCCL has made a communicator, which is
/// when it has put its files' settings into the environment.
unsigned most_ctas(unsigned configured);
/// NCCL_GRAPH_MIXING_SUPPORT where that is 0 or 1, else `configured`.
bool mixes_graphs(bool configured);

}  // namespace plait::nccl
