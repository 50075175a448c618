// Lists the kernels of each family, probes them on this GPU, and combines the probes of all ranks.
#include "gpu/engine/kernel_families.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/log.hpp"
#include "base/text.hpp"
#include "gpu/abi/ll_args.hpp"
#include "gpu/engine/kernel_names.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr const char* kNames[kKernelFamilies] = {"one_shot and two_shot",
                                                 "direct_ll and ll_chain",
                                                 "tiled",
                                                 "message",
                                                 "bulk message",
                                                 "copy engine",
                                                 "plan"};
// Kernel arguments; limit of compute capabilities before 9.0.
constexpr std::size_t kMostArgumentBytes = 4096;

/// Largest launch of a kernel.
struct KernelUse {
  unsigned threads = 512;
  unsigned shared_bytes = 0;
};
using KernelUses = std::map<std::string, KernelUse>;  // By kernel name.

/// Requests that together use every kernel of a communicator of `ranks` ranks.
std::vector<Request> requests_of(int ranks) {
  static constexpr DataType kTypes[] = {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) DataType::name,
#include "plait/types.def"
#undef PLAIT_TYPE
  };
  std::vector<Request> requests;
  for (const Collective collective :
       {Collective::all_reduce, Collective::all_gather, Collective::reduce})
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max})
      for (const DataType type : kTypes) {
        Request& request = requests.emplace_back();
        request.collective = collective;
        request.op = op;
        request.type = type;
        request.ranks = ranks;
      }
  return requests;
}

void add_shots(KernelUses& uses, const Request& request) {
  if (has_two_shot_to_root(request)) uses[shot_kernel("two_shot", request, true)] = {};
  if (request.collective != Collective::all_reduce) return;
  for (const char* const kernel : {"one_shot", "two_shot", "long_two_shot"})
    for (const bool nan_sentinel : {false, true})
      if (!nan_sentinel || is_float(request.type))
        uses[shot_kernel(kernel, request, nan_sentinel)] = {};
}

void add_pieces(KernelUses& uses, const Request& request) {
  for (const int sources : {1, 2, request.ranks})
    uses[piece_kernel(request.type, request.op, sources)] = {};
}

KernelUses uses_of(KernelFamily family, int ranks) {
  KernelUses uses;
  switch (family) {
    case KernelFamily::messages: uses["plait_messages"] = {2 * kMessageTeamThreads, 0}; break;
    case KernelFamily::bulk_messages:
      uses["plait_messages"] = {2 * kMessageTeamThreads, 2 * kMessageTeamBytes};
      break;
    case KernelFamily::engines:
      uses["plait_engine_step"] = uses["plait_engine_end"] = {32, 0};
      break;
    case KernelFamily::lanes:
      uses["plait_end_call"] = uses["plait_fail_if_peer_lost"] = {1, 0};
      break;
    default: break;
  }
  for (const Request& request : requests_of(ranks)) switch (family) {
      case KernelFamily::shots: add_shots(uses, request); break;
      case KernelFamily::direct_ll:
        uses[direct_ll_kernel(request, false)] = {};
        for (const bool is_long : {false, true}) uses[chain_kernel(request, is_long)] = {};
        if (has_short_direct_ll(request))
          uses[direct_ll_kernel(request, true)] = {kShortDirectLlThreads, 0};
        break;
      case KernelFamily::tiled:
        for (const bool fold : {false, true})
          uses[tiled_kernel(request, fold)] = {kTileThreads, kTileSharedBytes};
        break;
      case KernelFamily::engines: add_pieces(uses, request); break;
      case KernelFamily::lanes: uses[lane_kernel(request)] = {}; break;
      default: break;
    }
  return uses;
}

/// Result of a family on a GPU, as exchanged by ranks.
struct FamilyProbe {
  unsigned blocks_at_once;
  char why_not[240];
};

