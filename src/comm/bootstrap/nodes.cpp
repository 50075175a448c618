// Groups ranks by host into nodes, ordered by lowest rank.
#include "comm/bootstrap/nodes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "base/env.hpp"
#include "base/nccl_settings.hpp"
#include "base/text.hpp"

namespace plait {

int Nodes::ranks() const {
  std::size_t ranks = 0;
  for (const std::vector<int>& node : members) ranks += node.size();
  return static_cast<int>(ranks);
}

std::string Nodes::why_unlike() const {
  for (std::size_t node = 0; node < members.size(); ++node)
    if (members[node].size() != members[0].size())
      return text("node {} has {} ranks, node 0 has {}", node, members[node].size(),
                  members[0].size());
  return {};
}

Nodes nodes_of(const std::vector<std::string>& hosts, int node_size, int rank) {
  Nodes found;
  std::map<std::string, std::size_t> node_of;
  for (int peer = 0; peer < static_cast<int>(hosts.size()); ++peer) {
    const std::string name =
        node_size > 0 ? text("{}", peer / node_size) : hosts[static_cast<std::size_t>(peer)];
    const std::size_t node = node_of.try_emplace(name, node_of.size()).first->second;
    if (node == found.members.size()) found.members.emplace_back();
    if (peer == rank) {
      found.mine = static_cast<int>(node);
      found.place = static_cast<int>(found.members[node].size());
    }
    found.members[node].push_back(peer);
  }
  return found;
}

std::string nic_rate(const Sysfs& system) {
  const std::optional<std::string> disable = nccl_setting("NCCL_IB_DISABLE");
  if (disable && nccl_number(*disable).value_or(0) != 0) return "0";
  const std::string filter = nccl_setting("NCCL_IB_HCA").value_or("");
  double gb_per_s = 0;
  for (const RdmaPort& port : system.rdma_ports())
    if (nccl_uses_nic(filter, port.nic, port.port)) gb_per_s += port.gb_per_s;
  return text("{}", std::llround(gb_per_s * 1e3));
}

double network_gb_per_s_of(const std::vector<std::string>& rates) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::int64_t least = kMost;
  for (const std::string& rate : rates)
    least = std::min(least, parse_integer("rate of NICs", rate, 0, kMost));
  return rates.empty() ? 0.0 : static_cast<double>(least) / 1e3;
}

}  // namespace plait
