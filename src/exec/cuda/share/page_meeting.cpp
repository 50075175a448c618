// Cards of two rounds lie side by side: who shows a card of the next but one has seen that all came
// to the next, and so had read the one that it writes over. A rank that comes late to an attempt
// may find cards of the next one there, but then it also finds that its own has failed.
#include "exec/cuda/share/page_meeting.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

/// A card as it stands there. What another process wrote is bounded before it is used.
std::string card_of(const PageMeeting::Words::Place& place, std::uint32_t turn) {
  return std::string(place.cards[turn],
                     std::min<std::size_t>(place.bytes[turn], PageMeeting::kCardBytes));
}

/// Others may read while it is written: characters of two reasons then, and never past the end.
void put(const std::string& reason, std::atomic<char>* place, std::size_t most) {
  const std::size_t length = std::min(reason.size(), most - 1);
  for (std::size_t i = 0; i < length; ++i) place[i].store(reason[i], std::memory_order_relaxed);
  place[length].store('\0', std::memory_order_relaxed);
}
std::string read(const std::atomic<char>* place, std::size_t most) {
  std::string reason;
  for (std::size_t i = 0; i < most; ++i) {
    const char next = place[i].load(std::memory_order_relaxed);
    if (next == '\0') break;
    reason.push_back(next);
  }
  return reason;
}

}  // namespace

void PageMeeting::begin(std::uint32_t attempt) {
  round_ = attempt * kMostRounds;
  attempt_.store(attempt);
}

std::vector<std::string> PageMeeting::exchange(const std::string& mine,
                                               const std::function<void()>& give_up) {
  if (mine.size() > kCardBytes)
    throw Error(ErrorCode::internal, text("a card of ", mine.size(), " bytes"));
  const std::uint32_t turn = ++round_ % 2;
  Words::Place& own = words_.places[rank_];
  mine.copy(own.cards[turn], kCardBytes);
  own.bytes[turn] = static_cast<std::uint32_t>(mine.size());
  own.round.store(round_, std::memory_order_release);
  std::vector<std::string> cards;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Words::Place& place = words_.places[rank];
    auto pause = std::chrono::microseconds(50);
    while (place.round.load(std::memory_order_acquire) < round_) {
      if (const std::string reason = failure(); !reason.empty())
        throw Error(ErrorCode::mismatch, reason);
      give_up();
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(2000));
    }
    cards.push_back(card_of(place, turn));
  }
  if (const std::string reason = failure(); !reason.empty())
    throw Error(ErrorCode::mismatch, reason);
  return cards;
}

void PageMeeting::fail(const std::string& reason) noexcept {
  Words::Place& own = words_.places[rank_];
  const std::uint32_t attempt = attempt_.load();
  if (own.failed.load(std::memory_order_relaxed) >= attempt) return;
  put(failure().empty() ? reason : std::string(), own.reason, std::size(own.reason));
  own.failed.store(attempt, std::memory_order_release);
}

std::string PageMeeting::failure() const {
  std::string found;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Words::Place& place = words_.places[rank];
    if (place.failed.load(std::memory_order_acquire) < attempt_.load()) continue;
    const std::string reason = read(place.reason, std::size(place.reason));
    if (!reason.empty()) return text("rank ", rank, ": ", reason);
    found = text("rank ", rank, " has failed");
  }
  return found;
}

}  // namespace plait::cuda
