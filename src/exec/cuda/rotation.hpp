// A large collective by copy engines: parts are pushed into their owners' inboxes, a kernel handles
// each piece that has come, and results are pulled out of their owners' outboxes. Peers are visited
// in rotation, one at a time, so that no two copies meet at a port; while a piece is pushed, the
// one before is handled and the one before that pulled. No SM works while engines copy, and no
// buffer of the user is touched by another rank.
// Source: direct collectives with a throttle of one (direct-sendrecv talk), bench/NOTES.md.
#pragma once
#include <cstdint>
#include <vector>

#include "exec/cuda/engine_call.hpp"

namespace plait::cuda {

/// Even and odd pushes, even and odd pulls, handles: while one of a pair tells or waits, the other
/// keeps the links busy.
inline constexpr std::size_t kRotationStreams = 2 * kRotationSlots + 1;
static_assert(kRotationStreams <= kEngineStreams && 3 * kRotationSlots <= kEngineEvents);

/// Slots of one rank: its inbox, by sender, then its outbox.
inline std::uint64_t rotation_slots(int ranks) {
  return static_cast<std::uint64_t>(ranks) * kRotationSlots;
}

/// How parts are cut; the same on all ranks. pieces: a multiple of kRotationSlots, the last may be
/// empty.
struct RotationCut {
  std::uint64_t piece_bytes = 0;
  std::uint32_t pieces = 0;
};
/// most_bytes: of a piece.
RotationCut cut_rotation(std::uint64_t part_bytes, std::uint64_t most_bytes);

/// One call. Ranks enqueue alike, and in an order in which a wait comes after all that it waits
/// for: so no rank waits for ever, were there only one hardware queue for all streams; edges
/// between the streams see to the same where a graph orders its branches anyhow.
class Rotation : private EngineCall {
 public:
  /// `shape` as tiled_shape() makes it, its call filled in. `type`: of the kernel that handles.
  Rotation(EngineQueue& queue, const EnginePath& path, const RotationCut& cut,
           const TiledArgs& shape, DataType type)
      : EngineCall(queue, path, shape, type), cut_(cut), shape_(shape) {}

  /// After what `stream` holds; what comes later on it comes after all of the call.
  void enqueue(Event fork, Stream stream);

 private:
  enum Role : std::size_t { kPush, kHandle, kPull };
  /// Where a piece lies in its owner's part.
  struct Range {
    std::uint64_t from, bytes;
  };

  bool in(std::uint32_t mask, int rank) const { return (mask >> rank & 1) != 0; }
  int peer(int k) const { return (shape_.rank + k) % shape_.ranks; }
  std::uint32_t others(std::uint32_t mask) const { return mask & ~(1u << shape_.rank); }
  std::uint32_t all_ranks() const { return (1u << shape_.ranks) - 1; }
  std::uint32_t owners_of_mine() const;
  std::uint32_t owners_i_read() const;
  std::uint32_t readers_of_mine() const;
  Range range(int owner, std::uint32_t piece) const;
  char* inbox(int owner, int sender, std::uint32_t piece) const;
  char* outbox(int owner, std::uint32_t piece) const;
  Stream stream(Role role, std::uint32_t piece) const {
    return path_
        .streams[role == kHandle ? 2 * kRotationSlots
                                 : (role == kPull ? kRotationSlots : 0) + piece % kRotationSlots];
  }
  Event event(Role role, std::uint32_t piece) const {
    return path_.events[role * kRotationSlots + piece % kRotationSlots];
  }
  using Words = std::uint32_t (EngineFlags::*)[kRotationSlots][kMaxCudaRanks];
  EngineWait words(Words words, std::uint32_t ranks, std::uint32_t piece,
                   std::uint32_t before) const;
  void begin(Stream stream, const std::vector<EngineWait>& waits, const std::vector<Event>& after);
  void finish(Role role, std::uint32_t piece, Words words);
  void push(std::uint32_t piece);
  void handle(std::uint32_t piece);
  void reduce_piece(std::uint32_t piece, std::uint32_t senders);
  void pull(std::uint32_t piece);
  void join(Stream stream);

  RotationCut cut_;
  const TiledArgs& shape_;
};

}  // namespace plait::cuda
