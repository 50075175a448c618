// Copies between the GPUs of this process over every path at once: the direct link, host memory,
// GPUs that lend themselves as routes. The front door to plans of the strategy "striped".
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

class Copies {
 public:
  /// "striped" parameters: host_permille, relay_permille, relay (a GPU's CUDA ordinal), chunk_kib;
  /// none = as the machine's speeds ask for, with less through host memory where earlier copies of
  /// the pair waited for that: over all no more than 3 % behind the direct link alone.
  using Params = std::map<std::string, std::int64_t>;

  /// topology: as load_topology takes it; "" = PLAIT_TOPOLOGY, else discover(). masks: links left
  /// out, as without() takes them; none = PLAIT_WITHOUT. Error(no_device) without GPUs.
  explicit Copies(const std::string& topology = "", const std::vector<std::string>& masks = {});
  ~Copies();
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  /// dst := src, both in memory of GPUs; returns at once. It begins after what both streams (of
  /// dst's and of src's GPU; null = the default ones) hold, and what they get later comes after
  /// it. The first copy of a size prepares it and may take milliseconds. Any thread.
  /// Error(invalid_argument) for host memory and for regions that overlap; unsupported inside a
  /// graph capture, or where no path joins the GPUs.
  void copy(void* dst, const void* src, std::uint64_t bytes, void* dst_stream, void* src_stream,
            const Params& params = {});
  /// Both ways at once between two GPUs, in shares that fit: there_out := here_in (GPU here to GPU
  /// there) and here_out := there_in. Same order of effects.
  struct ExchangeSide {
    void* output = nullptr;
    const void* input = nullptr;
    void* stream = nullptr;
  };
  void exchange(const ExchangeSide& here, const ExchangeSide& there, std::uint64_t bytes,
                const Params& params = {});
  /// The plan that copy (or exchange) would run now from one GPU to another.
  Plan plan_for(int dst_gpu, int src_gpu, std::uint64_t bytes, bool both_ways = false,
                const Params& params = {});
  /// What plans are made for: GPUs that CUDA does not show relay nothing.
  const Topology& topology() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace plait
