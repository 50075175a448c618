// Which process brought a variable into this one's environment: the nearest launcher above a rank
// is the one that started it (launcher.cpp).
#pragma once
#include <limits>
#include <string>
#include <vector>

namespace plait {

/// The environments with which this process, its parent, the parent's parent and so on began, as
/// far as this user may read them.
class Ancestors {
 public:
  Ancestors();
  /// How many of these processes in a row, from this one on, began with NAME=its value here:
  /// 0 = this process has set it itself; kBeyond = all that can be seen began with it.
  int depth(const char* name) const;
  static constexpr int kUnseen = std::numeric_limits<int>::max();

 private:
  std::vector<std::string> environments_;  ///< each "\0NAME=value\0NAME=value\0"
};

/// The parent of a process and the name of its program; 0 where /proc does not say.
struct ParentOf {
  int parent = 0;
  std::string name;
};
ParentOf parent_of(int process);

/// The inode of a namespace of this process ("net", "pid"), as text; empty where /proc does not
/// say.
std::string namespace_name(const char* kind);

}  // namespace plait
