// Tagged messages between ranks of a host, matched by source, tag and context, in any order of
// sends and receives. A rank has one mailbox for a group of ranks. A thread in wait() makes
// progress for all messages; without such a thread a background thread does. Small messages go
// through shared memory (message_ring.hpp), large ones by rendezvous.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/p2p/message.hpp"
#include "comm/p2p/message_stream.hpp"
#include "comm/p2p/pull.hpp"

namespace plait::p2p {

/// Number of polls of a wait before it sleeps. After several waits whose polls found nothing
/// (shared cores, or a late peer), the next waits sleep at once.
class SpinBudget {
 public:
  explicit SpinBudget(int ranks);
  /// Returns the time to spin, in ns. sent: bytes of a pending send, which the peer is reading.
  std::int64_t begin(std::uint64_t sent);
  void succeeded() { failures_ = waits_to_skip_ = 0; }

 private:
  std::int64_t most_ns_ = 0;
  int failures_ = 0, waits_to_skip_ = 0;
};

/// Made by make_mailbox(). Thread-safe. Throws Error(unsupported) in a forked child.
class Mailbox {
 public:
  /// interrupt: called now and then in a thread that waits; an exception ends that wait and leaves
  /// the message posted.
  Mailbox(int rank, int ranks, std::function<void()> interrupt = nullptr);
  ~Mailbox() { close("it was destroyed"); }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
  /// Closes a mailbox that has no owner any more, and frees it. In a callback of the background
  /// thread the mailbox closes at once, and the thread frees it behind the callback.
  void end() noexcept;

  /// The name that peers connect to. The program passes it to them by any means.
  const std::string& address() const { return name_; }
  /// Opens the stream to a peer, if not open yet. Needed once before a send to the peer or a
  /// receive from it. A peer that has ended fails these messages.
  void connect(int peer, const std::string& address);
  /// Whether messages to the peer need no connect().
  bool is_connected(int peer) const;
  /// Whether the peer has connected, so that a receive from it needs no connect().
  bool is_connected_from(int peer);

  /// Posts a send. Returns null if the message is in the ring already, so that the memory is free.
  /// Throws Error(aborted) if the mailbox is closed. A peer that has ended fails the message.
  std::shared_ptr<Message> send(int peer, const MessageKey& key, const void* memory,
                                std::uint64_t bytes);
  /// Posts a receive. peer: a rank or kAnySource. key.tag: a tag or kAnyTag.
  std::shared_ptr<Message> receive(int peer, const MessageKey& key, void* memory,
                                   std::uint64_t bytes);
  /// Waits until the message is done. After `seconds` the message fails with `timeout`. A stream
  /// that has carried a part of it closes, since it cannot resume. After PLAIT_WARN_S a line names
  /// the message.
  void wait(const std::shared_ptr<Message>& message, double seconds);
  /// Calls `call` once the message is done: at once if it is, else in the thread that ends it.
  void on_done(const std::shared_ptr<Message>& message, std::function<void()> call);
  void withdraw(const std::shared_ptr<Message>& message, ErrorCode code, const std::string& reason);

  /// Closes the mailbox once all peers have read the program's messages. Posted receives fail at
  /// once. Returns the first message that a peer did not read within `seconds`, if any.
  std::optional<MessageFailure> shut_down(const std::string& why, double seconds);
  /// Fails all posted messages, and closes at once. Does nothing in a forked child.
  void close(const std::string& why) noexcept;
  /// Later streams do not pull if false: all bytes go through rings, as where the kernel forbids
  /// reads of another process.
  void set_may_pull(bool may_pull) { may_pull_.store(may_pull); }
  /// Sets the limit of buffered(), kMostBuffered at first. Call it before messages come.
  void set_most_buffered(std::uint64_t bytes);
  /// Bytes in buffers, of messages that came before their receives.
  std::uint64_t buffered() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Sleep;

