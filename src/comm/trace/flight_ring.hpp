// Flight recorder: a ring of a rank's last 64 calls, in memory that the ranks of a host share. The
// owner writes without a lock (6 ns a call); peers, the watch thread and `plait status` read.
#pragma once
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

namespace plait {

enum class FlightKind : std::uint8_t {
  none,
  collective,
  plan,
  barrier,
  exchange,
  counts,  ///< a collective in which a rank knows its own counts alone
  adopt_device,
  suspend,
  resume,
  send,
  receive
};

/// A recorded call.
struct FlightCall {
  FlightKind kind = FlightKind::none;
  std::uint8_t collective = 0;  ///< Collective
  std::uint8_t type = 0;        ///< DataType
  std::uint8_t op = 0;          ///< ReduceOp
  std::int32_t root = 0;        ///< root rank; for a message the peer
  std::uint64_t count = 0;      ///< elements; for a message, and with a reason, bytes
  std::uint64_t counts_hash = 0;
  std::uint32_t most_blocks = 0;  ///< limit of the call's own; 0 = none
  bool engines_move = false;      ///< the call wants copy engines to move its data
  std::uint8_t reason = 0;        ///< why another library serves the call; 0 = none is recorded
  std::uint64_t number = 0;       ///< sequence number among collectives; 0 = a message
  std::uint64_t index = 0;        ///< position among all records of the ring, from 1 on
  std::int64_t entered_ns = 0;    ///< CLOCK_MONOTONIC, 4 ms coarse

  bool is_message() const { return kind == FlightKind::send || kind == FlightKind::receive; }
  /// Whether both ranks may make the call together.
  bool matches(const FlightCall& other) const {
    return kind == other.kind && collective == other.collective && type == other.type &&
           op == other.op && root == other.root && count == other.count &&
           counts_hash == other.counts_hash && most_blocks == other.most_blocks &&
           engines_move == other.engines_move;
  }
};

/// Zeroed shared memory is an empty ring. One thread writes at a time.
class FlightRing {
 public:
  static constexpr std::uint64_t kCalls = 64;

