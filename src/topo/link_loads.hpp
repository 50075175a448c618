// Busy time of each link and each resource for bytes that cross links at the same time.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "plait/topology.hpp"

namespace plait {

class LinkLoads {
 public:
  explicit LinkLoads(const Topology& topology)
      : topology_(topology), busy_ns_(topology.links.size() + topology.resources.size(), 0.0) {}

  void add(int link_index, double bytes) {
    const Link& link = topology_.links[at(link_index)];
    draw(at(link_index), bytes / link.gb_per_s);
    for (const int resource : link.resources)
      draw(topology_.links.size() + at(resource),
           bytes / topology_.resources[at(resource)].gb_per_s);
  }
  /// Returns the time of the busiest link or resource.
  double most_ns() const {
    double most_ns = 0.0;
    for (const std::size_t place : busy_) most_ns = std::max(most_ns, busy_ns_[place]);
    return most_ns;
  }
  void clear() {
    for (const std::size_t place : busy_) busy_ns_[place] = 0.0;
    busy_.clear();
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  void draw(std::size_t place, double ns) {
    if (busy_ns_[place] == 0.0) busy_.push_back(place);
    busy_ns_[place] += ns;
  }

  const Topology& topology_;
  std::vector<double> busy_ns_;    // links first, then resources
  std::vector<std::size_t> busy_;  // indices of busy_ns_ that are not 0
};

}  // namespace plait
