// Kernels of the build's device code in a context: lookup by name, and launch.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "driver/cuda/api.hpp"

namespace plait::cuda {

/// Launch configuration. programmatic: the launch may overlap the end of the previous kernel, if
/// the kernel was compiled to wait for the end (9.0 and later).
struct KernelLaunchConfig {
  unsigned blocks = 1;
  unsigned threads = 32;
  bool programmatic = false;
  unsigned shared_bytes = 0;  ///< Added to the kernel's static shared memory.
  unsigned cluster = 1;       ///< Blocks of a thread-block cluster; 9.0 and later.
};

class Kernels {
 public:
  /// Uses the current context. Error(unsupported) if the build has no code, or none for this GPU.
  Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  bool has(const std::string& name);
  /// Error(internal) if the code lacks the kernel.
  Function find(const std::string& name);
  /// Static shared memory of a block.
  unsigned fixed_shared_bytes(Function function) const;
  /// Blocks that fit on a multiprocessor with this configuration; 0 if none fits.
  unsigned blocks_a_multiprocessor(Function function, const KernelLaunchConfig& config);
  /// `arguments`: addresses of the kernel's parameters.
  void launch(Function function, const KernelLaunchConfig& config, Stream stream,
              std::vector<void*> arguments);

 private:
  Function look_up(const std::string& name);
  void allow_shared(Function function, unsigned bytes);
  bool programmatic_ = false;  // The code for this GPU supports programmatic launches.
  std::map<std::string, Function> functions_;
  /// Dynamic shared memory granted per function. Ranks of a context share functions, so each must
  /// ask for the same amount.
  std::map<Function, unsigned> shared_bytes_;
};

}  // namespace plait::cuda
