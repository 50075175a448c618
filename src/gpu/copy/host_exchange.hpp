// A large collective of two ranks through host memory, by copy engines in a single hop: the whole
// call of GPUs that do not address each other, or a part beside a kernel that uses the link
// (host_path/exchanged_part.hpp). A copy engine brings chunks of the data for the peer down into
// the sender's ring in host memory, and the peer's copy engine brings the chunks up. Both
// directions go on at once, twice as fast as a kernel that reads host memory while copies write
// host memory. Kernels reduce what has come up. pair_exchange.hpp has the same over a link.
#pragma once
#include <string>
#include <vector>

#include "gpu/abi/tile_cut.hpp"
#include "gpu/consensus/agreed_share.hpp"
#include "gpu/copy/engine_call.hpp"
#include "gpu/copy/exchange_cut.hpp"
#include "gpu/engine/group.hpp"

namespace plait::cuda {

/// Returns "" if the group has everything that an exchange through host memory needs.
std::string why_no_host_exchange(const Group& group);

/// A call. Both ranks enqueue the same barriers in the same order, one a chunk, and a barrier
/// signals before it waits. Hence no rank waits for ever, whatever streams share a hardware queue.
class HostExchange : private EngineCall {
 public:
  /// staging: by rank, GPU memory of kChunkSlots chunks, this rank's used. `cut`: of
  /// shape.part_bytes. blocks: of reductions beside copies. marks: times to record; null = none.
  HostExchange(EngineQueue& queue, const EnginePath& path, const std::vector<char*>& staging,
               const HostCut& cut, const DirectShape& shape, const CallArgs& call, DataType type,
               unsigned blocks, const PathMarks* marks = nullptr)
      : EngineCall(queue, path, call, type),
        staging_(staging),
        cut_(cut),
        shape_(shape),
        call_(call),
        blocks_(blocks),
        marks_(marks),
        sends_(sends(shape, 2, call.rank, 1 - call.rank)),
        takes_(sends(shape, 2, 1 - call.rank, call.rank)),
        reduces_(shape.handling != kPlaceParts) {}

  /// Marks the point of `stream` at which the exchange may begin. `fork`: an event that nothing
  /// else uses before enqueue().
  void fork(Event fork, Stream stream);
  void enqueue();
  /// Makes later work on `stream` wait for the whole exchange.
  void join(Stream stream);

 private:
  enum HostExchangeStream : std::size_t { kDown, kBarrier, kUp, kReduce, kKeep, kHostStreamsUsed };
  /// Kinds of events, each for the last kChunkSlots chunks.
  enum HostExchangeEvent : std::size_t { kIsDown, kPassed, kIsUp, kIsReduced, kIsKept };
  static_assert(kHostStreamsUsed <= kEngineStreams && kIsKept * kChunkSlots < kEngineEvents);
  /// Chunks that come up after the barrier of a chunk while both ranks still use the barrier's
  /// slot.
  static constexpr std::uint32_t kBehind = kChunkSlots / 2;

  Stream stream(HostExchangeStream role) const { return path_.streams[role]; }
  Event event(HostExchangeEvent kind, std::uint32_t chunk) const {
    return path_.events[kind * kChunkSlots + chunk % kChunkSlots];
  }
  int peer() const { return 1 - call_.rank; }
  char* ring(int rank, std::uint32_t chunk) const {
    return path_.rings[static_cast<std::size_t>(rank)] + cut_.slot_at(chunk);
  }
  char* staged(std::uint32_t chunk) const {
    return staging_[static_cast<std::size_t>(call_.rank)] + cut_.slot_at(chunk);
  }
  /// Returns where the peer's chunk belongs.
  char* place(std::uint32_t chunk) const;
  void keep();
  void bring_down(std::uint32_t chunk);
  void barrier(std::uint32_t chunk);
  void bring_up(std::uint32_t chunk);
  void reduce_chunk(std::uint32_t chunk);

  const std::vector<char*>& staging_;
  const HostCut& cut_;
  const DirectShape& shape_;
  const CallArgs& call_;
  const unsigned blocks_;
  const PathMarks* const marks_;
  const bool sends_, takes_, reduces_;
  Event fork_ = nullptr;
  bool keeps_ = false;
};

}  // namespace plait::cuda
