// Puts the words of slots into text. Runs in threads of plait, which call no MPI: names of types
// and communicators come from the handles alone, and requests are read by the kernel, since the
// program may have freed them.
#include "shims/mpi/args/in_call.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/liveness/peer_watch.hpp"
#include "plait/error.hpp"
#include "shims/mpi/args/native_flight.hpp"
#include "shims/mpi/args/settings.hpp"

namespace plait::mpi {

constinit thread_local CallSlot* call_slot = nullptr;

namespace {

constinit std::atomic<bool> looks_at_calls{false};
/// For calls that are not looked at; a slot a thread, since threads would share a cache line.
constinit thread_local CallSlot unread_slot;

/// Gives the thread's slot back. A call behind the end of the thread's objects goes unread.
struct SlotHolder {
  CallSlot* taken = nullptr;
  ~SlotHolder() {
    call_slot = &unread_slot;
    if (taken != nullptr) give_call_slot(*taken);
  }
};
thread_local SlotHolder holder;

std::string comm_text(Handle comm) {
  const Abi& abi = native().abi;
  const Handle key = abi.key(comm);
  if (key == abi.key(abi.world)) return "MPI_COMM_WORLD";
  if (key == abi.key(abi.self)) return "MPI_COMM_SELF";
  return text("communicator 0x{:x}", key);
}

/// Returns " of at most 4 MPI_INT" for limit = "at most ".
std::string data_text(const CallSlot::Words& words, const char* limit = "") {
  const auto count = static_cast<Count>(words[3]);
  const MpiType* const type = native().abi.type(words[2]);
  const std::string name = type != nullptr ? type->name : "elements of another type";
  if (count == kManyCounts) return type != nullptr ? " of " + name : "";
  return text(" of {}{} {}", limit, count, name);
}

/// Returns "rank 1, tag 7".
std::string peer_text(std::uint64_t word) {
  const Abi& abi = native().abi;
  const auto rank = static_cast<std::int32_t>(word >> 32);
  const auto tag = static_cast<std::int32_t>(word);
  return text("{}, {}", rank == abi.any_source ? "any source" : text("rank {}", rank),
              tag == abi.any_tag ? "any tag" : text("tag {}", tag));
}

/// Returns the number of requests in the program's array that are not null; the array's length if
/// the memory cannot be read.
int count_active(const void* requests, int count) {
  const Abi& abi = native().abi;
  std::vector<std::byte> copy(static_cast<std::size_t>(count) *
                              static_cast<std::size_t>(abi.handle_bytes));
  const iovec to{copy.data(), copy.size()};
  const iovec from{const_cast<void*>(requests), copy.size()};
  if (::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) != static_cast<ssize_t>(copy.size()))
    return count;
  int active = 0;
  for (int at = 0; at < count; ++at)
    active += abi.key(abi.at(copy.data(), at)) != abi.key(abi.no_request) ? 1 : 0;
  return active;
}

std::string requests_text(const CallSlot::Words& words) {
  const auto count = static_cast<int>(words[2]);
  const int active = count_active(reinterpret_cast<const void*>(words[1]), std::max(count, 0));
  return text(" of {} request{}{}", active, active == 1 ? "" : "s",
              active == count ? "" : text(" among {} handles", count));
}

std::string describe(const CallSlot::Words& words) {
  const std::string name = name_of_function(words[0] >> 8);
  const std::string comm = ", on " + comm_text(words[1]);
  switch (static_cast<CallFields>(words[0] & 0xff)) {
    case CallFields::send: return name + data_text(words) + " to " + peer_text(words[4]) + comm;
    case CallFields::receive:
      return name + data_text(words, "at most ") + " from " + peer_text(words[4]) + comm;
    case CallFields::matched: return name + data_text(words, "at most ");
    case CallFields::exchange:
      return name + data_text(words) + " to " + peer_text(words[4]) + ", from " +
             peer_text(words[5]) + comm;
    case CallFields::probe: return name + " for a message from " + peer_text(words[4]) + comm;
    case CallFields::requests: return name + requests_text(words);
    case CallFields::collective: return name + data_text(words) + comm;
    case CallFields::rooted:
      return name + data_text(words) +
             text(", root {}", static_cast<std::int32_t>(words[4] >> 32)) + comm;
    case CallFields::bare: return name + comm.substr(1);
  }
  return name;
}

}  // namespace

CallSlot& first_call_slot() noexcept {
  CallSlot* found = &unread_slot;
  if (looks_at_calls.load())
    static_cast<void>(attempt([&] { found = holder.taken = &take_call_slot(); }));
  call_slot = found;
  return *found;
}

void begin_call_slots() noexcept {
  if (settings().broken || (settings().disabled && !records_native())) return;
  const std::optional<Error> failure = attempt([] {
    OpenCallsInfo info;
    info.door = "mpi";
    info.describe = describe;
    native().Comm_rank(native().abi.world, &info.rank);
    native().Comm_size(native().abi.world, &info.ranks);
    watch_open_calls(std::move(info));
    looks_at_calls.store(true);
    if (call_slot == &unread_slot) call_slot = nullptr;  // of a call in front of MPI_Init
  });
  if (failure) log(LogLevel::warn, -1, text("waits are not shown: {}", failure->what()));
}

}  // namespace plait::mpi
