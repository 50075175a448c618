// Helpers of executor tests: ranks as threads over heap arenas, small machines, and reproducible
// random elements.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/cpu.hpp"
#include "plait/topology.hpp"

namespace plait_test {

using Bytes = std::vector<std::byte>;

/// `ranks` fully connected CPUs; speeds do not matter.
inline plait::Topology machine(int ranks) {
  plait::Topology made;
  made.name = "by-hand";
  for (int rank = 0; rank < ranks; ++rank) {
    plait::Device device;
    device.kind = plait::DeviceKind::cpu;
    device.index = rank;
    made.devices.push_back(device);
  }
  for (int src = 0; src < ranks; ++src)
    for (int dst = 0; dst < ranks; ++dst)
      if (src != dst) made.links.push_back({plait::LinkKind::shm, src, dst, 1, 10.0, 500.0, {}});
  return made;
}

struct Calm : plait::Watch {
  void check(const std::string&) override {}
};

/// Returns the steady_clock time so many milliseconds from now.
inline std::int64_t in_ms(std::int64_t ms) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
             .count() +
         ms * 1'000'000;
}

/// Arenas of all ranks on the heap, page-aligned and zeroed.
class HeapArenas {
 public:
  explicit HeapArenas(const plait::ArenaSizes& sizes) {
    arenas.sizes = sizes;
    const std::uint64_t bytes = plait::arena_bytes(sizes);
    for (int rank = 0; rank < sizes.ranks; ++rank) {
      void* memory = std::aligned_alloc(4096, bytes);
      std::memset(memory, 0, bytes);
      arenas.base.push_back(static_cast<std::byte*>(memory));
    }
  }
  ~HeapArenas() {
    for (std::byte* memory : arenas.base) std::free(memory);
  }
  HeapArenas(const HeapArenas&) = delete;
  HeapArenas& operator=(const HeapArenas&) = delete;

  /// Sets all flags to the values after `epoch` epochs.
  void set_epoch(std::uint32_t epoch) {
    const plait::ArenaSizes& sizes = arenas.sizes;
    const std::uint64_t row = (static_cast<std::uint64_t>(sizes.flags_per_pair) * 4 + 63) / 64 * 64;
    for (std::byte* base : arenas.base)
      for (std::uint64_t at = 64; at < 64 + row * static_cast<std::uint64_t>(sizes.ranks); at += 4)
        std::memcpy(base + at, &epoch, 4);
  }

  plait::Arenas arenas;
};

/// Runs body(rank) on a thread for each rank; rethrows the exception of the lowest rank.
template <class Body>
void on_ranks(int ranks, const Body& body) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& one : thrown)
    if (one) std::rethrow_exception(one);
}

/// Returns random codes of the type: mostly numbers of moderate size, some special values.
inline Bytes random_elements(std::mt19937_64& random, plait::DataType type, std::uint64_t count) {
  Bytes bytes(count * plait::bytes_of(type));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  if (type != plait::DataType::fp32 && type != plait::DataType::fp64) return bytes;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (random() % 4 == 0) continue;  // any bits: NaN, infinity, subnormal
    const double value = (static_cast<double>(random() % 2000001) - 1e6) / 7.0;
    const float narrow = static_cast<float>(value);
    if (type == plait::DataType::fp32)
      std::memcpy(bytes.data() + i * 4, &narrow, 4);
    else
      std::memcpy(bytes.data() + i * 8, &value, 8);
  }
  return bytes;
}

}  // namespace plait_test
