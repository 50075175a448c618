// Copies between the GPUs of this process over every path at once: the direct link, host memory and
// relay GPUs. Copies run plans of the strategy "striped".
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// Thread-safe.
class Copies {
 public:
  /// Parameters of "striped": host_permille, relay_permille, relay (a GPU's CUDA ordinal),
  /// chunk_kib. Empty = shares by the machine's link speeds. If earlier copies of the pair waited
  /// for host memory, the share of host memory shrinks, so that copies are at most 3 % slower than
  /// the direct link alone.
  using Params = std::map<std::string, std::int64_t>;

  /// topology: an argument of load_topology(); "" = PLAIT_TOPOLOGY, else discover(). masks: links
  /// to leave out, as in without(); empty = PLAIT_WITHOUT. Error(no_device) without GPUs.
  explicit Copies(const std::string& topology = "", const std::vector<std::string>& masks = {});
  ~Copies();
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  /// Enqueues dst := src, both in GPU memory, and returns. dst_stream and src_stream are streams
  /// (CUstream or cudaStream_t) of the two GPUs; null = the default stream. The copy runs after the
  /// work that both streams hold, and before later work on both. The first copy of a size prepares
  /// a plan, which may take milliseconds. Error(invalid_argument) for host memory and for
  /// overlapping regions; unsupported in a graph capture, or if no path joins the GPUs.
  void copy(void* dst, const void* src, std::uint64_t bytes, void* dst_stream, void* src_stream,
            const Params& params = {});
  /// A GPU's buffers and stream in an exchange.
  struct ExchangeSide {
    void* output = nullptr;
    const void* input = nullptr;
    void* stream = nullptr;
  };
  using Side = ExchangeSide;  ///< former name
  /// Copies in both directions at once: there.output := here.input and here.output := there.input.
  /// Stream order and errors as in copy().
  void exchange(const ExchangeSide& here, const ExchangeSide& there, std::uint64_t bytes,
                const Params& params = {});
  /// Returns the plan that copy() (or with `both_ways` exchange()) would run now.
  Plan plan_for(int dst_gpu, int src_gpu, std::uint64_t bytes, bool both_ways = false,
                const Params& params = {});
  /// The topology that plans are made for. GPUs hidden from CUDA are not used as relays.
  const Topology& topology() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace plait
