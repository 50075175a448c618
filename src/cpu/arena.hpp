// Layout of a rank's arena: [doorbell | flags | scratch | inbox 0 | inbox 1 | ring | relay GPUs].
// The flags of a writer are a packed row; rows of different writers share no cache line, since one
// thread raises a row and another polls it.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cpu/cpu.hpp"

namespace plait {

/// The futex that a rank sleeps on. Signallers ring it only while the rank is asleep.
struct alignas(64) Doorbell {
  std::uint32_t rings;   ///< the futex
  std::uint32_t asleep;  ///< 1 = the owner sleeps, or is about to
};

class ArenaView {
 public:
  explicit ArenaView(const Arenas& arenas);

  Doorbell& doorbell(int rank) const { return *reinterpret_cast<Doorbell*>(base(rank)); }
  std::atomic_ref<std::uint32_t> flag_value(const Flag& flag) const;
  /// Returns the address of a scratch, inbox or ring region; Error(invalid_argument) outside the
  /// arena.
  std::byte* at(const Region& region, const Plan& plan, int parity) const;

  /// False for a rank of another node.
  bool is_here(int rank) const { return arenas_.base[static_cast<std::size_t>(rank)] != nullptr; }
  int ranks_here() const {
    const auto elsewhere = std::count(arenas_.base.begin(), arenas_.base.end(), nullptr);
    return static_cast<int>(arenas_.base.size()) - static_cast<int>(elsewhere);
  }
  std::uint64_t bytes() const { return end_; }
  const ArenaSizes& sizes() const { return arenas_.sizes; }

 private:
  /// Start of a rank's arena; Error(invalid_argument) for a rank of another node.
  std::byte* base(int rank) const {
    std::byte* const found = arenas_.base[static_cast<std::size_t>(rank)];
    if (found == nullptr) refuse(rank);
    return found;
  }
  [[noreturn]] static void refuse(int rank);
  const Arenas& arenas_;
  std::uint64_t row_bytes_ = 0;                                              // flags of a writer
  std::uint64_t scratch_ = 0, inbox_ = 0, ring_ = 0, relays_ = 0, end_ = 0;  // offsets
  std::uint64_t half_bytes_ = 0;
};

}  // namespace plait
