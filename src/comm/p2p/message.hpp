// Messages of a mailbox: what a send or receive is, how it ended, and which messages match.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plait/error.hpp"

namespace plait::p2p {

inline constexpr int kAnySource = -1;
inline constexpr std::int64_t kAnyTag = std::numeric_limits<std::int64_t>::min();

/// Key that sender and receiver agree on. A receive matches messages of its own context alone.
/// Messages of contexts below 0 are internal: a mailbox that shuts down does not wait until they
/// are read.
struct MessageKey {
  std::int32_t context = 0;
  std::int64_t tag = 0;
  bool matches(const MessageKey& sent) const {
    return context == sent.context && (tag == kAnyTag || tag == sent.tag);
  }
};

/// A message that did not end well. reason: "rank 2 has ended"; what: "recv from rank 2 (tag 0)".
struct MessageFailure {
  ErrorCode code = ErrorCode::ok;
  std::string what, reason;
  Error error() const { return Error(code, what + ": " + reason); }
};

/// "send of 8 bytes to rank 1 (tag 0)".
std::string send_text(std::uint64_t bytes, int peer, std::int64_t tag);

/// A posted send or receive. The program keeps the memory until is_done().
class Message {
 public:
  enum class Kind { send, receive };
  Message(Kind kind, int peer, MessageKey key, std::byte* memory, std::uint64_t bytes)
      : kind_(kind), peer_(peer), key_(key), memory_(memory), bytes_(bytes) {}

  bool is_done() const { return done_.load(std::memory_order_acquire); }
  std::string what() const;
  /// Once is_done(): null if the message arrived.
  const MessageFailure* failure() const { return failure_ ? &*failure_ : nullptr; }
  /// Once is_done(): the sender's rank of a receive that succeeded; else -1.
  int source() const { return source_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  friend class Mailbox;
  friend class OutgoingStream;
  const Kind kind_;
  const int peer_;
  const MessageKey key_;
  std::byte* const memory_;
  const std::uint64_t bytes_;
  std::atomic<bool> done_{false};
  std::optional<MessageFailure> failure_;
  int source_ = -1;
  // The mailbox's lock guards these.
  std::uint64_t sent_ = 0;   ///< of header and bytes, in the ring
  std::uint32_t offer_ = 0;  ///< number of a rendezvous, once offered
  bool is_by_ring_ = false;  ///< a rendezvous whose receiver wants the bytes in the ring
  bool is_waited_for_ = false;
  std::vector<std::function<void()>> on_done_;
};

}  // namespace plait::p2p
