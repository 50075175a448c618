// Runs a plan on integers with lanes in random order: an oracle for tests that may not link the
// executors. The run also checks that a rank accesses no peer's buffers, and no scratch or ring
// before the owner has begun.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "plait/plan.hpp"

namespace plait::test {

/// A request on bytes, with the root in the middle and the peer at the end.
inline Request request_of(Collective collective, int ranks, std::uint64_t count) {
  Request request;
  request.collective = collective;
  request.ranks = ranks;
  request.count = count;
  request.type = DataType::uint8;
  request.root = ranks / 2;
  request.peer = ranks - 1;
  return request;
}

/// Runs plans on uint8 elements with op sum (modulo 256).
class PlanRunner {
 public:
  PlanRunner(const Plan& plan, bool in_place, unsigned seed)
      : plan_(plan), in_place_(in_place), random_(seed) {
    const int ranks = plan.request.ranks;
    const std::size_t places = plan.scratch_bytes.size();
    memory_.resize(places * 5);
    for (std::size_t place = 0; place < places; ++place) {
      bytes(Space::scratch, static_cast<int>(place)).resize(plan.scratch_bytes[place], 0xAA);
      if (static_cast<int>(place) >= ranks) continue;
      bytes(Space::inbox, static_cast<int>(place)).resize(plan.inbox_bytes[place], 0xBB);
      bytes(Space::ring, static_cast<int>(place)).resize(plan.ring_bytes[place], 0xCC);
    }
    for (int rank = 0; rank < ranks; ++rank) load(rank);
  }

