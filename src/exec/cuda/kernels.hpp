// The embedded device code -> kernels found by name, in one context, and how they are launched.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "driver/cuda/api.hpp"

namespace plait::cuda {

/// True where this build carries device code (nvcc was there).
bool has_device_code();

/// How a kernel is spread. programmatic: its launch may overlap the end of the kernel before.
struct Spread {
  unsigned blocks = 1;
  unsigned threads = 32;
  bool programmatic = false;
  unsigned shared_bytes = 0;  ///< beside what the kernel declares
};

class Kernels {
 public:
  /// Of the current context. All code is in place there afterwards, unless the process loads it
  /// lazily. Error(unsupported) where the build has none.
  Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  bool has(const std::string& name);
  /// Error(internal) where there is no such kernel.
  Function find(const std::string& name);
  /// `arguments`: addresses of the kernel's parameters.
  void launch(Function function, const Spread& spread, Stream stream, std::vector<void*> arguments);

 private:
  Function look_up(const std::string& name);
  std::map<std::string, Function> functions_;
  /// What functions were allowed. Ranks of a context share them: each must always ask for the same.
  std::map<Function, unsigned> shared_bytes_;
};

}  // namespace plait::cuda
