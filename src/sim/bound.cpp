// Cuts and their capacities. Any set of resources that together lie on every crossing link bounds
// the crossing bandwidth from above. The code takes the cheapest of a few such sets: the bound
// holds.
#include "sim/bound.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "plan/blocks.hpp"

namespace plait::sim {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

constexpr int kAllSubsetsRanks = 10;  // more ranks: runs of consecutive ranks only
constexpr int kAllRunsRanks = 16;     // more ranks: aligned runs of 2^k ranks, and complements

class Cuts {
 public:
  Cuts(const Request& request, const SimMachine& machine)
      : request_(request), machine_(machine), taken_(machine.capacities().size(), 0) {}

  double bound_ns() {
    double bound = 0.0;
    for (const std::vector<char>& ranks : subsets()) {
      const double bytes = bytes_across(ranks);
      if (bytes <= 0.0) continue;
      for (int placing = 0; placing < 3; ++placing) {
        collect_crossing(sides(ranks, placing));
        const double capacity = cover();
        if (capacity > 0.0) bound = std::max(bound, bytes / capacity);
      }
    }
    if (request_.collective == Collective::all_reduce) bound = std::max(bound, receives_ns());
    return bound;
  }

 private:
  int ranks() const { return request_.ranks; }

  std::vector<std::vector<char>> subsets() const {
    std::vector<std::vector<char>> found;
    if (ranks() <= kAllSubsetsRanks) {
      for (std::uint32_t mask = 1; mask + 1 < (1U << ranks()); ++mask) {
        std::vector<char> side(at(ranks()), 0);
        for (int r = 0; r < ranks(); ++r) side[at(r)] = static_cast<char>((mask >> r) & 1U);
        found.push_back(side);
      }
      return found;
    }
    for (int first = 0; first < ranks(); ++first)
      for (int size = 1; size < ranks(); ++size) {
        const int least = std::min(size, ranks() - size);
        const bool is_part = (least & (least - 1)) == 0 && first % size == 0;
        if (ranks() > kAllRunsRanks && !is_part) continue;
        std::vector<char> side(at(ranks()), 0);
        for (int i = 0; i < size; ++i) side[at((first + i) % ranks())] = 1;
        found.push_back(side);
      }
    return found;
  }

  // Bytes that outputs outside need from inside; a reduction inside counts as one value.
  double bytes_across(const std::vector<char>& inside) const {
    if (!request_.counts.empty()) return blocks_across(inside);
    const double size = static_cast<double>(request_.count * bytes_of(request_.type));
    const double within = static_cast<double>(std::count(inside.begin(), inside.end(), 1));
    const double outside = static_cast<double>(ranks()) - within;
    const bool root_inside = inside[at(request_.root)] != 0;
    switch (request_.collective) {
      case Collective::all_reduce: return size;
      case Collective::reduce_scatter: return size * outside;
      case Collective::all_gather: return size * within;
      case Collective::broadcast: return root_inside ? size : 0.0;
      case Collective::reduce: return root_inside ? 0.0 : size;
      case Collective::all_to_all: return size * within * outside;
      case Collective::gather: return root_inside ? 0.0 : size * within;
      case Collective::scatter: return root_inside ? size * outside : 0.0;
      case Collective::copy: return root_inside && inside[at(request_.peer)] == 0 ? size : 0.0;
      case Collective::send_recv: break;
    }
    double bytes = 0.0;
    for (int r = 0; r < ranks(); ++r)
      if (inside[at(r)] != 0 && inside[at((r + 1) % ranks())] == 0) bytes += size;
    return bytes;
  }

  // A block for many ranks outside, or a sum of many ranks inside, crosses once.
  double blocks_across(const std::vector<char>& inside) const {
    const Collective c = request_.collective;
    double bytes = 0.0;
    for (int from = 0; from < ranks(); ++from)
      for (int to = 0; to < ranks(); ++to) {
        if (inside[at(from)] == 0 || inside[at(to)] != 0) continue;
        if ((c == Collective::gather && to != request_.root) ||
            (c == Collective::scatter && from != request_.root))
          continue;
        bytes += static_cast<double>(sent_block(request_, from, to).bytes);
      }
    const auto within = static_cast<double>(std::count(inside.begin(), inside.end(), 1));
    if (c == Collective::all_gather) return bytes / (static_cast<double>(ranks()) - within);
    return c == Collective::reduce_scatter ? bytes / within : bytes;
  }

  // Marks the devices inside. Devices without a rank may lie on either side: all outside (placing
  // 0), all inside (1), or inside if all rank devices of the same node and NUMA node are inside
  // (2).
  std::vector<char> sides(const std::vector<char>& inside, int placing) const {
    const std::vector<Device>& devices = machine_.topology().devices;
    std::vector<char> side(devices.size(), static_cast<char>(placing == 1));
    std::vector<char> is_rank(devices.size(), 0);
    for (const int device : request_.devices) is_rank[at(device)] = 1;
    for (std::size_t i = 0; i < devices.size() && placing == 2; ++i) {
      int others = 0, others_inside = 0;
      for (int r = 0; r < ranks(); ++r) {
        const Device& of_rank = devices[at(request_.devices[at(r)])];
        const int numa = devices[i].kind == DeviceKind::host ? devices[i].index : devices[i].numa;
        if (of_rank.node != devices[i].node || (numa >= 0 && of_rank.numa != numa)) continue;
        ++others;
        others_inside += inside[at(r)];
      }
      side[i] = static_cast<char>(others > 0 && others == others_inside);
    }
    for (int r = 0; r < ranks(); ++r) side[at(request_.devices[at(r)])] = inside[at(r)];
    return side;
  }

