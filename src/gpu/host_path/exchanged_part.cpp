// Cuts the message, and enqueues the kernel's call before the part, so that the link never waits
// for the host's enqueueing of chunks.
#include "gpu/host_path/exchanged_part.hpp"

#include <algorithm>

#include "gpu/copy/copy_plans.hpp"
#include "gpu/copy/host_exchange.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/tile/tile_plan.hpp"

namespace plait::cuda {
namespace {

/// A part is cut into this many chunks: nothing comes up while the first chunk goes down.
constexpr std::uint64_t kPartChunks = 8;
constexpr std::uint64_t kLeastPartChunk = 64ull << 10;
constexpr std::uint64_t kMostPartChunk = 2ull << 20;  // both rings stay in the host's cache

/// Collectives whose blocks lie in one piece: the end of the message is a call of its own.
bool is_in_one_piece(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::all_reduce || collective == Collective::send_recv ||
         collective == Collective::copy;
}

std::uint64_t bytes_of_message(const Request& request) {
  return request.count * bytes_of(request.type);
}

/// The same call of the given bytes.
Request with_bytes(const Request& request, std::uint64_t bytes) {
  Request part = request;
  part.count = bytes / bytes_of(request.type);
  return part;
}

class WithExchangedPart : public PreparedCall {
 public:
  WithExchangedPart(const Engine& engine, const Request& request, const Tuning& tuning,
                    EngineRank& rank)
      : engine_(engine),
        request_(request),
        rank_(rank),
        is_chosen_(tuning.host_permille < 0),
        permille_(static_cast<std::uint32_t>(std::max(0, tuning.host_permille))),
        alone_(beside_part(tuning, rank.group())) {
    rank.fill_call(call_, request);
    Tuning whole = tuning;
    whole.host_permille = 0;
    whole_ = engine.prepare(request, whole, rank);
  }

  void enqueue(const CallBuffers& buffers, Stream stream) override {
    const bool corrected = is_chosen_ && !rank_.is_capturing(stream);
    AgreedShare& share = rank_.agreed_share();
    const std::uint64_t bytes = bytes_of_message(request_);
    const std::uint32_t permille =
        corrected ? share.next(LinkCarrier::kernel, bytes, kLeastPartChunk,
                               takers_of_pair(direct_shape(request_, rank_.rank())))
                  : permille_;
    const HostCut cut = exchanged_part(request_, rank_.group(), permille);
    if (cut.chunks == 0) return whole_->enqueue(buffers, stream);
    const std::uint64_t part_bytes = bytes - cut.host_from;
    const Request part = with_bytes(request_, part_bytes);
    const DirectShape shape = direct_shape(part, rank_.rank());
    CallArgs call = call_;
    set_buffers(call, behind(buffers, cut.host_from, cut.host_from));
    const HostCut chunks{part_bytes, 0, cut.chunk_bytes, cut.chunks};
    const EnginePath& path = rank_.engine_path();
    HostExchange exchange(rank_.queue(), path, path.slots, chunks, shape, call,
                          moved_type(request_), blocks_alongside_copies(rank_.group(), alone_),
                          corrected ? share.timed(bytes, part_bytes) : nullptr);
    exchange.fork(rank_.fork(), stream);
    engine_.prepare(with_bytes(request_, cut.host_from), alone_, rank_)->enqueue(buffers, stream);
    exchange.enqueue();
    exchange.join(stream);
  }

 private:
  const Engine& engine_;
  const Request request_;
  EngineRank& rank_;
  const bool is_chosen_;  // the share through host memory, call by call
  const std::uint32_t permille_;
  const Tuning alone_;
  CallArgs call_{};
  std::unique_ptr<PreparedCall> whole_;
};

}  // namespace

bool can_exchange_part(const Engine& engine, const Request& request, const Group& group) {
  return request.ranks == 2 && is_in_one_piece(request.collective) && !group.through_host &&
         group.host_bytes != 0 && &engine != &copy_exchange_engine() && has_copy_engines(group) &&
         inbox_bytes(group) != 0;
}

bool may_choose_exchanged_part(const Engine& engine, const Request& request, const Tuning& tuning,
                               const Group& group) {
  const bool is_one_way =
      request.collective == Collective::broadcast || request.collective == Collective::reduce;
  return tuning.host_permille < 0 && tuning.host_cpu_permille <= 0 && &engine == &tiled_engine() &&
         is_one_way && group.in_processes && can_exchange_part(engine, request, group);
}

Tuning beside_part(Tuning tuning, const Group& group) {
  tuning.host_permille = 0;
  if (tuning.blocks != 0)
    tuning.blocks = std::min(tuning.blocks, static_cast<int>(group.blocks_leaving_sms()));
  return tuning;
}

HostCut exchanged_part(const Request& request, const Group& group, std::uint32_t permille) {
  const std::uint64_t bytes = bytes_of_message(request), part = bytes / 1000 * permille;
  const std::uint64_t chunk = std::clamp(part / kPartChunks, kLeastPartChunk, kMostPartChunk);
  return cut_host_part(bytes, group.host_bytes, permille,
                       std::min(chunk, inbox_bytes(group) / kChunkSlots));
}

std::unique_ptr<PreparedCall> prepare_with_exchanged_part(const Engine& engine,
                                                          const Request& request,
                                                          const Tuning& tuning, EngineRank& rank) {
  return std::make_unique<WithExchangedPart>(engine, request, tuning, rank);
}

}  // namespace plait::cuda
