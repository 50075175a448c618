// Implements the rendezvous: RTS headers, payload transfer, truncation and persistent requests.
#include "shims/mpi/p2p/rendezvous.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/system_call.hpp"
#include "base/text.hpp"
#include "comm/p2p/pull.hpp"
#include "shims/mpi/abi/status.hpp"
#include "shims/mpi/args/settings.hpp"

namespace plait::mpi {
namespace {

/// Returns 0 if the product is too large.
std::uint64_t bytes_of_elements(Count count, std::uint64_t each) {
  if (count <= 0 || each == 0) return 0;
  const auto elements = static_cast<std::uint64_t>(count);
  return elements > (std::uint64_t{1} << 62) / each ? 0 : elements * each;
}

std::uint64_t bytes_of(Count count, Handle type) {
  const std::optional<std::uint64_t> each = size_of(type);
  return each ? bytes_of_elements(count, *each) : 0;
}

/// Returns why a rank of the node can no longer send or receive on a communicator, if so.
std::optional<Error> lost(int node_rank, const RetainedComm& comm) {
  if (comm.is_revoked())
    return Error(ErrorCode::aborted,
                 "message cannot complete: the program has revoked its communicator");
  if (!has_ended(node_rank)) return std::nullopt;
  return Error(
      ErrorCode::peer_lost,
      text("message cannot complete: the process of rank {} of this node has ended", node_rank));
}

/// The sender's end: ends after the header is sent and the receiver has taken the message.
struct RendezvousSend : PendingRequest {
  RendezvousSend(int peer, unsigned in) : to(peer), at(in), slot(slot_of(peer, in)) {}
  ~RendezvousSend() override { release_slot(to, at); }
  RendezvousSend(const RendezvousSend&) = delete;
  RendezvousSend& operator=(const RendezvousSend&) = delete;

  bool has_ended() override {
    const bool cancel_now = cancel_requested.exchange(false);
    if (header_sent == 0) {
      if (cancel_now) native().Cancel(&header);
      code = native().Test(&header, &header_sent, status.data());
      int cancelled = 0;
      if (code == 0 && header_sent != 0) native().Test_cancelled(status.data(), &cancelled);
      is_reported = code != 0;
      if (code != 0 || cancelled != 0) return true;
    }
    if (slot.state.load(std::memory_order_acquire) == SlotState::host_requested) bring_to_host();
    if (header_sent == 0) return false;
    return slot.state.load(std::memory_order_acquire) == SlotState::taken || is_abandoned();
  }
  void fill(void* out) const override {
    std::memcpy(out, status.data(), static_cast<std::size_t>(status_bytes()));
  }

  int to;  ///< rank in the node
  unsigned at;
  RendezvousSlot& slot;
  int to_in_comm = 0;
  int gpu = -1;
  const void* buffer = nullptr;
  Handle header = 0;
  int header_sent = 0;
  std::optional<StagingBuffer> staging_buffer;
  std::optional<CopyEvent> fetched;       ///< copy into the staging buffer
  std::vector<std::byte> header_message;  ///< begins with the RtsHeader
  std::vector<std::byte> packed;          ///< packed copy of the program's data
  alignas(8) std::array<std::byte, 32> status{};
  Polled polled;

 private:
  /// Returns whether the receiver will never take the message.
  bool is_abandoned() {
    if (!rate_limit.is_due()) return false;
    if (!cause) cause = lost(to, comm);
    if (!cause) return false;
    const std::optional<int> found = comm.code_of(*cause, failed_ns);
    if (!found) return false;
    code = *found;
    slot.state.store(SlotState::abandoned, std::memory_order_release);
    return true;
  }
  RateLimit rate_limit;
  std::optional<Error> cause;
  std::int64_t failed_ns = 0;

