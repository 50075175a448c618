// Memory that communicators hold, by part: of one communicator, and of the process now and at most.
// Owners say what they hold at each change; any thread reads.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace plait {

enum class MemoryPart : std::size_t {
  small_arena,    ///< GPU memory of small calls
  large_arena,    ///< GPU memory of large calls
  streams,        ///< GPU memory that the driver keeps for streams, about
  products,       ///< GPU memory of inputs that are multiplied by a factor before a sum
  host_arenas,    ///< host memory in the arenas' place
  host_rings,     ///< host memory of parts that go through it
  host_products,  ///< host memory of products, if the GPU was full
};
inline constexpr std::size_t kMemoryParts = 7;

/// Whether the part lies in GPU memory.
constexpr bool is_on_gpu(MemoryPart part) { return part < MemoryPart::host_arenas; }
const char* name_of(MemoryPart part);

/// A row of memory_by_part(), in bytes.
struct MemoryOfPart {
  MemoryPart part{};
  std::uint64_t now = 0;   ///< of all communicators of the process
  std::uint64_t most = 0;  ///< at any time until now
};
/// Returns a row for every part that the process has held.
std::vector<MemoryOfPart> memory_by_part();

/// What one communicator holds.
class MemoryHeld {
 public:
  MemoryHeld() = default;
  ~MemoryHeld();
  MemoryHeld(const MemoryHeld&) = delete;
  MemoryHeld& operator=(const MemoryHeld&) = delete;
  /// Sets the bytes of a part.
  void set(MemoryPart part, std::uint64_t bytes) noexcept;
  std::uint64_t of(MemoryPart part) const noexcept {
    return bytes_[static_cast<std::size_t>(part)].load(std::memory_order_relaxed);
  }
  /// Returns the bytes of all parts in GPU memory.
  std::uint64_t on_gpu() const noexcept;

 private:
  std::array<std::atomic<std::uint64_t>, kMemoryParts> bytes_{};
};

}  // namespace plait
