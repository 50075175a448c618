// Devices and links -> sixteen hex digits: the same machine gives the same text on any build.
// Speeds stay out, since they are measured anew; FNV-1a, since it is short and stable.
#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "base/text.hpp"
#include "plait/topology.hpp"
#include "topo/names.hpp"

namespace plait {
namespace {

class Hash {
 public:
  void add(const std::string& bytes) {
    for (const char byte : bytes) step(static_cast<unsigned char>(byte));
    step(0);  // "ab","c" and "a","bc" differ
  }
  std::string hex() const {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(state_));
    return digits;
  }

 private:
  void step(unsigned char byte) { state_ = (state_ ^ byte) * 1099511628211ULL; }
  std::uint64_t state_ = 14695981039346656037ULL;
};

}  // namespace

std::string fingerprint(const Topology& topology) {
  Hash hash;
  for (const Device& device : topology.devices)
    hash.add(text(device_name(device), "|", device.node, "|", device.numa, "|", device.model, "|",
                  device.uuid));
  std::vector<std::string> links;
  for (const Link& link : topology.links)
    links.push_back(text(name_of(link.kind), "|", link.src, "|", link.dst, "|", link.width));
  std::sort(links.begin(), links.end());  // the order of discovery is no property of the machine
  for (const std::string& link : links) hash.add(link);
  return hash.hex();
}

}  // namespace plait
