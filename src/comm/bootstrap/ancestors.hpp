// Finds the process that set a variable of this process's environment. The nearest launcher above a
// rank has started the rank (launcher.cpp).
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace plait {

/// Start environments of this process and its ancestors, as far as readable by this user.
class Ancestors {
 public:
  Ancestors();
  /// Counts this process and the ancestors in a row that started with the current value of NAME. 0
  /// = this process has set NAME itself; kUnseen = all visible ancestors started with the value.
  int depth(const char* name) const;
  static constexpr int kUnseen = std::numeric_limits<int>::max();

 private:
  std::vector<std::string> environments_;  ///< each "\0NAME=value\0NAME=value\0"
};

/// A process's parent and program name; parent 0 if not shown in /proc.
struct ParentOf {
  int parent = 0;
  std::string name;
};
ParentOf parent_of(int process);
/// Returns a process's start time in clock ticks since the machine's start: with the process number
/// a name that no other process gets. 0 if the process has ended or is not shown in /proc.
std::uint64_t start_of(int process);

/// Returns the inode of a namespace of this process ("net", "pid") as text; empty if not shown in
/// /proc.
std::string namespace_name(const char* kind);

}  // namespace plait
