// A ring of bytes in shared memory from one rank to another: one writer, one reader, no lock. The
// writer makes the memory and passes its descriptor with the connection (message_stream.hpp), so
// bytes stay readable after the writer has ended.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "comm/p2p/pull.hpp"

namespace plait::p2p {

inline constexpr std::uint64_t kRingBytes = 512 << 10;
inline constexpr std::uint64_t kControlBytes = 8192;
inline constexpr std::uint64_t kRingMemoryBytes = kControlBytes + kRingBytes;
/// Offers of a direction (messages by rendezvous) that wait for an answer. More wait in the
/// sender's queue.
inline constexpr std::uint32_t kMostOffers = 1024;
/// Flag of an answer: the receiver does not pull, since the kernel forbids it or the sender spins.
/// The sender then writes the bytes to the ring.
inline constexpr std::uint32_t kByRing = 1;

/// The start of a ring's memory. Each cache line has one usual writer. All accesses that end a
/// sleep are seq_cst: the sleeper marks itself, then looks again; the other rank stores, then looks
/// for the mark. So one of the two sees the other.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> written;  ///< bytes, by the writer
  alignas(64) std::atomic<std::uint64_t> taken;    ///< bytes, by the reader
  std::atomic<std::uint64_t> answers;              ///< valid entries of `answered`, by the reader
  alignas(64) std::atomic<std::uint32_t> reader_sleeps;
  std::atomic<std::uint32_t> reader_closed;  ///< the reader reads nothing more
  alignas(64) std::atomic<std::uint32_t> writer_sleeps;
  std::atomic<std::uint32_t> writer_closed;   ///< offered memory is no longer valid
  std::atomic<std::int64_t> writer_spins_ns;  ///< last time at which a thread spun for a send's end
  // Written before the memory is passed.
  alignas(64) std::uint64_t magic;
  std::int64_t writer;  ///< rank
  ShownProbe probe;     ///< of the writer's process
  /// Numbers of offers that the reader has pulled, or wants by ring. Entry i lies at
  /// i % kMostOffers.
  alignas(64) std::array<std::atomic<std::uint32_t>, kMostOffers> answered;
};
static_assert(sizeof(RingControl) <= kControlBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// Precedes each message in the ring.
struct MessageHeader {
  std::int64_t tag;
  std::uint64_t bytes;
  std::uint64_t address;  ///< of an offer, in the sender's memory; 0 = the bytes follow
  std::int32_t context;
  std::uint32_t offer;  ///< even number of a rendezvous; 0 = an eager message
  bool is_offer() const { return address != 0; }
  bool is_answer() const { return offer != 0 && address == 0; }  ///< bytes that the receiver wants
};

/// The writing end. put() does not check for room.
class RingWriter {
 public:
  explicit RingWriter(std::byte* memory)
      : control_(reinterpret_cast<RingControl*>(memory)), data_(memory + kControlBytes) {}
  RingControl& control() const { return *control_; }
  /// Returns the free bytes, at least `wanted` if there are as many.
  std::uint64_t room(std::uint64_t wanted) {
    if (kRingBytes - (at_ - taken_) < wanted) taken_ = control_->taken.load();
    return kRingBytes - (at_ - taken_);
  }
  void put(const void* from, std::uint64_t bytes) {
    const std::uint64_t at = at_ % kRingBytes, first = std::min(bytes, kRingBytes - at);
    std::memcpy(data_ + at, from, first);
    if (first < bytes)
      std::memcpy(data_, static_cast<const std::byte*>(from) + first, bytes - first);
    at_ += bytes;
  }
  /// Shows the bytes to the reader. Returns whether the reader sleeps and must be woken.
  bool publish() {
    control_->written.store(at_);
    return control_->reader_sleeps.load() != 0 && control_->reader_sleeps.exchange(0) != 0;
  }
  std::uint64_t written() const { return at_; }
  std::uint64_t seen() const { return taken_; }  ///< of taken
  bool has_taken(std::uint64_t at) const { return control_->taken.load() >= at; }

 private:
  RingControl* control_;
  std::byte* data_;
  std::uint64_t at_ = 0, taken_ = 0;
};

/// The reading end. take() does not check for bytes.
class RingReader {
 public:
  explicit RingReader(std::byte* memory)
      : control_(reinterpret_cast<RingControl*>(memory)), data_(memory + kControlBytes) {}
  RingControl& control() const { return *control_; }
  /// Returns the readable bytes, at least `wanted` if there are as many.
  std::uint64_t readable(std::uint64_t wanted) {
    if (written_ - at_ < wanted) written_ = control_->written.load();
    return written_ - at_;
  }
  std::uint64_t seen() const { return written_; }  ///< of written
  void peek(void* to, std::uint64_t bytes) const {
    const std::uint64_t at = at_ % kRingBytes, first = std::min(bytes, kRingBytes - at);
    std::memcpy(to, data_ + at, first);
    if (first < bytes) std::memcpy(static_cast<std::byte*>(to) + first, data_, bytes - first);
  }
  void skip(std::uint64_t bytes) { at_ += bytes; }
  void take(void* to, std::uint64_t bytes) {
    peek(to, bytes);
    skip(bytes);
  }
  /// Frees the taken bytes. Returns whether the writer sleeps and must be woken.
  bool publish() {
    control_->taken.store(at_);
    return must_wake();
  }
  /// Answers an offer: its number, with kByRing if the message has not been pulled. Returns the
  /// same.
  bool answer(std::uint32_t entry) {
    const std::uint64_t at = control_->answers.load(std::memory_order_relaxed);
    control_->answered[at % kMostOffers].store(entry, std::memory_order_relaxed);
    control_->answers.store(at + 1);
    return must_wake();
  }

 private:
  bool must_wake() {
    return control_->writer_sleeps.load() != 0 && control_->writer_sleeps.exchange(0) != 0;
  }
  RingControl* control_;
  std::byte* data_;
  std::uint64_t at_ = 0, written_ = 0;
};

}  // namespace plait::p2p
