// Functions of gpu/device/ptx.cuh for kernels on host threads whose lanes exchange values. To be
// included behind device_on_host.hpp and before the kernels.
#pragma once
#include <array>

#include "gpu/device/numbers.cuh"

namespace plait::cuda {

inline unsigned pair_of_e4m3(float first, float second) {
  return saturated_e4m3(first) | saturated_e4m3(second) << 8;
}
inline float from_lane(float value, unsigned mask) {
  auto& values = plait_test::block_shared->at<std::array<float, 1024>>([] {});
  values[threadIdx.x] = value;
  plait_test::warp_barrier->arrive_and_wait();
  const float found = values[threadIdx.x ^ mask];
  plait_test::warp_barrier->arrive_and_wait();
  return found;
}

}  // namespace plait::cuda
