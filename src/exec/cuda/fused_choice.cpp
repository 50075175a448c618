// Which fused kernel serves a request, and how much of the GPU it takes.
#include <algorithm>

#include "base/text.hpp"
#include "exec/cuda/copies/engine_ring.hpp"
#include "exec/cuda/cuda_rank.hpp"
#include "exec/cuda/device/kernel_names.hpp"
#include "exec/cuda/traffic/tiled_shape.hpp"

namespace plait::cuda {
namespace {

/// Few enough to leave memory's bandwidth to engines, enough to reduce a piece while the next
/// comes.
constexpr unsigned kBlocksBesideCopies = 48;

}  // namespace

bool CudaRank::chooses_bare(const Request& request, const FusedTuning& tuning) const {
  return is_float(request.type) && tuning.bare != 0;
}

bool CudaRank::has_fused(const std::string& kernel, const Request& request,
                         const FusedTuning& tuning) const {
  if (request.ranks != options_.ranks || !families_->why_not(kernel).empty()) return false;
  if (tuning.host_cpu_permille > 0 &&
      (request.collective != Collective::all_reduce || host_reducer_ == nullptr ||
       request.ranks < 2 || !families_->runs(Family::engines)))
    return false;
  if (tuning.host_permille > 0 && !(kernel == "rotation" && request.ranks == 2) &&
      !can_gather(kernel, request))
    return false;
  if (kernel == "tiled")
    return options_.sizes.tile_bytes >= tile_slots(options_.ranks) * kSlotGrainBytes;
  if (kernel == "rotation")
    return request.ranks > 1 && arena_->in_processes() &&
           (is_engine_ring(request) ? engine_path_.inbox_bytes : engine_path_.slot_bytes) != 0;
  constexpr std::uint64_t kMostPieces = 3;  // as fast as whole, and saves memory for an inbox
  if (kernel == "hop") {
    const std::uint64_t pieces = hop_cut(request).pieces;
    return pieces != 0 && pieces <= kMostPieces;
  }
  if (kernel != "one_shot" && kernel != "two_shot") return false;
  if (request.collective != Collective::all_reduce) return false;
  const std::uint64_t pieces = line_cut(kernel, request, chooses_bare(request, tuning)).pieces;
  return pieces != 0 && pieces <= (kernel == "two_shot" ? kMostPieces : 1);
}

std::string CudaRank::because(const std::string& kernel) const {
  const std::string& why_not = families_->why_not(kernel);
  return why_not.empty() ? "" : text(": ", why_not);
}

const FusedChoice* CudaRank::choice_for(const Request& request) const {
  for (const FusedChoice& choice : choices())
    if (choice.is_about(request) &&
        (choice.most_blocks == 0 || (leaves_sms() && blocks_for({}) <= choice.most_blocks)) &&
        has_fused(choice.kernel, request))
      return &choice;
  return nullptr;
}

bool CudaRank::leaves_sms() const {
  return options_.beside_computing ||
         (options_.most_blocks != 0 && options_.most_blocks < arena_->least_multiprocessors());
}

/// With one hardware queue, products that are enqueued behind an engine's wait would wait too.
/// The same on all ranks.
bool CudaRank::streams_run_apart() const {
  constexpr unsigned kEnough = 8;
  return arena_->least_connections() >= kEnough;
}

std::string CudaRank::fused_choice(const Request& request) const {
  const FusedChoice* choice = choice_for(request);
  return choice == nullptr ? "" : choice->kernel;
}

bool CudaRank::chosen_for_budget(const Request& request) const {
  const FusedChoice* choice = choice_for(request);
  return choice != nullptr && choice->most_blocks != 0;
}

/// Reductions were measured as sums of the common floats; their other kernels are slower. So are
/// large messages with fewer blocks than NCCL's bandwidth takes.
bool CudaRank::ahead(const Request& request) const {
  constexpr std::uint64_t kSmallBytes = 4ull << 20;
  const unsigned enough_blocks = request.ranks == 2 ? 32 : 64;
  if (!options_.as_measured) return false;
  if (options_.most_blocks != 0 && options_.most_blocks < enough_blocks &&
      message_bytes(request) > kSmallBytes)
    return false;
  const FusedChoice* choice = choice_for(request);
  return choice != nullptr && choice->ahead &&
         (!reduces(request.collective) || is_common_sum(request));
}

/// The same on all ranks, whatever their GPUs. Blocks wait for each other across ranks, so all must
/// run at once: one an SM.
unsigned CudaRank::blocks_for(const FusedTuning& tuning) const {
  const unsigned all = arena_->least_multiprocessors();
  if (tuning.blocks != 0) return std::min(tuning.blocks, all);
  return options_.most_blocks != 0 ? std::min(options_.most_blocks, all) : all;
}

/// Whole SMs, so that small kernels find some.
unsigned CudaRank::blocks_with_room() const {
  constexpr unsigned kRoom = 16;
  const unsigned all = arena_->least_multiprocessors();
  return all > kRoom ? all - kRoom : 1;
}

unsigned CudaRank::blocks_beside_copies(const FusedTuning& tuning) const {
  return std::min(blocks_for({}), tuning.blocks != 0 ? tuning.blocks : kBlocksBesideCopies);
}

/// Of a block of lines. Half an SM, so that another communicator's kernel fits beside it: the two
/// could meet in different orders on different ranks. Of half the SMs, a block may take whole ones.
/// is_lean: the kernel keeps within 64 registers.
unsigned CudaRank::most_threads(bool is_lean) const {
  const bool half_the_gpu =
      options_.most_blocks != 0 && 2 * options_.most_blocks <= arena_->least_multiprocessors();
  return is_lean || half_the_gpu ? 512 : 256;
}

}  // namespace plait::cuda
