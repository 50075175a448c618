// What calls by copy engines are made of, in stream order: copies, small kernels that wait for
// words of peers and raise theirs, and kernels that reduce a piece.
#pragma once
#include <cstdint>
#include <vector>

#include "exec/cuda/copies/copy_args.hpp"
#include "exec/cuda/copies/engine_queue.hpp"
#include "exec/cuda/device/call_args.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// Streams that calls by copy engines use, and events a kind of step.
inline constexpr std::size_t kEngineStreams = 6;
inline constexpr std::size_t kEngineEvents = 20;
/// Of what goes beside through host memory (host_gather.hpp, host_reduction.hpp).
inline constexpr std::size_t kHostStreams = 3;
inline constexpr std::size_t kHostEvents = 8;

/// What pieces go through; made once a communicator.
struct EnginePath {
  std::vector<char*> slots;         ///< by rank, as mapped here
  std::vector<EngineFlags*> flags;  ///< by rank
  std::uint64_t slot_bytes = 0;     ///< of a rotation's; 0 = none
  std::uint64_t inbox_bytes = 0;    ///< all slots of a rank, as exchanges and rings use them
  std::vector<char*> borrowed;      ///< by rank: slots of tiled kernels; those of engines follow
  std::uint64_t borrowed_bytes = 0;
  std::vector<char*> rings;         ///< host memory by rank, as this GPU sees it; empty = none
  std::vector<char*> host_rings;    ///< the same as this process sees it
  HostFlags* host_flags = nullptr;  ///< as this GPU sees them; null = no part by CPU cores
  std::uint64_t ring_bytes = 0;
  std::vector<Stream> streams;       ///< kEngineStreams
  std::vector<Event> events;         ///< kEngineEvents
  std::vector<Stream> host_streams;  ///< kHostStreams
  std::vector<Event> host_events;    ///< kHostEvents
  unsigned blocks = 0;               ///< of the kernel that handles a piece, at most
  unsigned moving_blocks = 0;        ///< of one that moves a piece; 0 = copy engines do that, too
};

class EngineCall {
 public:
  EngineCall(EngineQueue& queue, const EnginePath& path, const CallArgs& call, DataType type)
      : path_(path), queue_(queue), call_(call), type_(type) {}

 protected:
  using FlagRow = std::uint32_t (EngineFlags::*)[kMaxCudaRanks];
  EngineFlags& flags_of(int rank) const { return *path_.flags[static_cast<std::size_t>(rank)]; }
  /// Waits for nobody, tells nobody; counts by `counted` of this rank.
  EngineStep blank_step(std::uint32_t EngineFlags::* counted) const;
  /// Tells all others in `word` that this rank is there, and waits until they say the same.
  EngineStep barrier_step(std::uint32_t EngineFlags::* counted, FlagRow word,
                          std::uint32_t value) const;
  void launch(Stream stream, const EngineStep& step) { queue_.step(stream, step); }
  /// The last of a call; each count of this rank grows by so many.
  struct CounterGrowth {
    std::uint32_t EngineFlags::* which;
    std::uint32_t more;
  };
  void launch_end(Stream stream, const EngineStep& step, const std::vector<CounterGrowth>& counts);
  void copy(Stream stream, char* dst, const char* src, std::uint64_t bytes);
  /// But for those of no bytes.
  void copy_all(Stream stream, std::vector<OneCopy> copies);
  /// In this GPU's memory, by a kernel: a copy engine that did this, too, would let copies to
  /// others wait. By a copy where SMs are left to others, or where a kernel would go byte by byte.
  void move(Stream stream, char* dst, const char* src, std::uint64_t bytes);
  /// `args`: sources, dst and bytes filled in.
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
