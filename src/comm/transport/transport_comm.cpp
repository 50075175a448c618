// Builds each collective between nodes as rounds of messages, followed by a local sum.
#include "comm/transport/transport_comm.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error_reason.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/rendezvous.hpp"
#include "comm/bootstrap/vote.hpp"
#include "cpu/cpu.hpp"

namespace plait {
namespace {

constexpr std::int64_t kLookEveryNs = 5'000'000;
constexpr int kYields = 200;       // polls before a wait begins to sleep
constexpr unsigned kSleepUs = 20;  // short, since no doorbell announces a message
constexpr std::uint64_t kShortBytes =
    1 << 15;  // messages up to this size go to all members in a single round

bool overlap(const char* a, std::uint64_t a_bytes, const char* b, std::uint64_t b_bytes) {
  return a != nullptr && b != nullptr && a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

char* TransportComm::ReusableBuffer::of(std::size_t wanted) {
  if (wanted > size) {
    bytes.reset(new char[wanted]);  // not zeroed: written before being read
    size = wanted;
  }
  return bytes.get();
}

/// Builds the rounds of a member's part of a collective.
class TransportComm::RoundBuilder {
 public:
  RoundBuilder(TransportCall& call, const Request& request, int member, const void* src, void* dst)
      : call_(call),
        r_(request),
        me_(member),
        src_(const_cast<char*>(static_cast<const char*>(src))),
        dst_(static_cast<char*>(dst)),
        size_(bytes_of(request.type)),
        block_(request.count * size_) {}

  void make() {
    call_.rounds.assign(2, {});
    switch (r_.collective) {
      case Collective::all_reduce: return all_reduce();
      case Collective::reduce: return reduce();
      case Collective::reduce_scatter: return reduce_scatter();
      case Collective::broadcast: return broadcast();
      case Collective::all_gather: return all_gather();
      case Collective::gather: return gather();
      case Collective::scatter: return scatter();
      case Collective::all_to_all: return all_to_all();
      case Collective::copy: return copy();
      case Collective::send_recv: return send_recv();
    }
    throw Error(ErrorCode::unsupported, text("between nodes: no {}", name_of(r_.collective)));
  }

 private:
  int n() const { return r_.ranks; }
  /// Calls `work` for every member except this member, starting with the next member, so that
  /// members do not all send to the same member at once.
  template <class Work>
  void each_other(const Work& work) const {
    for (int step = 1; step < n(); ++step) work((me_ + step) % n());
  }
  void send(int round, int member, char* at, std::uint64_t bytes) {
    add(round, {member, at, bytes, true});
  }
  void receive(int round, int member, char* at, std::uint64_t bytes) {
    add(round, {member, at, bytes, false});
  }
  void add(int round, MessagePart part) {
    if (part.bytes > 0) call_.rounds[static_cast<std::size_t>(round)].parts.push_back(part);
  }
  bool is_short() const { return n() == 2 || block_ <= kShortBytes; }
  /// First element of part p of n parts as even as possible.
  std::uint64_t begin_of(int p) const {
    return r_.count / static_cast<std::uint64_t>(n()) * static_cast<std::uint64_t>(p) +
           std::min<std::uint64_t>(static_cast<std::uint64_t>(p),
                                   r_.count % static_cast<std::uint64_t>(n()));
  }
  std::uint64_t bytes_of_part(int p) const { return (begin_of(p + 1) - begin_of(p)) * size_; }
  char* part(char* base, int p) const {
    return base == nullptr ? base : base + begin_of(p) * size_;
  }
  char* block(char* base, int member) const {
    return base + static_cast<std::uint64_t>(member) * block_;
  }
  /// Returns the source, or a copy if source and destination overlap.
  char* staged_source(std::uint64_t src_bytes, std::uint64_t dst_bytes) {
    if (!overlap(src_, src_bytes, dst_, dst_bytes)) return src_;
    char* const staged = call_.staged.of(src_bytes);
    std::memcpy(staged, src_, src_bytes);
    return staged;
  }
  void move(char* to, const char* from, std::uint64_t bytes) const {
    if (to != from && to != nullptr && from != nullptr && bytes > 0) std::memmove(to, from, bytes);
  }

  /// Receives `bytes` from every other member in round 0, then sums the data with `mine` in member
  /// order.
  void sum(char* mine, char* to, std::uint64_t bytes) {
    char* const inbox = call_.received.of(bytes * static_cast<std::uint64_t>(n()));
    std::vector<const void*> sources(static_cast<std::size_t>(n()), mine);
    each_other([&](int other) {
      char* const at = inbox + static_cast<std::uint64_t>(other) * bytes;
      receive(0, other, at, bytes);
      sources[static_cast<std::size_t>(other)] = at;
    });
    // Between nodes, averages and scaled sums are plain sums.
    const bool is_sum = r_.op == ReduceOp::avg || r_.op == ReduceOp::premul_sum;
    call_.rounds[0].then = [to, sources, bytes, type = r_.type, size = size_,
                            op = is_sum ? ReduceOp::sum : r_.op] {
      if (bytes > 0)
        reduce_cpu(type, op, to, sources.data(), static_cast<int>(sources.size()), bytes / size, 1,
                   false, nullptr);
    };
  }

  void all_reduce() {
    if (is_short()) {
      each_other([&](int other) { send(0, other, src_, block_); });
      return sum(src_, dst_, block_);
    }
    each_other([&](int other) { send(0, other, part(src_, other), bytes_of_part(other)); });
    sum(part(src_, me_), part(dst_, me_), bytes_of_part(me_));
    each_other([&](int other) {
      send(1, other, part(dst_, me_), bytes_of_part(me_));
      receive(1, other, part(dst_, other), bytes_of_part(other));
    });
  }
  void reduce() {
    const bool is_root = me_ == r_.root;
    if (is_short()) {
      if (is_root) return sum(src_, dst_, block_);
      return send(0, r_.root, src_, block_);
    }
    each_other([&](int other) { send(0, other, part(src_, other), bytes_of_part(other)); });
    char* const summed = is_root ? part(dst_, me_) : call_.staged.of(bytes_of_part(me_));
    sum(part(src_, me_), summed, bytes_of_part(me_));
    if (!is_root) return send(1, r_.root, summed, bytes_of_part(me_));
    each_other([&](int other) { receive(1, other, part(dst_, other), bytes_of_part(other)); });
  }
  void reduce_scatter() {
    each_other([&](int other) { send(0, other, block(src_, other), block_); });
    sum(block(src_, me_), dst_, block_);
  }
  /// Long broadcasts go in parts: each member forwards a separate part.
  void broadcast() {
    const bool is_root = me_ == r_.root;
    if (is_root) move(dst_, src_, block_);
    if (is_short()) {
      if (!is_root) return receive(0, r_.root, dst_, block_);
      return each_other([&](int other) { send(0, other, src_, block_); });
    }
    if (is_root)
      return each_other([&](int other) {
        send(0, other, part(src_, other), bytes_of_part(other));
        send(1, other, part(src_, me_), bytes_of_part(me_));
      });
    receive(0, r_.root, part(dst_, me_), bytes_of_part(me_));
    each_other([&](int other) {
      if (other != r_.root) send(1, other, part(dst_, me_), bytes_of_part(me_));
      receive(1, other, part(dst_, other), bytes_of_part(other));
    });
  }
  void all_gather() {
    char* const own = block(dst_, me_);
    char* const from =
        src_ == own ? src_ : staged_source(block_, block_ * static_cast<unsigned>(n()));
    move(own, from, block_);
    each_other([&](int other) {
      send(0, other, from, block_);
      receive(0, other, block(dst_, other), block_);
    });
  }
  void gather() {
    if (me_ != r_.root) return send(0, r_.root, src_, block_);
    move(block(dst_, me_), src_, block_);
    each_other([&](int other) { receive(0, other, block(dst_, other), block_); });
  }
  void scatter() {
    if (me_ != r_.root) return receive(0, r_.root, dst_, block_);
    char* const own = block(src_, me_);
    char* const from =
        dst_ == own ? src_ : staged_source(block_ * static_cast<unsigned>(n()), block_);
    move(dst_, block(from, me_), block_);
    each_other([&](int other) { send(0, other, block(from, other), block_); });
  }
  void all_to_all() {
    const std::uint64_t whole = block_ * static_cast<unsigned>(n());
    char* const from = staged_source(whole, whole);
    move(block(dst_, me_), block(from, me_), block_);
    each_other([&](int other) {
      send(0, other, block(from, other), block_);
      receive(0, other, block(dst_, other), block_);
    });
  }
  void copy() {
    if (r_.root == r_.peer) return me_ == r_.root ? move(dst_, src_, block_) : void();
    if (me_ == r_.root) send(0, r_.peer, src_, block_);
    if (me_ == r_.peer) receive(0, r_.root, dst_, block_);
  }
  void send_recv() {
    char* const from = staged_source(block_, block_);
    if (n() == 1) return move(dst_, from, block_);
    send(0, (me_ + 1) % n(), from, block_);
    receive(0, (me_ + n() - 1) % n(), dst_, block_);
  }

  TransportCall& call_;
  const Request& r_;
  const int me_;
  char* const src_;
  char* const dst_;
  const std::uint64_t size_, block_;
};

TransportComm::TransportComm(std::shared_ptr<Transport> transport, std::vector<int> members, int me,
                             int series)
    : transport_(std::move(transport)),
      members_(std::move(members)),
      me_(me),
      series_(series),
      is_lost_(members_.size()),
      sent_(members_.size()),
      received_(members_.size()) {}

std::string TransportComm::name_of_rank(int rank) const {
  const auto at = static_cast<std::size_t>(rank);
  return at < locations_.size() ? text("rank {} on host {}", rank, locations_[at].host)
                                : text("rank {}", rank);
}

std::unique_ptr<TransportComm> TransportComm::between(int peer) const {
  const int lower = std::min(me_, peer), upper = std::max(me_, peer);
  auto made =
      std::make_unique<TransportComm>(transport_,
                                      std::vector{members_.at(static_cast<std::size_t>(lower)),
                                                  members_.at(static_cast<std::size_t>(upper))},
                                      me_ == lower ? 0 : 1, 1);
  if (locations_.size() == members_.size())
    made->set_locations(
        {locations_[static_cast<std::size_t>(lower)], locations_[static_cast<std::size_t>(upper)]});
  return made;
}

int TransportComm::begin(const Request& request, const std::vector<int>& ranks, int member,
                         const void* src, void* dst) {
  const auto free =
      std::find_if(calls_.begin(), calls_.end(), [](const auto& one) { return !one->is_taken; });
  const auto handle = static_cast<std::size_t>(free - calls_.begin());
  if (free == calls_.end()) calls_.push_back(std::make_unique<TransportCall>());
  TransportCall& call = *calls_[handle];
  RoundBuilder(call, request, member, src, dst).make();
  call.is_taken = true;
  call.round = 0;
  call.open.clear();
  number(call, ranks);
  open_round(call);
  return static_cast<int>(handle);
}

/// Cuts messages to the transport's maximum, maps members to ranks, and numbers messages by pair of
/// ranks. Calls of a pair start in the same order on both ends, though rounds may not.
void TransportComm::number(TransportCall& call, const std::vector<int>& ranks) {
  for (MessageRound& round : call.rounds) {
    std::vector<MessagePart> cut;
    for (MessagePart part : round.parts) {
      part.member = ranks[static_cast<std::size_t>(part.member)];
      int& count = (part.is_sent ? sent_ : received_)[static_cast<std::size_t>(part.member)];
      while (part.bytes > 0) {
        MessagePart piece = part;
        piece.bytes = std::min<std::uint64_t>(part.bytes, Transport::kMaxMessageBytes);
        piece.tag = 2 * count + series_;
        count = (count + 1) % (Transport::kMaxTag / 2);
        part.at += piece.bytes;
        part.bytes -= piece.bytes;
        cut.push_back(piece);
      }
    }
    round.parts = std::move(cut);
  }
}

/// Runs `step`. If the library throws, marks the rank as lost, and the communicator stops using it.
template <class Step>
auto TransportComm::with(int rank, const Step& step) {
  try {
    return step();
  } catch (const Error& error) {
    is_lost_[static_cast<std::size_t>(rank)] = true;
    throw Error(error.code(), text("{}: {}", name_of_rank(rank), reason_of(error)));
  }
}

void TransportComm::open_round(TransportCall& call) {
  for (const MessagePart& part : call.rounds[call.round].parts) {
    const int there = members_[static_cast<std::size_t>(part.member)];
    const std::uint64_t message = with(part.member, [&] {
      return part.is_sent ? transport_->send(there, part.tag, part.at, part.bytes)
                          : transport_->receive(there, part.tag, part.at, part.bytes);
    });
    if (message != 0) call.open.push_back({message, part.member, part.is_sent});
  }
}

bool TransportComm::is_done(int handle) {
  TransportCall& call = *calls_[static_cast<std::size_t>(handle)];
  while (call.round < call.rounds.size()) {
    for (std::size_t i = 0; i < call.open.size();) {
      OpenMessage& one = call.open[i];
      if (!with(one.rank, [&] { return transport_->is_done(one.message); })) {
        ++i;
        continue;
      }
      one = call.open.back();
      call.open.pop_back();
    }
    if (!call.open.empty()) return false;
    if (call.rounds[call.round].then) call.rounds[call.round].then();
    if (++call.round < call.rounds.size()) open_round(call);
  }
  return true;
}

void TransportComm::end(int handle) { calls_[static_cast<std::size_t>(handle)]->is_taken = false; }

std::string TransportComm::awaits(int handle) const {
  std::string names;
  for (const bool sent : {false, true}) {
    std::vector<int> ranks;
    for (const OpenMessage& one : calls_[static_cast<std::size_t>(handle)]->open)
      if (one.is_sent == sent) ranks.push_back(one.rank);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    for (const int rank : ranks)
      names += text("{}{}", names.empty() ? "" : ", ", name_of_rank(rank));
    if (!names.empty()) break;  // senders are named only if no receive is missing
  }
  return names.empty() ? "nobody" : names;
}

void TransportComm::await(int handle, const Deadline& deadline, const std::string& waiting) {
  std::int64_t looked_ns = now_ns();
  for (int turn = 0; !is_done(handle); ++turn) {
    turn < kYields ? static_cast<void>(::sched_yield()) : static_cast<void>(::usleep(kSleepUs));
    const std::int64_t at_ns = now_ns();
    if (at_ns - looked_ns < kLookEveryNs) continue;
    looked_ns = at_ns;
    try {
      if (deadline.check) deadline.check();
      check();
    } catch (const Error& error) {  // a rank that has ended may have sent its part before
      if (error.code() == ErrorCode::peer_lost && is_done(handle)) return;
      if (error.code() == ErrorCode::peer_lost) check();  // a failure that the rank has published
      throw;
    }
    if (at_ns > deadline.at_ns)
      throw Error(ErrorCode::timeout, text("{}: the deadline has passed without {} ({})", waiting,
                                           awaits(handle), transport_->name()));
  }
}

bool TransportComm::drop(int handle) noexcept {
  TransportCall& call = *calls_[static_cast<std::size_t>(handle)];
  for (const OpenMessage& one : call.open) given_up_.insert(one.rank);
  std::erase_if(call.open, [&](OpenMessage& one) { return transport_->drop(one.message); });
  call.round = call.rounds.size();
  // A call stays taken, and the buffers stay, while the library may still write to the buffers.
  if (call.open.empty()) call.is_taken = false;
  return call.open.empty();
}

bool TransportComm::drop_all() noexcept {
  bool all = true;
  for (std::size_t handle = 0; handle < calls_.size(); ++handle)
    if (calls_[handle]->is_taken) all = drop(static_cast<int>(handle)) && all;
  return all;
}

/// Sends nothing to nodes with a lost rank, since an MPI may crash on such a send. Lost ranks:
/// given up by the library, or awaited until a timeout. Surviving ranks of these nodes find the
/// failure themselves, or get it from a peer.
void TransportComm::publish_failure(const Error& error) noexcept {
  try {
    const bool is_relayed = names_reporter(reason_of(error));
    // An abort is relayed too: the aborting rank may be in no call that could publish the abort.
    if (is_relayed && error.code() != ErrorCode::aborted) return;
    if (error.code() == ErrorCode::timeout)
      for (const int rank : given_up_) is_lost_[static_cast<std::size_t>(rank)] = true;
    is_lost_[static_cast<std::size_t>(me_)] =
        true;  // ranks of this node learn the failure through shared memory
    const auto is_left = [&](std::size_t rank) {
      for (std::size_t lost = 0; lost < is_lost_.size(); ++lost)
        if (is_lost_[lost] && (lost == rank || (!locations_.empty() &&
                                                locations_[lost].node == locations_[rank].node)))
          return false;
      return true;
    };
    std::vector<int> others;
    for (std::size_t rank = 0; rank < members_.size(); ++rank)
      if (is_left(rank)) others.push_back(members_[rank]);
    transport_->publish_failure(others,
                                text("{} {}", static_cast<int>(error.code()), reason_of(error)));
  } catch (...) {  // out of memory: the peers have deadlines
  }
}

void TransportComm::check() const {
  const auto first_failure = transport_->first_failure();
  if (!first_failure) return;
  const std::size_t space = first_failure->second.find(' ');
  const auto code = static_cast<ErrorCode>(
      parse_integer("error code", first_failure->second.substr(0, space), 1, 13));
  const std::string reason = first_failure->second.substr(space + 1);
  const auto at = std::find(members_.begin(), members_.end(), first_failure->first);
  const std::string who = at == members_.end()
                              ? text("rank {}", first_failure->first)
                              : name_of_rank(static_cast<int>(at - members_.begin()));
  throw reported_by(who, code, reason);
}

std::vector<std::string> TransportComm::gather_fixed(const std::string& mine, std::size_t each,
                                                     const Deadline& deadline) {
  Request request;
  request.collective = Collective::all_gather;
  request.type = DataType::uint8;
  request.count = each;
  request.ranks = ranks();
  auto kept = std::make_unique<std::pair<std::string, std::string>>(mine, "");
  kept->first.resize(each);
  kept->second.resize(each * members_.size());
  std::vector<int> everybody(members_.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  run(request, everybody, me_, kept->first.data(), kept->second.data(), kept, deadline,
      "an exchange between nodes");
  std::vector<std::string> records;
  for (std::size_t rank = 0; rank < members_.size(); ++rank)
    records.push_back(kept->second.substr(rank * each, each));
  return records;
}

std::vector<std::string> TransportComm::exchange(const std::string& mine,
                                                 const Deadline& deadline) {
  std::uint64_t size = mine.size(), most = 0;
  std::vector<std::uint64_t> sizes;
  for (const std::string& one :
       gather_fixed({reinterpret_cast<const char*>(&size), sizeof size}, sizeof size, deadline)) {
    std::memcpy(&size, one.data(), sizeof size);
    sizes.push_back(size);
    most = std::max(most, size);
  }
  std::vector<std::string> records = gather_fixed(mine, most, deadline);
  for (std::size_t rank = 0; rank < records.size(); ++rank) records[rank].resize(sizes[rank]);
  return records;
}

}  // namespace plait
