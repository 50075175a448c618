// NCCL's own variables, found as by NCCL: settings about the machine hold for plait too.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace plait {

/// Returns an NCCL_* variable from the environment, else from the file named by NCCL_CONF_FILE or
/// ~/.nccl.conf, else from /etc/nccl.conf. None if unset.
std::optional<std::string> nccl_setting(const std::string& name);
/// Parses a number as NCCL does: decimal, 0x or 0, ignoring any suffix; none if the text begins
/// with no number.
std::optional<std::int64_t> nccl_number(const std::string& value);
/// Returns whether NCCL uses port `port` of RDMA NIC `nic` with `filter` as NCCL_IB_HCA: NIC names,
/// each perhaps with ":PORT", separated by commas. A name stands for all NICs with this beginning,
/// behind "=" for one NIC. "^" excludes the NICs of the list.
bool nccl_uses_nic(const std::string& filter, const std::string& nic, int port);
/// Returns `name`'s value in the text of a settings file: the first line NAME=value counts.
std::optional<std::string> nccl_setting_in(const std::string& file, const std::string& name);

}  // namespace plait
