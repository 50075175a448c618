// AgreedSwitch in the middle of a function: other ranks and threads take steps between a load and
// the next. The test of LazyArena covers whole functions in any order.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "gpu/consensus/agreed_switch.hpp"

using namespace plait::cuda;

namespace {

using SwitchPage = AgreedSwitch::SwitchPage;

constexpr int kRanks = 7, kLast = kRanks - 1;

/// A SwitchPage in two pages of the machine: `begun` of the last rank lies in the second page. The
/// next access to the second page runs steps of the test first, by a signal.
class SplitSwitchPage {
 public:
  SplitSwitchPage()
      : machine_bytes_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
        memory_(static_cast<std::byte*>(::mmap(nullptr, 2 * machine_bytes_, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(memory_ != MAP_FAILED);
    page_ = new (memory_ + machine_bytes_ - kBytesBefore) SwitchPage{};
    current = this;
    struct sigaction on_access{};
    on_access.sa_handler = [](int) { current->run_steps(); };
    ::sigaction(SIGSEGV, &on_access, &before_);
  }
  ~SplitSwitchPage() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(memory_, 2 * machine_bytes_);
  }
  SplitSwitchPage(const SplitSwitchPage&) = delete;
  SplitSwitchPage& operator=(const SplitSwitchPage&) = delete;

  SwitchPage& get() { return *page_; }
  void at_next_access(std::function<void()> steps) {
    steps_ = std::move(steps);
    allow(PROT_NONE);
  }
  bool has_run_steps() const { return steps_ == nullptr; }

 private:
  static constexpr std::size_t kBytesBefore =
      offsetof(SwitchPage, begun) + kLast * sizeof(std::atomic<std::uint64_t>);
  static_assert(kBytesBefore % alignof(SwitchPage) == 0);
  static inline SplitSwitchPage* current = nullptr;

  void allow(int access) { ::mprotect(memory_ + machine_bytes_, machine_bytes_, access); }
  void run_steps() {
    if (steps_ == nullptr) {  // a fault of the code: ends the program behind this handler
      ::sigaction(SIGSEGV, &before_, nullptr);
      return;
    }
    allow(PROT_READ | PROT_WRITE);
    std::exchange(steps_, nullptr)();
  }

  const std::size_t machine_bytes_;
  std::byte* const memory_;
  SwitchPage* page_ = nullptr;
  std::function<void()> steps_;
  struct sigaction before_{};
};

}  // namespace

TEST_CASE("a rank that stalls in its offer does not spend the attempt behind the switch off") {
  SplitSwitchPage page;
  std::vector<std::unique_ptr<AgreedSwitch>> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.push_back(std::make_unique<AgreedSwitch>(page.get(), rank, kRanks));
  for (const auto& one : ranks) one->set_ready(1);
  for (const auto& one : ranks) CHECK(one->next());
  for (int rank = 1; rank < kRanks; ++rank)
    CHECK_FALSE(ranks[static_cast<std::size_t>(rank)]->offer_off());
  bool is_off = false;
  page.at_next_access([&] {  // once rank 0 has seen all offers
    is_off = ranks.back()->offer_off();
    for (const auto& one : ranks) one->set_ready(2);
  });
  CHECK_FALSE(ranks.front()->offer_off());
  REQUIRE(page.has_run_steps());
  CHECK(is_off);
  for (const auto& one : ranks) {
    CHECK(one->is_spent(1));
    CHECK_FALSE(one->is_spent(2));
    CHECK(one->all_ready());
  }
  for (const auto& one : ranks) CHECK(one->next());
}
