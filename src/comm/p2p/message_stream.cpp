// Connects and accepts streams, moves bytes between messages and rings, and keeps the offers of a
// direction.
#include "comm/p2p/message_stream.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/log.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/process_file.hpp"

namespace plait::p2p {
namespace {

constexpr std::uint64_t kMagic = 0x706c616974303102;  // "plait01", version 2
constexpr double kHelloS = 5;                       // deadline to send the ring, on an empty socket
constexpr std::uint64_t kChunk = 16 << 10;          // size of a copy: both ranks copy at once
constexpr std::uint64_t kBetweenChecks = 64 << 20;  // a pull checks for an abort after so much
constexpr std::int64_t kLookEveryNs = 1'000'000;
constexpr std::int64_t kSpinsNs = 20'000;     // age of a sign of spinning that still counts
constexpr std::int64_t kSpinWaitNs = 30'000;  // for a sender that begins to spin after its post
constexpr int kMostMissedSpins = 4, kMissedSpinsToWait = 64;
constexpr short kHungUp = POLLHUP | POLLERR | POLLNVAL | POLLRDHUP;

Fd connect_to_name(const std::string& name, int peer) {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) throw call_failed(ErrorCode::io_error, "socket", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof address.sun_path)
    throw Error(ErrorCode::invalid_argument, text("address of rank {}: '{}'", peer, name));
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // abstract: no file
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  while (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno == EINTR) continue;
    if (errno == ECONNREFUSED || errno == ECONNRESET || errno == EPIPE)
      throw Error(ErrorCode::peer_lost, text("rank {} has ended", peer));
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
}

void Wire::watch_process() {
  if (pid_ > 0) process_ = open_process(pid_);
}

void Wire::ring_bell() const noexcept {
  const char bell = 'b';
  // A full socket holds a bell already. has_ended() notices a closed socket.
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
  auto* const made = new (memory_.base()) RingControl{};
  made->magic = kMagic;
  made->writer = rank;
  made->probe = probe.shown();
  // A frame without bytes is one packet: a receiver reads all of it or nothing.
  send_frame(wire_.socket(), FrameKind::data, "", {file.get()}, {deadline_in(kHelloS), nullptr},
             text("rank {}", peer));
  wire_.watch_process();
}

Messages OutgoingStream::unsent() const {
  Messages all(offered_.begin(), offered_.end());
  all.insert(all.end(), by_ring_.begin(), by_ring_.end());
  all.insert(all.end(), queue_.begin(), queue_.end());
  return all;
}

Messages OutgoingStream::drop_unsent() {
  Messages all = unsent();
  offered_.clear();
  by_ring_.clear();
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
  if (is_full() || bytes >= kRendezvousFrom) return false;
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
  queue_.push_back(std::move(message));
}

bool OutgoingStream::is_offer(const Message& message) {
  return message.bytes_ >= kRendezvousFrom && !message.is_by_ring_;
}

/// Whether the next message to write is one more offer than the peer can answer.
bool OutgoingStream::awaits_answers() const {
  return by_ring_.empty() && !queue_.empty() && is_offer(*queue_.front()) &&
         offered_.size() >= kMostOffers;
}

/// A message that is written in part goes on; else wanted bytes go first.
std::deque<std::shared_ptr<Message>>& OutgoingStream::next_queue() {
  const bool is_in_message = !queue_.empty() && queue_.front()->sent_ > 0;
  return is_in_message || by_ring_.empty() ? queue_ : by_ring_;
}

bool OutgoingStream::write_header(Message& message) {
  const bool offers = is_offer(message);
  if (offers && offered_.size() >= kMostOffers) return false;
  if (ring_.room(sizeof(MessageHeader)) < sizeof(MessageHeader)) return false;
  if (offers) message.offer_ = offers_ = offers_ + 2 == 0 ? 2 : offers_ + 2;
  const auto address = offers ? reinterpret_cast<std::uint64_t>(message.memory_) : 0;
  const MessageHeader header{message.key_.tag, message.bytes_, address, message.key_.context,
                             message.offer_};
  ring_.put(&header, sizeof header);
  message.sent_ = sizeof header;
  if (ring_.publish()) wire_.ring_bell();
  return true;
}

/// Returns whether the ring holds the whole message, or its offer.
bool OutgoingStream::write_message(Message& message) {
  if (message.sent_ == 0 && !write_header(message)) return false;
  if (is_offer(message)) return true;
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
  read_answers(done);
  if (!look_for_end()) return;
  while (is_full()) {
    auto& queue = next_queue();
    if (!write_message(*queue.front())) return;
    std::shared_ptr<Message> message = std::move(queue.front());
    queue.pop_front();
    if (is_offer(*message)) {
      offered_.push_back(std::move(message));
      continue;
    }
    note_sent(message->key_, message->bytes_);
    done.push_back(std::move(message));
  }
}

void OutgoingStream::read_answers(Messages& done) {
  for (const std::uint64_t end = control().answers.load(); answers_read_ < end; ++answers_read_) {
    const std::uint32_t entry = control().answered[answers_read_ % kMostOffers].load();
    const auto found = std::find_if(offered_.begin(), offered_.end(), [&](const auto& one) {
      return one->offer_ == (entry & ~kByRing);
    });
    if (found == offered_.end()) continue;
    std::shared_ptr<Message> message = std::move(*found);
    offered_.erase(found);
    if ((entry & kByRing) == 0) {
      done.push_back(std::move(message));
      continue;
    }
    message->is_by_ring_ = true;
    message->sent_ = 0;
    by_ring_.push_back(std::move(message));
  }
}

void OutgoingStream::add_words(std::vector<RingWord>& words) const {
  words.push_back({&control().answers, answers_read_});
  if (is_full() && !awaits_answers()) words.push_back({&control().taken, ring_.seen()});
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

bool UnexpectedMessage::buffer_in(BufferSpace& space) {
  memory.reset(new (std::nothrow) std::byte[bytes]);
  if (memory == nullptr) return false;
  space_ = &space;
  space.used_ += BufferSpace::cost(bytes);
  return true;
}

struct IncomingStream::Accepted {
  Mapping memory;
  Wire wire;
};

IncomingStream::Accepted IncomingStream::accept(Fd socket) {
  Accepted made;
  made.wire = Wire(std::move(socket));  // first, since any user may connect
  Frame frame =
      receive_frame(made.wire.socket(), 0, 1, {now_ns(), nullptr}, "a rank that connects");
  if (frame.fds.size() != 1)
    throw Error(ErrorCode::parse_error, "start of a message stream: found no shared memory");
  made.memory = map_shared_memory(frame.fds[0], kRingMemoryBytes);
  if (reinterpret_cast<RingControl*>(made.memory.base())->magic != kMagic)
    throw Error(ErrorCode::parse_error, "start of a message stream: found another version");
  frame.fds.clear();  // leaves the process a file for the next line
  made.wire.watch_process();
  return made;
}

IncomingStream::IncomingStream(Fd socket, bool may_pull)
    : IncomingStream(accept(std::move(socket)), may_pull) {}

IncomingStream::IncomingStream(Accepted accepted, bool may_pull)
    : memory_(std::move(accepted.memory)),
      wire_(std::move(accepted.wire)),
      ring_(memory_.base()),
      peer_(static_cast<int>(control().writer)),
      can_pull_(may_pull && can_pull(wire_.process(), control().probe)) {}

Messages IncomingStream::receives() const {
  Messages all;
  if (receive != nullptr) all.push_back(receive);
  for (const AnsweredOffer& one : by_ring)
    if (one.receive != nullptr) all.push_back(one.receive);
  for (const auto& one : unexpected)
    if (one->matched_by != nullptr) all.push_back(one->matched_by);
  return all;
}

bool IncomingStream::has_ended() {
  is_ended_ = is_ended_ || wire_.has_ended();
  return is_ended_;
}

std::optional<MessageHeader> IncomingStream::peek_header() {
  if (ring_.readable(sizeof(MessageHeader)) < sizeof(MessageHeader)) return std::nullopt;
  MessageHeader header;
  ring_.peek(&header, sizeof header);
  return header;
}

void IncomingStream::skip_header(const MessageHeader& header) {
  ring_.skip(sizeof header);
  if ((header.bytes == 0 || header.is_offer()) && ring_.publish()) wire_.ring_bell();
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

/// Returns 0 or the error of the read; ECANCELED after an abort.
int IncomingStream::pull(std::uint64_t address, std::byte* to, std::uint64_t bytes,
                         TwoThreadPull& two, const std::atomic<bool>& must_end) const {
  for (std::uint64_t at = 0; at < bytes; at += kBetweenChecks) {
    if (must_end.load()) return ECANCELED;
    const std::uint64_t now = std::min(kBetweenChecks, bytes - at);
    if (const int error = two.pull(wire_.process(), address + at, to + at, now)) return error;
  }
  return 0;
}

/// Whether a thread of the sender spins until the send has ended. Both ranks then copy at once, two
/// to three times as fast as a pull, since the kernel looks up each page of a pull. After several
/// offers without a spinning sender, most of the next offers are pulled at once.
bool IncomingStream::sender_spins() {
  const bool waits = missed_spins_ < kMostMissedSpins || missed_spins_ % kMissedSpinsToWait == 0;
  const std::int64_t wait_ns = waits ? kSpinWaitNs : 0;
  ++missed_spins_;
  const std::int64_t began_ns = now_ns();
  for (std::int64_t now = began_ns; now - began_ns <= wait_ns; now = now_ns()) {
    if (now - control().writer_spins_ns.load(std::memory_order_relaxed) >= kSpinsNs) continue;
    missed_spins_ = 0;
    return true;
  }
  return false;
}

IncomingStream::Taken IncomingStream::take(std::uint64_t address, std::uint32_t offer,
                                           std::byte* to, std::uint64_t bytes, TwoThreadPull& two,
                                           const std::atomic<bool>& must_end) {
  const bool pulls = can_pull_ && (bytes > kMostByRing || !sender_spins());
  const int error = pulls ? pull(address, to, bytes, two, must_end) : EPERM;
  // A sender that gave up or ended may have reused the memory before the read.
  if (error == ESRCH || error == ECANCELED || control().writer_closed.load() != 0 || has_ended())
    return Taken::ended;
  // Other errors come from the memory of this message, such as pages that a driver has mapped: the
  // kernel cannot read such pages for a peer, but the sender can.
  if (pulls && is_forbidden(error)) {
    can_pull_ = false;
    const Error why = call_failed(ErrorCode::io_error, "process_vm_readv", error);
    log(LogLevel::info, -1,
        text("large messages of rank {} come through shared memory: {}", peer_, why.what()));
  }
  answer(error == 0 ? offer : offer | kByRing);
  return error == 0 ? Taken::here : Taken::by_ring;
}

void IncomingStream::answer(std::uint32_t entry) {
  if (ring_.answer(entry)) wire_.ring_bell();
}

void IncomingStream::close() {
  if (!is_open_) return;
  is_open_ = false;
  control().reader_closed.store(1);
  wire_.shut_down();
}

}  // namespace plait::p2p
