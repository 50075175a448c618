// Checks a caller's buffers and picks the pointers that a plan may use. All decisions concern this
// rank alone; no plan depends on them.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// Whether the byte can be written. True if the kernel refuses to answer.
bool is_writable(std::uintptr_t at);

/// Cache of pages that the kernel found writable, since the test takes longer than a short call. A
/// page that loses write permission later is noticed in long calls.
class WritablePages {
 public:
  /// Whether the bytes can be written, judged by the first and last. False only if the kernel says
  /// so.
  bool hold(std::uintptr_t at, std::uint64_t bytes);

 private:
  bool holds(std::uintptr_t at);
  /// Page number + 1 by hash; pages with equal hashes replace each other. Races between threads
  /// only repeat the test.
  std::array<std::atomic<std::uintptr_t>, 64> pages_{};
};

/// Throws Error(invalid_argument) if a needed buffer is null, wraps around or cannot be written.
void check_buffers(const Request& request, int rank, const void* input, const void* output,
                   WritablePages& writable);
/// False if input and output overlap in another way than NCCL's in-place layouts.
bool usable_as_is(const Request& request, int rank, const void* input, const void* output);
/// Returns the input to run with: the caller's, or a copy in `stage` if the input overlaps the
/// output in a way that plans are not proved for.
const void* usable_input(const Request& request, int rank, const void* input, const void* output,
                         std::vector<std::byte>& stage);

/// Refuses a message larger than the machine's memory before a plan is made, since plans grow with
/// the size.
void check_size(const Request& request);

}  // namespace plait