  /// Returns the first fault of the outputs; "" = none.
  std::string run() {
    std::vector<std::size_t> next(plan_.lanes.size(), 0);
    std::vector<std::size_t> open;
    for (std::size_t lane = 0; lane < plan_.lanes.size(); ++lane) open.push_back(lane);
    std::size_t stuck = 0;
    while (!open.empty()) {
      const std::size_t pick = random_() % open.size();
      const Lane& lane = plan_.lanes[open[pick]];
      std::size_t burst = 1 + random_() % 20, done = 0;
      std::size_t& at = next[open[pick]];
      while (at < lane.ops.size() && done < burst && step(lane, lane.ops[at])) ++at, ++done;
      if (!wrong_.empty()) return wrong_;
      stuck = done == 0 && at < lane.ops.size() ? stuck + 1 : 0;
      if (stuck > 200 * (open.size() + 1) && !can_move(next)) return "stuck: " + where(next);
      if (at == lane.ops.size()) open.erase(open.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    return compare();
  }

 private:
  using Bytes = std::vector<std::uint8_t>;
  Bytes& bytes(Space space, int place) {
    return memory_[static_cast<std::size_t>(place) * 5 + static_cast<std::size_t>(space)];
  }
  static std::uint8_t value(int rank, std::uint64_t i) {
    return static_cast<std::uint8_t>((static_cast<std::uint64_t>(rank) * 89 + i * 7 + i / 251) + 3);
  }
  // In place, the input lies in the output at this offset (or the output in the input).
  std::uint64_t input_offset(int rank) const {
    const Collective c = plan_.request.collective;
    const std::uint64_t block = plan_.request.count;
    return c == Collective::all_gather || c == Collective::gather
               ? static_cast<std::uint64_t>(rank) * block
               : 0;
  }
  std::uint64_t output_offset(int rank) const {
    const Collective c = plan_.request.collective;
    return c == Collective::reduce_scatter || c == Collective::scatter
               ? static_cast<std::uint64_t>(rank) * plan_.request.count
               : 0;
  }
  void load(int rank) {
    const std::uint64_t in = input_bytes(plan_.request, rank),
                        out = output_bytes(plan_.request, rank);
    bytes(Space::input, rank).resize(in_place_ ? std::max(in, out) + 0 : in, 0xDD);
    bytes(Space::output, rank).resize(out, 0xEE);
    if (in_place_)
      bytes(Space::input, rank)
          .resize(std::max(in + input_offset(rank), out + output_offset(rank)), 0xDD);
    for (std::uint64_t i = 0; i < in; ++i)
      bytes(Space::input, rank)[(in_place_ ? input_offset(rank) : 0) + i] = value(rank, i);
  }
  std::uint8_t* at(const Region& region) {
    Bytes* held = &bytes(region.space, region.rank);
    std::uint64_t offset = region.offset;
    if (in_place_ && region.space == Space::input && input_bytes(plan_.request, region.rank) > 0)
      offset += output_bytes(plan_.request, region.rank) > 0 ? input_offset(region.rank) : 0;
    if (in_place_ && region.space == Space::output &&
        output_bytes(plan_.request, region.rank) > 0) {
      held = &bytes(Space::input, region.rank);
      offset += output_offset(region.rank);
    }
    if (in_place_ && region.space == Space::input && output_bytes(plan_.request, region.rank) == 0)
      offset += input_offset(region.rank);
    if (offset + region.bytes > held->size()) {
      wrong_ = text("out of bounds: {} of {}", name_of(region.space), region.rank);
      return nullptr;
    }
    return held->data() + offset;
  }
  bool is_private(const Lane& lane, const Region& region) {
    const bool is_users = region.space == Space::input || region.space == Space::output;
    if (is_users && region.rank != lane.rank && !plan_.symmetric)
      wrong_ = text("rank {} touches {} of {}", lane.rank, name_of(region.space), region.rank);
    return wrong_.empty();
  }
  bool step(const Lane& lane, const Op& op) {
    if (op.kind == OpKind::wait) return flags_[op.flag] >= op.value;
    if (op.kind == OpKind::signal) {
      if (++flags_[op.flag] != op.value) wrong_ = "a flag is raised by more than 1";
      return true;
    }
    std::vector<const std::uint8_t*> srcs;
    if (!is_private(lane, op.dst)) return false;
    for (const Region& src : op.srcs) {
      if (!is_private(lane, src)) return false;
      srcs.push_back(at(src));
    }
    std::uint8_t* dst = at(op.dst);
    if (!wrong_.empty()) return false;
    for (std::uint64_t i = 0; i < op.dst.bytes; ++i) {
      std::uint8_t sum = 0;
      for (const std::uint8_t* src : srcs) sum = static_cast<std::uint8_t>(sum + src[i]);
      dst[i] = sum;
    }
    return true;
  }
  bool can_move(const std::vector<std::size_t>& next) {
    for (std::size_t lane = 0; lane < next.size(); ++lane) {
      if (next[lane] == plan_.lanes[lane].ops.size()) continue;
      const Op& op = plan_.lanes[lane].ops[next[lane]];
      if (op.kind != OpKind::wait || flags_[op.flag] >= op.value) return true;
    }
    return false;
  }
  std::string where(const std::vector<std::size_t>& next) {
    std::string out;
    for (std::size_t lane = 0; lane < next.size(); ++lane)
      if (next[lane] != plan_.lanes[lane].ops.size())
        out += text(" r{}.{}@{}", plan_.lanes[lane].rank, plan_.lanes[lane].name, next[lane]);
    return out;
  }
  std::uint8_t expected(int rank, std::uint64_t i) const {
    const std::uint64_t count = plan_.request.count;
    const int n = plan_.request.ranks, root = plan_.request.root;
    const int block = count == 0 ? 0 : static_cast<int>(i / count);
    std::uint8_t sum = 0;
    switch (plan_.request.collective) {
      case Collective::all_reduce:
      case Collective::reduce:
        for (int from = 0; from < n; ++from) sum = static_cast<std::uint8_t>(sum + value(from, i));
        return sum;
      case Collective::reduce_scatter:
        for (int from = 0; from < n; ++from)
          sum = static_cast<std::uint8_t>(
              sum + value(from, static_cast<std::uint64_t>(rank) * count + i));
        return sum;
      case Collective::all_gather:
      case Collective::gather: return value(block, i % count);
      case Collective::broadcast:
      case Collective::copy: return value(root, i);
      case Collective::scatter: return value(root, static_cast<std::uint64_t>(rank) * count + i);
      case Collective::all_to_all:
        return value(block, static_cast<std::uint64_t>(rank) * count + i % count);
      case Collective::send_recv: return value((rank - 1 + n) % n, i);
    }
    return 0;
  }
  std::string compare() {
    for (int rank = 0; rank < plan_.request.ranks; ++rank) {
      const std::uint64_t out = output_bytes(plan_.request, rank);
      if (out == 0) continue;
      const std::uint8_t* data = at({Space::output, rank, 0, out});
      if (data == nullptr) return wrong_;
      for (std::uint64_t i = 0; i < out; ++i)
        if (data[i] != expected(rank, i))
          return text("rank {} byte {}: wanted {}, found {}", rank, i, int{expected(rank, i)},
                      int{data[i]});
    }
    return "";
  }

  const Plan& plan_;
  bool in_place_;
  std::mt19937 random_;
  std::vector<Bytes> memory_;
  std::map<Flag, std::uint32_t> flags_;
  std::string wrong_;
};

inline std::string run_plan(const Plan& plan, bool in_place, unsigned seed) {
  return PlanRunner(plan, in_place, seed).run();
}

}  // namespace plait::test
