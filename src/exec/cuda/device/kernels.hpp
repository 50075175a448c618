// The build's device code -> kernels found by name, in one context, and how they are launched.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "driver/cuda/api.hpp"

namespace plait::cuda {

/// How a kernel is spread. programmatic: its launch may overlap the end of the kernel before, where
/// the kernel was compiled to wait for that (9.0 and later).
struct Spread {
  unsigned blocks = 1;
  unsigned threads = 32;
  bool programmatic = false;
  unsigned shared_bytes = 0;  ///< beside what the kernel declares
};

class Kernels {
 public:
  /// Of the current context. Error(unsupported) where the build has no code, or none for its GPU.
  Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  bool has(const std::string& name);
  /// Error(internal) where there is no such kernel.
  Function find(const std::string& name);
  /// Shared memory that a block of the kernel takes by itself.
  unsigned fixed_shared_bytes(Function function) const;
  /// Blocks of the kernel that a multiprocessor can hold, spread so; 0 where it has no room for
  /// one.
  unsigned blocks_a_multiprocessor(Function function, const Spread& spread);
  /// `arguments`: addresses of the kernel's parameters.
  void launch(Function function, const Spread& spread, Stream stream, std::vector<void*> arguments);

 private:
  Function look_up(const std::string& name);
  void allow_shared(Function function, unsigned bytes);
  bool programmatic_ = false;  // the code for this GPU knows programmatic launches
  std::map<std::string, Function> functions_;
  /// What functions were allowed. Ranks of a context share them: each must always ask for the same.
  std::map<Function, unsigned> shared_bytes_;
};

}  // namespace plait::cuda
