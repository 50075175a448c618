// EngineCall: base class of calls by copy engines. A call enqueues, in stream order, copies, small
// kernels that wait for flags and raise flags, and kernels that reduce a piece.
#pragma once
#include <cstdint>
#include <vector>

#include "gpu/abi/call_args.hpp"
#include "gpu/abi/copy_args.hpp"
#include "gpu/copy/engine_queue.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// Number of streams that calls by copy engines use, and of events between the streams.
inline constexpr std::size_t kEngineStreams = 6;
inline constexpr std::size_t kEngineEvents = 20;
/// Number for parts that go through host memory (host_gather.hpp, host_reduction.hpp).
inline constexpr std::size_t kHostStreams = 3;
inline constexpr std::size_t kHostEvents = 9;

/// Memory, streams and events of calls by copy engines; created once per communicator.
struct EnginePath {
  std::vector<char*> slots;         ///< by rank: slots as this process maps them
  std::vector<EngineFlags*> flags;  ///< by rank
  std::uint64_t slot_bytes = 0;     ///< size of a slot of the rotation; 0 = no slots
  std::uint64_t inbox_bytes = 0;  ///< size of all slots of a rank, the inbox of exchanges and rings
  std::vector<char*> long_slots;  ///< by rank: the inbox of long exchanges; empty = not there yet
  std::vector<char*> borrowed;    ///< by rank: slots of tiled kernels, in front of `slots`
  std::uint64_t borrowed_bytes = 0;
  std::vector<char*> staging;  ///< by rank, this rank's alone: GPU memory for chunks of a message
                               ///< that goes through host memory as a whole
  std::vector<char*> rings;    ///< by rank: host memory as this GPU sees it; empty = none
  std::vector<char*> host_rings;    ///< the same as this process sees it
  HostFlags* host_flags = nullptr;  ///< as this GPU sees them; null = CPU cores take no part
  std::uint64_t ring_bytes = 0;
  std::vector<Stream> streams;       ///< kEngineStreams
  std::vector<Event> events;         ///< kEngineEvents
  std::vector<Stream> host_streams;  ///< kHostStreams
  std::vector<Event> host_events;    ///< kHostEvents
  unsigned blocks = 0;               ///< most thread blocks of a kernel that reduces a piece
  unsigned moving_blocks = 0;        ///< blocks that move a piece; 0 = copy engines move it
};

class EngineCall {
 public:
  EngineCall(EngineQueue& queue, const EnginePath& path, const CallArgs& call, DataType type)
      : path_(path), queue_(queue), call_(call), type_(type) {}

 protected:
  using FlagRow = std::uint32_t (EngineFlags::*)[kMaxCudaRanks];
  EngineFlags& flags_of(int rank) const { return *path_.flags[static_cast<std::size_t>(rank)]; }
  /// Returns a step without waits or signals. `counted`: this rank's count of earlier calls.
  EngineStep blank_step(std::uint32_t EngineFlags::* counted) const;
  /// Returns a barrier step: raises this rank's flag in `word` of every peer, then waits for the
  /// flags of all peers.
  EngineStep barrier_step(std::uint32_t EngineFlags::* counted, FlagRow word,
                          std::uint32_t value) const;
  void launch(Stream stream, const EngineStep& step) { queue_.step(stream, step); }
  /// Launches the last step of a call: the step then adds `more` to each given count of this rank.
  struct CounterGrowth {
    std::uint32_t EngineFlags::* which;
    std::uint32_t more;
  };
  void launch_end(Stream stream, const EngineStep& step, const std::vector<CounterGrowth>& counts);
  void copy(Stream stream, char* dst, const char* src, std::uint64_t bytes);
  /// Enqueues the copies, except empty ones.
  void copy_all(Stream stream, std::vector<OneCopy> copies);
  /// Moves bytes in this GPU by a kernel, so that copy engines are free for copies to other GPUs.
  /// Uses a copy engine if `moving_blocks` is 0 or a pointer is not aligned to 16 bytes.
  void move(Stream stream, char* dst, const char* src, std::uint64_t bytes);
  /// Reduces `args`, with sources, dst and bytes filled in.
  void reduce(Stream stream, PieceArgs args, unsigned blocks);
  void begin_on_host(Stream stream, const HostJob& job) { queue_.begin_on_host(stream, job); }
  void record(Event event, Stream stream) { queue_.record(event, stream); }
  void follow(Stream stream, Event event) { queue_.follow(stream, event); }

  const EnginePath& path_;

 private:
  EngineQueue& queue_;
  const CallArgs& call_;
  const DataType type_;
};

}  // namespace plait::cuda
