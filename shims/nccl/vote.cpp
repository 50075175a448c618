// One round = copy the card in, ncclAllGather on a private stream, wait with a deadline, read all.
#include "shims/nccl/vote.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/text.hpp"
#include "comm/nccl/real.hpp"
#include "plait/error.hpp"
#include "shims/nccl/meeting.hpp"

namespace plait::nccl {
namespace {

constexpr char kMark[8] = {'p', 'l', 'a', 'i', 't', ' ', '0', '1'};
constexpr double kRoundSeconds = 120;  // a rank may be loading its kernels meanwhile

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void require(Result result, const char* call) {
  if (result != ncclSuccess && result != ncclInProgress)
    throw Error(ErrorCode::peer_lost,
                text(call, " returned ", static_cast<int>(result), " while plait was attaching"));
}

void give_up_if_pointless(const State& state, double since_s) {
  Result error = ncclSuccess;
  real().async_error(state.comm, &error);
  require(error, "ncclCommGetAsyncError");
  if (state.cancelled.load())
    throw Error(ErrorCode::aborted, "the communicator was aborted while plait was attaching");
  if (now_s() - since_s > kRoundSeconds)
    throw Error(ErrorCode::timeout,
                text("a rank did not answer within ", kRoundSeconds,
                     " s while plait was attaching; is the drop-in loaded in every rank?"));
}

}  // namespace

void wait_ready(State& state) {
  const double since_s = now_s();
  Result error = ncclInProgress;
  for (;;) {
    require(real().async_error(state.comm, &error), "ncclCommGetAsyncError");
    require(error, "ncclCommGetAsyncError");
    if (error == ncclSuccess) return;
    give_up_if_pointless(state, since_s);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

Vote::Vote(State& state) : state_(state) {
  if (state.staging == nullptr)
    state.staging = platform().staging(state.device, state.ranks, kCardBytes);
}

std::vector<Vote::Card> Vote::round(Kind kind, const std::string& body) {
  if (state_.cancelled.load())
    throw Error(ErrorCode::aborted, "the communicator was ended while plait was attaching");
  Card card{};
  if (body.size() > sizeof card.body)
    throw Error(ErrorCode::internal, text("a card of ", body.size(), " bytes"));
  std::memcpy(card.mark, kMark, sizeof kMark);
  card.kind = static_cast<int>(kind);
  card.bytes = static_cast<unsigned>(body.size());
  body.copy(card.body, body.size());
  const auto gather = [&](const void* input, void* output, Stream stream) {
    require(real().all_gather(input, output, kCardBytes, kUint8, state_.comm, stream),
            "ncclAllGather");
    wait_ready(state_);
  };
  const double since_s = now_s();
  meet(text(meeting_, ' ', ++round_), in_process_, [&] { give_up_if_pointless(state_, since_s); });
  const std::string all =
      state_.staging->swap(std::string(reinterpret_cast<const char*>(&card), sizeof card),
                           state_.ranks, gather, [&] { give_up_if_pointless(state_, since_s); });
  std::vector<Card> cards(static_cast<std::size_t>(state_.ranks));
  std::memcpy(cards.data(), all.data(), std::min(all.size(), cards.size() * sizeof(Card)));
  return cards;
}

std::string Vote::first_failure(const std::vector<Card>& cards) const {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const Card& card = cards[rank];
    if (std::memcmp(card.mark, kMark, sizeof kMark) != 0 || card.bytes > sizeof card.body)
      return text("rank ", rank, " showed no card of this plait version");
    if (card.kind == static_cast<int>(Kind::failed))
      return text("rank ", rank, ": ", std::string(card.body, card.bytes));
    if (card.kind != cards[0].kind) return text("ranks 0 and ", rank, " are at different steps");
  }
  return {};
}

std::vector<std::string> Vote::exchange(const std::string& mine) {
  const std::vector<Card> cards = round(Kind::data, mine);
  const std::string failure = first_failure(cards);
  stopped_ = !failure.empty() || cards[0].kind != static_cast<int>(Kind::data);
  if (stopped_) throw Error(ErrorCode::mismatch, failure.empty() ? "ranks out of step" : failure);
  std::vector<std::string> bodies;
  for (const Card& card : cards) bodies.emplace_back(card.body, card.bytes);
  return bodies;
}

std::string Vote::finish(const std::string& failure) {
  const std::string said = failure.substr(0, 1000);
  const std::vector<Card> cards = round(failure.empty() ? Kind::done : Kind::failed, said);
  stopped_ = true;
  const std::string found = first_failure(cards);
  if (!found.empty() || cards[0].kind == static_cast<int>(Kind::done)) return found;
  return "ranks out of step";
}

}  // namespace plait::nccl
