// Records of two rounds lie side by side. A rank writes the record of round n + 2 only after all
// have come to round n + 1, so all have read the record that is overwritten. A rank that is late in
// an attempt may find records of the next attempt, but then also finds that its own attempt has
// failed.
#include "gpu/consensus/page_exchange.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

/// Copies a record. The size written by another process is bounded before use.
std::string record_of(const PageExchange::ExchangePage::RankSlot& slot, std::uint32_t turn) {
  return std::string(slot.records[turn],
                     std::min<std::size_t>(slot.bytes[turn], PageExchange::kRecordBytes));
}

/// Readers may come while the text is written, and see characters of two texts, but never past the
/// end.
void put(const std::string& reason, std::atomic<char>* slot, std::size_t most) {
  const std::size_t length = std::min(reason.size(), most - 1);
  for (std::size_t i = 0; i < length; ++i) slot[i].store(reason[i], std::memory_order_relaxed);
  slot[length].store('\0', std::memory_order_relaxed);
}
std::string read(const std::atomic<char>* slot, std::size_t most) {
  std::string reason;
  for (std::size_t i = 0; i < most; ++i) {
    const char next = slot[i].load(std::memory_order_relaxed);
    if (next == '\0') break;
    reason.push_back(next);
  }
  return reason;
}

}  // namespace

void PageExchange::begin(std::uint32_t attempt) {
  round_ = attempt * kMostRounds;
  attempt_.store(attempt);
}

std::vector<std::string> PageExchange::exchange(const std::string& mine,
                                                const std::function<void()>& give_up) {
  if (mine.size() > kRecordBytes)
    throw Error(ErrorCode::internal,
                text("set-up record has {} bytes, at most {}", mine.size(), kRecordBytes));
  give_up();  // A rank that gives up shows no record.
  const std::uint32_t turn = ++round_ % 2;
  ExchangePage::RankSlot& own = page_.slots[rank_];
  mine.copy(own.records[turn], kRecordBytes);
  own.bytes[turn] = static_cast<std::uint32_t>(mine.size());
  own.round.store(round_, std::memory_order_release);
  std::vector<std::string> records;
  for (int rank = 0; rank < ranks_; ++rank) {
    const ExchangePage::RankSlot& slot = page_.slots[rank];
    auto pause = std::chrono::microseconds(50);
    while (slot.round.load(std::memory_order_acquire) < round_) {
      throw_failure();
      give_up();
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(2000));
    }
    records.push_back(record_of(slot, turn));
  }
  throw_failure();
  return records;
}

void PageExchange::fail(const std::string& reason, ErrorCode code) noexcept {
  ExchangePage::RankSlot& own = page_.slots[rank_];
  const std::uint32_t attempt = attempt_.load();
  if (own.failed.load(std::memory_order_relaxed) >= attempt) return;
  put(failure().empty() ? reason : std::string(), own.reason, std::size(own.reason));
  own.code.store(static_cast<std::uint32_t>(code), std::memory_order_relaxed);
  own.failed.store(attempt, std::memory_order_release);
}

void PageExchange::throw_failure() const {
  if (const Failure failure = found_failure(); !failure.reason.empty())
    throw Error(failure.code, failure.reason);
}

PageExchange::Failure PageExchange::found_failure() const {
  Failure found;
  for (int rank = 0; rank < ranks_; ++rank) {
    const ExchangePage::RankSlot& slot = page_.slots[rank];
    if (slot.failed.load(std::memory_order_acquire) < attempt_.load()) continue;
    const std::string reason = read(slot.reason, std::size(slot.reason));
    if (!reason.empty())
      return {text("rank {}: {}", rank, reason), static_cast<ErrorCode>(slot.code.load())};
    found.reason = text("rank {} has failed", rank);
  }
  return found;
}

}  // namespace plait::cuda
