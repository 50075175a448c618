// NCCL's own variables, as NCCL finds them: what it was told about a machine holds for plait too.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace plait {

/// The value of an NCCL_* variable: in the environment, else in the file that NCCL_CONF_FILE names
/// or ~/.nccl.conf, else in /etc/nccl.conf. None where nobody has set it.
std::optional<std::string> nccl_setting(const std::string& name);
/// A number as NCCL reads it: decimal, 0x or 0, with whatever behind it; none where it begins with
/// none.
std::optional<std::int64_t> nccl_number(const std::string& value);
/// The value of `name` in the text of such a file: the first line that is name=value counts.
std::optional<std::string> nccl_setting_in(const std::string& file, const std::string& name);

}  // namespace plait
