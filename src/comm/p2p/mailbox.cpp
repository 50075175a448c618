// Posts, matches and ends messages. A receive matches the first message of its key from its
// source, in the order of sends. A message is buffered only if it lies in a ring before a message
// that a posted receive matches, and only up to a limit.
#include "comm/p2p/mailbox.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <random>
#include <utility>

#include "base/error_reason.hpp"
#include "base/forks.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"

namespace plait::p2p {
namespace {

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

std::string has_ended(int rank) { return text("rank {} has ended", rank); }

std::string new_name() {
  std::random_device random;
  return text("plait-{}-{:x}{:x}{:x}{:x}", ::getpid(), random(), random(), random(), random());
}

Fd listen_at_name(const std::string& name, int backlog) {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) throw call_failed(ErrorCode::io_error, "socket", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // abstract: leaves no file behind
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0)
    throw call_failed(ErrorCode::io_error, "bind", errno);
  if (::listen(socket.get(), backlog) != 0) throw call_failed(ErrorCode::io_error, "listen", errno);
  return socket;
}

Fd checked(int fd, const char* call) {
  if (fd < 0) throw call_failed(ErrorCode::io_error, call, errno);
  return Fd(fd);
}

/// Whether the process or the system has no open file left for a connection.
bool is_out_of_files(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

std::string wrong_size(std::uint64_t wanted, std::uint64_t found, int peer) {
  return text(
      "wanted {} bytes, found a message of {} bytes from rank {}; receive into a tensor of that "
      "size and type",
      wanted, found, peer);
}

}  // namespace

Mailbox::Mailbox(int rank, int ranks, std::function<void()> interrupt)
    : rank_(rank),
      ranks_(ranks),
      interrupt_(std::move(interrupt)),
      forks_(forks_so_far()),
      name_(new_name()),
      listener_(listen_at_name(name_, 2 * ranks)),
      wake_(checked(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
      timer_(checked(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), "timerfd_create")),
      out_(index(ranks)),
      in_(index(ranks)),
      send_closed_(index(ranks)),
      receive_closed_(index(ranks)),
      spins_(ranks) {}

std::shared_ptr<Mailbox> make_mailbox(int rank, int ranks, std::function<void()> interrupt) {
  const std::uint32_t forks = forks_so_far();
  return {new Mailbox(rank, ranks, std::move(interrupt)), [forks](Mailbox* mailbox) {
            if (forks_so_far() == forks) mailbox->end();
          }};
}

/// Returns false in a forked child.
bool Mailbox::is_owner() const { return forks_so_far() == forks_; }

void Mailbox::check_process() const {
  if (!is_owner())
    throw Error(ErrorCode::unsupported,
                "this mailbox belongs to the process that forked; make one in the child");
}

void Mailbox::check_open(const std::string& what) const {
  const std::string& why = closed_.empty() ? closing_ : closed_;
  if (!why.empty())
    throw Error(ErrorCode::aborted, text("{}: the mailbox is closed: {}", what, why));
}

bool Mailbox::is_connected(int peer) const {
  check_process();
  check_rank(peer);
  const std::lock_guard lock(mutex_);
  return out_[index(peer)] != nullptr || send_closed_[index(peer)];
}

bool Mailbox::is_connected_from(int peer) {
  check_process();
  check_rank(peer);
  Lock lock(mutex_);
  if (in_[index(peer)] == nullptr) accept_streams();
  const bool is_connected = in_[index(peer)] != nullptr;
  leave(lock);
  return is_connected;
}

void Mailbox::connect(int peer, const std::string& address) {
  check_process();
  check_rank(peer);
  Lock lock(mutex_);
  check_open(text("connection to rank {}", peer));
  if (out_[index(peer)] != nullptr || send_closed_[index(peer)]) return;
  try {
    out_[index(peer)] = std::make_unique<OutgoingStream>(rank_, peer, address, probe_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
    close_sends_to(peer);
  }
  leave(lock);
}

void Mailbox::check_rank(int rank) const {
  if (rank < 0 || rank >= ranks_)
    throw Error(ErrorCode::invalid_argument,
                text("rank of a message: wanted 0 to {}, found {}", ranks_ - 1, rank));
}

std::shared_ptr<Message> Mailbox::send(int peer, const MessageKey& key, const void* memory,
                                       std::uint64_t bytes) {
  check_process();
  check_rank(peer);
  Lock lock(mutex_);
  if (!closed_.empty() || !closing_.empty()) check_open(text("send to rank {}", peer));
  OutgoingStream* const out = out_[index(peer)].get();
  if (out != nullptr && out->write_now(key, memory, bytes)) return nullptr;
  auto* const bytes_of = static_cast<std::byte*>(const_cast<void*>(memory));
  auto message = std::make_shared<Message>(Message::Kind::send, peer, key, bytes_of, bytes);
  if (out == nullptr || !out->is_open()) {
    if (out == nullptr && !send_closed_[index(peer)])
      throw Error(ErrorCode::invalid_argument,
                  text("{}: connect() to that rank first", message->what()));
    close_sends_to(peer);
    fail(*message, ErrorCode::peer_lost, has_ended(peer));
  } else {
    out->post(message);
    Messages done;
    out->progress(done);
    finish_all(done);
    if (!out->is_open()) close_sends_to(peer);
  }
  leave(lock);
  return message;
}

std::shared_ptr<Message> Mailbox::receive(int peer, const MessageKey& key, void* memory,
                                          std::uint64_t bytes) {
  check_process();
  if (peer != kAnySource) check_rank(peer);
  auto message = std::make_shared<Message>(Message::Kind::receive, peer, key,
                                           static_cast<std::byte*>(memory), bytes);
  Lock lock(mutex_);
  if (!closed_.empty() || !closing_.empty()) check_open(message->what());
  if (!match_unexpected(message)) {
    receives_.push_back(message);
    for (const auto& from : in_) {
      if (from == nullptr || (peer != kAnySource && peer != from->peer())) continue;
      from->held_back_since_ns = 0;  // each receive has the whole time
      read(*from);
    }
    fail_orphaned_receives();
  }
  leave(lock);
  return message;
}

void Mailbox::set_most_buffered(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  buffers_.set_most(bytes);
}

std::uint64_t Mailbox::buffered() const {
  const std::lock_guard lock(mutex_);
  return buffers_.used();
}

void Mailbox::on_done(const std::shared_ptr<Message>& message, std::function<void()> call) {
  if (!is_owner()) return;  // a thread of the parent may have held the lock
  {
    const std::lock_guard lock(mutex_);
    if (!message->is_done()) {
      message->on_done_.push_back(std::move(call));
      return;
    }
  }
  call();
}

void Mailbox::withdraw(const std::shared_ptr<Message>& message, ErrorCode code,
                       const std::string& reason) {
  check_process();
  Lock lock(mutex_);
  withdraw(lock, message, code, reason);
  leave(lock);
}

void Mailbox::withdraw(Lock&, const std::shared_ptr<Message>& message, ErrorCode code,
                       const std::string& reason) {
  if (message->is_done()) return;
  std::erase(receives_, message);
  for (const auto& from : in_)  // the receive may be the one that waits behind full buffers
    if (from != nullptr) from->held_back_since_ns = 0;
  for (const auto& out : out_) {
    if (out == nullptr || out->take_back(message)) continue;
    const Messages unsent = out->unsent();
    if (std::find(unsent.begin(), unsent.end(), message) == unsent.end()) continue;
    out->close();  // before the program may reuse the memory, which the receiver may be reading
    fail(*message, code, reason);
    close_sends_to(out->peer());
  }
  for (const auto& from : in_) {
    if (from == nullptr) continue;
    const Messages filled = from->receives();
    if (std::find(filled.begin(), filled.end(), message) == filled.end()) continue;
    fail(*message, code, reason);
    close_receives_from(*from);
  }
  fail(*message, code, reason);
}

/// Ends a message once; later calls do nothing.
void Mailbox::finish(Message& message, std::optional<MessageFailure> failure, int source) {
  if (message.is_done()) return;
  message.failure_ = std::move(failure);
  message.source_ = source;
  for (auto& call : message.on_done_) callbacks_.push_back(std::move(call));
  message.on_done_.clear();
  message.done_.store(true, std::memory_order_release);
  if (waiting_ > 0) changed_.notify_all();
}

void Mailbox::fail(Message& message, ErrorCode code, const std::string& reason) {
  if (!message.is_done()) finish(message, MessageFailure{code, message.what(), reason});
}

void Mailbox::finish_all(Messages& messages) {
  for (const auto& message : messages) finish(*message, std::nullopt);
  messages.clear();
}

void Mailbox::run_callbacks(Lock& lock) {
  while (!callbacks_.empty()) {
    std::vector<std::function<void()>> calls = std::exchange(callbacks_, {});
    lock.unlock();
    for (const auto& call : calls) call();
    calls.clear();
    lock.lock();
  }
}

/// Ends a function of the program: what it posted needs a thread that makes progress.
void Mailbox::leave(Lock& lock) {
  if (driver_sleeps_)
    wake_driver();  // it sleeps on the streams that mattered before
  else if (!has_driver_)
    arm_background();
  run_callbacks(lock);
}

// Streams.

/// Takes connections, and rings from those that have passed one. Waits for nothing.
void Mailbox::accept_streams() {
  lacks_files_ = false;
  while (listener_.valid()) {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (is_out_of_files(errno))
        fail_unconnected(call_failed(ErrorCode::io_error, "accept", errno, "a rank connects"));
      break;
    }
    if (arrivals_.size() > 2 * in_.size()) arrivals_.erase(arrivals_.begin());  // no rank's
    arrivals_.push_back(std::move(socket));
  }
  for (std::size_t at = 0; at < arrivals_.size();)
    if (accept_stream(arrivals_[at]))
      arrivals_.erase(arrivals_.begin() + static_cast<std::ptrdiff_t>(at));
    else
      ++at;
}

/// Returns false if the connection has not passed a ring, or the process lacks what a ring needs.
bool Mailbox::accept_stream(Fd& socket) {
  if (!wait_socket(socket.get(), POLLIN, {})) return false;
  const int spare = ::dup(wake_.get());  // a ring comes as a descriptor, which would be lost
  if (spare < 0) {
    fail_unconnected(call_failed(ErrorCode::io_error, "dup", errno, "a rank connects"));
    return false;
  }
  ::close(spare);
  try {
    auto made = std::make_unique<IncomingStream>(std::move(socket), may_pull_.load());
    if (made->peer() < 0 || made->peer() >= ranks_) return true;
    auto& place = in_[index(made->peer())];
    if (place == nullptr) place = std::move(made);
  } catch (const Error& error) {
    // Else no rank of this group, or a rank that ended while it connected.
    if (error.code() == ErrorCode::out_of_memory) fail_unconnected(error);
  }
  return true;
}

/// Whether a peer that has connected may serve the receive.
bool Mailbox::is_served(const Message& receive) const {
  return receive.peer_ == kAnySource && std::any_of(in_.begin(), in_.end(), [](const auto& from) {
           return from != nullptr && from->is_open();
         });
}

/// Fails the receives whose sources may be unable to connect, and that no other peer may serve.
void Mailbox::fail_unconnected(const Error& why) {
  lacks_files_ = true;
  Messages failed;
  std::erase_if(receives_, [&](const auto& one) {
    const bool fails = awaits_connection(*one) && !is_served(*one);
    if (fails) failed.push_back(one);
    return fails;
  });
  for (const auto& message : failed) fail(*message, why.code(), reason_of(why));
}

/// Also ends copies of the socket in forked processes.
void Mailbox::close_listener() {
  ::shutdown(listener_.get(), SHUT_RDWR);
  listener_ = Fd();
}

/// Fails sends to the peer. Messages that it sent before may still arrive.
void Mailbox::close_sends_to(int peer) {
  send_closed_[index(peer)] = true;
  if (OutgoingStream* const out = out_[index(peer)].get()) {
    out->close();
    for (const auto& message : out->drop_unsent())
      fail(*message, ErrorCode::peer_lost, has_ended(peer));
  }
  accept_streams();
  if (in_[index(peer)] == nullptr) receive_closed_[index(peer)] = true;
  fail_orphaned_receives();
}

/// Closes the stream from a peer, and fails the receives that it has begun to fill.
void Mailbox::close_receives_from(IncomingStream& from) {
  from.close();
  const Messages cut = from.receives();
  from.by_ring.clear();
  std::erase_if(from.unexpected, [](const auto& one) { return !one->is_complete; });
  from.receive = nullptr;
  from.filling = nullptr;
  for (const auto& message : cut) fail(*message, ErrorCode::peer_lost, has_ended(from.peer()));
  receive_closed_[index(from.peer())] = true;
  if (OutgoingStream* const out = out_[index(from.peer())].get()) out->look_soon();
  fail_orphaned_receives();
}

bool Mailbox::is_receive_closed(int source) const {
  if (source != kAnySource) return receive_closed_[index(source)];
  for (int rank = 0; rank < ranks_; ++rank)
    if (rank != rank_ && !receive_closed_[index(rank)]) return false;
  return ranks_ > 1;
}

/// Fails receives if all possible senders have closed.
void Mailbox::fail_orphaned_receives() {
  for (std::size_t at = 0; at < receives_.size();) {
    const std::shared_ptr<Message> message = receives_[at];
    if (!is_receive_closed(message->peer_)) {
      ++at;
      continue;
    }
    receives_.erase(receives_.begin() + static_cast<std::ptrdiff_t>(at));
    const int named = message->peer_ != kAnySource ? message->peer_ : (rank_ == 0 ? 1 : 0);
    fail(*message, ErrorCode::peer_lost, has_ended(named));
  }
}

void Mailbox::end_receives(const std::string& why) {
  Messages posted = std::exchange(receives_, {});
  for (const auto& from : in_) {
    if (from == nullptr) continue;
    for (const auto& one : from->receives()) posted.push_back(one);
    from->receive = nullptr;
    from->filling = nullptr;
    from->by_ring.clear();
    from->unexpected.clear();
  }
  receive_closed_.assign(receive_closed_.size(), true);
  for (const auto& message : posted) fail(*message, ErrorCode::aborted, why);
}

// Matching.

bool Mailbox::match_unexpected(const std::shared_ptr<Message>& message) {
  for (const auto& from : in_) {
    if (from == nullptr || (message->peer_ != kAnySource && message->peer_ != from->peer()))
      continue;
    for (const auto& one : from->unexpected) {
      if (one->matched_by != nullptr || !message->key_.matches(one->key)) continue;
      const std::shared_ptr<UnexpectedMessage> found = one;
      found->matched_by = message;
      if (found->is_complete || found->address != 0) {
        std::erase(from->unexpected, found);
        deliver(*from, *found);
      }
      return true;
    }
  }
  return false;
}

/// Moves a buffered or offered message into the receive that matches it.
void Mailbox::deliver(IncomingStream& from, UnexpectedMessage& unexpected) {
  const std::shared_ptr<Message> message = std::exchange(unexpected.matched_by, nullptr);
  if (message->bytes_ != unexpected.bytes) {
    if (unexpected.address != 0) from.answer(unexpected.offer);
    return fail(*message, ErrorCode::mismatch,
                wrong_size(message->bytes_, unexpected.bytes, from.peer()));
  }
  if (unexpected.address != 0)
    return take_offer(from, unexpected.address, unexpected.offer, message);
  if (message->bytes_ > 0) std::memcpy(message->memory_, unexpected.memory.get(), message->bytes_);
  finish(*message, std::nullopt, from.peer());
}

/// Moves an offered message into a receive. `from.receive` may be another message, filled in part.
void Mailbox::take_offer(IncomingStream& from, std::uint64_t address, std::uint32_t offer,
                         const std::shared_ptr<Message>& message) {
  using Taken = IncomingStream::Taken;
  switch (from.take(address, offer, message->memory_, message->bytes_, pull_, is_aborting_)) {
    case Taken::here: return finish(*message, std::nullopt, from.peer());
    case Taken::by_ring: from.by_ring.push_back({offer, message, nullptr}); return;
    case Taken::ended:
      close_receives_from(from);
      fail(*message, ErrorCode::peer_lost, has_ended(from.peer()));
  }
}

/// Whether a posted receive needs more of this stream. Other messages stay in the ring.
bool Mailbox::reads_from(const IncomingStream& from) const {
  if (!from.is_open()) return false;
  if (from.in_message() || !from.by_ring.empty()) return true;
  return std::any_of(receives_.begin(), receives_.end(), [&](const auto& one) {
    return one->peer_ == kAnySource || one->peer_ == from.peer();
  });
}

/// Reads arrived data while a receive needs data.
void Mailbox::read(IncomingStream& from) {
  while (reads_from(from)) {
    if (from.in_message()) {
      if (!from.fill()) break;
      end_of_bytes(from);
      continue;
    }
    const std::optional<MessageHeader> header = from.peek_header();
    if (!header) break;
    if (holds_back(from, *header)) {
      from.look();  // A wait then sleeps until more comes.
      if (from.held_back_since_ns == 0) from.held_back_since_ns = now_ns();
      break;
    }
    from.held_back_since_ns = 0;
    from.skip_header(*header);
    start(from, *header);
  }
  // Everything that came before the end has been read.
  if (from.is_ended() && reads_from(from)) close_receives_from(from);
}

std::shared_ptr<Message> Mailbox::take_matching(IncomingStream& from, const MessageHeader& header,
                                                bool& is_wrong_size) {
  const MessageKey key{header.context, header.tag};
  for (auto at = receives_.begin(); at != receives_.end(); ++at) {
    const std::shared_ptr<Message> message = *at;
    if (message->peer_ != kAnySource && message->peer_ != from.peer()) continue;
    if (!message->key_.matches(key)) continue;
    receives_.erase(at);
    if (message->bytes_ == header.bytes) return message;
    fail(*message, ErrorCode::mismatch, wrong_size(message->bytes_, header.bytes, from.peer()));
    is_wrong_size = true;
    return nullptr;
  }
  return nullptr;
}

/// Whether an eager message without a receive stays in the ring, since the buffers are full. The
/// sender then waits for room in the ring. Bytes that a receive has asked for may lie behind. A
/// sender that has ended adds nothing to its ring, whose messages are read whatever room is left.
bool Mailbox::holds_back(const IncomingStream& from, const MessageHeader& header) const {
  if (from.is_ended() || header.offer != 0 || buffers_.has_room(header.bytes) ||
      !from.by_ring.empty())
    return false;
  return std::none_of(receives_.begin(), receives_.end(), [&](const auto& one) {
    return (one->peer_ == kAnySource || one->peer_ == from.peer()) &&
           one->key_.matches({header.context, header.tag});
  });
}

/// Matches a header to the first posted receive of its key, or notes the message as unexpected.
void Mailbox::start(IncomingStream& from, const MessageHeader& header) {
  if (header.is_answer()) return start_answered(from, header);
  bool is_wrong_size = false;
  if (std::shared_ptr<Message> message = take_matching(from, header, is_wrong_size)) {
    if (header.is_offer()) return take_offer(from, header.address, header.offer, message);
    from.receive = message;
    from.expect(message->memory_, header.bytes);
    if (header.bytes == 0) end_of_bytes(from);
    return;
  }
  const auto made = std::make_shared<UnexpectedMessage>(header);
  from.unexpected.push_back(made);
  if (header.is_offer()) {
    if (is_wrong_size) buffer_offer(from, made);  // the sender need not wait for another try
    return;
  }
  if (!made->buffer_in(buffers_)) return close_receives_from(from);
  from.filling = made;
  from.expect(made->memory.get(), header.bytes);
  if (header.bytes == 0) end_of_bytes(from);
}

void Mailbox::end_of_bytes(IncomingStream& from) {
  if (from.receive != nullptr) {
    const std::shared_ptr<Message> message = std::exchange(from.receive, nullptr);
    return finish(*message, std::nullopt, from.peer());
  }
  const std::shared_ptr<UnexpectedMessage> filled = std::exchange(from.filling, nullptr);
  filled->is_complete = true;
  if (filled->matched_by == nullptr) return;
  std::erase(from.unexpected, filled);
  deliver(from, *filled);
}

/// Bytes that an answer to an offer has asked for.
void Mailbox::start_answered(IncomingStream& from, const MessageHeader& header) {
  const auto found = std::find_if(from.by_ring.begin(), from.by_ring.end(),
                                  [&](const auto& one) { return one.offer == header.offer; });
  if (found == from.by_ring.end()) return close_receives_from(from);  // not of this protocol
  from.receive = std::move(found->receive);
  from.filling = std::move(found->filling);
  from.by_ring.erase(found);
  from.expect(from.receive ? from.receive->memory_ : from.filling->memory.get(), header.bytes);
}

/// Moves an offered message into a buffer. Returns false if the message stays an offer.
bool Mailbox::buffer_offer(IncomingStream& from,
                           const std::shared_ptr<UnexpectedMessage>& unexpected) {
  using Taken = IncomingStream::Taken;
  if (!buffers_.has_room(unexpected->bytes) || !unexpected->buffer_in(buffers_)) return false;
  const Taken taken = from.take(unexpected->address, unexpected->offer, unexpected->memory.get(),
                                unexpected->bytes, pull_, is_aborting_);
  if (taken == Taken::ended) {
    close_receives_from(from);
    return true;
  }
  unexpected->address = 0;
  unexpected->is_complete = taken == Taken::here;
  if (taken == Taken::by_ring) from.by_ring.push_back({unexpected->offer, nullptr, unexpected});
  return true;
}

/// Buffers one offered message that no receive wants, since its sender may wait for that before it
/// sends what a posted receive matches. Returns false if there is none, or no room.
bool Mailbox::relieve_senders() {
  for (const auto& from : in_) {
    if (from == nullptr || from->in_message() || !reads_from(*from)) continue;
    const auto found = std::find_if(
        from->unexpected.begin(), from->unexpected.end(),
        [&](const auto& one) { return one->address != 0 && buffers_.has_room(one->bytes); });
    if (found == from->unexpected.end()) continue;
    const std::shared_ptr<UnexpectedMessage> one = *found;
    if (buffer_offer(*from, one)) return true;
  }
  return false;
}

// The end.

std::optional<MessageFailure> Mailbox::shut_down(const std::string& why, double seconds) {
  check_process();
  std::optional<MessageFailure> first;
  {
    Lock lock(mutex_);
    if (!closed_.empty() || !closing_.empty()) return std::nullopt;
    closing_ = why;
    end_receives(why);
    close_listener();
    for (const auto& from : in_)
      if (from != nullptr) from->close();  // tells the sender that this rank reads nothing more
    Messages posted;
    for (const auto& out : out_)
      if (out != nullptr)
        for (const auto& message : out->unsent()) posted.push_back(message);
    try {
      drain(lock, deadline_in(seconds));
    } catch (...) {  // an interrupt of the program
      lock.unlock();
      close(why);
      throw;
    }
    if (closed_.empty()) first = unread(posted, seconds);
  }
  close(why);
  return first;
}

std::optional<MessageFailure> Mailbox::unread(const Messages& posted, double seconds) {
  std::optional<MessageFailure> first;
  const auto note = [&](const OutgoingStream& out, ErrorCode code, const std::string& reason) {
    if (!first) first = MessageFailure{code, "the " + out.unreceived_text(), reason};
  };
  for (const auto& out : out_) {
    if (out == nullptr) continue;
    if (!out->is_drained())
      note(*out, ErrorCode::timeout,
           "its receiver has not asked for it, and the group is destroyed");
    const Messages unsent = out->unsent();
    if (!unsent.empty()) out->close();  // the receiver may be reading their memory
    for (const auto& message : unsent)
      fail(*message, ErrorCode::timeout, text("no receive within {} s", seconds));
  }
  for (const auto& out : out_)
    if (out != nullptr && out->was_dropped())
      note(*out, ErrorCode::peer_lost, has_ended(out->peer()));
  for (const auto& message : posted)
    if (!first && message->failure() != nullptr) first = *message->failure();
  return first;
}

void Mailbox::close(const std::string& why) noexcept {
  if (!is_owner()) return;   // the sockets are the parent's
  is_aborting_.store(true);  // ends a long pull under the lock
  Lock lock(mutex_);
  if (closed_.empty()) {
    closed_ = why;
    end_receives(why);
    close_listener();
    for (const auto& out : out_) {
      if (out == nullptr) continue;
      out->close();
      for (const auto& message : out->drop_unsent()) fail(*message, ErrorCode::aborted, why);
    }
    for (const auto& from : in_)
      if (from != nullptr) from->close();
    if (driver_sleeps_) wake_driver();
    changed_.notify_all();
  }
  run_callbacks(lock);
  stop_background(lock);
}

}  // namespace plait::p2p