  void collect_crossing(const std::vector<char>& side) {
    crossing_.clear();
    const std::vector<Link>& links = machine_.topology().links;
    for (std::size_t i = 0; i < links.size(); ++i)
      if (side[at(links[i].src)] != 0 && side[at(links[i].dst)] == 0)
        crossing_.push_back(static_cast<int>(i));
  }

  // Least capacity of several sets of resources that together lie on every crossing link.
  double cover() {
    const auto first = [&](int link) { return machine_.link_resources(link).front(); };
    const auto last = [&](int link) { return machine_.link_resources(link).back(); };
    const auto smallest = [&](int link) {
      const std::vector<int>& resources = machine_.link_resources(link);
      return *std::min_element(resources.begin(), resources.end(), [&](int a, int b) {
        return machine_.capacities()[at(a)] < machine_.capacities()[at(b)];
      });
    };
    const double simple = std::min({cover_by(first), cover_by(last), cover_by(smallest)});
    return ranks() > kAllRunsRanks ? simple : std::min(simple, cover_greedily());
  }

  template <class Choose>
  double cover_by(const Choose& choose) {
    double capacity = 0.0;
    ++mark_;
    for (const int link : crossing_) {
      const int resource = choose(link);
      if (taken_[at(resource)] == mark_) continue;
      taken_[at(resource)] = mark_;
      capacity += machine_.capacities()[at(resource)];
    }
    return capacity;
  }

  // Repeatedly takes the resource with the least capacity for each link not yet covered.
  double cover_greedily() {
    std::vector<int> open = crossing_;
    std::vector<int> served(machine_.capacities().size(), 0);
    double capacity = 0.0;
    while (!open.empty()) {
      std::fill(served.begin(), served.end(), 0);
      for (const int link : open)
        for (const int resource : machine_.link_resources(link)) ++served[at(resource)];
      int best = -1;
      double price = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < served.size(); ++i) {
        if (served[i] == 0) continue;
        const double mine = machine_.capacities()[i] / served[i];
        if (mine < price) {
          price = mine;
          best = static_cast<int>(i);
        }
      }
      capacity += machine_.capacities()[at(best)];
      std::erase_if(open, [&](int link) {
        const std::vector<int>& resources = machine_.link_resources(link);
        return std::find(resources.begin(), resources.end(), best) != resources.end();
      });
    }
    return capacity;
  }

  double receives_ns() {
    std::vector<char> receives(machine_.topology().devices.size(), 0);
    for (const int device : request_.devices) {
      receives[at(device)] = 1;
      receives[at(machine_.host_of(device))] = 1;  // CPU workers may reduce on the host
    }
    crossing_.clear();
    const std::vector<Link>& links = machine_.topology().links;
    for (std::size_t i = 0; i < links.size(); ++i)
      if (receives[at(links[i].dst)] != 0) crossing_.push_back(static_cast<int>(i));
    const double bytes =
        static_cast<double>(request_.count * bytes_of(request_.type)) * 2.0 * (ranks() - 1);
    const double capacity = cover();
    return capacity > 0.0 ? bytes / capacity : 0.0;
  }

  const Request& request_;
  const SimMachine& machine_;
  std::vector<int> crossing_;
  std::vector<int> taken_;
  int mark_ = 0;
};

// Caches the bounds of the last machine for messages of one byte: sweeps over sizes repeat
// requests, and a bound is proportional to the bytes. Keys are compared by value, and no stale
// bound is used.
class Remembered {
 public:
  double bound_ns(const Request& request, const SimMachine& machine) {
    Request of_a_byte = request;
    of_a_byte.count = 1;
    of_a_byte.type = DataType::uint8;
    of_a_byte.op = ReduceOp::sum;
    if (!(topology_ == machine.topology()) || bounds_.size() >= kMost) {
      topology_ = machine.topology();
      bounds_.clear();
    }
    const auto found = std::find_if(bounds_.begin(), bounds_.end(),
                                    [&](const auto& one) { return one.first == of_a_byte; });
    const double bytes = static_cast<double>(request.count * bytes_of(request.type));
    if (found != bounds_.end()) return bytes * found->second;
    bounds_.emplace_back(of_a_byte, Cuts(of_a_byte, machine).bound_ns());
    return bytes * bounds_.back().second;
  }

 private:
  static constexpr std::size_t kMost = 64;
  Topology topology_;
  std::vector<std::pair<Request, double>> bounds_;
};

}  // namespace

double lower_bound_ns(const Request& request, const SimMachine& machine) {
  if (request.ranks < 2 || request.count == 0) return 0.0;
  if (!request.counts.empty()) return Cuts(request, machine).bound_ns();
  thread_local Remembered remembered;
  return remembered.bound_ns(request, machine);
}

}  // namespace plait::sim
