// The two ends of a direction between two ranks: a ring for headers and bytes, and a Unix socket
// that passes the ring, wakes a sleeping rank and shows the end of a rank. The sender connects;
// nothing waits until the receiver accepts. Large messages go by rendezvous: the header offers the
// sender's memory, the receiver pulls the bytes and answers the offer. A receiver that cannot pull,
// or whose sender spins, answers that the bytes must come through the ring. The mailbox's lock
// guards both ends.
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
/// Bytes of messages without a receive that a mailbox buffers. More stay with their senders.
inline constexpr std::uint64_t kMostBuffered = 256 << 20;

/// Larger messages are not asked for by ring while pulls work: a stream of 64 MiB takes 5.1 ms by
/// ring and 4.7 by pulls, one of 32 MiB 1.9 and 2.4.
inline constexpr std::uint64_t kMostByRing = 32 << 20;

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
  /// Opens process_descriptor(), if an open file is left: the socket shows an end too.
  void watch_process();
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
  bool has_unsent() const { return is_full() || !offered_.empty(); }
  bool is_full() const { return !queue_.empty() || !by_ring_.empty(); }
  Messages unsent() const;
  Messages drop_unsent();
  /// Forgets a message of which nothing is written. Returns whether there was one.
  bool take_back(const std::shared_ptr<Message>& message);

  /// Writes a message at once if nothing waits and the ring has room. Returns whether it did.
  bool write_now(const MessageKey& key, const void* memory, std::uint64_t bytes);
  void post(std::shared_ptr<Message> message);
  /// Writes queued messages until the ring is full, and reads answers. Adds to `done` the
  /// messages that end.
  void progress(Messages& done);
  /// Shows the peer that a thread of this rank spins until a send has ended.
  void show_spin(std::int64_t now_ns) const {
    control().writer_spins_ns.store(now_ns, std::memory_order_relaxed);
  }
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
  static bool is_offer(const Message& message);
  bool awaits_answers() const;
  std::deque<std::shared_ptr<Message>>& next_queue();
  bool write_header(Message& message);
  bool write_message(Message& message);
  void put(const void* from, std::uint64_t bytes);
  void read_answers(Messages& done);

  const int peer_;
  Mapping memory_;
  RingWriter ring_;
  Wire wire_;
  bool is_open_ = true, was_dropped_ = false;
  std::deque<std::shared_ptr<Message>> queue_;    ///< not written in full
  std::deque<std::shared_ptr<Message>> by_ring_;  ///< the same, of answered offers
  std::deque<std::shared_ptr<Message>> offered_;  ///< not answered
  std::uint32_t offers_ = 0;                      ///< number of the last offer
  std::uint64_t answers_read_ = 0;
  std::uint64_t last_end_ = 0;    ///< position behind the program's last message in the ring
  std::uint64_t last_bytes_ = 0;  ///< of that message
  std::int64_t last_tag_ = 0;
  std::int64_t next_look_ns_ = 0;
};

/// Memory for messages that came before their receives, up to a limit.
class BufferSpace {
 public:
  bool has_room(std::uint64_t bytes) const { return used_ + cost(bytes) <= most_; }
  std::uint64_t used() const { return used_; }
  std::uint64_t most() const { return most_; }
  void set_most(std::uint64_t bytes) { most_ = bytes; }

 private:
  friend struct UnexpectedMessage;
  static std::uint64_t cost(std::uint64_t bytes) { return bytes + 128; }  // and the list's entry
  std::uint64_t used_ = 0, most_ = kMostBuffered;
};

/// A message that came before its receive.
struct UnexpectedMessage {
  explicit UnexpectedMessage(const MessageHeader& header)
      : key{header.context, header.tag},
        bytes(header.bytes),
        address(header.address),
        offer(header.offer) {}
  ~UnexpectedMessage() {
    if (space_ != nullptr) space_->used_ -= BufferSpace::cost(bytes);
  }
  UnexpectedMessage(const UnexpectedMessage&) = delete;
  UnexpectedMessage& operator=(const UnexpectedMessage&) = delete;
  /// Takes memory for the bytes, of a space with room. Returns false if the process has none.
  bool buffer_in(BufferSpace& space);

  const MessageKey key;
  const std::uint64_t bytes;
  std::uint64_t
      address;  ///< of an offer not taken yet; 0 = the bytes are in `memory`, or still come
  const std::uint32_t offer;
  std::unique_ptr<std::byte[]> memory;
  bool is_complete = false;
  std::shared_ptr<Message> matched_by;  ///< set if the receive came before the last bytes

 private:
  BufferSpace* space_ = nullptr;
};

/// An offer whose bytes come through the ring: into a receive, or into a buffer.
struct AnsweredOffer {
  std::uint32_t offer;
  std::shared_ptr<Message> receive;
  std::shared_ptr<UnexpectedMessage> filling;
};

class IncomingStream {
 public:
  /// How an offer ends: its bytes are here, or come through the ring, or the sender has ended.
  enum class Taken { here, by_ring, ended };

  /// Takes a connection that is readable, and waits for nothing. Throws Error if no rank of this
  /// user and of this protocol made it.
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

  std::optional<MessageHeader> peek_header();
  /// Notes all that has been written, so that word() changes with the next byte alone.
  void look() { ring_.readable(kRingBytes + 1); }
  void skip_header(const MessageHeader& header);
  bool in_message() const { return receive != nullptr || filling != nullptr; }
  /// Sets the memory of the bytes that come next.
  void expect(std::byte* memory, std::uint64_t bytes);
  /// Moves bytes that are there. Returns whether all have come.
  bool fill();
  /// Takes an offered message: pulls it, or asks for its bytes if the kernel forbids the pull or
  /// the sender spins.
  /// Messages above kMostByRing are pulled even if the sender spins.
  Taken take(std::uint64_t address, std::uint32_t offer, std::byte* to, std::uint64_t bytes,
             TwoThreadPull& pull, const std::atomic<bool>& must_end);
  /// Answers an offer that needs no more bytes, or with kByRing.
  void answer(std::uint32_t entry);
  void close();

  /// The receives that the stream has begun to fill, or has matched.
  Messages receives() const;
  /// What the bytes that come next fill; both null = a header comes next.
  std::shared_ptr<Message> receive;
  std::shared_ptr<UnexpectedMessage> filling;
  std::deque<std::shared_ptr<UnexpectedMessage>> unexpected;
  std::deque<AnsweredOffer> by_ring;
  /// When the full buffers began to hold back the next message; 0 = not held back.
  std::int64_t held_back_since_ns = 0;

 private:
  struct Accepted;
  IncomingStream(Accepted accepted, bool may_pull);
  static Accepted accept(Fd socket);
  bool sender_spins();
  int pull(std::uint64_t address, std::byte* to, std::uint64_t bytes, TwoThreadPull& two,
           const std::atomic<bool>& must_end) const;

  Mapping memory_;
  Wire wire_;
  RingReader ring_;
  int peer_;
  bool can_pull_, is_open_ = true, is_ended_ = false;
  int missed_spins_ = 0;  ///< offers in a row whose sender did not spin
  std::byte* into_ = nullptr;
  std::uint64_t left_ = 0;
};

}  // namespace plait::p2p
