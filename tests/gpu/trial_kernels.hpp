// The kernels of trial.cu, which test_gpu and bench_gpu alone carry: data, its check, links'
// floors.
#pragma once
#include <string>

#include "driver/cuda/api.hpp"

extern "C" const void* const plait_trial_fatbin;

namespace plait::cuda {

/// Loaded once a process, as the product's own kernels.
class TrialKernels {
 public:
  TrialKernels() {
    PLAIT_CUDA_CALL(library_load, &library_, plait_trial_fatbin, nullptr, nullptr, 0, nullptr,
                    nullptr, 0);
  }
  /// In the current context.
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
