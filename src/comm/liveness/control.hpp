// Control page: shared memory where each rank publishes the current call, the request, and a
// failure. Only the owner writes a word (all ranks ring the doorbell), and values only grow.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/choose/descriptor.hpp"
#include "comm/shm/memory.hpp"
#include "comm/trace/flight_ring.hpp"
#include "cpu/arena.hpp"
#include "cpu/cpu.hpp"
#include "plait/communicator.hpp"

namespace plait {

/// A rank's call in a single cache line, polled by the peers. If all ranks make the same call, the
/// peers read nothing else.
struct CallEntry {
  alignas(64) std::uint32_t call;  ///< call number; stored last
  std::uint64_t descriptor_hash;   ///< hash of the call's descriptor
  double scalar;                   ///< per rank
};

/// Accessed through atomic_ref, like all shared memory.
struct Control {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t rank;
  std::array<CallEntry, 2> entries;    ///< by call number mod 2; a rank is never two calls ahead
  alignas(64) std::uint32_t finished;  ///< number of the last call that this rank has finished
  std::uint32_t left;                  ///< 1 = this rank has closed the communicator
  std::uint32_t failed;                ///< 0; 1 = reason being written; 2 = reason complete
  std::int32_t failure_code;
  char failure_text[1024];
  std::array<std::uint32_t, kMaxRanks> wants;       ///< by rank: 1 = wants a pair with that rank
  Doorbell bell;                                    ///< the owner sleeps on the bell between calls
  alignas(64) std::array<CallDescriptor, 2> calls;  ///< by call number mod 2
  /// For calls of CallKind::counts, by call number mod 2: OwnCounts, sends first, then receives.
  std::array<std::array<std::uint64_t, 2 * kMaxRanks>, 2> counts;
  FlightRing host_flight;  ///< calls on host memory; FlightCall::number is the call number
  FlightRing gpu_flight;   ///< calls on GPU memory, numbered by themselves
};

inline std::uint32_t load(const std::uint32_t& word) {
  return std::atomic_ref<std::uint32_t>(const_cast<std::uint32_t&>(word)).load();
}

inline constexpr std::uint64_t kControlMagic = 0x74696c616c703031;
inline constexpr std::uint32_t kControlVersion = 10;
inline constexpr std::uint64_t kControlBytes = (sizeof(Control) + 4095) / 4096 * 4096;

/// All ranks' control pages as mapped by this rank. Copies refer to the same pages.
class Controls {
 public:
  Controls() = default;
  Controls(int rank, std::vector<Mapping> pages)
      : rank_(rank), pages_(std::make_shared<const std::vector<Mapping>>(std::move(pages))) {}
  /// Writes this rank's header into a new page.
  static void prepare(const Mapping& page, int rank);
  /// Throws Error(mismatch) if a page is not prepare()'s page of that rank.
  static void check(const Mapping& page, int rank);

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(pages_->size()); }
  Control& of(int rank) const { return *reinterpret_cast<Control*>((*pages_)[rank].base()); }
  Control& mine() const { return of(rank_); }

  /// Publishes the call and wakes the ranks that wait for it.
  void enter(std::uint32_t call, const CallDescriptor& descriptor,
             const OwnCounts* counts = nullptr) const;
  /// Returns the counts that a rank has published for a call of CallKind::counts.
  OwnCounts counts_of(int rank, std::uint32_t call) const;
  /// Waits until every rank has entered the call, at most `seconds`. `watch` as in run_cpu.
  void await_entered(std::uint32_t call, double seconds, Watch& watch) const;
  /// Whether all ranks have published equal descriptors without an error. The call is then valid
  /// without reading the descriptors.
  bool all_same_call(std::uint32_t call) const;
  double scalar_of(int rank, std::uint32_t call) const { return of(rank).entries[call % 2].scalar; }
  /// Publishes this rank's failure and wakes all ranks. The first reason stands. Any thread; takes
  /// no lock.
  void raise_failure(ErrorCode code, const std::string& reason) const noexcept;
  std::optional<std::pair<ErrorCode, std::string>> failure_of(int rank) const;
  /// Publishes that this rank has finished the call, and no longer takes part.
  void finish(std::uint32_t call) const;
  /// Publishes that this rank closes the communicator, and wakes waiting ranks.
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
