// Keeps the pairs of GPUs between which this process has proved all paths (path_check.hpp). A
// further communicator of such pairs alone needs no check before its first call.
#pragma once
#include <string>
#include <vector>

namespace plait::cuda {

/// Stores that all paths between the GPUs are proved. gpus: UUIDs of a communicator's GPUs. Any
/// thread.
void note_proved_paths(const std::vector<std::string>& gpus);
/// Returns whether all paths between the GPUs are proved; false if `gpus` is empty.
bool are_paths_proved(const std::vector<std::string>& gpus);

}  // namespace plait::cuda
