// Connects and accepts streams, moves bytes between messages and rings, and keeps the offers of a
// direction.
#include "comm/p2p/message_stream.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/system_call.hpp"
#include "base/text.hpp"

namespace plait::p2p {
namespace {

constexpr std::uint64_t kHelloMagic = 0x706c616974303101;  // "plait01", version 1
constexpr double kHelloS = 5;                              // the hello comes with the connection
constexpr std::uint64_t kChunk = 16 << 10;          // of a copy, so that both ranks copy at once
constexpr std::uint64_t kBetweenChecks = 64 << 20;  // pulled between two checks for an abort
constexpr std::int64_t kLookEveryNs = 1'000'000;
constexpr short kHungUp = POLLHUP | POLLERR | POLLNVAL | POLLRDHUP;

struct Hello {
  std::uint64_t magic = kHelloMagic;
  std::int64_t rank = 0;
  ShownProbe probe;
};

int open_process(int pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

Fd connect_to_name(const std::string& name, int peer) {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) throw call_failed(ErrorCode::io_error, "socket", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof address.sun_path)
    throw Error(ErrorCode::invalid_argument, text("address of rank ", peer, ": '", name, "'"));
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // abstract: no file
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  while (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno == EINTR) continue;
    if (errno == ECONNREFUSED || errno == ECONNRESET || errno == EPIPE)
      throw Error(ErrorCode::peer_lost, text("rank ", peer, " has ended"));
    throw call_failed(ErrorCode::io_error, "connect", errno);
  }
  return socket;
}

}  // namespace

Wire::Wire(Fd socket) : socket_(std::move(socket)) {
  check_peer_uid(socket_.get(), ::geteuid());
  ucred far{};
  socklen_t size = sizeof far;
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &far, &size) == 0) pid_ = far.pid;
  if (pid_ > 0) process_ = Fd(open_process(pid_));
}

void Wire::ring_bell() const noexcept {
  const char bell = 'b';
  // A full socket holds a bell already. A closed one is noticed elsewhere.
  static_cast<void>(::send(socket_.get(), &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL));
}

bool Wire::has_ended() const noexcept {
  // Bells stay in the socket: a thread that sleeps on the stream wakes by them.
  std::array<pollfd, 2> entries{pollfd{socket_.get(), POLLRDHUP, 0},
                                pollfd{process_.get(), POLLIN, 0}};
  if (::poll(entries.data(), process_.valid() ? 2 : 1, 0) <= 0) return false;
  return (entries[0].revents & kHungUp) != 0 || entries[1].revents != 0;
}

bool Wire::has_ended(int descriptor, short found) const noexcept {
  if (descriptor != socket_.get()) return found != 0;
  if ((found & POLLIN) != 0) {
    std::array<char, 64> bells;
    if (::recv(socket_.get(), bells.data(), bells.size(), MSG_DONTWAIT) == 0) return true;
  }
  return (found & kHungUp) != 0;
}

void Wire::shut_down() const noexcept { ::shutdown(socket_.get(), SHUT_RDWR); }

OutgoingStream::OutgoingStream(int rank, int peer, const std::string& address,
                               const PullProbe& probe)
    : OutgoingStream(rank, peer, address, probe, make_shared_memory(kRingMemoryBytes, 0)) {}

OutgoingStream::OutgoingStream(int rank, int peer, const std::string& address,
                               const PullProbe& probe, const Fd& file)
    : peer_(peer),
      memory_(map_shared_memory(file, kRingMemoryBytes)),
      ring_(memory_.base()),
      wire_(connect_to_name(address, peer)) {
  new (memory_.base()) RingControl{};
  Hello hello;
  hello.rank = rank;
  hello.probe = probe.shown();
  const std::string bytes(reinterpret_cast<const char*>(&hello), sizeof hello);
  send_frame(wire_.socket(), FrameKind::data, bytes, {file.get()}, {deadline_in(kHelloS), nullptr},
             text("rank ", peer));
}

Messages OutgoingStream::unsent() const {
  Messages all;
  for (const Offer& one : offered_) all.push_back(one.message);
  all.insert(all.end(), queue_.begin(), queue_.end());
  return all;
}

Messages OutgoingStream::drop_unsent() {
  Messages all = unsent();
  offered_.clear();
  queue_.clear();
  return all;
}

