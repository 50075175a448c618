// Writes the lines of PLAIT_DEBUG=INFO and EXPLAIN, and keeps which of the latter have been
// written.
#include "shims/mpi/collective/explain.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
#include "shims/mpi/args/counting.hpp"
#include "shims/mpi/collective/attach.hpp"
#include "shims/mpi/requests/freed_comm.hpp"

namespace plait::mpi {
namespace {

constexpr const char* kAttach =
    "the communicator could not be attached, or too many are; a warning above names a failure";
constexpr const char* kThin =
    "each node has one rank: such calls are served if PLAIT_MIN_BYTES is set";

/// Why plait serves no call on a communicator.
std::string why_comm_is_native(Handle comm) {
  int inter = 0;
  RankPosition position;
  if (native().abi.key(comm) == native().abi.no_comm) return "the communicator is MPI_COMM_NULL";
  if (native().Comm_test_inter(comm, &inter) == 0 && inter != 0)
    return "the communicator is an intercommunicator";
  if (FreedCommScope::has(comm)) return "the communicator is being freed";
  if (can_attach(comm, position) && is_thin(position)) return kThin;
  if (can_attach(comm, position)) return kAttach;
  if (position.ranks < 2) return "the communicator has one rank";
  if (position.ranks > kMaxRanks) return text("the communicator has more than {} ranks", kMaxRanks);
  if (position.nodes == 0)
    return "the communicator has ranks of several MPI_COMM_WORLDs (spawn, connect, join)";
  return text("a node has more than {} ranks of the communicator", kMostRanks);
}

/// Names the least size that plait serves, or the setting without which it serves none.
std::string words_of_bytes(const CollectiveArgs& args) {
  RankPosition position;
  const bool over_nodes = can_attach(args.comm, position) && position.nodes > 1;
  const std::uint64_t gpus =
      job_uses_gpus() && !over_nodes ? min_bytes_on_gpus(args.collective) : kNever;
  const std::uint64_t host =
      over_nodes ? min_bytes_multinode(args.collective) : min_bytes_on_host(args.collective);
  const std::uint64_t least = std::min(host, gpus);
  if (least == kNever) return text("PLAIT_OPS does not name {}", name_of(args.collective));
  return text("the message is smaller than PLAIT_MIN_BYTES, here {} bytes", least);
}

std::string words_of(const CollectiveArgs& args, Fallback why) {
  switch (why) {
    case Fallback::none: return "plait lacks the function";
    case Fallback::job: return text("no call of this job is served: {}", why_job_is_native());
    case Fallback::bytes: return words_of_bytes(args);
    case Fallback::arguments: return "the call moves no data, or an argument is wrong";
    case Fallback::type: return "plait does not reduce this type";
    case Fallback::op:
      return "plait does not run this operation, but MPI_SUM, PROD, MIN, MAX, BAND, BOR and BXOR";
    case Fallback::op_on_type: return "the operation is not defined on this type";
    case Fallback::short_sum:
      return "sums of integers of 8 and 16 bits are Open MPI's, which saturate";
    case Fallback::communicator: return why_comm_is_native(args.comm);
    case Fallback::attach: return kAttach;
    case Fallback::not_attached:
      return "no blocking call has attached the communicator before this non-blocking call";
    case Fallback::not_on_gpus:
      return "no blocking call has found all ranks' buffers on GPUs before this non-blocking call";
    case Fallback::own_counts:
      return "sizes that only two ranks know are served with PLAIT_MPI_HOST=1 alone";
    case Fallback::no_gpu_in_use:
      return "only GPU memory is served (PLAIT_MPI_HOST), and no rank is known to use a GPU";
    case Fallback::host_memory:
      return "only GPU memory is served (PLAIT_MPI_HOST), and all ranks' buffers are in host "
             "memory";
    case Fallback::resource: return "a rank lacks a resource; PLAIT_DEBUG=WARN says which";
    case Fallback::many_nodes:
      return "the communicator has several nodes: non-blocking and persistent calls are the MPI's";
    case Fallback::uneven_nodes:
      return "the communicator has several nodes: parts of unequal sizes are the MPI's";
    case Fallback::thin_nodes: return kThin;
  }
  return "";
}

std::string name_of_type(Handle type) {
  const Abi& abi = native().abi;
  std::array<char, 256> name{};  // MPI_MAX_OBJECT_NAME is less
  int length = 0;
  if (abi.key(type) == abi.no_type) return "MPI_DATATYPE_NULL";
  if (native().Type_get_name(type, name.data(), &length) != 0 || length == 0)
    return "elements of a derived type";
  return name.data();
}

/// Returns whether this rank writes the lines of the communicator.
bool is_writer(Handle comm) {
  int rank = 0;
  if (native().abi.key(comm) != native().abi.no_comm) native().Comm_rank(comm, &rank);
  return rank == 0;
}

/// Writes a line unless the process has written one with the same words before the call.
void explain(const std::string& line, const std::string& call) {
  static std::mutex mutex;
  static auto* const written = new std::set<std::string>;
  {
    const std::lock_guard lock(mutex);
    if (!written->insert(line).second) return;
  }
  int world_rank = 0;
  native().Comm_rank(native().abi.world, &world_rank);
  log(LogLevel::explain, world_rank, text("{}{}", line, call));
}

/// Names the rank's part of a call. An intercommunicator's arguments may be invalid on this rank.
std::string words_of_part(const CollectiveArgs& args) {
  RankPosition position;
  int inter = 0;
  if (native().abi.key(args.comm) == native().abi.no_comm) return "";
  if (native().Comm_test_inter(args.comm, &inter) != 0 || inter != 0) return "";
  native().Comm_size(args.comm, &position.ranks);
  native().Comm_rank(args.comm, &position.rank);
  const std::string bytes = text("{} bytes", bytes_of_native(args));
  if (args.own_counts || args.counts) return text(" (first such call: {})", bytes);
  const RankPart part = part_of(args, position);
  return text(" (first such call: {} {}, {})", part.count, name_of_type(part.type), bytes);
}

/// Returns whether some collective is served at a size.
bool serves_any(std::uint64_t (*least)(Collective)) {
  for (int at = 0; at <= static_cast<int>(Collective::copy); ++at)
    if (least(static_cast<Collective>(at)) != kNever) return true;
  return false;
}

/// Returns the memory that plait serves.
std::string memory_served(int nodes) {
  if (nodes > 1 && !serves_any(min_bytes_multinode)) return "";
  if (nodes > 1) return job_uses_gpus() ? "host memory and staged GPU memory" : "host memory";
  const bool host = serves_any(min_bytes_on_host);
  const bool gpus = job_uses_gpus() && serves_any(min_bytes_on_gpus);
  if (host && gpus) return "host and GPU memory";
  return host ? "host memory" : gpus ? "GPU memory" : "";
}

std::string words_of_position(const RankPosition& position) {
  return text("{} ranks on {} node{}", position.ranks, position.nodes,
              position.nodes == 1 ? "" : "s");
}

}  // namespace

void note_job(bool serves) {
  static_cast<void>(attempt([&] {
    RankPosition position;
    const Handle world = native().abi.world;
    native().Comm_rank(world, &position.rank);
    if (position.rank != 0) return;
    if (!serves) {
      log(LogLevel::info, 0, text("all communicators stay with the MPI: {}", why_job_is_native()));
      return;
    }
    if (!can_attach(world, position) || is_thin(position)) return;  // note_native() says so
    const std::string memory = memory_served(position.nodes);
    log(LogLevel::info, 0,
        text("serves {} of this job of {}: a communicator is attached in its first blocking "
             "collective that is large enough (PLAIT_MIN_BYTES)",
             memory.empty() ? "no call" : memory, words_of_position(position)));
  }));
}

void note_attached(const RankPosition& position) {
  log(LogLevel::info, position.rank,
      text("attached to a communicator of {}: plait serves {}", words_of_position(position),
           memory_served(position.nodes)));
}

void note_native(Handle comm) {
  static_cast<void>(attempt([&] {
    int inter = 0;
    RankPosition position;
    if (native().Comm_test_inter(comm, &inter) != 0) return;
    native().Comm_rank(comm, &position.rank);
    native().Comm_size(comm, &position.ranks);
    if (position.rank == 0 && (inter != 0 || position.ranks > 1))
      log(LogLevel::info, 0,
          text("a communicator of {} ranks stays with the MPI: {}", position.ranks,
               why_comm_is_native(comm)));
  }));
}

void explain_fallback(const char* function, const CollectiveArgs& args, Fallback why) {
  // A failed explanation does not replace the call.
  static_cast<void>(attempt([&] {
    if (is_writer(args.comm))
      explain(text("{} goes to the MPI: {}", function, words_of(args, why)), words_of_part(args));
  }));
}

void explain_staging(const CollectiveArgs& args, const char* why) {
  static_cast<void>(attempt([&] {
    explain(text("{} stages device memory: {}", name_of(args.collective), why),
            words_of_part(args));
  }));
}

void explain_message(const char* function, Count count, Handle type, Handle comm,
                     const std::string& why) {
  static_cast<void>(attempt([&] {
    if (is_writer(comm))
      explain(text("{} goes to the MPI: {}", function, why),
              text(" (first such call: {} {})", count, name_of_type(type)));
  }));
}

}  // namespace plait::mpi