  /// Copies the payload to the host. Called again until the copy has ended, so that a large copy
  /// blocks nothing. After a failure the receiver finds address 0 and reports an error.
  void bring_to_host() {
    try {
      if (!staging_buffer) {
        staging_buffer.emplace(gpu, buffer, ByteRange{0, slot.bytes});
        staging_buffer->begin_fetch();
        fetched.emplace(gpu);
      }
      if (!fetched->has_ended()) return;
      slot.host = reinterpret_cast<std::uint64_t>(staging_buffer->host());
    } catch (const std::exception& error) {
      code = error_code(error);
    }
    slot.state.store(SlotState::on_host, std::memory_order_release);
  }
};

struct RecvRequest : PendingRequest {
  RecvRequest(Handle posted_request, std::unique_ptr<RendezvousRecv> to)
      : native_request(posted_request), recv(std::move(to)) {}
  bool has_ended() override {
    const bool cancel_now = cancel_requested.exchange(false);
    if (received == 0) {
      if (cancel_now) native().Cancel(&native_request);
      code = native().Test(&native_request, &received, status.data());
      is_reported = code != 0;
      if (error_class(code) == native().abi.err_truncate) recv->on_truncated(status.data());
      if (code != 0) return true;
      if (received == 0) return false;
    }
    return recv->has_arrived(status.data(), code);
  }
  void fill(void* out) const override {
    std::memcpy(out, status.data(), static_cast<std::size_t>(status_bytes()));
  }
  bool must_end() const override { return received != 0; }

  Handle native_request;
  std::unique_ptr<RendezvousRecv> recv;
  int received = 0;
  alignas(8) std::array<std::byte, 32> status{};
  Polled polled;
};

/// Persistent receives from this rank itself, each with a tag of its own: a send to this rank
/// completes one of them.
class Tokens {
 public:
  static Tokens& all() {
    static auto* const one = new Tokens;
    return *one;
  }
  int take() {
    const std::lock_guard lock(mutex_);
    if (comm_ == 0) {
      const Abi& abi = native().abi;  // no duplicate, which copies the program's attributes
      native().Comm_split_type(abi.self, abi.shared_kind, 0, abi.no_info, &comm_);
      comm_ = abi.at(&comm_, 0);
    }
    if (free_.empty()) return made_++;
    const int tag = free_.back();
    free_.pop_back();
    return tag;
  }
  void give(int tag) {
    const std::lock_guard lock(mutex_);
    free_.push_back(tag);
  }
  Handle receive(int tag) const {
    Handle request = 0;
    const Abi& abi = native().abi;
    if (native().Recv_init(nullptr, 0, abi.byte, 0, tag, comm_, &request) != 0)
      throw Error(ErrorCode::unsupported,
                  text("the MPI refuses one more persistent request: {} exist; free some", tag));
    return abi.at(&request, 0);
  }
  void send(int tag) const {
    Handle request = 0;
    native().Isend(nullptr, 0, native().abi.byte, 0, tag, comm_, &request);
    native().Request_free(&request);
  }

 private:
  std::mutex mutex_;
  Handle comm_ = 0;
  std::vector<int> free_;
  int made_ = 0;
};

/// The program's request for a persistent operation of plait's.
class Token {
 public:
  Token() : tag_(Tokens::all().take()), request_(Tokens::all().receive(tag_)) {}
  ~Token() { Tokens::all().give(tag_); }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;
  Handle request() const { return request_; }
  void end() const { Tokens::all().send(tag_); }

 private:
  int tag_;
  Handle request_;
};

/// A persistent operation that the program sees as a token's request.
struct TokenRequest : PersistentOp {
  Handle handle() const override { return token.request(); }
  int end_of(PendingRequest& one, void* program_status, bool is_over) {
    const int error = error_in(program_status);  // belongs to the completion function
    if (!is_refused) one.fill(program_status);
    error_in(program_status) = error;
    if (one.thrown && is_over) std::rethrow_exception(std::exchange(one.thrown, nullptr));
    if (!std::exchange(has_told_handler, true) && !one.is_reported)
      one.comm.call_errhandler(one.code);
    return one.code;
  }

