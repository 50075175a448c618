// Hashes devices and links to sixteen hex digits, the same for a machine on any build. Speeds are
// left out, since repeated measurements change speeds. FNV-1a is short and stable.
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "plait/topology.hpp"
#include "topo/names.hpp"

namespace plait {
namespace {

/// Adds a text with the terminating 0: "ab","c" and "a","bc" differ.
std::uint64_t add(std::uint64_t hash, const std::string& words) {
  return hash_bytes(words.c_str(), words.size() + 1, hash);
}

}  // namespace

std::string fingerprint(const Topology& topology) {
  std::uint64_t hash = kHashOfNothing;
  for (const Device& device : topology.devices)
    hash = add(hash, text("{}|{}|{}|{}|{}", device_name(device), device.node, device.numa,
                          device.model, device.uuid));
  std::vector<std::string> links;
  for (const Link& link : topology.links)
    links.push_back(text("{}|{}|{}|{}", name_of(link.kind), link.src, link.dst, link.width));
  std::sort(links.begin(), links.end());  // the order of discovery is no property of the machine
  for (const std::string& link : links) hash = add(hash, link);
  return hex(hash);
}

}  // namespace plait
