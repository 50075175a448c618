// One round = meet, copy the card in, ncclAllGather on a private stream, wait with a deadline, read
// all. Names of meetings are used once (a word and the number of the round), so a meeting is a
// plain count.
#include "shims/nccl/card_exchange.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>

#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/nccl/native.hpp"
#include "plait/error.hpp"

namespace plait::nccl {
namespace {

constexpr char kMark[8] = {'p', 'l', 'a', 'i', 't', ' ', '0', '2'};
constexpr double kRoundSeconds = 120;  // a rank may be loading its kernels meanwhile

struct Card {
  char mark[8];
  unsigned bytes;
  char body[kCardBytes - 12];
};
static_assert(sizeof(Card) == kCardBytes);

struct Barriers {
  std::mutex guard;
  std::condition_variable came;
  struct Count {
    int come = 0;
    int gone = 0;
  };
  std::map<std::string, Count> open;
};

void require(Result result, const char* call) {
  if (result != ncclSuccess && result != ncclInProgress)
    throw Error(ErrorCode::peer_lost,
                text(call, " returned ", static_cast<int>(result), " while plait was attaching"));
}

/// What NCCL says of the communicator. Who has cancelled may end it next, so NCCL is not asked
/// then.
Result ask(const State& state) {
  if (state.cancelled.load())
    throw Error(ErrorCode::aborted, "the communicator was ended while plait was attaching");
  Result error = ncclSuccess;
  require(native().async_error(state.comm, &error), "ncclCommGetAsyncError");
  require(error, "ncclCommGetAsyncError");
  return error;
}

void give_up_if_late(std::int64_t until_ns) {
  if (now_ns() > until_ns)
    throw Error(ErrorCode::timeout,
                text("a rank did not answer within ", kRoundSeconds,
                     " s while plait was attaching; is the drop-in loaded in every rank?"));
}

/// Returns when `count` threads have come to the meeting of that name. give_up throws.
void barrier(const std::string& name, int count, const std::function<void()>& give_up) {
  if (count < 2) return;
  static auto* const all = new Barriers;
  std::unique_lock<std::mutex> hold(all->guard);
  Barriers::Count& mine = all->open[name];
  if (++mine.come == count) all->came.notify_all();
  while (mine.come < count) {
    all->came.wait_for(hold, std::chrono::milliseconds(10));
    if (mine.come < count) {
      hold.unlock();
      give_up();  // leaves the count behind: the name is never used again
      hold.lock();
    }
  }
  if (++mine.gone == count) all->open.erase(name);
}

}  // namespace

void wait_ready(State& state) {
  const std::int64_t until_ns = deadline_in(kRoundSeconds);
  while (ask(state) == ncclInProgress) {
    give_up_if_late(until_ns);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

CardExchange::CardExchange(State& state) : state_(state) {
  if (state.staging == nullptr)
    state.staging = platform().staging(state.device, state.ranks, kCardBytes);
}

std::vector<std::string> CardExchange::allgather(const std::string& mine) {
  ask(state_);
  Card card{};
  if (mine.size() > sizeof card.body)
    throw Error(ErrorCode::internal, text("a card of ", mine.size(), " bytes"));
  std::memcpy(card.mark, kMark, sizeof kMark);
  card.bytes = static_cast<unsigned>(mine.size());
  mine.copy(card.body, mine.size());
  const auto gather = [&](const void* input, void* output, Stream stream) {
    require(native().all_gather(input, output, kCardBytes, kUint8, state_.comm, stream),
            "ncclAllGather");
    wait_ready(state_);
  };
  const auto give_up = [this, until_ns = deadline_in(kRoundSeconds)] {
    ask(state_);
    give_up_if_late(until_ns);
    const int gone = peers_ == nullptr ? -1 : peers_->first_dead_rank();
    if (gone >= 0)
      throw Error(ErrorCode::peer_lost, text("rank ", gone, " has died while plait was attaching"));
  };
  barrier(text(barrier_name_, ' ', ++round_), in_process_, give_up);
  const std::string all =
      state_.staging->swap(std::string(reinterpret_cast<const char*>(&card), sizeof card),
                           state_.ranks, gather, give_up);
  std::vector<std::string> shown;
  for (int rank = 0; rank < state_.ranks; ++rank) {
    std::memcpy(&card, all.data() + static_cast<std::size_t>(rank) * sizeof card, sizeof card);
    if (std::memcmp(card.mark, kMark, sizeof kMark) != 0 || card.bytes > sizeof card.body)
      throw AgreedError(ErrorCode::mismatch,
                        text("rank ", rank, " showed no card of this plait version"));
    shown.emplace_back(card.body, card.bytes);
  }
  return shown;
}

}  // namespace plait::nccl
