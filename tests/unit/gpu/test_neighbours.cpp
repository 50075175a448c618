// Tests Neighbours, which tells each rank whether kernels of another rank may run on its GPU: of a
// rank of this process, or of another process under MPS. A small fake driver replaces CUDA's.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>

#include "gpu/device/neighbours.hpp"

using namespace plait::cuda;

namespace {

constexpr Result kInvalidValue = 1;

/// MPS attribute of each device in the fake driver; -1 = unknown.
std::map<Device, int> mps;
/// Bytes that memory_set_async wrote, by address.
std::map<DevicePointer, int> bytes_set;

Api fake_driver() {
  Api driver;
  driver.device_attribute = [](int* value, int attribute, Device device) -> Result {
    if (attribute != 133 || mps[device] < 0) return kInvalidValue;
    *value = mps[device];
    return kSuccess;
  };
  driver.memory_set_async = [](DevicePointer at, unsigned char value, std::size_t,
                               Stream) -> Result {
    bytes_set[at] = value;
    return kSuccess;
  };
  driver.stream_synchronize = [](Stream) -> Result { return kSuccess; };
  return driver;
}

bool has_neighbour(const DeviceState& state) {
  const auto at = reinterpret_cast<DevicePointer>(&state.has_neighbour);
  REQUIRE(bytes_set.contains(at));
  return bytes_set[at] != 0;
}

}  // namespace

TEST_CASE("a rank is alone on its GPU if this process has no second rank on the GPU") {
  const Api driver = fake_driver();
  Neighbours neighbours(driver);
  mps = {{0, 0}, {1, 0}};
  DeviceState first{}, second{}, elsewhere{};
  neighbours.add(0, &first, nullptr);
  neighbours.add(1, &elsewhere, nullptr);
  CHECK(!has_neighbour(first));
  neighbours.add(0, &second, nullptr);
  CHECK(has_neighbour(first));
  CHECK(has_neighbour(second));
  CHECK(!has_neighbour(elsewhere));
  neighbours.remove(0, &first, nullptr);
  CHECK(!has_neighbour(second));
}

TEST_CASE("under MPS no rank is alone: kernels of several processes run at once") {
  const Api driver = fake_driver();
  Neighbours neighbours(driver);
  mps = {{0, 1}};
  DeviceState first{}, second{};
  neighbours.add(0, &first, nullptr);
  CHECK(has_neighbour(first));
  neighbours.add(0, &second, nullptr);
  neighbours.remove(0, &first, nullptr);
  CHECK(has_neighbour(second));
}

TEST_CASE("if the driver does not know MPS, the environment decides") {
  const Api driver = fake_driver();
  Neighbours neighbours(driver);
  mps = {{0, -1}};
  DeviceState state{};
  unsetenv("CUDA_MPS_PIPE_DIRECTORY");
  neighbours.add(0, &state, nullptr);
  CHECK(!has_neighbour(state));
  setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps", 1);
  neighbours.add(0, &state, nullptr);
  CHECK(has_neighbour(state));
  unsetenv("CUDA_MPS_PIPE_DIRECTORY");
}
