// Where things lie in a rank's arena: [doorbell | flag words | scratch | inbox 0 | inbox 1 | ring |
// relay GPUs]. Flag words of one writer are packed, rows of different writers share no cache line:
// a row is raised by one thread and polled by one thread.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "exec/cpu/cpu.hpp"

namespace plait {

/// What a rank sleeps on. Signallers ring only where it says that it sleeps.
struct alignas(64) Doorbell {
  std::uint32_t rings;   ///< the futex word
  std::uint32_t asleep;  ///< 1 = the owner sleeps, or is about to
};

class ArenaView {
 public:
  explicit ArenaView(const Arenas& arenas);

  Doorbell& doorbell(int rank) const { return *reinterpret_cast<Doorbell*>(base(rank)); }
  std::atomic_ref<std::uint32_t> word(const Flag& flag) const;
  /// scratch, inbox and ring regions; Error(invalid_argument) where they leave the arena.
  std::byte* at(const Region& region, const Plan& plan, int parity) const;

  /// False of a rank of another node.
  bool is_here(int rank) const { return arenas_.base[static_cast<std::size_t>(rank)] != nullptr; }
  int ranks_here() const {
    const auto elsewhere = std::count(arenas_.base.begin(), arenas_.base.end(), nullptr);
    return static_cast<int>(arenas_.base.size()) - static_cast<int>(elsewhere);
  }
  std::uint64_t bytes() const { return end_; }
  const ArenaSizes& sizes() const { return arenas_.sizes; }

 private:
  /// Error(invalid_argument) of a rank of another node.
  std::byte* base(int rank) const {
    std::byte* const found = arenas_.base[static_cast<std::size_t>(rank)];
    if (found == nullptr) refuse(rank);
    return found;
  }
  [[noreturn]] static void refuse(int rank);
  const Arenas& arenas_;
  std::uint64_t row_bytes_ = 0;  // one writer's flag words
  std::uint64_t scratch_ = 0, inbox_ = 0, ring_ = 0, relays_ = 0, end_ = 0;  // offsets
  std::uint64_t half_bytes_ = 0;
};

}  // namespace plait
