// A caller's pointers -> pointers a plan may use, or the reason why not. All that is decided here
// is this rank's own business; no plan depends on it.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// Whether the byte can be written. False only where the kernel says so; where it may not be asked,
/// true.
bool is_writable(std::uintptr_t at);

/// Pages that the kernel has said can be written: to ask it takes longer than a short call. That
/// one stops being writable later is noticed where a call is long.
class WritablePages {
 public:
  /// Whether the bytes can be written, by their first and last; false only where the kernel says
  /// so.
  bool hold(std::uintptr_t at, std::uint64_t bytes);

 private:
  bool holds(std::uintptr_t at);
  /// By number + 1; two that share a place take turns. Threads may ask at once, wrongly.
  std::array<std::atomic<std::uintptr_t>, 64> pages_{};
};

/// Throws Error(invalid_argument) where a needed buffer is null, wraps around or cannot be written.
void check_buffers(const Request& request, int rank, const void* input, const void* output,
                   WritablePages& writable);
/// False where input and output overlap other than in NCCL's in-place layouts.
bool usable_as_is(const Request& request, int rank, const void* input, const void* output);
/// The input to run with: the caller's, or (where it overlaps the output other than in NCCL's
/// in-place layouts, which plans are proved for) a copy of it in `stage`.
const void* usable_input(const Request& request, int rank, const void* input, const void* output,
                         std::vector<std::byte>& stage);

/// A message larger than the machine is refused before anybody plans it: plans grow with it.
void check_size(const Request& request);

}  // namespace plait