bool OutgoingStream::take_back(const std::shared_ptr<Message>& message) {
  return message->sent_ == 0 && std::erase(queue_, message) != 0;
}

/// Writes in chunks, so that the reader copies while this rank does.
void OutgoingStream::put(const void* from, std::uint64_t bytes) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t now = std::min(kChunk, bytes - done);
    ring_.put(static_cast<const std::byte*>(from) + done, now);
    done += now;
    if (ring_.publish()) wire_.ring_bell();
  }
}

void OutgoingStream::note_sent(const MessageKey& key, std::uint64_t bytes) {
  if (key.context < 0) return;
  last_end_ = ring_.written();
  last_bytes_ = bytes;
  last_tag_ = key.tag;
}

bool OutgoingStream::write_now(const MessageKey& key, const void* memory, std::uint64_t bytes) {
  if (!queue_.empty() || bytes >= kRendezvousFrom) return false;
  const std::uint64_t wanted = sizeof(MessageHeader) + bytes;
  if (ring_.room(wanted) < wanted || !look_for_end()) return false;
  const MessageHeader header{key.tag, bytes, 0, key.context, 0};
  ring_.put(&header, sizeof header);
  if (bytes == 0 && ring_.publish()) wire_.ring_bell();
  put(memory, bytes);
  note_sent(key, bytes);
  return true;
}

void OutgoingStream::post(std::shared_ptr<Message> message) {
  message->is_pulled_ = message->bytes_ >= kRendezvousFrom && control().reader_can_pull.load() != 0;
  queue_.push_back(std::move(message));
}

/// Whether the next message to write is one more offer than the peer can confirm.
bool OutgoingStream::awaits_pulls() const {
  return !queue_.empty() && queue_.front()->is_pulled_ && offered_.size() >= kMostOffers;
}

/// Returns whether the ring holds the whole message, or its offer.
bool OutgoingStream::write_message(Message& message) {
  if (message.sent_ == 0) {
    if (awaits_pulls() || ring_.room(sizeof(MessageHeader)) < sizeof(MessageHeader)) return false;
    const auto address = message.is_pulled_ ? reinterpret_cast<std::uint64_t>(message.memory_) : 0;
    const MessageHeader header{message.key_.tag, message.bytes_, address, message.key_.context,
                               message.is_pulled_ ? ++offers_ : 0};
    ring_.put(&header, sizeof header);
    message.sent_ = sizeof header;
    if (ring_.publish()) wire_.ring_bell();
  }
  if (message.is_pulled_) return true;
  while (message.sent_ < sizeof(MessageHeader) + message.bytes_) {
    const std::uint64_t at = message.sent_ - sizeof(MessageHeader);
    const std::uint64_t now = std::min(message.bytes_ - at, ring_.room(1));
    if (now == 0) return false;
    put(message.memory_ + at, now);
    message.sent_ += now;
  }
  return true;
}

void OutgoingStream::progress(Messages& done) {
  read_pulls(done);
  if (!look_for_end()) return;
  while (!queue_.empty() && write_message(*queue_.front())) {
    std::shared_ptr<Message> message = std::move(queue_.front());
    queue_.pop_front();
    if (message->is_pulled_) {
      offered_.push_back({offers_, std::move(message)});
      continue;
    }
    note_sent(message->key_, message->bytes_);
    done.push_back(std::move(message));
  }
}

void OutgoingStream::read_pulls(Messages& done) {
  for (const std::uint64_t pulls = control().pulls.load(); pulls_read_ < pulls; ++pulls_read_) {
    const std::uint32_t number = control().pulled[pulls_read_ % kMostOffers].load();
    const auto found = std::find_if(offered_.begin(), offered_.end(),
                                    [&](const Offer& one) { return one.number == number; });
    if (found == offered_.end()) continue;
    done.push_back(std::move(found->message));
    offered_.erase(found);
  }
}

void OutgoingStream::add_words(std::vector<RingWord>& words) const {
  words.push_back({&control().pulls, pulls_read_});
  if (is_full() && !awaits_pulls()) words.push_back({&control().taken, ring_.seen()});
}

bool OutgoingStream::look_for_end() {
  if (!is_open_) return false;
  if (control().reader_closed.load() == 0) {
    const std::int64_t now = now_ns();
    if (now < next_look_ns_) return true;
    next_look_ns_ = now + kLookEveryNs;
    if (!wire_.has_ended()) return true;
  }
  end();
  return false;
}

