// A name or a path -> Topology: shipped files (in the library, or in PLAIT_DATA_DIR), the user's
// own files, and "local-cpu". A name is tried as shipped first, so that a stray file cannot stand
// in for one.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/env.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "topo/local.hpp"
#include "topo/shipped.hpp"

namespace plait {
namespace {

constexpr const char* kLocalCpu = "local-cpu";

/// What nobody named must not be what another user put or may put there.
Topology from_file(const std::string& file, Writers writers) {
  const FileTerms terms{.what = "topology file",
                        .most_bytes = 64 << 20,
                        .writers = writers,
                        .advice = "check the path, its owner and its permissions"};
  const std::string json = read_whole_file(file, terms).value();
  try {
    return topology_from_json(json);
  } catch (const Error& error) {
    throw Error(error.code(), text(file, ": ", error.what()));
  }
}

/// A shipped topology's stand-in; its folder is not to be one where others can put files either.
Topology from_data_folder(const std::string& folder, const std::string& name) {
  struct stat facts{};
  const std::string doubt =
      stat(folder.c_str(), &facts) == 0 ? distrust(facts, Writers::not_everybody) : "";
  if (!doubt.empty())
    throw Error(ErrorCode::permission,
                text("PLAIT_DATA_DIR ", folder, ": wanted a folder of user ", geteuid(),
                     " or root that not everybody may write, found ", doubt,
                     "; correct that, or name the file itself"));
  return from_file(folder + "/" + name + ".json", Writers::not_everybody);
}

/// Empty where the shipped files are those in the library.
std::string data_folder() {
  const std::string folder = read_env().data_dir;
  if (!folder.empty() && folder.front() != '/')
    throw Error(ErrorCode::invalid_argument,
                text("PLAIT_DATA_DIR: wanted an absolute path, found \"", folder,
                     "\"; set it to the folder of the topology files, or unset it"));
  return folder;
}

std::string listed(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

}  // namespace

std::vector<std::string> shipped_topologies() {
  std::vector<std::string> names;
  for (const ShippedFile& file : shipped_files()) names.emplace_back(file.name);
  names.emplace_back(kLocalCpu);
  std::sort(names.begin(), names.end());
  return names;
}

Topology load_topology(const std::string& name_or_file) {
  if (name_or_file == kLocalCpu) return local_cpu(local_rank_count());
  for (const ShippedFile& file : shipped_files()) {
    if (name_or_file != file.name) continue;
    const std::string folder = data_folder();
    if (!folder.empty()) return from_data_folder(folder, name_or_file);
    return topology_from_json({file.begin, static_cast<std::size_t>(file.end - file.begin)});
  }
  const bool is_path = name_or_file.find('/') != std::string::npos ||
                       name_or_file.find(".json") != std::string::npos;
  struct stat facts{};
  if (is_path || (!name_or_file.empty() && stat(name_or_file.c_str(), &facts) == 0))
    return from_file(name_or_file, Writers::anyone);
  throw Error(ErrorCode::invalid_argument,
              text("topology \"", name_or_file, "\": wanted a file, or one of ",
                   listed(shipped_topologies()), "; found neither"));
}

}  // namespace plait
