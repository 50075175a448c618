// Entries in the rendezvous folder, answers and records in pages. A rank's answer is written once,
// with the hash of all tokens that the rank has found. Every rank reads the same answers, so all
// ranks draw the same conclusion. A rank that is not on this host enters no name here, so the ranks
// of this host find too few entries, and all answer no.
#include "comm/meet/meeting.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/env.hpp"
#include "base/hash.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/ancestors.hpp"
#include "comm/bootstrap/host_name.hpp"
#include "comm/bootstrap/rendezvous.hpp"
#include "comm/bootstrap/vote.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr std::uint32_t kMagic = 0x6d656574;
constexpr std::uint32_t kVersion = 1;
constexpr const char* kEntryKind = "meet";
constexpr const char* kAliasKind = "alias";

enum Answer : std::uint32_t { none, all_found, not_all };

struct MeetingRecord {
  std::uint32_t bytes;
  char body[kMeetingRecordBytes];
};

/// Written by the owner alone.
struct MeetingPage {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t token;
  std::int32_t rank;                     ///< set before `answer`
  std::uint32_t answer;                  ///< written once
  std::uint64_t found;                   ///< hash of the tokens found; set before `answer`
  std::uint32_t round;                   ///< of the last record
  std::uint32_t left;                    ///< 1 = the rank has ended its meeting
  std::array<MeetingRecord, 2> records;  ///< by round mod 2; a rank is never two rounds ahead
};
constexpr std::uint64_t kPageBytes = (sizeof(MeetingPage) + 4095) / 4096 * 4096;

MeetingPage& page_of(const Mapping& memory) {
  return *reinterpret_cast<MeetingPage*>(memory.base());
}

using Word = std::atomic_ref<std::uint32_t>;

std::string hash_of(const std::string& bytes, std::uint64_t seed = kHashOfNothing) {
  return hex(hash_bytes(bytes.data(), bytes.size(), seed));
}

/// Names of this start of the machine and of this PID namespace in an entry's name.
struct HostWords {
  std::string boot = hash_of(boot_id());
  std::string processes = hash_of(host_name());
};
const HostWords& host_words() {
  static const auto* const words = new HostWords;
  return *words;
}

/// Returns 32 hexadecimal digits for a name. Ranks in other network namespaces may have the same
/// name for another communicator.
std::string digits_of(const std::string& name) {
  const std::string whole = text("{} {} {} {}", kVersion, ::geteuid(), namespace_name("net"), name);
  constexpr std::uint64_t kSecondSeed = 0x9e3779b97f4a7c15ull;
  return hash_of(whole) + hash_of(whole, kSecondSeed);
}

/// An entry of the folder: what its name and its target say.
struct MeetingEntry {
  std::string kind, boot, processes, digits;
  int seat = 0;
  int process = 0;
  std::uint64_t start = 0;  ///< start time of the process
  std::string said;         ///< the target behind the start time
  std::string path;

  bool is_stale() const {
    if (boot != host_words().boot) return true;
    return processes == host_words().processes && start_of(process) != start;
  }
};

std::optional<MeetingEntry> read_entry(const std::filesystem::path& path) {
  const std::vector<std::string> parts = split(path.filename().string(), '-');
  if (parts.size() != 7 || (parts[0] != kEntryKind && parts[0] != kAliasKind)) return std::nullopt;
  std::error_code failure;
  const std::string target = std::filesystem::read_symlink(path, failure).string();
  if (failure) return std::nullopt;
  MeetingEntry entry{parts[0], parts[1], parts[2], parts[3], 0, 0, 0, {}, path.string()};
  unsigned long long start = 0;
  int behind = 0;
  if (std::sscanf(parts[4].c_str(), "%d", &entry.seat) != 1 ||
      std::sscanf(parts[5].c_str(), "%d", &entry.process) != 1 ||
      std::sscanf(target.c_str(), "%llu %n", &start, &behind) != 1)
    return std::nullopt;
  entry.start = start;
  entry.said = target.substr(static_cast<std::size_t>(behind));
  return entry;
}

std::vector<MeetingEntry> all_entries() {
  std::vector<MeetingEntry> found;
  std::error_code failure;
  std::filesystem::directory_iterator files(rendezvous_folder(), failure), end;
  for (; !failure && files != end; files.increment(failure))
    if (std::optional<MeetingEntry> entry = read_entry(files->path()))
      found.push_back(std::move(*entry));
  if (failure) throw Error(ErrorCode::io_error, text("rendezvous folder: {}", failure.message()));
  return found;
}

/// Returns live entries of these digits.
std::vector<MeetingEntry> live_entries(const char* kind, const std::string& digits) {
  std::vector<MeetingEntry> found = all_entries();
  std::erase_if(found, [&](const MeetingEntry& entry) {
    return entry.kind != kind || entry.digits != digits ||
           entry.processes != host_words().processes || entry.is_stale();
  });
  return found;
}

