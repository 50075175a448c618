// Tuning tables inside the library, one for each measured kind of GPU: tuning/*.json.
#pragma once
#include <string>
#include <vector>

#include "gpu/select/tuning_table.hpp"

namespace plait::cuda {

/// All tables, in order of their names. Read once per process.
const std::vector<TuningTable>& gpu_tables();
/// The table whose rows are a guess for GPUs that address each other and have no table of their
/// own.
const TuningTable& default_table();
/// Tables whose rows are guesses for GPUs of this kind, the best guess first.
std::vector<const TuningTable*> guesses_for(const std::string& kind);
/// The table of a kind of GPU (gpu_kind.hpp). Without one: the default table, or for arenas in host
/// memory the table of H200 through host memory.
const TuningTable& table_of(const std::string& kind);
/// The table of GPU models with any links; the default table for unlike GPUs and unknown models.
const TuningTable& table_of_models(const std::vector<std::string>& models);
/// True if `ranks` GPUs of this kind were measured. Elsewhere no comparison with NCCL is known.
/// PLAIT_TEST_HIDE_TABLES=1: never.
bool is_measured(const std::string& kind, int ranks);
/// The same for GPU models with any links.
bool are_measured_models(const std::vector<std::string>& models, int ranks);
/// "up to 4 of NVIDIA H100 80GB HBM3 and up to 8 of NVIDIA H200".
std::string measured_gpus();

}  // namespace plait::cuda
