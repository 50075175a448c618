// Shared memory as sealed memfds. The available memory is checked first: committing more would wake
// the out-of-memory killer long before fallocate fails.
#include "comm/shm/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "base/system_call.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

/// Returns the first number in a file; kNoLimit without a number ("max" in memory.max).
std::uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : kNoLimit;
}

std::uint64_t memory_available() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  std::string unit;
  while (file >> key >> kib && std::getline(file, unit))
    if (key == "MemAvailable:") return kib * 1024;
  return kNoLimit;
}

/// Memory that a group's usage counts although the kernel reclaims it on demand.
std::uint64_t file_cache(const std::string& group) {
  std::ifstream file(group + "/memory.stat");
  std::string key;
  std::uint64_t bytes = 0;
  std::uint64_t sum = 0;
  while (file >> key >> bytes)
    if (key == "inactive_file" || key == "active_file") sum += bytes;
  return sum;
}

std::uint64_t left_in(const std::string& group) {
  const std::uint64_t most = number_in(group + "/memory.max");
  const std::uint64_t used = number_in(group + "/memory.current");
  if (most == kNoLimit || used == kNoLimit) return kNoLimit;
  const std::uint64_t cache = file_cache(group);
  const std::uint64_t held = used > cache ? used - cache : 0;
  return most > held ? most - held : 0;
}

/// Shared memory counts as a file: the kernel ends a process with SIGXFSZ above RLIMIT_FSIZE.
void check_file_limit(std::uint64_t bytes) {
  rlimit most{};
  if (getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur == RLIM_INFINITY ||
      bytes <= most.rlim_cur)
    return;
  throw Error(ErrorCode::out_of_memory,
              text("an arena of {} bytes: this process may make files of at most {} bytes "
                   "(RLIMIT_FSIZE), and shared memory is one; raise it: ulimit -f unlimited",
                   bytes, most.rlim_cur));
}

/// Commits the file's memory in pieces. On older kernels a signal ends fallocate(), and the kernel
/// takes back the pages of the call: with a timer (a profiler's) a single large call never ends.
void commit(const Fd& fd, std::uint64_t bytes, const std::string& whole) {
  constexpr std::uint64_t kLeast = 64 << 10;
  std::uint64_t piece = 16 << 20;
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t now = std::min(piece, bytes - at);
    if (fallocate(fd.get(), 0, static_cast<off_t>(at), static_cast<off_t>(now)) == 0)
      at += now;
    else if (errno == EINTR)
      piece = std::max(piece / 2, kLeast);
    else
      throw call_failed(ErrorCode::out_of_memory, "fallocate", errno, whole);
  }
}

/// Returns this process's control group, "/" in a separate namespace; empty without a group.
std::string own_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("0::")) return line.substr(3);
  return "";
}

}  // namespace

std::uint64_t available_in_groups(const std::string& root, std::string group) {
  std::uint64_t least = left_in(root);
  while (!group.empty()) {
    least = std::min(least, left_in(root + group));
    const std::size_t parent = group.rfind('/');
    group.resize(parent == std::string::npos ? 0 : parent);
  }
  return least;
}

std::uint64_t available_bytes() {
  return std::min(memory_available(), available_in_groups("/sys/fs/cgroup", own_group()));
}

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

Fd make_shared_memory(std::uint64_t bytes, int others) {
  const std::uint64_t available = available_bytes();
  if (bytes > available / (static_cast<std::uint64_t>(others) + 1))
    throw Error(
        ErrorCode::out_of_memory,
        text("arena: wanted {} bytes for each of {} ranks, found {} available; send less at once",
             bytes, others + 1, available));
  check_file_limit(bytes);
  Fd fd(memfd_create("plait", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) throw call_failed(ErrorCode::io_error, "memfd_create", errno);
  const auto size = static_cast<off_t>(bytes);
  const std::string whole = text("an arena of {} bytes", bytes);
  if (ftruncate(fd.get(), size) != 0)
    throw call_failed(ErrorCode::out_of_memory, "ftruncate", errno, whole);
  commit(fd, bytes, whole);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw call_failed(ErrorCode::io_error, "fcntl(F_ADD_SEALS)", errno, whole);
  return fd;
}

Fd open_of_process(int process, int file, MapAccess access) {
  const int allowed = access == MapAccess::read ? O_RDONLY : O_RDWR;
  return Fd(::open(text("/proc/{}/fd/{}", process, file).c_str(),
                   allowed | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
}

Mapping map_shared_memory(const Fd& fd, std::uint64_t bytes, MapAccess access) {
  struct stat status{};
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (fstat(fd.get(), &status) != 0 || seals < 0 || (seals & kSeals) != kSeals ||
      static_cast<std::uint64_t>(status.st_size) != bytes)
    throw Error(ErrorCode::mismatch,
                text("shared memory of a peer: wanted {} sealed bytes, found {} with seals {}",
                     bytes, status.st_size, seals));
  const int allowed = access == MapAccess::read ? PROT_READ : PROT_READ | PROT_WRITE;
  void* base = mmap(nullptr, bytes, allowed, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED)
    throw call_failed(ErrorCode::out_of_memory, "mmap", errno,
                      text("shared memory of {} bytes", bytes));
  return Mapping(static_cast<std::byte*>(base), bytes);
}

}  // namespace plait
