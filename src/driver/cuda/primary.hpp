// Holds a device's primary context while the object lives.
#pragma once
#include "driver/cuda/api.hpp"

namespace plait::cuda {

class Primary {
 public:
  explicit Primary(int ordinal) {
    PLAIT_CUDA_CALL(device_get, &device_, ordinal);
    PLAIT_CUDA_CALL(primary_retain, &context_, device_);
  }
  ~Primary() { api().primary_release(device_); }
  Primary(const Primary&) = delete;
  Primary& operator=(const Primary&) = delete;
  Context context() const { return context_; }

 private:
  Device device_ = 0;
  Context context_ = nullptr;
};

}  // namespace plait::cuda
