// Keeps the list of registered communicators, and reads the rings of a communicator's ranks.
#include "comm/trace/flight.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/forks.hpp"
#include "base/hash.hpp"

namespace plait {
namespace {

struct FlightList {
  std::mutex guard;
  std::vector<const Flight*> all;
  const std::uint32_t forks = forks_so_far();
};

/// Never destroyed: communicators may end during exit. A forked child has a list of its own: it has
/// none of the parent's communicators, and no thread that would release the parent's lock.
FlightList& flight_list() {
  static std::atomic<FlightList*> current{nullptr};
  FlightList* found = current.load();
  if (found != nullptr && found->forks == forks_so_far()) return *found;
  auto* const made = new FlightList;
  if (current.compare_exchange_strong(found, made)) return *made;
  delete made;
  return *found;
}

}  // namespace

FlightCall flight_call(const Request& request) {
  FlightCall call;
  call.kind = FlightKind::collective;
  call.collective = static_cast<std::uint8_t>(request.collective);
  call.type = static_cast<std::uint8_t>(request.type);
  call.op = static_cast<std::uint8_t>(request.op);
  call.root = request.root;
  call.count = request.count;
  if (!request.counts.empty())
    call.counts_hash =
        hash_bytes(request.counts.data(), request.counts.size() * sizeof request.counts[0]);
  return call;
}

Flight::Flight(FlightInfo info) : info_(std::move(info)), forks_(forks_so_far()) {
  info_.mine->live_in(pid_namespace());
  FlightList& list = flight_list();
  const std::lock_guard<std::mutex> hold(list.guard);
  list.all.push_back(this);
}

Flight::~Flight() {
  if (forks_ != forks_so_far()) return;
  FlightList& list = flight_list();
  const std::lock_guard<std::mutex> hold(list.guard);
  std::erase(list.all, this);
}

void for_each_flight(const std::function<void(const FlightInfo& info)>& look) {
  FlightList& list = flight_list();
  const std::lock_guard<std::mutex> hold(list.guard);
  for (const Flight* const one : list.all) look(one->info());
}

std::uint64_t pid_namespace() {
  struct stat found{};
  return ::stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

ProcessState state_of(const FlightRank& rank) {
  const std::uint64_t home = rank.ring->home();
  return home != 0 && home == pid_namespace() ? process_state(rank.pid) : ProcessState::runs;
}

std::vector<RankFlight> flights_of(const FlightInfo& info) {
  std::vector<RankFlight> all;
  for (const FlightRank& from : info.here) {
    RankFlight to;
    to.rank = from.rank;
    to.pid = from.pid;
    to.state = state_of(from);
    to.ended = from.ring->ended();
    to.named = from.ring->named();
    to.calls = from.ring->calls();
    to.numbered = from.ring->numbered();
    all.push_back(std::move(to));
  }
  return all;
}

}  // namespace plait