  /// Begins an operation by `begin`, and has `one` polled. An exception of the program leaves a
  /// refused start: the program's request has started, and needs an end.
  template <class Begin>
  void start(PendingRequest& one, const Begin& begin) {
    one.code = native().abi.err_other;
    one.is_reported = is_refused = true;
    has_told_handler = false;
    one.thrown = nullptr;
    one.cancel_requested.store(false);
    std::exception_ptr thrown;
    try {
      begin();
    } catch (...) {
      thrown = std::current_exception();
    }
    watch(one);
    if (thrown) std::rethrow_exception(thrown);
  }

  Token token;
  bool has_told_handler = false;
  bool is_refused = false;  ///< the MPI refused the start
};

struct PersistentRecv final : RecvRequest, TokenRequest {
  PersistentRecv(Handle posted_request, std::unique_ptr<RendezvousRecv> to, Handle in)
      : RecvRequest(posted_request, std::move(to)) {
    references.store(1);
    comm = RetainedComm(in);
  }
  ~PersistentRecv() override { native().Request_free(&native_request); }
  PersistentRecv(const PersistentRecv&) = delete;
  PersistentRecv& operator=(const PersistentRecv&) = delete;

  void started() override {
    received = 0;
    recv->clear_status(status.data());
    start(*this, [&] {
      code = native().Start(&native_request);
      is_reported = is_refused = code != 0;
    });
  }
  bool has_ended() override { return is_refused || RecvRequest::has_ended(); }
  void complete_in_mpi() override { token.end(); }
  int end(void* program_status, bool is_over) override {
    return end_of(*this, program_status, is_over);
  }
  void cancel_message() override { cancel(); }
  void freed() override { release_request(this); }
};

struct PersistentCall final : PendingRequest, TokenRequest {
  PersistentCall(std::function<std::unique_ptr<PendingRequest>(Refusal&)> each, Handle in)
      : begin(std::move(each)) {
    references.store(1);
    comm = RetainedComm(in);
  }
  void started() override {
    start(*this, [&] {
      Refusal refusal;
      try {
        one = begin(refusal);
        is_reported = is_refused = one == nullptr;
        code = refusal.value_or(0);
      } catch (const std::exception& error) {
        rethrow_program_exception(error);
        code = error_code(error);
        is_reported = false;
      }
    });
  }
  bool has_ended() override {
    if (is_refused) return true;
    if (cancel_requested.exchange(false)) one->cancel();
    if (!one->has_ended()) return false;
    code = one->code;
    is_reported = one->is_reported;
    one->fill(status.data());
    one.reset();  // frees resources for other requests
    return true;
  }
  void fill(void* out) const override {
    std::memcpy(out, status.data(), static_cast<std::size_t>(status_bytes()));
  }
  bool must_end() const override { return one != nullptr && one->must_end(); }
  void complete_in_mpi() override { token.end(); }
  int end(void* program_status, bool is_over) override {
    return end_of(*this, program_status, is_over);
  }
  void cancel_message() override { cancel(); }
  void freed() override { release_request(this); }

  std::function<std::unique_ptr<PendingRequest>(Refusal&)> begin;
  std::unique_ptr<PendingRequest> one;
  alignas(8) std::array<std::byte, 32> status{};
};

Error sender_ended(int process) {
  return Error(ErrorCode::peer_lost, text("process {}, which sent a message, has ended", process));
}

/// error: of pull_from(); 0 = the sender had no memory to bring the message to the host.
Error cannot_read(int process, int error) {
  if (error == ESRCH) return sender_ended(process);
  const std::string what =
      text("message of process {}, whose memory this rank could read before", process);
  if (error != 0) return call_failed(ErrorCode::io_error, "process_vm_readv", error, what);
  return Error(ErrorCode::out_of_memory,
               text("process {}, which sent a message, has no host memory for it", process));
}

}  // namespace

struct RecvBuffer {
  int count = 0;  ///< receives under way
  std::atomic<bool> waits_for_first{true};
};

namespace {

/// Host buffers with receives under way. MPI allows one receive a buffer, but some programs post
/// several (OSU's osu_bw), and data must not overwrite an RTS header. Hence later receives use a
/// side buffer, copied after the first receive has arrived.
class RecvBuffers {
 public:
  static RecvBuffers& all() {
    static auto* const one = new RecvBuffers;
    return *one;
  }
  /// Adds a receive; is_first: the native receive uses the buffer itself.
  RecvBuffer* add(const void* buffer, bool& is_first) {
    const std::lock_guard lock(mutex_);
    if (all_.size() > kMaxUnused)
      std::erase_if(all_, [](const auto& one) { return one.second.count == 0; });
    RecvBuffer& found = all_[buffer];
    is_first = found.count++ == 0;
    if (is_first) found.waits_for_first.store(true, std::memory_order_relaxed);
    return &found;
  }
  void remove(RecvBuffer& one) {
    const std::lock_guard lock(mutex_);
    --one.count;
  }