  // Matching (mailbox.cpp).
  void check_open(const std::string& what) const;
  bool is_owner() const;
  void check_process() const;
  void check_rank(int rank) const;
  void finish(Message& message, std::optional<MessageFailure> failure, int source = -1);
  void fail(Message& message, ErrorCode code, const std::string& reason);
  void finish_all(Messages& messages);
  void accept_streams();
  bool accept_stream(Fd& socket);
  void fail_unconnected(const Error& why);
  bool is_served(const Message& receive) const;
  void close_listener();
  void close_sends_to(int peer);
  void close_receives_from(IncomingStream& from);
  void fail_orphaned_receives();
  bool is_receive_closed(int source) const;
  void end_receives(const std::string& why);
  bool match_unexpected(const std::shared_ptr<Message>& message);
  void deliver(IncomingStream& from, UnexpectedMessage& unexpected);
  bool reads_from(const IncomingStream& from) const;
  void read(IncomingStream& from);
  bool holds_back(const IncomingStream& from, const MessageHeader& header) const;
  void start(IncomingStream& from, const MessageHeader& header);
  void start_answered(IncomingStream& from, const MessageHeader& header);
  void take_offer(IncomingStream& from, std::uint64_t address, std::uint32_t offer,
                  const std::shared_ptr<Message>& message);
  std::shared_ptr<Message> take_matching(IncomingStream& from, const MessageHeader& header,
                                         bool& is_wrong_size);
  void end_of_bytes(IncomingStream& from);
  void withdraw(Lock& lock, const std::shared_ptr<Message>& message, ErrorCode code,
                const std::string& reason);
  bool buffer_offer(IncomingStream& from, const std::shared_ptr<UnexpectedMessage>& unexpected);
  bool relieve_senders();
  void run_callbacks(Lock& lock);
  void leave(Lock& lock);

  // Progress and waits (mailbox_progress.cpp).
  void progress();
  std::string held_back_text(const Message& message) const;
  void fail_held_back();
  void drive(Lock& lock, const std::function<bool()>& is_over, const Message* until,
             std::int64_t end_ns, bool is_background);
  void spin(Lock& lock, const Message* until, std::int64_t spin_ns);
  bool sleep(Lock& lock, std::int64_t end_ns);
  void warn(Lock& lock, const Message& message);
  void ask_program(Lock& lock);
  bool prepare_sleep(Sleep& sleep);
  void after_sleep(const Sleep& sleep);
  bool become_driver(Lock& lock, std::int64_t end_ns);
  void stop_driving();
  void wake_driver() const;
  bool awaits_connection() const;
  bool awaits_connection(const Message& message) const;
  bool needs_background() const;
  void arm_background();
  void run_background();
  void stop_background(Lock& lock) noexcept;
  bool is_in_background() const { return background_.get_id() == std::this_thread::get_id(); }
  void drain(Lock& lock, std::int64_t end_ns);
  std::optional<MessageFailure> unread(const Messages& posted, double seconds);

  const int rank_, ranks_;
  const std::function<void()> interrupt_;
  const std::uint32_t forks_;
  const PullProbe probe_;
  std::string name_;
  Fd listener_, wake_, timer_;
  std::atomic<bool> may_pull_{true}, is_aborting_{false};

  mutable std::mutex mutex_;                          // guards all members below
  std::condition_variable changed_;                   // a message is done, or the driver has left
  std::vector<std::unique_ptr<OutgoingStream>> out_;  // by peer; null = not open yet
  BufferSpace buffers_;                               // of in_
  std::vector<std::unique_ptr<IncomingStream>> in_;
  std::vector<Fd> arrivals_;                        // connections that have passed no ring yet
  std::vector<bool> send_closed_;                   // peers that read nothing more
  std::vector<bool> receive_closed_;                // peers that send nothing more
  std::vector<std::shared_ptr<Message>> receives_;  // posted, in order
  std::vector<std::function<void()>> callbacks_;    // of done messages, to be called unlocked
  TwoThreadPull pull_;
  SpinBudget spins_;
  std::string closing_, closed_;  // reasons; empty = open
  bool has_driver_ = false;       // a thread makes progress
  bool driver_is_background_ = false;
  bool driver_sleeps_ = false;  // in poll()
  int wanting_ = 0;             // threads that want to make progress instead of the background
  int waiting_ = 0;             // threads that wait for changed_
  bool timer_is_set_ = false;
  bool lacks_files_ = false;  // the last connection could not be taken
  std::thread background_;
  bool is_left_to_background_ = false;  // The background thread frees the mailbox.
};

/// Returns a mailbox whose last owner closes it. In a forked child the object stays, since the
/// child lacks its threads.
std::shared_ptr<Mailbox> make_mailbox(int rank, int ranks,
                                      std::function<void()> interrupt = nullptr);

}  // namespace plait::p2p
