// Kernels of trial.cu, linked into test_gpu and bench_links only: test data, the check of the data,
// and link speed.
#pragma once
#include <string>

#include "driver/cuda/api.hpp"

extern "C" const void* const plait_trial_fatbin;

namespace plait::cuda {

/// Loaded once per process, like the product's kernels.
class TrialKernels {
 public:
  TrialKernels() {
    PLAIT_CUDA_CALL(library_load, &library_, plait_trial_fatbin, nullptr, nullptr, 0, nullptr,
                    nullptr, 0);
  }
  /// Looks up a kernel in the current context.
  Function find(const std::string& name) const {
    Kernel kernel = nullptr;
    Function function = nullptr;
    PLAIT_CUDA_CALL(library_kernel, &kernel, library_, name.c_str());
    PLAIT_CUDA_CALL(kernel_function, &function, kernel);
    return function;
  }

 private:
  Library library_ = nullptr;
};

inline const TrialKernels& trial_kernels() {
  static const TrialKernels once;
  return once;
}

}  // namespace plait::cuda