/// Removes the entries of dead processes. No path is used twice, so no new entry is removed.
void sweep() {
  for (const MeetingEntry& entry : all_entries())
    if (entry.is_stale()) ::unlink(entry.path.c_str());
}

/// Makes an entry and returns the path.
std::string make_entry(const char* kind, const std::string& digits, int seat,
                       const std::string& said) {
  static std::atomic<unsigned> made{0};
  const int process = ::getpid();
  std::string path = text("{}/{}-{}-{}-{}-{}-{}-{}", rendezvous_folder(), kind, host_words().boot,
                          host_words().processes, digits, seat, process, made++);
  const std::string target = text("{} {}", start_of(process), said);
  if (::symlink(target.c_str(), path.c_str()) != 0)
    throw call_failed(ErrorCode::io_error, "symlink", errno, text("entry '{}'", path));
  return path;
}

/// Names that this process has entered. A forked child has entered none.
struct NamesEntered {
  int owner = 0;
  std::map<std::pair<std::string, int>, unsigned> uses;  ///< by name and seat
};
std::mutex names_guard;

}  // namespace

/// Ranks of this process that have entered a name.
struct Meeting::SeatCount {
  std::atomic<int> ranks{0};
};

Meeting::Meeting(const MeetingName& of) : owner_(::getpid()), seat_(of.seat) {
  count(of);
  const auto failure = attempt([&] { show(); });
  if (failure) why_hidden_ = failure->what();
}

void Meeting::count(const MeetingName& of) {
  static auto* const names = new NamesEntered;
  static auto* const counts = new std::map<std::string, std::weak_ptr<SeatCount>>;
  const std::lock_guard<std::mutex> hold(names_guard);
  if (names->owner != owner_) {
    *names = NamesEntered{owner_, {}};
    counts->clear();
  }
  // The count tells apart communicators that are made with one id in turn.
  digits_ = digits_of(text("{} {}", of.name, names->uses[{of.name, of.seat}]++));
  std::erase_if(*counts, [](const auto& row) { return row.second.expired(); });
  here_ = (*counts)[digits_].lock();
  if (here_ == nullptr) (*counts)[digits_] = here_ = std::make_shared<SeatCount>();
  ++here_->ranks;
}

void Meeting::show() {
  liveness_ = publish_liveness(liveness_slot_);  // first, since a hidden rank hands it over too
  sweep();
  const std::string token = text("{} {}", host_name(), unique_token());
  token_ = hash_bytes(token.data(), token.size());
  if (liveness_.empty()) throw Error(ErrorCode::out_of_memory, "this process has no liveness page");
  file_ = make_shared_memory(kPageBytes, 0);
  page_ = map_shared_memory(file_, kPageBytes);
  MeetingPage& page = page_of(page_);
  page.version = kVersion, page.token = token_, page.rank = -1;
  Word(page.magic).store(kMagic);
  path_ = make_entry(kEntryKind, digits_, seat_, text("{} {} {}", file_.get(), token_, liveness_));
}

Meeting::~Meeting() {
  if (!is_mine()) return;
  if (why_hidden_.empty()) {
    ::unlink(path_.c_str());
    publish_answer(not_all);
    Word(page_of(page_).left).store(1);
  }
  publish_detach(liveness_slot_, DetachStage::unmapped);
}

bool Meeting::is_mine() const noexcept { return owner_ == ::getpid(); }

/// The first answer stands.
void Meeting::publish_answer(std::uint32_t answer) noexcept {
  std::uint32_t unsaid = none;
  Word(page_of(page_).answer).compare_exchange_strong(unsaid, answer);
}

int Meeting::in_process() const { return here_->ranks.load(); }

std::string Meeting::take_liveness(int& slot) {
  slot = std::exchange(liveness_slot_, -1);
  return liveness_;
}

std::vector<Meeting::MeetingPeer> Meeting::find_entries() const {
  std::vector<MeetingPeer> found;
  for (const MeetingEntry& entry : live_entries(kEntryKind, digits_)) {
    if (entry.path == path_) continue;
    MeetingPeer peer;
    unsigned long long token = 0;
    int behind = 0;
    if (std::sscanf(entry.said.c_str(), "%d %llu %n", &peer.file, &token, &behind) != 2) continue;
    peer.seat = entry.seat, peer.token = token;
    peer.liveness = entry.said.substr(static_cast<std::size_t>(behind));
    found.push_back(std::move(peer));
  }
  return found;
}

bool Meeting::open_pages() {
  std::vector<std::optional<std::string>> shown;
  for (MeetingPeer& peer : peers_) {
    int process = 0;
    if (std::sscanf(peer.liveness.c_str(), "%d", &process) != 1) return false;
    const Fd file = open_of_process(process, peer.file, MapAccess::read);
    if (!file.valid()) return false;
    try {
      peer.page = map_shared_memory(file, kPageBytes, MapAccess::read);
    } catch (const Error&) {  // memory that has taken the file's number
      return false;
    }
    const MeetingPage& page = page_of(peer.page);
    if (page.magic != kMagic || page.version != kVersion || page.token != peer.token) return false;
    shown.push_back(peer.liveness);
  }
  alive_ = open_peer_pages(shown, -1);
  return alive_->has_all_pages();
}

