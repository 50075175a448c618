// Pairs of GPUs between which this process has proved all paths (path_check.hpp). Further
// communicators of these GPUs need no check before their first call.
#pragma once
#include <string>
#include <vector>

namespace plait::cuda {

/// gpus: UUIDs of a communicator's GPUs. Any thread.
void note_proved_paths(const std::vector<std::string>& gpus);
/// Returns whether the paths between all of these GPUs are proved. False for no GPUs.
bool are_paths_proved(const std::vector<std::string>& gpus);

}  // namespace plait::cuda
