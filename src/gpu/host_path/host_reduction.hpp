// A sum by CPU cores: the last part of a large all_reduce, while a kernel or an engine does the
// rest, or a whole call of ranks without a link (host_cores.cpp). Every rank's copy engine brings
// its chunk down into its ring in host memory, the owner's cores reduce all rings in rank order
// into the owner's, and the engine of each rank that gets the sum brings the result up, straight
// into the output. Each byte crosses PCIe once each way, whatever the number of ranks, and no SM
// works. Source: the collaborative all-reduce (GPUs and CPUs side by side).
#pragma once
#include "gpu/copy/engine_call.hpp"
#include "gpu/copy/exchange_cut.hpp"
#include "gpu/host_path/host_reducer.hpp"

namespace plait::cuda {

/// The part of a call. Ranks own the chunks in turn. All ranks enqueue the same steps in the same
/// order, and a step waits only for earlier steps and for cores. Each step therefore ends, whatever
/// streams share a hardware queue.
class HostReductionCall : private EngineCall {
 public:
  /// `cut`: of the whole message; `call`: the whole call. takers: ranks (bits) that get the sum.
  HostReductionCall(EngineQueue& queue, const EnginePath& path, const HostCut& cut,
                    const CallArgs& call, DataType type, std::uint32_t takers);

  /// Starts the part behind the present work on `stream`; the rest of the call then goes on
  /// `stream`.
  void fork(Stream stream);
  void enqueue();
  /// Makes later work on `stream` wait for the part.
  void join(Stream stream);

 private:
  enum ReductionStream : std::size_t { kDown, kUp };  // one stream each

  Stream stream(ReductionStream role) const { return path_.host_streams[role]; }
  Event has_come_up(std::uint32_t chunk) const {
    return path_.host_events[1 + chunk % kChunkSlots];
  }
  Event has_gone_down(std::uint32_t chunk) const {
    return path_.host_events[1 + kChunkSlots + chunk % kChunkSlots];
  }
  bool is_mine(std::uint32_t chunk) const { return job_.owner(chunk) == call_.rank; }
  std::uint32_t others() const { return ((1u << call_.ranks) - 1) & ~(1u << call_.rank); }
  std::uint32_t other_takers() const { return takers_ & others(); }
  bool takes() const { return (takers_ >> call_.rank & 1) != 0; }
  char* ring(int rank, std::uint32_t chunk) const;  // as the GPU sees it
  EngineStep step() const { return blank_step(&EngineFlags::host_chunks); }
  void await(Stream stream, const std::uint32_t* flags, std::uint32_t ranks, std::uint32_t chunk);
  void signal(Stream stream, std::uint32_t* flags, std::uint32_t chunk);
  void bring_down(std::uint32_t chunk);
  void bring_up(std::uint32_t chunk);

  const HostCut& cut_;
  const CallArgs& call_;
  const std::uint32_t takers_;
  HostJob job_;
};

}  // namespace plait::cuda
