// A name or a path -> Topology: shipped files (in the library, or in PLAIT_DATA_DIR), the user's
// own files, and "local-cpu". A name is tried as shipped first, so that a stray file cannot stand
// in for one.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/env.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "topo/local.hpp"
#include "topo/shipped.hpp"

namespace plait {
namespace {

constexpr long long kMaxFileBytes = 16LL << 20;
constexpr const char* kLocalCpu = "local-cpu";

[[noreturn]] void refuse_file(const std::string& file, const std::string& found) {
  throw Error(ErrorCode::io_error, text("topology file ", file,
                                        ": wanted a readable JSON file of at most 16 MiB, found ",
                                        found, "; check the path and its permissions"));
}

std::string read_text(const std::string& file) {
  struct stat facts{};
  if (stat(file.c_str(), &facts) != 0) refuse_file(file, std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) refuse_file(file, "something that is no regular file");
  if (facts.st_size > kMaxFileBytes) refuse_file(file, text(facts.st_size, " bytes"));
  std::ifstream stream(file, std::ios::binary);
  if (!stream) refuse_file(file, std::strerror(errno));
  std::string whole(static_cast<std::size_t>(facts.st_size), '\0');
  stream.read(whole.data(), facts.st_size);  // no more than was allowed, should the file grow
  whole.resize(static_cast<std::size_t>(stream.gcount()));
  if (stream.bad()) refuse_file(file, std::strerror(errno));
  return whole;
}

Topology from_file(const std::string& file) {
  const std::string json = read_text(file);
  try {
    return topology_from_json(json);
  } catch (const Error& error) {
    throw Error(error.code(), text(file, ": ", error.what()));
  }
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
    if (!folder.empty()) return from_file(folder + "/" + name_or_file + ".json");
    return topology_from_json({file.begin, static_cast<std::size_t>(file.end - file.begin)});
  }
  const bool is_path = name_or_file.find('/') != std::string::npos ||
                       name_or_file.find(".json") != std::string::npos;
  struct stat facts{};
  if (is_path || (!name_or_file.empty() && stat(name_or_file.c_str(), &facts) == 0))
    return from_file(name_or_file);
  throw Error(ErrorCode::invalid_argument,
              text("topology \"", name_or_file, "\": wanted a file, or one of ",
                   listed(shipped_topologies()), "; found neither"));
}

}  // namespace plait