void OutgoingStream::end() {
  if (!is_open_) return;
  was_dropped_ = !ring_.has_taken(last_end_);
  close();
}

bool OutgoingStream::is_drained() {
  if (has_unsent()) return false;
  if (is_open_ && last_end_ > 0 && (control().reader_closed.load() != 0 || wire_.has_ended()))
    end();
  return !is_open_ || ring_.has_taken(last_end_);
}

std::string OutgoingStream::unreceived_text() const {
  const Messages all = unsent();
  return all.empty() ? send_text(last_bytes_, peer_, last_tag_) : all.front()->what();
}

void OutgoingStream::close() {
  if (!is_open_) return;
  is_open_ = false;
  control().writer_closed.store(1);
  wire_.shut_down();
}

struct IncomingStream::Accepted {
  Hello hello;
  Mapping memory;
  Wire wire;
};

IncomingStream::Accepted IncomingStream::accept(Fd socket) {
  Accepted made;
  made.wire = Wire(std::move(socket));  // first, since any user may connect
  const Frame frame = receive_frame(made.wire.socket(), sizeof(Hello), 1,
                                    {deadline_in(kHelloS), nullptr}, "a rank that connects");
  if (frame.bytes.size() != sizeof(Hello) || frame.fds.size() != 1)
    throw Error(ErrorCode::parse_error, "hello of a message stream: found another frame");
  std::memcpy(&made.hello, frame.bytes.data(), sizeof(Hello));
  if (made.hello.magic != kHelloMagic)
    throw Error(ErrorCode::parse_error, "hello of a message stream: found another version");
  made.memory = map_shared_memory(frame.fds[0], kRingMemoryBytes);
  return made;
}

IncomingStream::IncomingStream(Fd socket, bool may_pull)
    : IncomingStream(accept(std::move(socket)), may_pull) {}

IncomingStream::IncomingStream(Accepted accepted, bool may_pull)
    : peer_(static_cast<int>(accepted.hello.rank)),
      memory_(std::move(accepted.memory)),
      wire_(std::move(accepted.wire)),
      ring_(memory_.base()) {
  const bool pulls = may_pull && can_pull(wire_.process(), accepted.hello.probe);
  control().reader_can_pull.store(pulls ? 1 : 0);
}

bool IncomingStream::has_ended() {
  is_ended_ = is_ended_ || wire_.has_ended();
  return is_ended_;
}

std::optional<MessageHeader> IncomingStream::next_header() {
  if (ring_.readable(sizeof(MessageHeader)) < sizeof(MessageHeader)) return std::nullopt;
  MessageHeader header;
  ring_.take(&header, sizeof header);
  if ((header.bytes == 0 || header.address != 0) && ring_.publish()) wire_.ring_bell();
  return header;
}

void IncomingStream::expect(std::byte* memory, std::uint64_t bytes) {
  into_ = memory;
  left_ = bytes;
}

bool IncomingStream::fill() {
  while (left_ > 0) {
    const std::uint64_t now = std::min({left_, ring_.readable(std::min(left_, kChunk)), kChunk});
    if (now == 0) return false;
    ring_.take(into_, now);
    into_ += now;
    left_ -= now;
    if (ring_.publish()) wire_.ring_bell();
  }
  return true;
}

bool IncomingStream::pull(std::uint64_t address, std::uint32_t offer, std::byte* to,
                          std::uint64_t bytes, TwoThreadPull& two,
                          const std::atomic<bool>& must_end) {
  for (std::uint64_t at = 0; at < bytes; at += kBetweenChecks) {
    const std::uint64_t now = std::min(kBetweenChecks, bytes - at);
    if (must_end.load() || !two.pull(wire_.process(), address + at, to + at, now)) return false;
  }
  // A sender that gave up or ended may have reused the memory before it was read.
  if (control().writer_closed.load() != 0 || has_ended()) return false;
  confirm(offer);
  return true;
}

void IncomingStream::confirm(std::uint32_t offer) {
  if (ring_.confirm_pull(offer)) wire_.ring_bell();
}

void IncomingStream::close() {
  if (!is_open_) return;
  is_open_ = false;
  control().reader_closed.store(1);
  wire_.shut_down();
}

}  // namespace plait::p2p