std::uint64_t Meeting::hash_of_all() const {
  std::map<int, std::uint64_t> tokens{{seat_, token_}};
  for (const MeetingPeer& peer : peers_) tokens[peer.seat] = peer.token;
  std::uint64_t hash = kHashOfNothing;
  for (const auto& [seat, token] : tokens) {
    hash = hash_bytes(&seat, sizeof seat, hash);
    hash = hash_bytes(&token, sizeof token, hash);
  }
  return hash;
}

std::string Meeting::word_of_all() const { return text("{} {}", digits_, hex(hash_of_all())); }

/// Every rank publishes before it waits, so waiting for one peer after another finds a dead one.
template <class IsDone>
void Meeting::await_peers(const GiveUp& give_up, const IsDone& is_done) const {
  constexpr int kPolls = 64, kShortSleeps = 64;
  int waited = 0;
  for (std::size_t at = 0; at < peers_.size(); ++at) {
    MeetingPage& page = page_of(peers_[at].page);
    for (; !is_done(page); ++waited) {
      if (waited < kPolls) {
        std::this_thread::yield();
        continue;
      }
      const bool has_left = Word(page.left).load() != 0;
      const bool is_over = has_left || alive_->has_ended(static_cast<int>(at));
      if (is_over && !is_done(page))
        throw Error(ErrorCode::peer_lost,
                    text("rank {} {} while plait was attaching",
                         peers_[at].rank < 0 ? peers_[at].seat : peers_[at].rank,
                         has_left ? "has given up" : "has died"));
      give_up();
      std::this_thread::sleep_for(
          std::chrono::microseconds(waited < kPolls + kShortSleeps ? 20 : 200));
    }
  }
}

/// Two entries of one seat are of two communicators: no rank can tell its own.
bool Meeting::find_peers(std::size_t ranks) {
  bool are_all = false;
  const auto failure = attempt([&] {
    peers_ = find_entries();
    std::set<int> seats{seat_};
    for (const MeetingPeer& peer : peers_) seats.insert(peer.seat);
    are_all = peers_.size() + 1 == ranks && seats.size() == ranks && open_pages();
  });
  return are_all && !failure;
}

bool Meeting::have_all_found(int rank, int ranks, const GiveUp& give_up) {
  const auto wanted = static_cast<std::size_t>(ranks);
  if (!find_peers(wanted)) return false;
  MeetingPage& page = page_of(page_);
  page.rank = rank;
  page.found = hash_of_all();
  publish_answer(all_found);
  await_peers(give_up, [](MeetingPage& peer) { return Word(peer.answer).load() != none; });
  std::set<int> met{rank};
  for (MeetingPeer& peer : peers_) {
    MeetingPage& theirs = page_of(peer.page);
    if (Word(theirs.answer).load() != all_found || theirs.found != page.found) return false;
    peer.rank = theirs.rank;
    if (peer.rank >= 0 && peer.rank < ranks) met.insert(peer.rank);
  }
  return met.size() == wanted;
}

bool Meeting::find_all(int rank, int ranks, const GiveUp& give_up) {
  rank_ = rank;
  if (!why_hidden_.empty()) return false;
  const bool have_met = have_all_found(rank, ranks, give_up);
  if (!have_met) publish_answer(not_all);
  return have_met;
}

std::vector<std::string> Meeting::allgather(const std::string& mine, const GiveUp& give_up) {
  if (mine.size() > kMeetingRecordBytes)
    throw Error(ErrorCode::internal, text("set-up record has {} bytes", mine.size()));
  const std::uint32_t round = ++round_;
  MeetingRecord& own = page_of(page_).records[round % 2];
  own.bytes = static_cast<std::uint32_t>(mine.size());
  mine.copy(own.body, mine.size());
  Word(page_of(page_).round).store(round);
  await_peers(give_up, [round](MeetingPage& peer) { return Word(peer.round).load() >= round; });
  std::vector<std::string> all(peers_.size() + 1);
  all[static_cast<std::size_t>(rank_)] = mine;
  for (const MeetingPeer& peer : peers_) {
    const MeetingRecord& record = page_of(peer.page).records[round % 2];
    all[static_cast<std::size_t>(peer.rank)].assign(
        record.body, std::min<std::size_t>(record.bytes, sizeof record.body));
  }
  return all;
}

MeetingAlias::MeetingAlias(const std::string& other, const std::string& name)
    : owner_(::getpid()), path_(make_entry(kAliasKind, digits_of(other), 0, name)) {}

MeetingAlias::~MeetingAlias() {
  if (owner_ == ::getpid()) ::unlink(path_.c_str());
}

std::string MeetingAlias::find(const std::string& other) {
  const std::vector<MeetingEntry> found = live_entries(kAliasKind, digits_of(other));
  return found.size() == 1 ? found[0].said : std::string();
}

}  // namespace plait
