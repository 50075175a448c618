// Exchange of set-up records. A round over NCCL: barrier of this process's threads, copy to the
// device, ncclAllGather on a private stream, wait with a deadline, read all records. A barrier's
// name (a unique word and the number of the round) is used once, hence the barrier is a plain
// count.
#include "shims/nccl/setup_exchange.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>

#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/transport/nccl/native.hpp"
#include "plait/error.hpp"

namespace plait::nccl {
namespace {

constexpr char kMark[8] = {'p', 'l', 'a', 'i', 't', ' ', '0', '2'};
constexpr double kRoundSeconds = 120;  // a rank may still load kernels

struct ExchangeFrame {
  char mark[8];
  unsigned bytes;
  char body[kSetupBytes - 12];
};
static_assert(sizeof(ExchangeFrame) == kSetupBytes);

struct Barriers {
  std::mutex guard;
  std::condition_variable all_arrived;
  struct Arrivals {
    int arrived = 0;
    int departed = 0;
  };
  std::map<std::string, Arrivals> open;
};

void require(Result result, const char* call) {
  if (result != ncclSuccess && result != ncclInProgress)
    throw Error(ErrorCode::peer_lost,
                text("{} returned {} while plait was attaching", call, static_cast<int>(result)));
}

/// Returns NCCL's state of the communicator. Does not ask after a cancellation, since the canceller
/// may destroy the communicator next.
Result poll_nccl(const CommState& state) {
  require_not_cancelled(state);
  Result error = ncclSuccess;
  require(native().async_error(state.comm, &error), "ncclCommGetAsyncError");
  require(error, "ncclCommGetAsyncError");
  return error;
}

void give_up_if_late(std::int64_t until_ns) {
  if (now_ns() > until_ns)
    throw Error(ErrorCode::timeout,
                text("a rank did not answer within {} s while plait was attaching; is the drop-in "
                     "loaded in every rank? does NCCL hang without plait too, as on a broken path "
                     "between GPUs (NCCL_P2P_DISABLE=1)?",
                     kRoundSeconds));
}

/// Waits until `count` threads have called barrier() with this name. give_up throws.
void barrier(const std::string& name, int count, const std::function<void()>& give_up) {
  if (count < 2) return;
  static auto* const all = new Barriers;
  std::unique_lock<std::mutex> hold(all->guard);
  Barriers::Arrivals& mine = all->open[name];
  if (++mine.arrived == count) all->all_arrived.notify_all();
  while (mine.arrived < count) {
    all->all_arrived.wait_for(hold, std::chrono::milliseconds(10));
    if (mine.arrived < count) {
      hold.unlock();
      give_up();  // the count stays behind: the name is never used again
      hold.lock();
    }
  }
  if (++mine.departed == count) all->open.erase(name);
}

}  // namespace

void require_not_cancelled(const CommState& state) {
  if (state.cancelled.load())
    throw Error(ErrorCode::aborted, "the communicator was ended while plait was attaching");
}

void wait_ready(CommState& state) {
  const std::int64_t until_ns = deadline_in(kRoundSeconds);
  while (poll_nccl(state) == ncclInProgress) {
    give_up_if_late(until_ns);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

SetupExchange::SetupExchange(CommState& state) : state_(state) {
  const std::function<void()> give_up = this->give_up();
  met_here_ = state.meeting != nullptr && state.meeting->find_all(state.rank, state.ranks, give_up);
  if (met_here_) return;
  if (state.staging == nullptr)
    state.staging = platform().staging(state.device, state.ranks, kSetupBytes);
  // No rank of this process may exchange before all have allocated.
  if (state.meeting != nullptr)
    barrier(text("staging {}", state.meeting->digits()), state.meeting->in_process(), give_up);
}

std::function<void()> SetupExchange::give_up() {
  return [this, until_ns = deadline_in(kRoundSeconds)] {
    poll_nccl(state_);
    give_up_if_late(until_ns);
    const int gone = peers_ == nullptr ? -1 : peers_->first_dead_rank();
    if (gone >= 0)
      throw Error(ErrorCode::peer_lost, text("rank {} has died while plait was attaching", gone));
  };
}

std::vector<std::string> SetupExchange::allgather(const std::string& mine) {
  poll_nccl(state_);
  return met_here_ ? state_.meeting->allgather(mine, give_up()) : allgather_over_nccl(mine);
}

std::vector<std::string> SetupExchange::allgather_over_nccl(const std::string& mine) {
  ExchangeFrame frame{};
  if (mine.size() > sizeof frame.body)
    throw Error(ErrorCode::internal, text("set-up record has {} bytes", mine.size()));
  std::memcpy(frame.mark, kMark, sizeof kMark);
  frame.bytes = static_cast<unsigned>(mine.size());
  mine.copy(frame.body, mine.size());
  const auto gather = [&](const void* input, void* output, Stream stream) {
    require(native().all_gather(input, output, kSetupBytes, kUint8, state_.comm, stream),
            "ncclAllGather");
    wait_ready(state_);
  };
  const std::function<void()> give_up = this->give_up();
  barrier(text("{} {}", barrier_name_, ++round_), in_process_, give_up);
  const std::string all =
      state_.staging->swap(std::string(reinterpret_cast<const char*>(&frame), sizeof frame),
                           state_.ranks, gather, give_up);
  std::vector<std::string> shown;
  for (int rank = 0; rank < state_.ranks; ++rank) {
    std::memcpy(&frame, all.data() + static_cast<std::size_t>(rank) * sizeof frame, sizeof frame);
    if (std::memcmp(frame.mark, kMark, sizeof kMark) != 0 || frame.bytes > sizeof frame.body)
      throw AgreedError(ErrorCode::mismatch,
                        text("rank {} sent no set-up record of this plait version", rank));
    shown.emplace_back(frame.body, frame.bytes);
  }
  return shown;
}

}  // namespace plait::nccl
