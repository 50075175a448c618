// Kinds of GPU and usual speeds: gpus/models.json, inside the library (docs/tune.md has its keys).
#pragma once
#include <string>
#include <vector>

namespace plait {

/// A row of the file: what holds for every GPU with the row's words in its name.
struct GpuModel {
  std::string words;             ///< lower case, between spaces: " a100 sxm4 "
  bool is_of_amd = false;        ///< plait's device code runs on GPUs of NVIDIA alone
  int capability = 0;            ///< compute capability times ten; 0 = not of NVIDIA
  unsigned multiprocessors = 0;  ///< equal on every board of the name; 0 = boards differ
  std::string speeds_of;         ///< shipped machine with this GPU; empty = none
  int switch_links = 0;          ///< NVLinks of each GPU to NVSwitch; 0 = sold without NVSwitch
};

struct GpuModels {
  double share_of_nominal = 0;  ///< what links reach: 395 of 450 GB/s on HGX H200
  double bus_gb_per_s = 0;      ///< between sockets, if no figure is known
  double dram_gb_per_s = 0;     ///< host memory, if no figure is known
  std::vector<GpuModel> rows;   ///< the first with all its words in a name counts
};

const GpuModels& gpu_models();
/// Returns the row of "NVIDIA A100-SXM4-40GB"; nullptr = an unknown GPU.
const GpuModel* gpu_model(const std::string& name);

}  // namespace plait
