// Reads the environments of this process and of all ancestors. /proc/PID/environ holds the
// environment at a process's start, without later changes.
#include "comm/bootstrap/ancestors.hpp"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "base/env.hpp"
#include "base/process_state.hpp"
#include "base/text.hpp"

namespace plait {
namespace {

constexpr int kMostAncestors = 64;

std::string environment_of(int process) {
  std::ifstream file(text("/proc/{}/environ", process), std::ios::binary);
  std::string all(1, '\0');
  all.append(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  return all;
}

bool holds(const std::string& environment, const std::string& entry) {
  return environment.find('\0' + entry + '\0') != std::string::npos;
}

/// False if the process has overwritten the environment, as setproctitle does.
bool is_whole(const std::string& environment) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    if (holds(environment, *entry)) return true;
  return false;
}

}  // namespace

ParentOf parent_of(int process) {
  const std::string line = stat_of_process(process);
  const std::size_t begin = line.find('('), end = line.rfind(')');
  ParentOf found;
  if (begin == std::string::npos || end == std::string::npos) return found;
  if (std::sscanf(line.c_str() + end + 1, " %*c %d", &found.parent) != 1) return {};
  found.name = line.substr(begin + 1, end - begin - 1);
  return found;
}

std::uint64_t start_of(int process) {
  const std::string line = stat_of_process(process);
  const std::size_t end = line.rfind(')');
  char state = 'X';
  unsigned long long start = 0;  // field 22; the state is field 3
  if (end == std::string::npos ||
      std::sscanf(line.c_str() + end + 1,
                  " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                  "%llu",
                  &state, &start) != 2)
    return 0;
  return state == 'Z' || state == 'X' ? 0 : start;
}

std::string namespace_name(const char* kind) {
  std::array<char, 64> word{};
  const ssize_t length =
      ::readlink(text("/proc/self/ns/{}", kind).c_str(), word.data(), word.size() - 1);
  return length > 0 ? std::string(word.data(), static_cast<std::size_t>(length)) : std::string();
}

Ancestors::Ancestors() {
  if (std::string mine = environment_of(::getpid()); is_whole(mine))
    environments_.push_back(std::move(mine));
  int process = ::getppid();
  for (int above = 0; process > 0 && above < kMostAncestors; ++above) {
    std::string environment = environment_of(process);
    if (environment.size() < 2) break;  // another user's process, or a process that has ended
    environments_.push_back(std::move(environment));
    process = parent_of(process).parent;
  }
}

int Ancestors::depth(const char* name) const {
  const std::string entry = text("{}={}", name, foreign_env(name));
  for (std::size_t above = 0; above < environments_.size(); ++above)
    if (!holds(environments_[above], entry)) return static_cast<int>(above);
  return kUnseen;
}

}  // namespace plait
