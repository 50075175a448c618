// The two ends of a direction between two ranks: a ring for headers and bytes, and a Unix socket
// that passes the ring, wakes a sleeping rank and shows the end of a rank. The sender connects;
// nothing waits until the receiver accepts. Large messages go by rendezvous: the header offers the
// sender's memory, the receiver pulls the bytes and confirms the pull. The mailbox's lock guards
// both ends.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/bootstrap/socket.hpp"
#include "comm/p2p/message.hpp"
#include "comm/p2p/message_ring.hpp"
#include "comm/p2p/pull.hpp"
#include "comm/shm/memory.hpp"

namespace plait::p2p {

/// Smaller messages go through the ring, and end once the ring holds them.
inline constexpr std::uint64_t kRendezvousFrom = 128 << 10;

using Messages = std::vector<std::shared_ptr<Message>>;

/// A word of a ring, and its value when the mailbox last looked. A spinning thread compares both
/// without the mailbox's lock; rings stay mapped as long as the mailbox lives.
struct RingWord {
  const std::atomic<std::uint64_t>* word;
  std::uint64_t seen;
  bool has_changed() const { return word->load(std::memory_order_acquire) != seen; }
};

/// The socket of a stream, and the process at its far end.
class Wire {
 public:
  Wire() = default;
  explicit Wire(Fd socket);  ///< throws Error(permission) if the far process is another user's
  /// Wakes the far end, which sleeps on the socket.
  void ring_bell() const noexcept;
  /// Reads and drops the bells. Returns true once the far end has closed or its process has ended.
  bool has_ended() const noexcept;
  /// The same after a poll() of one of the descriptors, with the events that it found there.
  bool has_ended(int descriptor, short found) const noexcept;
  /// Also reaches copies of the socket in forked processes.
  void shut_down() const noexcept;
  int socket() const { return socket_.get(); }
  int process() const { return pid_; }
  /// Readable once the far process has ended; -1 in another PID namespace.
  int process_descriptor() const { return process_.get(); }

 private:
  Fd socket_, process_;
  int pid_ = 0;
};

class OutgoingStream {
 public:
  /// address: the peer's socket name. Throws Error(peer_lost) if the peer has ended, and
  /// Error(out_of_memory).
  OutgoingStream(int rank, int peer, const std::string& address, const PullProbe& probe);

  int peer() const { return peer_; }
  const Wire& wire() const { return wire_; }
  RingControl& control() const { return ring_.control(); }
  bool is_open() const { return is_open_; }
  /// Whether the peer closed or ended before it had read everything.
  bool was_dropped() const { return was_dropped_; }
  bool has_unsent() const { return !queue_.empty() || !offered_.empty(); }
  bool is_full() const { return !queue_.empty(); }
  Messages unsent() const;
  Messages drop_unsent();
  /// Forgets a message of which nothing is written. Returns whether there was one.
  bool take_back(const std::shared_ptr<Message>& message);

  /// Writes a message at once if nothing waits and the ring has room. Returns whether it did.
  bool write_now(const MessageKey& key, const void* memory, std::uint64_t bytes);
  void post(std::shared_ptr<Message> message);
  /// Writes queued messages until the ring is full, and reads confirmed pulls. Adds to `done` the
  /// messages that end.
  void progress(Messages& done);
  /// Adds the words of the ring that change when progress() has work.
  void add_words(std::vector<RingWord>& words) const;
  /// Lets the next look_for_end() look at once: the stream from the peer has ended.
  void look_soon() { next_look_ns_ = 0; }
  /// Closes the stream if the peer has ended; looks at most every millisecond. Returns is_open().
  bool look_for_end();
  /// Returns whether the peer has read all messages of the program, or cannot any more.
  bool is_drained();
  /// Names a send that the peer has not received. Requires !is_drained() or was_dropped().
  std::string unreceived_text() const;
  /// Closes a stream whose peer has closed or ended.
  void end();
  void close();

 private:
  OutgoingStream(int rank, int peer, const std::string& address, const PullProbe& probe,
                 const Fd& file);
  void note_sent(const MessageKey& key, std::uint64_t bytes);
  bool awaits_pulls() const;
  bool write_message(Message& message);
  void put(const void* from, std::uint64_t bytes);
  void read_pulls(Messages& done);

  struct Offer {
    std::uint32_t number;
    std::shared_ptr<Message> message;
  };
  const int peer_;
  Mapping memory_;
  RingWriter ring_;
  Wire wire_;
  bool is_open_ = true, was_dropped_ = false;
  std::deque<std::shared_ptr<Message>> queue_;  ///< not written in full
  std::deque<Offer> offered_;                   ///< not pulled
  std::uint32_t offers_ = 0;
  std::uint64_t pulls_read_ = 0;
  std::uint64_t last_end_ = 0;    ///< position behind the program's last message in the ring
  std::uint64_t last_bytes_ = 0;  ///< of that message
  std::int64_t last_tag_ = 0;
  std::int64_t next_look_ns_ = 0;
};

/// A message that came before its receive.
struct UnexpectedMessage {
  MessageKey key;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;  ///< not pulled yet; 0 = the bytes are in `memory`, or still come
  std::uint32_t offer = 0;
  std::unique_ptr<std::byte[]> memory;
  bool is_complete = false;
  std::shared_ptr<Message> matched_by;  ///< set if the receive came before the last bytes
};

class IncomingStream {
 public:
  /// Takes a connection. Throws Error if no rank of this user and of this protocol made it.
  IncomingStream(Fd socket, bool may_pull);

  int peer() const { return peer_; }
  const Wire& wire() const { return wire_; }
  RingControl& control() const { return ring_.control(); }
  bool is_open() const { return is_open_; }
  /// Whether the sender has closed or ended, as far as seen.
  bool is_ended() const { return is_ended_; }
  void note_end() { is_ended_ = true; }
  bool has_ended();
  RingWord word() const { return {&control().written, ring_.seen()}; }

  std::optional<MessageHeader> next_header();
  bool in_message() const { return receive != nullptr || filling != nullptr; }
  /// Sets the memory of the bytes that come next.
  void expect(std::byte* memory, std::uint64_t bytes);
  /// Moves bytes that are there. Returns whether all have come.
  bool fill();
  /// Pulls an offered message. Returns false if it cannot be read; the stream is of no more use.
  bool pull(std::uint64_t address, std::uint32_t offer, std::byte* to, std::uint64_t bytes,
            TwoThreadPull& pull, const std::atomic<bool>& must_end);
  /// Confirms an offered message without its bytes.
  void confirm(std::uint32_t offer);
  void close();

  /// What the bytes that come next fill; both null = a header comes next.
  std::shared_ptr<Message> receive;
  std::shared_ptr<UnexpectedMessage> filling;
  std::deque<std::shared_ptr<UnexpectedMessage>> unexpected;

 private:
  struct Accepted;
  IncomingStream(Accepted accepted, bool may_pull);
  static Accepted accept(Fd socket);

  int peer_;
  Mapping memory_;
  Wire wire_;
  RingReader ring_;
  bool is_open_ = true, is_ended_ = false;
  std::byte* into_ = nullptr;
  std::uint64_t left_ = 0;
};

}  // namespace plait::p2p
