// Runs a plan on integers, with lanes in a seeded random order; the planner's tests check outputs
// with this runner. Also has small machines: fully connected GPUs, and two sockets.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "plait/plan.hpp"
#include "plait/topology.hpp"

namespace classic {

using plait::Collective;
using plait::Op;
using plait::OpKind;
using plait::Plan;
using plait::Region;
using plait::Request;
using plait::Space;
using plait::Topology;
using Words = std::vector<std::uint32_t>;

inline plait::Device device(plait::DeviceKind kind, int index, int numa) {
  plait::Device made;
  made.kind = kind;
  made.index = index;
  made.numa = numa;
  return made;
}

inline void link_both_ways(Topology& topology, plait::LinkKind kind, int a, int b, double speed) {
  topology.links.push_back({kind, a, b, 1, speed, 1000.0, {}});
  topology.links.push_back({kind, b, a, 1, speed, 1000.0, {}});
}

inline Topology all_to_all_machine(int gpus) {
  Topology topology;
  topology.name = "all-to-all";
  for (int i = 0; i < gpus; ++i) topology.devices.push_back(device(plait::DeviceKind::gpu, i, 0));
  for (int i = 0; i < gpus; ++i)
    for (int j = 0; j < i; ++j) link_both_ways(topology, plait::LinkKind::nvlink, i, j, 100.0);
  return topology;
}

/// Sockets of `per_socket` GPUs each; NVLink inside, host memory and a bus between. The ranks of
/// the sockets are interleaved (0 2 | 1 3), so that a ring in rank order would be a bad ring.
inline Topology socket_machine(int sockets, int per_socket) {
  Topology topology;
  topology.name = "sockets";
  const int gpus = sockets * per_socket;
  for (int i = 0; i < gpus; ++i)
    topology.devices.push_back(device(plait::DeviceKind::gpu, i, i % sockets));
  for (int i = 0; i < sockets; ++i)
    topology.devices.push_back(device(plait::DeviceKind::host, i, i));
  for (int i = 0; i < gpus; ++i) {
    link_both_ways(topology, plait::LinkKind::pcie, i, gpus + i % sockets, 75.0);
    for (int j = 0; j < i; ++j)
      if (i % sockets == j % sockets) link_both_ways(topology, plait::LinkKind::nvlink, i, j, 75.0);
  }
  for (int i = 0; i < sockets; ++i)
    for (int j = 0; j < i; ++j)
      link_both_ways(topology, plait::LinkKind::bus, gpus + i, gpus + j, 64.0);
  return topology;
}

/// The memory of a run; int32 plans and sums only. In place, input and output overlap as in NCCL.
class ClassicRun {
 public:
  ClassicRun(const Plan& plan, bool in_place) : plan_(plan) {
    const int n = plan.request.ranks;
    for (int rank = 0; rank < n; ++rank) {
      const std::uint64_t in = plait::input_bytes(plan.request, rank);
      const std::uint64_t out = plait::output_bytes(plan.request, rank);
      const std::uint64_t shift = std::min(in, out) * static_cast<std::uint64_t>(rank);
      std::vector<std::byte>& input = memory_[{Space::input, rank}];
      input.resize(std::max(in, in_place ? out : in));
      for (std::uint64_t word = 0; word < in / 4; ++word) {
        const std::uint32_t value = input_word(rank, word);
        std::memcpy(input.data() + (in_place && out > in ? shift : 0) + 4 * word, &value, 4);
      }
      input_shift_[rank] = in_place && out > in ? shift : 0;
      output_shift_[rank] = in_place && in > out ? shift : 0;
      shared_.push_back(in_place && in != 0 && out != 0);
      memory_[{Space::output, rank}].resize(out);
      memory_[{Space::ring, rank}].resize(plan.ring_bytes[static_cast<std::size_t>(rank)]);
    }
    for (std::size_t place = 0; place < plan.scratch_bytes.size(); ++place)
      memory_[{Space::scratch, static_cast<int>(place)}].resize(plan.scratch_bytes[place]);
  }

  static std::uint32_t input_word(int rank, std::uint64_t word) {
    return static_cast<std::uint32_t>((word + 1) * 2654435761U) ^
           static_cast<std::uint32_t>(rank * 977);
  }

