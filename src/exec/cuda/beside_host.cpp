// A call whose message goes through host memory in part, beside the kernel that does the rest.
#include <algorithm>

#include "exec/cuda/cuda_rank.hpp"
#include "exec/cuda/host/host_reduction.hpp"

namespace plait::cuda {
namespace {

/// A part whose results alone go through host memory spares the links half of its way.
constexpr std::uint32_t kOfResults = 2;

}  // namespace

/// A part of the message through host memory, where that is asked for or best, the rest by the
/// kernel.
void CudaRank::run_beside_host(const std::string& kernel, const Request& request, const void* input,
                               void* output, Stream stream, const std::vector<double>& scalars,
                               const FusedTuning& tuning) {
  const std::uint64_t element = bytes_of(request.type);
  const std::uint64_t bytes = request.count * element;
  CallArgs call{};
  fill_call(call, request, input, output, scalars);
  FusedTuning alone = tuning;
  alone.host_permille = 0;
  // What goes beside it waits for other ranks too, in small kernels that must find an SM.
  if (alone.blocks != 0) alone.blocks = std::min(alone.blocks, blocks_with_room());
  // The kernel's part is never empty: no cut takes the whole message.
  const auto run = [&](auto& part, std::uint64_t from, std::uint64_t part_bytes) {
    Request rest = request;
    rest.count = (bytes - part_bytes) / element;
    run_kernel(kernel, rest, static_cast<const char*>(input) + from,
               static_cast<char*>(output) + from, stream, scalars, alone);
    part.enqueue();
    part.join(stream);
  };
  const HostCut cores = cut_cores_part(bytes, tuning);
  const bool corrected = cores.chunks == 0 && corrects_gather(kernel, request, stream, tuning);
  const GatherCut gather = cut_gather(bytes, engine_path_.ring_bytes,
                                      cores.chunks != 0 ? 0
                                      : corrected       ? kOfResults * agreed_share_.next(bytes, 0)
                                                        : gather_permille(kernel, request, tuning),
                                      request.ranks);
  try {  // half of it on streams: what the GPU and the others count would differ
    if (cores.chunks != 0) {
      HostReduction part(*queue_, engine_path_, cores, call, request.type);
      part.fork(stream);
      run(part, 0, bytes - cores.host_from);
    } else if (gather.chunks != 0) {
      HostGather part(*queue_, engine_path_, gather, call,
                      corrected ? agreed_share_.timed(kOfResults * bytes, gather.bytes) : nullptr);
      for (std::size_t i = 0; i < gather.stretches.size(); ++i) {
        scatter_stretch(gather.stretches[i], kernel, request, input, output, stream, scalars,
                        alone);
        part.fork(stream, i);
      }
      run(part, gather.bytes, gather.bytes);
    } else {
      run_kernel(kernel, request, input, output, stream, scalars, tuning);
    }
  } catch (...) {
    if (cores.chunks != 0 || gather.chunks != 0) abort();
    throw;
  }
}

/// This rank's part of the results of a stretch into its place.
void CudaRank::scatter_stretch(const GatherStretch& stretch, const std::string& kernel,
                               const Request& request, const void* input, void* output,
                               Stream stream, const std::vector<double>& scalars,
                               const FusedTuning& tuning) {
  Request scatter = request;
  scatter.collective = Collective::reduce_scatter;
  scatter.count = stretch.part_bytes / bytes_of(request.type);
  const std::uint64_t mine = static_cast<unsigned>(options_.rank) * stretch.part_bytes;
  // The small kernels have no reduce-scatter of any size.
  run_kernel(kernel == "rotation" ? "rotation" : "tiled", scatter,
             static_cast<const char*>(input) + stretch.from,
             static_cast<char*>(output) + stretch.from + mine, stream, scalars, tuning);
}

HostCut CudaRank::cut_cores_part(std::uint64_t bytes, const FusedTuning& tuning) const {
  constexpr std::uint64_t kLeastChunk = 64 << 10;  // so that few chunks are no reason for one
  const auto permille = static_cast<std::uint32_t>(tuning.host_cpu_permille);
  return cut_host_part(bytes, engine_path_.ring_bytes, permille,
                       std::max(kLeastChunk, bytes / 1000 * permille / 8));
}

/// Two ranks' engines exchange what goes through host memory themselves.
bool CudaRank::can_gather(const std::string& kernel, const Request& request) const {
  return request.collective == Collective::all_reduce && request.ranks > 1 &&
         engine_path_.ring_bytes != 0 && !(kernel == "rotation" && request.ranks == 2) &&
         families_->runs(Family::engines) && has_fused("tiled", request);
}

std::uint32_t CudaRank::gather_permille(const std::string& kernel, const Request& request,
                                        const FusedTuning& tuning) const {
  return can_gather(kernel, request) ? static_cast<std::uint32_t>(std::max(0, tuning.host_permille))
                                     : 0;
}

/// Rotation's engines lose more beside it than host memory carries (bench/NOTES.md).
bool CudaRank::corrects_gather(const std::string& kernel, const Request& request, Stream stream,
                               const FusedTuning& tuning) const {
  return tuning.host_permille < 0 && kernel == "tiled" && request.ranks > 2 &&
         can_gather(kernel, request) && arena_->in_processes() && !marker_.capturing(stream);
}

}  // namespace plait::cuda