class KernelTrial {
 public:
  KernelTrial(Kernels& kernels, Device device, Stream stream) : kernels_(kernels), stream_(stream) {
    multiprocessors_ = attribute(device, kAttributeMultiprocessors);
    shared_bytes_ = attribute(device, kAttributeMostSharedBytes);
  }

  FamilyProbe probe(const KernelUses& uses) {
    FamilyProbe probed{~0u, ""};
    for (const auto& [name, use] : uses) {
      std::string why_not;
      const unsigned blocks = blocks_at_once(name, use, why_not);
      probed.blocks_at_once = std::min(probed.blocks_at_once, blocks);
      if (blocks != 0) continue;
      why_not.copy(probed.why_not, sizeof probed.why_not - 1);
      break;
    }
    return probed;
  }

 private:
  static unsigned attribute(Device device, int which) {
    int value = 0;
    PLAIT_CUDA_CALL(device_attribute, &value, which, device);
    return static_cast<unsigned>(std::max(0, value));
  }

  /// Blocks that run at once; 0 if the kernel cannot run. Launches the kernel with a null state, so
  /// that it exits at once.
  unsigned blocks_at_once(const std::string& name, const KernelUse& use, std::string& why_not) {
    if (!kernels_.has(name)) {
      why_not = text("the device code for it has no ", name);
      return 0;
    }
    const Function kernel = kernels_.find(name);
    const unsigned bytes = use.shared_bytes + kernels_.fixed_shared_bytes(kernel);
    if (bytes > shared_bytes_) {
      why_not = text(name, " wants ", bytes, " bytes of shared memory, a block has ", shared_bytes_,
                     " at most");
      return 0;
    }
    const KernelLaunchConfig config{1, use.threads, false, use.shared_bytes};
    try {
      const unsigned blocks = multiprocessors_ * kernels_.blocks_a_multiprocessor(kernel, config);
      if (blocks == 0)
        why_not = text(name, " of ", use.threads, " threads is too large for its multiprocessors");
      else
        kernels_.launch(kernel, config, stream_, {zeros_});
      return blocks;
    } catch (const Error& error) {
      why_not = text(name, ": ", error.what());
      return 0;
    }
  }

  Kernels& kernels_;
  const Stream stream_;
  unsigned multiprocessors_ = 0, shared_bytes_ = 0;
  alignas(16) char zeros_[kMostArgumentBytes] = {};
};

}  // namespace

KernelFamilies::KernelFamilies(Kernels& kernels, Device device, int rank, int ranks, Stream stream,
                               const Exchange& exchange) {
  KernelTrial trial(kernels, device, stream);
  FamilyProbe mine[kKernelFamilies];
  for (std::size_t i = 0; i < kKernelFamilies; ++i)
    mine[i] = trial.probe(uses_of(static_cast<KernelFamily>(i), ranks));
  PLAIT_CUDA_CALL(stream_synchronize, stream);
  const std::vector<std::string> shown =
      exchange(std::string(reinterpret_cast<const char*>(mine), sizeof mine));
  for (std::size_t peer = 0; peer < shown.size(); ++peer) {
    FamilyProbe probed[kKernelFamilies];
    if (shown[peer].size() != sizeof probed)
      throw Error(ErrorCode::mismatch, text("kernel probes of rank ", peer, " have ",
                                            shown[peer].size(), " bytes, wanted ", sizeof probed));
    std::memcpy(probed, shown[peer].data(), sizeof probed);
    for (std::size_t i = 0; i < kKernelFamilies; ++i) {
      FamilySupport& found = found_[i];
      found.blocks_at_once = std::min(found.blocks_at_once, probed[i].blocks_at_once);
      if (probed[i].blocks_at_once == 0 && found.why_not.empty())
        found.why_not = text("rank ", peer, "'s GPU: ", probed[i].why_not);
    }
  }
  for (std::size_t i = 0; rank == 0 && i < kKernelFamilies; ++i)
    if (!found_[i].why_not.empty())
      log(LogLevel::info, rank, text("no ", kNames[i], " kernels: ", found_[i].why_not));
}

}  // namespace plait::cuda