  /// Runs all lanes; throws std::runtime_error if no lane can continue.
  void go(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::size_t> at(plan_.lanes.size(), 0);
    std::vector<std::size_t> open;
    for (std::size_t lane = 0; lane < plan_.lanes.size(); ++lane) open.push_back(lane);
    std::size_t stuck = 0;
    while (!open.empty()) {
      const std::size_t pick = random() % open.size();
      const std::size_t lane = open[pick];
      if (!step(plan_.lanes[lane].ops[at[lane]])) {
        if (++stuck > 64 * plan_.lanes.size()) stuck = require_progress(open, at);
        continue;
      }
      stuck = 0;
      if (++at[lane] == plan_.lanes[lane].ops.size()) {
        open[pick] = open.back();
        open.pop_back();
      }
    }
  }

  std::uint32_t output_word(int rank, std::uint64_t word) {
    std::uint32_t value = 0;
    std::memcpy(&value, bytes({Space::output, rank, 4 * word, 4}), 4);
    return value;
  }

 private:
  std::byte* bytes(const Region& region) {
    const bool share =
        region.space == Space::output && shared_[static_cast<std::size_t>(region.rank)];
    const std::uint64_t shift = region.space == Space::input    ? input_shift_[region.rank]
                                : region.space == Space::output ? output_shift_[region.rank]
                                                                : 0;
    auto& memory = memory_.at({share ? Space::input : region.space, region.rank});
    if (region.offset + shift + region.bytes > memory.size())
      throw std::runtime_error(std::string("out of bounds: ") + plait::name_of(region.space));
    return memory.data() + region.offset + shift;
  }

  bool step(const Op& op) {
    auto& word = words_[{op.flag.owner, op.flag.writer, op.flag.index}];
    if (op.kind == OpKind::wait) return word >= op.value;
    if (op.kind == OpKind::signal) word = op.value;
    if (op.kind == OpKind::copy) {
      if (op.srcs[0].bytes != op.dst.bytes) throw std::runtime_error("copy of unequal lengths");
      std::memmove(bytes(op.dst), bytes(op.srcs[0]), op.dst.bytes);
    }
    if (op.kind == OpKind::reduce) {
      Words sum(op.dst.bytes / 4, 0);
      for (const Region& src : op.srcs) {
        Words value(sum.size());
        std::memcpy(value.data(), bytes(src), op.dst.bytes);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += value[i];
      }
      std::memcpy(bytes(op.dst), sum.data(), op.dst.bytes);
    }
    return true;
  }

  std::size_t require_progress(const std::vector<std::size_t>& open,
                               const std::vector<std::size_t>& at) {
    for (const std::size_t lane : open) {
      const Op& op = plan_.lanes[lane].ops[at[lane]];
      const auto key = std::tuple(op.flag.owner, op.flag.writer, op.flag.index);
      if (op.kind != OpKind::wait || words_[key] >= op.value) return 0;
    }
    throw std::runtime_error("deadlock");
  }

  const Plan& plan_;
  std::map<std::pair<Space, int>, std::vector<std::byte>> memory_;
  std::map<int, std::uint64_t> input_shift_, output_shift_;
  std::vector<bool> shared_;
  std::map<std::tuple<int, int, int>, std::uint32_t> words_;
};

/// Returns the expected output word `word` of `rank`.
inline std::uint32_t expected_word(const Request& request, int rank, std::uint64_t word) {
  const std::uint64_t count = request.count;
  const int block = static_cast<int>(word / std::max<std::uint64_t>(count, 1));
  const std::uint64_t within = word % std::max<std::uint64_t>(count, 1);
  const auto mine = static_cast<std::uint64_t>(rank) * count;
  switch (request.collective) {
    case Collective::all_gather:
    case Collective::gather: return ClassicRun::input_word(block, within);
    case Collective::broadcast: return ClassicRun::input_word(request.root, word);
    case Collective::scatter: return ClassicRun::input_word(request.root, mine + word);
    case Collective::all_to_all: return ClassicRun::input_word(block, mine + within);
    default: break;
  }
  const std::uint64_t at = request.collective == Collective::reduce_scatter ? mine + word : word;
  std::uint32_t sum = 0;
  for (int from = 0; from < request.ranks; ++from) sum += ClassicRun::input_word(from, at);
  return sum;
}

/// Counts wrong words of all outputs.
inline std::uint64_t wrong_words(const Plan& plan, bool in_place, std::uint32_t seed) {
  ClassicRun run(plan, in_place);
  run.go(seed);
  std::uint64_t wrong = 0;
  for (int rank = 0; rank < plan.request.ranks; ++rank)
    for (std::uint64_t word = 0; word < plait::output_bytes(plan.request, rank) / 4; ++word)
      wrong += run.output_word(rank, word) != expected_word(plan.request, rank, word) ? 1 : 0;
  return wrong;
}

}  // namespace classic
