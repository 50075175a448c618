// Probes the kernels of all families on this GPU, and combines the probes of all ranks.
#include "gpu/engine/kernel_families.hpp"

#include <algorithm>
#include <bit>
#include <compare>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <span>

#include "base/log.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

// Kernel arguments; limit of compute capabilities before 9.0.
constexpr std::size_t kMostArgumentBytes = 4096;

/// Result of a family on a GPU, as exchanged by ranks.
struct FamilyProbe {
  unsigned multiprocessors;  ///< of the GPU, the same for each family
  unsigned blocks_at_once;
  char why_not[240];
};

struct ProbeKey {
  Context context;
  Device device;
  int ranks;
  std::string families;
  auto operator<=>(const ProbeKey&) const = default;
};

/// Probes of this process. Their kernels are loaded, unless the program has reset the device
/// (cudaDeviceReset) since: the driver then loads a kernel again at its first launch.
class KeptProbes {
 public:
  /// Returns the latest probes; empty = none.
  std::vector<FamilyProbe> find(const ProbeKey& key) {
    const std::lock_guard<std::mutex> hold(guard_);
    const auto found = all_.find(key);
    return found == all_.end() ? std::vector<FamilyProbe>() : found->second;
  }
  void keep(const ProbeKey& key, const std::vector<FamilyProbe>& probes) {
    const std::lock_guard<std::mutex> hold(guard_);
    all_[key] = probes;
  }

 private:
  std::mutex guard_;
  std::map<ProbeKey, std::vector<FamilyProbe>> all_;
};

/// A single object per process, never destroyed.
KeptProbes& probes() {
  static auto* const only = new KeptProbes;
  return *only;
}

class KernelTrial {
 public:
  KernelTrial(Kernels& kernels, Device device, Stream stream) : kernels_(kernels), stream_(stream) {
    multiprocessors_ = attribute(device, kAttributeMultiprocessors);
    shared_bytes_ = attribute(device, kAttributeMostSharedBytes);
  }

  FamilyProbe probe(const KernelUses& uses) {
    FamilyProbe probed{multiprocessors_, ~0u, ""};
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
  /// that it exits at once. A cluster launches whole: parts of a GPU may have no place for one.
  unsigned blocks_at_once(const std::string& name, const KernelUse& use, std::string& why_not) {
    if (!kernels_.has(name)) {
      why_not = text("the device code for it has no {}", name);
      return 0;
    }
    const Function kernel = kernels_.find(name);
    const unsigned bytes = use.shared_bytes + kernels_.fixed_shared_bytes(kernel);
    if (bytes > shared_bytes_) {
      why_not = text("{} wants {} bytes of shared memory, a block has {} at most", name, bytes,
                     shared_bytes_);
      return 0;
    }
    const KernelLaunchConfig config{use.cluster, use.threads, false, use.shared_bytes, use.cluster};
    try {
      const unsigned blocks = multiprocessors_ * kernels_.blocks_a_multiprocessor(kernel, config);
      if (blocks == 0)
        why_not = text("{} of {} threads is too large for its multiprocessors", name, use.threads);
      else
        kernels_.launch(kernel, config, stream_, {zeros_});
      return blocks;
    } catch (const Error& error) {
      why_not = text("{}: {}", name, error.what());
      return 0;
    }
  }

  Kernels& kernels_;
  const Stream stream_;
  unsigned multiprocessors_ = 0, shared_bytes_ = 0;
  alignas(16) char zeros_[kMostArgumentBytes] = {};
};

/// Returns a request of `ranks` ranks for each collective, reduction and type.
std::vector<Request> every_request(std::initializer_list<Collective> collectives,
                                   std::initializer_list<ReduceOp> ops,
                                   std::span<const DataType> types, int ranks) {
  std::vector<Request> requests;
  for (const Collective collective : collectives)
    for (const ReduceOp op : ops)
      for (const DataType type : types) {
        Request& request = requests.emplace_back();
        request.collective = collective;
        request.op = op;
        request.type = type;
        request.ranks = ranks;
      }
  return requests;
}

}  // namespace

std::vector<Request> requests_of_all_kernels(int ranks) {
  static constexpr DataType kTypes[] = {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) DataType::name,
#include "plait/types.def"
#undef PLAIT_TYPE
  };
  return every_request({Collective::all_reduce, Collective::all_gather, Collective::reduce},
                       {ReduceOp::sum, ReduceOp::max}, kTypes, ranks);
}

std::vector<Request> requests_of_trees(int ranks) {
  if (ranks <= 2 || !std::has_single_bit(static_cast<unsigned>(ranks))) return {};
  return every_request({Collective::all_reduce, Collective::reduce},
                       {ReduceOp::sum, ReduceOp::prod}, kFloatTypes, ranks);
}

const std::string& FamilyLacks::of(const KernelFamily& family) const {
  static const std::string none;
  if (!all_.empty()) return all_;
  for (const auto& [name, why] : lacks_)
    if (name == family.name) return why;
  return none;
}

KernelFamilies::KernelFamilies(Kernels& kernels, const std::vector<const KernelFamily*>& families,
                               Device device, int rank, int ranks,
                               const std::function<Stream()>& stream, bool reuses,
                               const Exchange& exchange) {
  ProbeKey key{nullptr, device, ranks, ""};
  PLAIT_CUDA_CALL(context_current, &key.context);
  for (const KernelFamily* const family : families) key.families += text("{} ", family->name);
  std::vector<FamilyProbe> mine = reuses ? probes().find(key) : std::vector<FamilyProbe>();
  if (mine.empty()) {
    KernelTrial trial(kernels, device, stream());
    for (const KernelFamily* const family : families)
      mine.push_back(trial.probe(family->uses(ranks)));
    PLAIT_CUDA_CALL(stream_synchronize, stream());
    probes().keep(key, mine);
  }
  const std::size_t bytes = mine.size() * sizeof(FamilyProbe);
  const std::vector<std::string> shown =
      exchange(std::string(reinterpret_cast<const char*>(mine.data()), bytes));
  for (const KernelFamily* const family : families) found_.push_back({family});
  std::vector<std::string> why_not(families.size());
  for (std::size_t peer = 0; peer < shown.size(); ++peer) {
    std::vector<FamilyProbe> probed(families.size());
    if (shown[peer].size() != bytes)
      throw Error(ErrorCode::mismatch, text("kernel probes of rank {} have {} bytes, wanted {}",
                                            peer, shown[peer].size(), bytes));
    std::memcpy(probed.data(), shown[peer].data(), bytes);
    for (std::size_t i = 0; i < families.size(); ++i) {
      multiprocessors_ = std::min(multiprocessors_, probed[i].multiprocessors);
      unsigned& blocks = found_[i].blocks_at_once;
      blocks = std::min(blocks, probed[i].blocks_at_once);
      if (probed[i].blocks_at_once == 0 && why_not[i].empty())
        why_not[i] = text("rank {}'s GPU: {}", peer, probed[i].why_not);
    }
  }
  for (std::size_t i = 0; i < families.size(); ++i) {
    if (why_not[i].empty()) continue;
    lacks_.add(*families[i], why_not[i]);
    if (rank == 0)
      log(LogLevel::info, rank, text("no {} kernels: {}", families[i]->name, why_not[i]));
  }
}

unsigned KernelFamilies::blocks_at_once(const KernelFamily& family) const {
  for (const FamilySupport& one : found_)
    if (std::strcmp(one.family->name, family.name) == 0) return one.blocks_at_once;
  throw Error(ErrorCode::internal, text("no probe of {} kernels", family.name));
}

}  // namespace plait::cuda
