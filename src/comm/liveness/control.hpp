// The page that each rank shows to the others: the call it is in, what it asks for, and why it
// failed. One writer a word (the owner; the doorbell alone is rung by all), values only grow.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/choice/descriptor.hpp"
#include "comm/memory/memory.hpp"
#include "exec/cpu/arena.hpp"
#include "exec/cpu/cpu.hpp"
#include "plait/communicator.hpp"

namespace plait {

/// What a rank shows of a call in the one line that the others poll, and need no other where all
/// ask for the same.
struct CallEntry {
  alignas(64) std::uint32_t call;  ///< its number; raised last
  std::uint64_t descriptor_hash;   ///< hash_of(its descriptor)
  double scalar;                   ///< each rank's own
};

/// Words are read and written through atomic_ref, as everywhere in shared memory.
struct Control {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t rank;
  std::array<CallEntry, 2> entries;    ///< by call number mod 2; a rank is never two calls ahead
  alignas(64) std::uint32_t finished;  ///< number of the last call this rank has come out of
  std::uint32_t left;                  ///< 1 = it has closed its communicator
  std::uint32_t failed;                ///< 0, 1 = reason being written, 2 = reason stands
  std::int32_t failure_code;
  char failure_text[1024];
  std::array<std::uint32_t, kMaxRanks> wants;       ///< by rank: 1 = asks for a pair with it
  Doorbell bell;                                    ///< its owner sleeps on it between calls
  alignas(64) std::array<CallDescriptor, 2> calls;  ///< by call number mod 2
  /// Of a call of CallKind::counts, by call number mod 2: OwnCounts, sends and then gets.
  std::array<std::array<std::uint64_t, 2 * kMaxRanks>, 2> counts;
};

inline std::uint32_t load(const std::uint32_t& word) {
  return std::atomic_ref<std::uint32_t>(const_cast<std::uint32_t&>(word)).load();
}

inline constexpr std::uint64_t kControlMagic = 0x74696c616c703031;
inline constexpr std::uint32_t kControlVersion = 8;
inline constexpr std::uint64_t kControlBytes = (sizeof(Control) + 4095) / 4096 * 4096;

/// All ranks' control pages as this rank maps them. Copies are of the same pages.
class Controls {
 public:
  Controls() = default;
  Controls(int rank, std::vector<Mapping> pages)
      : rank_(rank), pages_(std::make_shared<const std::vector<Mapping>>(std::move(pages))) {}
  /// Writes this rank's header into its fresh page.
  static void prepare(const Mapping& page, int rank);
  /// Error(mismatch) where a page is not what prepare() made for that rank.
  static void check(const Mapping& page, int rank);

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(pages_->size()); }
  Control& of(int rank) const { return *reinterpret_cast<Control*>((*pages_)[rank].base()); }
  Control& mine() const { return of(rank_); }

  /// Shows the call and wakes whoever waits for it.
  void enter(std::uint32_t call, const CallDescriptor& descriptor,
             const OwnCounts* counts = nullptr) const;
  /// What a rank has shown of a call of CallKind::counts.
  OwnCounts counts_of(int rank, std::uint32_t call) const;
  /// Waits until every rank has entered the call, at most `seconds`; `watch` as in run_cpu.
  void await_entered(std::uint32_t call, double seconds, Watch& watch) const;
  /// Whether all ranks have shown the same descriptor of the call, and it reports no error: their
  /// verdict is then known without a look at the descriptors.
  bool all_same_call(std::uint32_t call) const;
  double scalar_of(int rank, std::uint32_t call) const { return of(rank).entries[call % 2].scalar; }
  /// First reason wins; then all are woken. Any thread, takes no lock.
  void raise_failure(ErrorCode code, const std::string& reason) const noexcept;
  std::optional<std::pair<ErrorCode, std::string>> failure_of(int rank) const;
  /// This rank has come out of the call: nothing more is wanted of it there.
  void finish(std::uint32_t call) const;
  /// This rank closes its communicator; whoever waits for it is woken.
  void leave() const noexcept;

 private:
  void raise_for_all(std::uint32_t& word, std::uint32_t value) const noexcept;
  bool has_entered(int rank, std::uint32_t call) const {
    return reached(load(of(rank).entries[call % 2].call), call);
  }
  int rank_ = 0;
  std::shared_ptr<const std::vector<Mapping>> pages_ =
      std::make_shared<const std::vector<Mapping>>();
};

}  // namespace plait
