// A name or a path -> Topology: shipped files (in the library, or in PLAIT_DATA_DIR), the user's
// own files, and "local-cpu". A name is tried as shipped first, so that a stray file cannot stand
// in for one.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/env.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "topo/local.hpp"
#include "topo/shipped.hpp"

namespace plait {
namespace {

constexpr std::int64_t kMaxFileBytes = 64LL << 20;
constexpr const char* kLocalCpu = "local-cpu";

/// Who chose the file: the user named it, or plait looked for it in a folder.
enum class Origin : std::uint8_t { named, found };

[[noreturn]] void refuse_file(const std::string& file, const std::string& found) {
  throw Error(ErrorCode::io_error, text("topology file ", file,
                                        ": wanted a readable JSON file of at most 64 MiB, found ",
                                        found, "; check the path and its permissions"));
}

struct OpenFile {
  int fd = -1;
  ~OpenFile() {
    if (fd >= 0) close(fd);
  }
};

/// What nobody named must not be what another user put or may put there.
void check_trusted(const std::string& place, const struct stat& facts) {
  const bool owned = facts.st_uid == geteuid() || facts.st_uid == 0;
  const bool open_to_all = (facts.st_mode & S_IWOTH) != 0;
  if (owned && !open_to_all) return;
  throw Error(ErrorCode::permission,
              text(place, ": wanted the property of user ", geteuid(),
                   " or root that not everybody may write, found user ", facts.st_uid,
                   open_to_all ? ", writable by everybody" : "",
                   "; correct that, or name the file itself"));
}

std::string read_text(const std::string& file, Origin origin) {
  // Opened once and then looked at, so that nothing can take its place; without waiting for the
  // writer of a pipe.
  const OpenFile opened{open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  struct stat facts{};
  if (opened.fd < 0 || fstat(opened.fd, &facts) != 0) refuse_file(file, std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) refuse_file(file, "something that is no regular file");
  if (facts.st_size > kMaxFileBytes) refuse_file(file, text(facts.st_size, " bytes"));
  if (origin == Origin::found) check_trusted(file, facts);
  std::string whole(static_cast<std::size_t>(facts.st_size), '\0');
  std::size_t bytes = 0;  // no more than was allowed, should the file grow
  while (bytes < whole.size()) {
    const ssize_t got = read(opened.fd, whole.data() + bytes, whole.size() - bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse_file(file, std::strerror(errno));
    if (got == 0) break;
    bytes += static_cast<std::size_t>(got);
  }
  whole.resize(bytes);
  return whole;
}

Topology from_file(const std::string& file, Origin origin) {
  const std::string json = read_text(file, origin);
  try {
    return topology_from_json(json);
  } catch (const Error& error) {
    throw Error(error.code(), text(file, ": ", error.what()));
  }
}

/// A shipped topology's stand-in; its folder is not to be one where others can put files either.
Topology from_data_folder(const std::string& folder, const std::string& name) {
  struct stat facts{};
  if (stat(folder.c_str(), &facts) == 0) check_trusted(folder, facts);
  return from_file(folder + "/" + name + ".json", Origin::found);
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
    return from_file(name_or_file, Origin::named);
  throw Error(ErrorCode::invalid_argument,
              text("topology \"", name_or_file, "\": wanted a file, or one of ",
                   listed(shipped_topologies()), "; found neither"));
}

}  // namespace plait
