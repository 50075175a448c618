// Finds the page by the name of the rendezvous, "launch-PID-FILE-...": a sealed file without a path
// that the launcher holds open.
#include "comm/bootstrap/launch_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/text.hpp"

namespace plait {
namespace {

constexpr std::size_t kMostLaunched = 64;
constexpr char kMagic[16] = "plait-launch-1";

/// As python/plait/launch_page.py writes it. A byte has one writer.
struct LaunchPage {
  char magic[16];
  std::atomic<std::uint8_t> ranks;
  std::uint8_t unused[47];
  std::atomic<std::uint8_t> has_lost[kMostLaunched];  ///< by rank; 1 = reports the loss of a peer
  std::atomic<std::uint8_t> has_ended[kMostLaunched];
  std::atomic<std::uint8_t> signals[kMostLaunched];   ///< that ended the rank; 0 = none
  std::atomic<std::uint8_t> statuses[kMostLaunched];  ///< otherwise
};
static_assert(std::atomic<std::uint8_t>::is_always_lock_free && sizeof(LaunchPage) <= 4096);

/// This process's rank under the launcher, with the page.
struct Launched {
  LaunchPage* page = nullptr;
  int rank = 0, ranks = 0;
};

std::optional<int> number(const std::string& word) {
  int found = 0;
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), found);
  const bool is_whole = failure == std::errc() && end == word.data() + word.size() && found >= 0;
  return is_whole && !word.empty() ? std::optional(found) : std::nullopt;
}

/// Returns null if the file is another, or can shrink below a page.
LaunchPage* mapped(int file) {
  struct stat status{};
  const int seals = ::fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return nullptr;
  if (::fstat(file, &status) != 0 || status.st_size < 4096) return nullptr;
  void* const base = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) return nullptr;
  auto* const page = static_cast<LaunchPage*>(base);
  if (std::memcmp(page->magic, kMagic, sizeof kMagic) == 0) return page;
  ::munmap(base, 4096);
  return nullptr;
}

Launched find_page() {
  const std::vector<std::string> words = split(foreign_env("PLAIT_RENDEZVOUS"), '-');
  if (words.size() != 4 || words[0] != "launch") return {};
  const auto process = number(words[1]), file = number(words[2]);
  const auto rank = number(foreign_env("RANK"));
  if (!process || !file || !rank) return {};
  const Fd there(::open(text("/proc/{}/fd/{}", *process, *file).c_str(),
                        O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  Launched found;
  if (there.valid()) found.page = mapped(there.get());
  if (found.page == nullptr) return {};
  found.rank = *rank;
  found.ranks = found.page->ranks.load();
  if (found.rank >= found.ranks || found.ranks > static_cast<int>(kMostLaunched)) return {};
  return found;
}

/// Never unmapped, since threads may report errors at exit.
const Launched& launched() {
  static const Launched found = find_page();
  return found;
}

std::string how_ended(const LaunchPage& page, std::size_t rank) {
  if (const int number = page.signals[rank].load(); number != 0)
    return text("was ended by signal {}", number);
  return text("ended with status {}", static_cast<int>(page.statuses[rank].load()));
}

}  // namespace

void note_lost_peer(ErrorCode code) noexcept {
  if (code != ErrorCode::peer_lost) return;
  try {
    const Launched& mine = launched();
    if (mine.page != nullptr && mine.rank < mine.ranks)
      mine.page->has_lost[static_cast<std::size_t>(mine.rank)].store(1);
  } catch (...) {  // without memory the launcher knows less
  }
}

Deadline while_launched(const Deadline& deadline, int rank, int ranks,
                        std::function<std::vector<int>()> missing) {
  const Launched& mine = launched();
  if (mine.page == nullptr || mine.rank != rank || mine.ranks != ranks) return deadline;
  return {deadline.at_ns, [check = deadline.check, page = mine.page, missing = std::move(missing)] {
            if (check) check();
            for (const int one : missing()) {
              const auto at = static_cast<std::size_t>(one);
              if (page->has_ended[at].load() != 0)
                throw Error(ErrorCode::peer_lost,
                            text("rank {} {} before it had joined", one, how_ended(*page, at)));
            }
          }};
}

}  // namespace plait