  /// Records a call that the rank enters. Numbers a collective; a message has no number.
  void enter(const FlightCall& call) {
    const bool counts = !call.is_message();
    const std::uint64_t number = numbered_.load(std::memory_order_relaxed) + (counts ? 1 : 0);
    const std::uint64_t index = written_.load(std::memory_order_relaxed) + 1;
    Record& record = calls_[index % kCalls];
    record[0].store(0, std::memory_order_relaxed);  // before the words: their stores release
    record[1].store(static_cast<std::uint64_t>(coarse_ns()), std::memory_order_release);
    record[2].store(call.count, std::memory_order_release);
    record[3].store(call.counts_hash, std::memory_order_release);
    record[4].store(counts ? number : 0, std::memory_order_release);
    record[5].store(static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.root)) << 32 |
                        static_cast<std::uint64_t>(call.kind) << 24 |
                        static_cast<std::uint64_t>(call.collective) << 16 |
                        static_cast<std::uint64_t>(call.type) << 8 | call.op,
                    std::memory_order_release);
    record[6].store(std::uint64_t{call.reason} << 56 | std::uint64_t{call.most_blocks} << 1 |
                        (call.engines_move ? 1 : 0),
                    std::memory_order_release);
    record[0].store(index, std::memory_order_release);
    numbered_.store(number, std::memory_order_release);
    written_.store(index, std::memory_order_release);
  }
  /// States that the calls entered so far are on their streams.
  void enqueued_all() { enqueued_.store(written(), std::memory_order_release); }
  /// The last record and the last number at a moment.
  struct Place {
    std::uint64_t written = 0, numbered = 0;
  };
  Place place() const { return {written(), numbered()}; }
  /// Removes the records after `place`, of calls that the rank did not make. Later calls get the
  /// same numbers, however many records the ring has lost since.
  void withdraw_after(const Place& place) {
    const std::uint64_t last = written();
    for (std::uint64_t at = std::max(place.written, last - std::min(last, kCalls)) + 1; at <= last;
         ++at)
      calls_[at % kCalls][0].store(0, std::memory_order_release);
    numbered_.store(place.numbered, std::memory_order_release);
  }
  /// States that all calls up to the record have ended on this rank.
  void end(std::uint64_t index) { ended_.store(index, std::memory_order_release); }
  void end_all() { end(written()); }
  /// Stores the PID namespace of the owner.
  void live_in(std::uint64_t pid_namespace) {
    home_.store(pid_namespace, std::memory_order_release);
  }
  /// Returns the owner's PID namespace; 0 = not stated yet.
  std::uint64_t home() const { return home_.load(std::memory_order_acquire); }
  /// Marks the call before a warning of this rank names the call.
  void name(std::uint64_t number) { named_.store(number, std::memory_order_release); }

  std::uint64_t written() const { return written_.load(std::memory_order_acquire); }
  std::uint64_t enqueued() const { return enqueued_.load(std::memory_order_acquire); }
  std::uint64_t ended() const { return ended_.load(std::memory_order_acquire); }
  std::uint64_t numbered() const { return numbered_.load(std::memory_order_acquire); }
  std::uint64_t named() const { return named_.load(std::memory_order_acquire); }
  /// Returns the time at which the rank entered the last call; 0 = no call yet. Only for the
  /// owner's threads.
  std::int64_t last_entered_ns() const {
    return static_cast<std::int64_t>(calls_[written() % kCalls][1].load(std::memory_order_relaxed));
  }
  /// Returns the calls in the ring, oldest first. Leaves out records that the owner overwrites
  /// meanwhile.
  std::vector<FlightCall> calls() const {
    std::vector<FlightCall> found;
    const std::uint64_t last = written();
    for (std::uint64_t index = last > kCalls ? last - kCalls + 1 : 1; index <= last; ++index)
      if (const std::optional<FlightCall> call = read(index)) found.push_back(*call);
    return found;
  }

  static std::int64_t coarse_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }

 private:
  using Word = std::atomic<std::uint64_t>;
  static_assert(Word::is_always_lock_free);
  /// Index (0 while written), time, count, hash of counts, number, the rest, and limits.
  struct alignas(64) Record : std::array<Word, 7> {};

  std::optional<FlightCall> read(std::uint64_t index) const {
    const Record& record = calls_[index % kCalls];
    if (record[0].load(std::memory_order_acquire) != index) return std::nullopt;
    FlightCall call;
    call.index = index;
    call.entered_ns = static_cast<std::int64_t>(record[1].load(std::memory_order_acquire));
    call.count = record[2].load(std::memory_order_acquire);
    call.counts_hash = record[3].load(std::memory_order_acquire);
    call.number = record[4].load(std::memory_order_acquire);
    const std::uint64_t rest = record[5].load(std::memory_order_acquire);
    const std::uint64_t limits = record[6].load(std::memory_order_acquire);
    // Behind the words: a word of a later record shows that record[0] has changed.
    if (record[0].load(std::memory_order_relaxed) != index) return std::nullopt;
    call.root = static_cast<std::int32_t>(rest >> 32);
    call.kind = static_cast<FlightKind>(rest >> 24 & 0xff);
    call.collective = static_cast<std::uint8_t>(rest >> 16);
    call.type = static_cast<std::uint8_t>(rest >> 8);
    call.op = static_cast<std::uint8_t>(rest);
    call.most_blocks = static_cast<std::uint32_t>(limits >> 1);
    call.engines_move = (limits & 1) != 0;
    call.reason = static_cast<std::uint8_t>(limits >> 56);
    return call;
  }

  Word written_{0}, ended_{0}, numbered_{0}, named_{0}, enqueued_{0}, home_{0};
  std::array<Record, kCalls> calls_{};
};

/// The record of a call while the call is enqueued.
class RecordedCall {
 public:
  /// ring: null = no recorder.
  RecordedCall(FlightRing* ring, const FlightCall& call)
      : ring_(ring), before_(ring == nullptr ? FlightRing::Place() : ring->place()) {
    if (ring != nullptr) ring->enter(call);
  }
  /// States that the calls so far are on their streams.
  void enqueued() const {
    if (ring_ != nullptr) ring_->enqueued_all();
  }
  /// Removes the record of a refused call. The next call gets the number.
  void refused() const {
    if (ring_ == nullptr) return;
    ring_->withdraw_after(before_);
    ring_->enqueued_all();
  }

 private:
  FlightRing* ring_;
  FlightRing::Place before_;
};

}  // namespace plait
