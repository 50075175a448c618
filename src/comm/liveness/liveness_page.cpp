// Each slot has a counter that only grows: every rank that holds the slot adds 2 in all. Hence a
// peer of an earlier rank sees that rank as detached, whichever rank holds the slot since.
#include "comm/liveness/liveness_page.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "base/liveness_futex.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr std::uint32_t kMagic = 0x6c696665;
constexpr std::uint32_t kVersion = 2;

struct Page {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint32_t ended;     ///< 1 = the process exited by itself
  std::uint32_t liveness;  ///< futex of the watching thread
  std::uint32_t turns[LivenessPage::kSlots];
  /// 1 + the turn of the rank that failed; 0 = none.
  std::uint32_t failed[LivenessPage::kSlots];
};
constexpr std::uint64_t kPageBytes = (sizeof(Page) + 4095) / 4096 * 4096;

using Word = std::atomic_ref<std::uint32_t>;

Page& page_of(const Mapping& memory) { return *reinterpret_cast<Page*>(memory.base()); }

/// Works on read-only mappings too.
std::uint32_t read(std::uint32_t& word) { return Word(word).load(); }

}  // namespace

LivenessPage::LivenessPage() : owner_(::getpid()), file_(make_shared_memory(kPageBytes, 0)) {
  memory_ = map_shared_memory(file_, kPageBytes);
  page_of(memory_).version = kVersion;
  Word(page_of(memory_).magic).store(kMagic);
}

bool LivenessPage::is_mine() const noexcept { return owner_ == ::getpid(); }

std::string LivenessPage::show(int& slot) {
  slot = -1;
  if (!is_mine()) return {};
  const std::lock_guard<std::mutex> hold(guard_);
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (used_ < kSlots) {
    free_.reserve(static_cast<std::size_t>(used_) + 1);  // so that giving back cannot fail
    slot = used_++;
  } else {
    return {};
  }
  return text("{} {} {} {}", owner_, file_.get(), slot, read(page_of(memory_).turns[slot]));
}

void LivenessPage::leave(int slot, DetachStage stage) noexcept {
  if (slot < 0 || !is_mine()) return;
  Word turn(page_of(memory_).turns[slot]);
  const std::uint32_t now = turn.load();
  const std::uint32_t first_of_turn = now & ~1u;  // turns begin at even numbers
  turn.store(first_of_turn + static_cast<std::uint32_t>(stage));
  if (stage != DetachStage::unmapped) return;
  const std::lock_guard<std::mutex> hold(guard_);
  free_.push_back(slot);
}

void LivenessPage::fail(int slot) noexcept {
  if (slot < 0 || !is_mine()) return;
  Page& page = page_of(memory_);
  Word(page.failed[slot]).store((Word(page.turns[slot]).load() & ~1u) + 1);
}

void LivenessPage::end() noexcept {
  if (is_mine()) Word(page_of(memory_).ended).store(1);
}

std::uint32_t& LivenessPage::liveness() const { return page_of(memory_).liveness; }

std::optional<PeerLiveness> PeerLiveness::open(const std::string& shown) {
  int process = 0, file = -1;
  if (std::sscanf(shown.c_str(), "%d %d", &process, &file) != 2) return std::nullopt;
  return open(shown, open_of_process(process, file, MapAccess::read));
}

std::optional<PeerLiveness> PeerLiveness::open(const std::string& shown, const Fd& page_file) {
  PeerLiveness liveness;
  if (std::sscanf(shown.c_str(), "%d %*d %d %u", &liveness.process_, &liveness.slot_,
                  &liveness.turn_) != 3)
    return std::nullopt;
  if (liveness.slot_ < 0 || liveness.slot_ >= LivenessPage::kSlots || !page_file.valid())
    return std::nullopt;
  try {
    liveness.memory_ = map_shared_memory(page_file, kPageBytes, MapAccess::read);
  } catch (const Error&) {  // not a page, or a page that its owner could shrink
    return std::nullopt;
  }
  const Page& page = page_of(liveness.memory_);
  if (page.magic != kMagic || page.version != kVersion) return std::nullopt;
  return liveness;
}

bool PeerLiveness::has_died() const { return holder_died(page_of(memory_).liveness); }
bool PeerLiveness::ended_by_itself() const { return read(page_of(memory_).ended) != 0; }

bool PeerLiveness::has_failed() const { return read(page_of(memory_).failed[slot_]) == turn_ + 1; }

bool PeerLiveness::has_reached(DetachStage stage) const {
  return read(page_of(memory_).turns[slot_]) - turn_ >= static_cast<std::uint32_t>(stage);
}

}  // namespace plait
