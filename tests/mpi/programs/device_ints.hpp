// Device memory of an emulated GPU (tests/fake_cuda), for tests of staging and messages.
#pragma once
#include "expect.hpp"
#include "host_or_gpu.hpp"

/// Ints in device memory, read and written by the test through content().
class DeviceInts {
 public:
  explicit DeviceInts(int count, int value) : count_(count) {
    content_ = static_cast<int*>(
        EmulatedCuda::now().content(static_cast<std::size_t>(count) * sizeof(int)));
    fill(value);
  }
  int* content() const { return content_; }
  int* device_ptr() const { return ::device_ptr(content_); }
  void fill(int value) const {
    for (int at = 0; at < count_; ++at) content_[at] = value;
  }
  bool holds(int value) const { return holds(value, 0, count_); }
  bool holds(int value, int from, int to) const {
    for (int at = from; at < to; ++at)
      if (content_[at] != value) return false;
    return true;
  }

 private:
  int count_;
  int* content_;
};

/// Number of copies from the GPU to the host until now.
inline long copies_to_host() {
  void* const found = dlsym(RTLD_DEFAULT, "emulated_copies_to_host");
  return static_cast<long>(reinterpret_cast<std::uint64_t (*)()>(found)());
}

/// Looks up a function that not every MPI's header declares.
template <class Function>
Function* named(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}
