// A large collective by copy engines. Ranks push parts into the inboxes of the owners, a kernel
// handles each piece that has arrived, and owners push the results into the same slots of the
// readers' inboxes. Readers copy the results out. Each rank visits the peers in rotation, one at a
// time; a rank whose copy leaves a port signals the next rank to use the port, so that no two
// copies share a port. All copies are pushes: with pulls an engine would alternate between copies
// of two ranks. While one of two pieces is handled, the other is pushed. No SM works while engines
// copy, and no rank touches a user's buffer of another rank. Source: direct collectives with a
// throttle of one (direct-sendrecv talk), E-0119.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "gpu/abi/tile_args.hpp"
#include "gpu/copy/engine_call.hpp"

namespace plait::cuda {

/// Streams of pushes, of handling and of placing.
inline constexpr std::size_t kRotationStreams = 3;
static_assert(kRotationStreams <= kEngineStreams && 4 * kRotationSlots <= kEngineEvents);

/// Cut of parts; the same on all ranks. pieces: a multiple of kRotationSlots, the last piece may be
/// empty.
struct RotationCut {
  std::uint64_t piece_bytes = 0;
  std::uint32_t pieces = 0;
};
/// most_bytes: of a piece.
RotationCut cut_rotation(std::uint64_t part_bytes, std::uint64_t most_bytes);

/// A call. All ranks enqueue the same steps in the same order. A wait follows everything that it
/// waits for, or comes after the signal that the same step of other ranks waits for. Hence no rank
/// waits for ever, even with a single hardware queue for all streams. Edges between the streams
/// ensure the same for a graph that orders the branches in another way.
class Rotation : private EngineCall {
 public:
  /// `shape`: from tiled_shape(), with the call filled in. `type`: of the kernel that handles
  /// pieces. `blocks`: of that kernel beside copies. `batches`: a piece goes to all peers at once,
  /// and no port is passed on.
  Rotation(EngineQueue& queue, const EnginePath& path, const RotationCut& cut,
           const TiledArgs& shape, DataType type, unsigned blocks, bool batches)
      : EngineCall(queue, path, shape, type),
        cut_(cut),
        shape_(shape),
        blocks_(blocks),
        batches_(batches) {}

  /// Enqueues the call behind the work on `stream`; later work on `stream` runs after all of the
  /// call.
  void enqueue(Event fork, Stream stream);

 private:
  /// One stream each, but kShare uses that of kPush.
  enum RotationStream : std::size_t { kPush, kHandle, kPlace, kShare };
  /// Position of a piece in the owner's part.
  struct PieceRange {
    std::uint64_t from, bytes;
  };

  bool in(std::uint32_t mask, int rank) const { return (mask >> rank & 1) != 0; }
  int peer(int k) const { return (shape_.rank + k + shape_.ranks) % shape_.ranks; }
  std::uint32_t others(std::uint32_t mask) const { return mask & ~(1u << shape_.rank); }
  std::uint32_t all_ranks() const { return (1u << shape_.ranks) - 1; }
  std::uint32_t owners_i_read() const;
  std::uint32_t readers_of_mine() const;
  PieceRange range(int owner, std::uint32_t piece) const;
  char* inbox(int owner, int sender, std::uint32_t piece) const;
  char* own_result(std::uint32_t piece) const;
  char* in_output(int owner, std::uint32_t piece) const;
  Stream stream(RotationStream role) const { return path_.streams[role == kShare ? kPush : role]; }
  Event event(RotationStream role, std::uint32_t piece) const {
    return path_.events[role * kRotationSlots + piece % kRotationSlots];
  }
  using FlagRows = std::uint32_t (EngineFlags::*)[kRotationSlots][kMaxCudaRanks];
  EngineWait flag_wait(FlagRows row, std::uint32_t ranks, std::uint32_t piece,
                       std::uint32_t before) const;
  void begin(Stream stream, const EngineWait& wait, Event after);
  void finish(RotationStream role, std::uint32_t piece, FlagRows row);
  bool takes_turns(RotationStream role) const;
  void send(RotationStream role, const std::vector<OneCopy>& by_step);
  void await_port(RotationStream role);
  void pass_port(RotationStream role, int steps);
  void push(std::uint32_t piece);
  void handle(std::uint32_t piece);
  void reduce_piece(std::uint32_t piece, std::uint32_t senders);
  void share(std::uint32_t piece);
  void place(std::uint32_t piece);
  void join(Stream stream);

  RotationCut cut_;
  const TiledArgs& shape_;
  const unsigned blocks_;
  const bool batches_;
  std::uint32_t sweeps_ = 0;  // sweeps so far with ports passed on
};

}  // namespace plait::cuda
