// An index of find_link() for all pairs of devices, built in a single pass over the links.
#pragma once
#include <cstddef>
#include <vector>

#include "plait/topology.hpp"

namespace plait {

class LinkIndex {
 public:
  explicit LinkIndex(const Topology& topology) : devices_(topology.devices.size()) {
    fastest_.assign(devices_ * devices_, -1);
    for (std::size_t i = 0; i < topology.links.size(); ++i) {
      const Link& link = topology.links[i];
      int& kept = fastest_[place(link.src, link.dst)];
      if (kept < 0 || topology.links[static_cast<std::size_t>(kept)].gb_per_s < link.gb_per_s)
        kept = static_cast<int>(i);
    }
  }

  /// Returns the fastest link between two devices; -1 = none.
  int between(int src_device, int dst_device) const {
    return fastest_[place(src_device, dst_device)];
  }

 private:
  std::size_t place(int src_device, int dst_device) const {
    return static_cast<std::size_t>(src_device) * devices_ + static_cast<std::size_t>(dst_device);
  }

  std::size_t devices_;
  std::vector<int> fastest_;
};

}  // namespace plait