 private:
  static constexpr std::size_t kMaxUnused = 1024;  ///< entries kept for later receives
  std::mutex mutex_;
  std::unordered_map<const void*, RecvBuffer> all_;
};

}  // namespace

RendezvousRecv::RendezvousRecv(const P2PArgs& to)
    : buffer_(const_cast<void*>(to.buffer)), count_(to.count), layout_(layout_of(to.type)) {
  const std::uint64_t bytes = bytes_of_elements(count_, layout_->bytes);
  if (job_uses_gpus()) {
    gpu_ = gpu_of(buffer_);
    // A large message from this node arrives as an RTS header, and dozens may be under way: to pin
    // memory for all of them would take longer than the messages.
    constexpr std::uint64_t kLarge = 256 << 10;
    const bool is_for_header = bytes >= kLarge && layout_->contiguous && is_one_node();
    staging_.add_received(buffer_, to.type, to.count, !is_for_header);
  }
  posted_ = staging_.substitute(buffer_);
  if (posted_ != buffer_ || !uses_rendezvous() || bytes == 0) return;
  bool is_first = false;
  recv_buffer_ = RecvBuffers::all().add(buffer_, is_first);
  if (is_first || !layout_->contiguous) return;
  side_buffer_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  posted_ = side_buffer_.get();
}

RendezvousRecv::~RendezvousRecv() {
  if (recv_buffer_ == nullptr) return;
  if (side_buffer_ == nullptr)
    recv_buffer_->waits_for_first.store(false, std::memory_order_release);
  RecvBuffers::all().remove(*recv_buffer_);
}

/// The first receive may be for a message that comes much later, so the wait is bounded. An earlier
/// message is seen sooner, in a single round over all pending requests.
bool RendezvousRecv::must_wait() {
  constexpr int kMost = 64;
  return side_buffer_ != nullptr && waited_ < kMost &&
         recv_buffer_->waits_for_first.load(std::memory_order_acquire) && ++waited_ > 0;
}

/// Copies natively received data to the program's buffer.
void RendezvousRecv::put_back(std::uint64_t bytes) {
  staging_.put_back(bytes);
  if (side_buffer_ != nullptr) std::memcpy(buffer_, posted_, bytes);
}

/// Returns the first `bytes` of the message, or as many as the buffer holds.
std::vector<std::byte> RendezvousRecv::first_bytes(std::size_t bytes) const {
  if (layout_->bytes == 0 || count_ <= 0) return {};
  const auto elements =
      std::min(count_, static_cast<Count>((bytes + layout_->bytes - 1) / layout_->bytes));
  std::vector<std::byte> first(static_cast<std::size_t>(elements) * layout_->bytes);
  pack(posted_, elements, *layout_, first.data());
  first.resize(std::min(first.size(), bytes));
  return first;
}

std::optional<RtsHeader> RendezvousRecv::header() const {
  RtsHeader found{};
  if (layout_->contiguous) {
    std::memcpy(&found, posted_, sizeof found);
    return found;
  }
  const std::vector<std::byte> first = first_bytes(sizeof found);
  if (first.size() < sizeof found) return std::nullopt;
  std::memcpy(&found, first.data(), sizeof found);
  return found;
}

bool RendezvousRecv::has_arrived(void* status, int& code) {
  if (must_wait() || !try_complete(status, code)) return false;
  if (recv_buffer_ != nullptr && side_buffer_ == nullptr)
    recv_buffer_->waits_for_first.store(false, std::memory_order_release);
  return true;
}

bool RendezvousRecv::try_complete(void* status, int& code) {
  try {
    if (slot_ == nullptr) {
      const std::uint64_t bytes = received_bytes(status);
      if (uses_rendezvous() && is_header_length(bytes))
        if (const std::optional<RtsHeader> found = header()) {
          slot_ = find_slot(*found);
          header_ = *found;
        }
      if (slot_ == nullptr) {
        put_back(bytes);
        return true;
      }
    }
    if (!try_pull(code)) return false;
    if (is_abandoned()) throw abandoned_error(header_.from);
    if (code == 0) finish(status);
  } catch (const std::exception& error) {
    code = error_code(error);
  }
  if (slot_ != nullptr && !is_abandoned())
    slot_->state.store(SlotState::taken, std::memory_order_release);
  slot_ = nullptr;
  pull_.reset();
  is_in_place_ = false;
  calls_served.fetch_add(1, std::memory_order_relaxed);
  return true;
}

/// Another number: the slot belongs to a later message.
bool RendezvousRecv::is_abandoned() const {
  return slot_->state.load(std::memory_order_acquire) == SlotState::abandoned ||
         slot_->number != header_.number;
}

/// Returns true once the payload is here or cannot come.
bool RendezvousRecv::try_pull(int& code) {
  if (pull_ != nullptr) return pull_->has_ended();
  const SlotState state = slot_->state.load(std::memory_order_acquire);
  if (state == SlotState::host_requested) {
    if (!rate_limit_.is_due() || !has_ended(header_.from)) return false;
    throw sender_ended(slot_->process);
  }
  const bool on_gpu = slot_->host == 0 && state == SlotState::offered;
  if (slot_->bytes > static_cast<std::uint64_t>(count_) * layout_->bytes) {
    code = native().abi.err_truncate;
    return true;
  }
  if (on_gpu && slot_->is_exported != 0 && gpu_ >= 0 && layout_->contiguous) {
    pull_ = Pull::begin(slot_->process, slot_->exported, gpu_, buffer_, slot_->bytes);
    if (pull_ != nullptr) return false;
  }
  if (on_gpu) {
    slot_->state.store(SlotState::host_requested, std::memory_order_release);
    return false;
  }
  pull_to_host(code);
  return true;
}

/// Pulls from the sender's host memory, to a GPU through a pinned staging buffer.
void RendezvousRecv::pull_to_host(int& code) {
  const std::uint64_t bytes = slot_->bytes;
  const auto pull = [&](void* to) {
    const int error = slot_->host == 0 ? 0 : p2p::pull_from(slot_->process, slot_->host, to, bytes);
    if (slot_->host == 0 || error != 0) code = error_code(cannot_read(slot_->process, error));
  };
  if (layout_->contiguous && gpu_ >= 0) {  // the header's buffer may not be pinned
    StagingBuffer staging_buffer(gpu_, buffer_, {0, bytes});
    pull(staging_buffer.host());
    if (code == 0) staging_buffer.put({{0, bytes}});
    is_in_place_ = true;
    return;
  }
  if (layout_->contiguous) return pull(side_buffer_ != nullptr ? buffer_ : posted_);
  const std::uint64_t each = layout_->bytes, rest = bytes % each;
  const auto whole = static_cast<Count>(bytes / each);
  std::vector<std::byte> packed(bytes - rest + (rest != 0 ? each : 0));
  // An element that comes in part keeps the remaining bytes.
  auto* const last = static_cast<std::byte*>(posted_) + whole * layout_->extent;
  if (rest != 0) pack(last, 1, *layout_, packed.data() + (bytes - rest));
  pull(packed.data());
  if (code == 0) unpack(packed.data(), whole + (rest != 0 ? 1 : 0), *layout_, posted_);
}

void RendezvousRecv::finish(void* status) {
  const std::uint64_t bytes = slot_->bytes;
  set_received_bytes(status, bytes);
  if (pull_ == nullptr && !is_in_place_) staging_.put_back(bytes);
}

void RendezvousRecv::on_truncated(const void* status) {
  if (!uses_rendezvous()) return;
  try {
    const std::vector<std::byte> first = first_bytes(sizeof(RtsHeader));
    complete_truncated_send(status, first.data(), first.size());
  } catch (const std::exception&) {
    // The MPI cannot pack this receive's type, hence cannot read the received bytes.
  }
}

/// MPICH reports no truncation for a short message that came before the receive.
int check_truncation(Handle comm, const P2PArgs& to, const void* status, int code) {
  const bool fits = code == 0 && (native().abi.family == MpiFamily::open_mpi ||
                                  received_bytes(status) <= bytes_of(to.count, to.type));
  if (fits || (code != 0 && error_class(code) != native().abi.err_truncate)) return code;
  try {
    RendezvousRecv(to).on_truncated(status);
  } catch (const std::exception&) {  // no memory to inspect the received bytes
  }
  return code != 0 ? code : call_errhandler(comm, native().abi.err_truncate);
}

int RendezvousRecv::end(void* status) {
  const ProgramThreadScope here;
  int code = 0;
  for (int round = 0; !has_arrived(status, code); ++round) {
    complete_ended();
    let_mpi_progress();
    if (round > 100) ::sched_yield();
  }
  return code;
}

namespace {

/// Publishes the message in the slot and sends the RTS header. Returns null and sets `refusal` if
/// the MPI refuses.
std::unique_ptr<PendingRequest> send_header(std::unique_ptr<RendezvousSend> made,
                                            std::uint64_t bytes, int tag, Handle comm,
                                            Refusal& refusal) {
  RendezvousSlot& slot = made->slot;
  made->comm = RetainedComm(comm);
  slot.tag = tag;
  native().Comm_rank(comm, &slot.source);
  slot.bytes = bytes;
  slot.process = ::getpid();
  slot.host = made->gpu < 0 ? reinterpret_cast<std::uint64_t>(made->buffer) : 0;
  slot.is_exported =
      made->gpu >= 0 && export_memory(made->gpu, made->buffer, slot.exported) ? 1 : 0;
  slot.state.store(SlotState::offered, std::memory_order_release);
  made->header_message.resize(header_bytes(made->at));
  const RtsHeader header = rts_header(made->to, made->at);
  std::memcpy(made->header_message.data(), &header, sizeof header);
  NativeHandle sent;
  const int code =
      native().Isend(made->header_message.data(), static_cast<int>(made->header_message.size()),
                     native().abi.byte, made->to_in_comm, tag, comm, sent.stored());
  made->header = sent.handle();
  if (!sent.is_refused(code)) return made;
  refusal = code;
  return nullptr;
}

/// Sends a message as long as an RTS header: native, unless the receiver could confuse it with a
/// header under way.
std::unique_ptr<PendingRequest> send_of_header_length(const P2PArgs& args, std::uint64_t bytes,
                                                      int to, int tag, Handle comm,
                                                      Refusal& refusal) {
  const std::optional<int> node_rank = rank_in_node(comm, to);
  if (!node_rank || retire_slot(*node_rank, bytes)) return nullptr;
  const std::optional<unsigned> at = claim_slot_below(*node_rank, slot_of_length(bytes));
  if (!at) return nullptr;
  auto made = std::make_unique<RendezvousSend>(*node_rank, *at);
  CallStaging staging;
  if (job_uses_gpus()) staging.add_input(args.buffer, args.type, args.count);
  made->packed.resize(bytes);
  pack(staging.substitute(args.buffer), args.count, layout_of(args.type), made->packed.data());
  made->buffer = made->packed.data();
  made->to_in_comm = to;
  return send_header(std::move(made), bytes, tag, comm, refusal);
}

}  // namespace

const char* why_not_rendezvous(const P2PArgs& args, int to, Handle comm) {
  const std::uint64_t bytes = bytes_of(args.count, args.type);
  if (!uses_rendezvous()) return "PLAIT_OPS does not name send_recv";
  const Collective message = Collective::send_recv;
  const bool on_gpu = job_uses_gpus() && gpu_of(args.buffer) >= 0;
  if (bytes <= kMaxHeader ||
      bytes < (on_gpu ? min_bytes_on_gpus(message) : min_bytes_on_host(message)))
    return "the message is smaller than PLAIT_MIN_BYTES, or its buffer is in host memory and "
           "PLAIT_MPI_HOST is not set";
  const std::optional<int> node_rank = rank_in_node(comm, to);
  if (!node_rank) return "the peer is on another node, or there is no peer";
  if (is_this_rank(*node_rank) && !on_gpu)
    return "a message in host memory to the rank itself is the MPI's";
  return layout_of(args.type).contiguous ? nullptr : "the layout of the type has holes";
}

bool may_use_rendezvous(const P2PArgs& args, int to, Handle comm) {
  return why_not_rendezvous(args, to, comm) == nullptr;
}

std::unique_ptr<PendingRequest> start_rendezvous_send(const P2PArgs& args, int to, int tag,
                                                      Handle comm, Refusal& refusal) {
  if (!uses_rendezvous() || tag < 0) return nullptr;
  const std::uint64_t bytes = bytes_of(args.count, args.type);
  if (bytes < kMinHeader) return nullptr;
  if (bytes <= kMaxHeader)
    return is_header_length(bytes) ? send_of_header_length(args, bytes, to, tag, comm, refusal)
                                   : nullptr;
  if (!may_use_rendezvous(args, to, comm)) return nullptr;
  const std::optional<int> node_rank = rank_in_node(comm, to);
  const std::optional<unsigned> at = claim_slot(*node_rank);
  if (!at) return nullptr;
  auto made = std::make_unique<RendezvousSend>(*node_rank, *at);
  made->gpu = job_uses_gpus() ? gpu_of(args.buffer) : -1;
  made->buffer = args.buffer;
  made->to_in_comm = to;
  return send_header(std::move(made), bytes, tag, comm, refusal);
}

std::unique_ptr<PendingRequest> make_recv_request(Handle native_request,
                                                  std::unique_ptr<RendezvousRecv> recv) {
  return std::make_unique<RecvRequest>(native_request, std::move(recv));
}

PersistentOp* make_persistent_recv(Handle native_request, std::unique_ptr<RendezvousRecv> recv,
                                   Handle comm) {
  return new PersistentRecv(native_request, std::move(recv), comm);
}

PersistentOp* make_persistent_call(std::function<std::unique_ptr<PendingRequest>(Refusal&)> begin,
                                   Handle comm) {
  return new PersistentCall(std::move(begin), comm);
}

bool may_match_header(Handle type, Count count) { return bytes_of(count, type) >= kMinHeader; }

int wait_for(PendingRequest& one) {
  const ProgramThreadScope here;
  for (int round = 0; !one.has_ended(); ++round) {
    complete_ended();
    let_mpi_progress();
    if (round > 100) ::sched_yield();
  }
  return one.code;
}

void note_native_send(const void*, Count count, Handle type, int to, int, Handle comm) {
  const std::uint64_t bytes = bytes_of(count, type);
  if (!is_header_length(bytes)) return;
  if (const std::optional<int> node_rank = rank_in_node(comm, to)) retire_slot(*node_rank, bytes);
}

void note_native_send(const void* buffer, int count, Handle type, int to, int tag, Handle comm) {
  note_native_send(buffer, Count{count}, type, to, tag, comm);
}

}  // namespace plait::mpi
