// Describes a GPU: the driver reports model and size, NVML the links.
#include "gpu/device/gpu_kind.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/text.hpp"
#include "driver/cuda/api.hpp"

namespace plait::cuda {
namespace {

std::string links_of(const GpuFacts* facts) {
  if (facts == nullptr || (!facts->tells_links && facts->nvlinks.empty())) return "NVLinks hidden";
  const std::size_t all = facts->nvlinks.size();
  if (all == 0) return "no NVLink";
  const auto end_at = [&](NvlinkEnd end) {
    return static_cast<std::size_t>(
        std::count_if(facts->nvlinks.begin(), facts->nvlinks.end(),
                      [end](const NvlinkFacts& link) { return link.end == end; }));
  };
  const char* ends = end_at(NvlinkEnd::nvswitch) == all  ? "switches"
                     : end_at(NvlinkEnd::unknown) == all ? "unknown ends"
                     : end_at(NvlinkEnd::gpu) == all     ? "GPUs"
                                                         : "several kinds of ends";
  return text("{} NVLinks to {}", all, ends);
}

std::string ask(int ordinal) {
  Device device = 0;
  int multiprocessors = 0;
  char model[256] = {};
  PLAIT_CUDA_CALL(device_get, &device, ordinal);
  PLAIT_CUDA_CALL(device_name, model, sizeof model - 1, device);
  PLAIT_CUDA_CALL(device_attribute, &multiprocessors, kAttributeMultiprocessors, device);
  const std::unique_ptr<Nvml> nvml = open_nvml();
  const std::vector<GpuFacts> all = nvml == nullptr ? std::vector<GpuFacts>() : nvml->gpus();
  const auto facts =
      std::find_if(all.begin(), all.end(),
                   [uuid = uuid_of(ordinal)](const GpuFacts& gpu) { return gpu.uuid == uuid; });
  return gpu_kind(model, multiprocessors, facts == all.end() ? nullptr : &*facts);
}

}  // namespace

std::string gpu_kind(const std::string& model, int multiprocessors, const GpuFacts* facts) {
  return text("{}, {} multiprocessors, {}", model, multiprocessors, links_of(facts));
}

std::string gpu_kind(int ordinal) {
  static std::mutex guard;
  static auto* const known = new std::map<int, std::string>;
  const std::lock_guard<std::mutex> hold(guard);
  const auto found = known->find(ordinal);
  return found != known->end() ? found->second : (*known)[ordinal] = ask(ordinal);
}

int cuda_driver_version() {
  int version = 0;
  if (!why_no_cuda().empty() || api().driver_version(&version) != kSuccess) return 0;
  return version;
}

std::string common_kind(const std::vector<std::string>& kinds) {
  const bool alike = std::all_of(kinds.begin(), kinds.end(),
                                 [&](const std::string& kind) { return kind == kinds.front(); });
  return alike && !kinds.empty() ? kinds.front() : "";
}

}  // namespace plait::cuda
