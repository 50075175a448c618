// Loads a topology by name or path: shipped files (in the library, or in PLAIT_DATA_DIR), several
// nodes of a shipped file ("mist-2"), the user's own files, and "local-cpu". Shipped names come
// first, so that a stray file cannot replace them.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/env.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "topo/cluster.hpp"
#include "topo/local.hpp"
#include "topo/shipped.hpp"

namespace plait {
namespace {

constexpr const char* kLocalCpu = "local-cpu";
constexpr const char* kClusters[] = {"cedar-2", "hgx-h200-2", "mist-2", "mist-4"};  // in lists

/// Reads a file. `writers`: a file not named by the user must not be writable by other users.
Topology from_file(const std::string& file, Writers writers, int nodes) {
  const FileTerms terms{.what = "topology file",
                        .most_bytes = 64 << 20,
                        .writers = writers,
                        .advice = "check the path, its owner and its permissions"};
  const std::string json = read_whole_file(file, terms).value();
  try {
    return nodes_from_json(json, nodes);
  } catch (const Error& error) {
    throw Error(error.code(), text("{}: {}", file, error.what()));
  }
}

/// Reads a replacement of a shipped topology; its folder must not be writable by other users.
Topology from_data_folder(const std::string& folder, const std::string& name, int nodes) {
  struct stat facts{};
  const std::string doubt =
      stat(folder.c_str(), &facts) == 0 ? distrust(facts, Writers::not_everybody) : "";
  if (!doubt.empty())
    throw Error(ErrorCode::permission,
                text("PLAIT_DATA_DIR {}: wanted a folder of user {} or root that not everybody may "
                     "write, found {}; correct that, or name the file itself",
                     folder, geteuid(), doubt));
  return from_file(folder + "/" + name + ".json", Writers::not_everybody, nodes);
}

/// Returns PLAIT_DATA_DIR; empty = the shipped files inside the library.
std::string data_folder() {
  const std::string folder = read_env().data_dir;
  if (!folder.empty() && folder.front() != '/')
    throw Error(ErrorCode::invalid_argument,
                text("PLAIT_DATA_DIR: wanted an absolute path, found \"{}\"; set it to the folder "
                     "of the topology files, or unset it",
                     folder));
  return folder;
}

/// Splits "mist-2" into {"mist", 2}; a name without a number of nodes gives {name, 0}.
std::pair<std::string, int> split_nodes(const std::string& name) {
  const std::size_t dash = name.rfind('-');
  int nodes = 0;
  if (dash == std::string::npos) return {name, 0};
  const char* const last = name.data() + name.size();
  const auto [end, failed] = std::from_chars(name.data() + dash + 1, last, nodes);
  if (failed != std::errc() || end != last || name[dash + 1] == '0') return {name, 0};
  return {name.substr(0, dash), nodes};
}

Topology shipped(const ShippedFile& file, int nodes) {
  if (nodes != 0 && (nodes < 2 || nodes > kMaxNodes))
    throw Error(ErrorCode::invalid_argument,
                text("topology \"{}-{}\": wanted 2 to {} nodes of {}, found {}", file.name, nodes,
                     kMaxNodes, file.name, nodes));
  const std::string folder = data_folder();
  if (!folder.empty()) return from_data_folder(folder, file.name, nodes);
  return nodes_from_json({file.begin, static_cast<std::size_t>(file.end - file.begin)}, nodes);
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
  names.insert(names.end(), std::begin(kClusters), std::end(kClusters));
  std::sort(names.begin(), names.end());
  return names;
}

Topology load_topology(const std::string& name_or_file) {
  if (name_or_file == kLocalCpu) return local_cpu(local_rank_count());
  const auto [node, nodes] = split_nodes(name_or_file);
  for (const ShippedFile& file : shipped_files()) {
    if (name_or_file == file.name) return shipped(file, 0);
    if (node == file.name && nodes != 0) return shipped(file, nodes);
  }
  const bool is_path = name_or_file.find('/') != std::string::npos ||
                       name_or_file.find(".json") != std::string::npos;
  struct stat facts{};
  if (is_path || (!name_or_file.empty() && stat(name_or_file.c_str(), &facts) == 0))
    return from_file(name_or_file, Writers::anyone, 0);
  throw Error(ErrorCode::invalid_argument,
              text("topology \"{}\": wanted a file, one of {}, or so many nodes of one "
                   "(hgx-h200-8); found none of these",
                   name_or_file, listed(shipped_topologies())));
}

}  // namespace plait
