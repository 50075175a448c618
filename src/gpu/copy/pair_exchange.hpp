// A large collective of two ranks by copy engines, in a single hop. Each rank pushes what the peer
// needs into the peer's inbox, piece by piece, and both reduce or place what arrives. A share may
// go through host memory: a copy engine brings the share down into the sender's ring, and the
// peer's engine brings it up. An all_reduce thus moves as many bytes over the link as
// reduce-scatter and all-gather, in one hop less, and only by pushes. Source: E-0032, E-0035 (pulls
// are slower, a copy costs 4 us, paths side by side).
#pragma once
#include "gpu/abi/tile_cut.hpp"
#include "gpu/consensus/agreed_share.hpp"
#include "gpu/copy/engine_call.hpp"
#include "gpu/copy/exchange_cut.hpp"

namespace plait::cuda {

/// A call. Both ranks enqueue the same steps in the same order, and a step that waits signals first
/// what the peer's same step waits for. The earliest unfinished step therefore never waits for
/// ever, whatever streams share a hardware queue. Copies of a kind are back to back on one stream,
/// so that no engine idles while flags are raised. When a call has ended, the peer has handled all
/// that this rank sent. The next call may use the slots in any way, even tiled kernels, whose slots
/// are borrowed from the peer as soon as the peer is known to be in this call.
class PairExchange : private EngineCall {
 public:
  /// `cut`: of shape.part_bytes. blocks: of reductions beside copies, which need memory bandwidth
  /// too; the last pieces are reduced by all blocks. batches: a piece is pushed in several copies
  /// at once. marks: times to record; null = none.
  PairExchange(EngineQueue& queue, const EnginePath& path, const ExchangeCut& cut,
               const DirectShape& shape, const CallArgs& call, DataType type, unsigned blocks,
               bool batches, const PathMarks* marks)
      : EngineCall(queue, path, call, type),
        cut_(cut),
        shape_(shape),
        call_(call),
        blocks_(blocks),
        batches_(batches),
        marks_(marks),
        sends_(sends(shape, 2, call.rank, 1 - call.rank)),
        takes_(sends(shape, 2, 1 - call.rank, call.rank)) {}

  /// Enqueues the call behind the work on `stream`; later work on `stream` runs after all of the
  /// call.
  void enqueue(Event fork, Stream stream);

 private:
  /// One stream each; also the kinds of events.
  enum ExchangeStream : std::size_t { kPush, kHandle, kDown, kCross, kUp, kTake };

  Stream stream(ExchangeStream role) const { return path_.streams[role]; }
  Event event(ExchangeStream role, std::uint32_t index) const;
  int peer() const { return 1 - call_.rank; }
  const std::vector<char*>& inbox() const { return cut_.is_long ? path_.long_slots : path_.slots; }
  char* slot(int rank, const ExchangePiece& piece) const;
  char* staged(std::uint32_t chunk) const;
  char* ring(int rank, std::uint32_t chunk) const;
  const char* sent(std::uint64_t from) const;
  void keep(std::uint64_t upto);
  void take_range(ExchangeStream role, const char* came, std::uint64_t from, std::uint64_t bytes,
                  unsigned blocks);
  void push(std::uint32_t piece);
  void handle(std::uint32_t piece);
  void bring_down(std::uint32_t chunk);
  void bring_up(std::uint32_t chunk);
  void take(std::uint32_t chunk);
  void enqueue_chunks(std::uint32_t upto);
  void join(Stream stream);

  const ExchangeCut& cut_;
  const DirectShape& shape_;
  const CallArgs& call_;
  const unsigned blocks_;
  const bool batches_;
  const PathMarks* const marks_;
  const bool sends_, takes_;       // this rank, over the pair
  std::uint32_t chunk_steps_ = 0;  // steps of chunks enqueued so far
  std::uint64_t kept_ = 0;         // bytes copied so far of the data that stays on this rank
};

}  // namespace plait::cuda
