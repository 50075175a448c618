// Communicators of the stand-in: made over a segment that the unique id names, split by an exchange
// of colours, ended by a flag.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "tests/shims/standin/nccl.hpp"

namespace standin {
namespace {

/// Returns NCCL_COMM_BLOCKING, else the configuration, else the parent's mode.
bool blocks(const void* config, const CommTag* parent) {
  if (const char* said = std::getenv("NCCL_COMM_BLOCKING")) return std::atoi(said) != 0;
  if (config == nullptr) return parent == nullptr || parent->blocks;
  ConfigHead head{};
  std::memcpy(&head, config, sizeof head);
  return head.blocking != 0;
}

Result join(CommTag* comm, const SegmentHandle& where) {
  try {
    comm->segment = map_segment(where);
    barrier(comm->segment->making, comm->rank, comm->ranks,
            [comm] { return comm->aborted.load(); });
    comm->is_made.store(true);
    return ncclSuccess;
  } catch (const std::exception&) {
    return ncclSystemError;
  }
}

struct SplitMember {
  int color, key, rank;
  SegmentHandle where;
};

/// Exchanges colours of all ranks of `parent`; makes the child of this rank's colour, in order of
/// key.
Result split_now(CommTag* parent, CommTag* child, int color, int key) {
  try {
    SplitMember mine{color, key, parent->rank, make_segment()};
    const std::vector<char> shown =
        gather(parent->segment->making, parent->rank, parent->ranks, &mine, sizeof mine,
               [parent] { return parent->aborted.load(); });
    std::vector<SplitMember> members;
    for (std::size_t at = 0; at < shown.size(); at += sizeof(SplitMember)) {
      SplitMember member;
      std::memcpy(&member, shown.data() + at, sizeof member);
      if (member.color == color) members.push_back(member);
    }
    if (child == nullptr) {
      ::close(mine.where.file);
      return ncclSuccess;
    }
    std::sort(members.begin(), members.end(), [](const SplitMember& a, const SplitMember& b) {
      return std::tie(a.key, a.rank) < std::tie(b.key, b.rank);
    });
    child->ranks = static_cast<int>(members.size());
    for (int i = 0; i < child->ranks; ++i)
      if (members[static_cast<std::size_t>(i)].rank == parent->rank) child->rank = i;
    const Result joined = join(child, members[0].where);
    ::close(mine.where.file);
    return joined;
  } catch (const std::exception&) {
    return ncclSystemError;
  }
}

CommTag* fresh(int ranks, int rank, int device, bool blocks) {
  auto* comm = new CommTag;
  comm->self.reset(comm);
  comm->ranks = ranks;
  comm->rank = rank;
  comm->device = device;
  comm->blocks = blocks;
  return comm;
}

/// Makes a child of `parent` as NCCL does: in a thread if the parent does not block. The handle is
/// null until the child is made.
Result make_child(CommTag* parent, CommTag* made, Comm* child, std::function<Result()> make) {
  *child = nullptr;
  const Result result = make_now_or_later(parent, [=, make = std::move(make)] {
    const Result found = make();
    if (found == ncclSuccess) __atomic_store_n(child, made, __ATOMIC_RELEASE);
    return found;
  });
  // STANDIN_RETURNS_LATE: the thread of a rank is delayed before returning.
  const char* const late = std::getenv("STANDIN_RETURNS_LATE");
  if (late != nullptr && std::atoi(late) == parent->rank && made != nullptr)
    while (__atomic_load_n(child, __ATOMIC_ACQUIRE) == nullptr) std::this_thread::yield();
  return result;
}

}  // namespace
}  // namespace standin

using namespace standin;

STANDIN_API Result ncclGetVersion(int* version) {
  const char* given = std::getenv("STANDIN_VERSION");
  *version = given == nullptr ? 22809 : std::atoi(given);
  return ncclSuccess;
}

STANDIN_API const char* ncclGetErrorString(Result) { return "an error of the stand-in"; }

STANDIN_API Result ncclGetUniqueId(UniqueId* id) {
  const SegmentHandle where = make_segment();
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->bytes, &where, sizeof where);
  return ncclSuccess;
}

STANDIN_API Result ncclGroupStart();
STANDIN_API Result ncclGroupEnd();

STANDIN_API Result ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank,
                                          void* config) {
  count("ncclCommInitRank");
  if (ranks > kMaxRanks || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  SegmentHandle where;
  std::memcpy(&where, id.bytes, sizeof where);
  CommTag* made = *comm = fresh(ranks, rank, rank, blocks(config, nullptr));
  const Result result = make_now_or_later(made, [made, where] { return join(made, where); });
  return made->blocks ? result : state_of(made);
}

/// Makes the communicator at once, even if non-blocking.
STANDIN_API Result ncclCommInitRank(Comm* comm, int ranks, UniqueId id, int rank) {
  const Result result = ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
  while (result == ncclInProgress && state_of(*comm) == ncclInProgress) std::this_thread::yield();
  return result == ncclInProgress ? state_of(*comm) : result;
}

/// Needs the first id alone.
STANDIN_API Result ncclCommInitRankScalable(Comm* comm, int ranks, int rank, int id_count,
                                            UniqueId* ids, void* config) {
  if (id_count < 1 || id_count > ranks) return ncclInvalidArgument;
  return ncclCommInitRankConfig(comm, ranks, ids[0], rank, config);
}

STANDIN_API Result ncclCommInitAll(Comm* comms, int count_, const int* devices) {
  UniqueId id;
  ncclGetUniqueId(&id);
  ncclGroupStart();
  for (int rank = 0; rank < count_; ++rank) {
    ncclCommInitRank(&comms[rank], count_, id, rank);
    if (devices != nullptr) comms[rank]->device = devices[rank];
  }
  return ncclGroupEnd();
}

STANDIN_API Result ncclCommSplit(Comm comm, int color, int key, Comm* child, void* config) {
  count("ncclCommSplit");
  if (state_of(comm) != ncclSuccess || color < kSplitNoColor) return ncclInvalidArgument;
  CommTag* made =
      color == kSplitNoColor ? nullptr : fresh(1, 0, comm->device, blocks(config, comm));
  if (made != nullptr) made->is_split = true;
  return make_child(comm, made, child, [=] { return split_now(comm, made, color, key); });
}

STANDIN_API Result ncclCommShrink(Comm comm, int* excluded, int excluded_count, Comm* child,
                                  void* config, int) {
  if (state_of(comm) != ncclSuccess) return ncclInvalidArgument;
  if (excluded == nullptr || excluded_count < 1 || excluded_count >= comm->ranks)
    return ncclInvalidArgument;
  // The remaining ranks use a segment of the first of them, whose handle goes by the parent's
  // messages.
  std::vector<int> left;
  for (int rank = 0; rank < comm->ranks; ++rank)
    if (std::find(excluded, excluded + excluded_count, rank) == excluded + excluded_count)
      left.push_back(rank);
  const auto mine = std::find(left.begin(), left.end(), comm->rank);
  if (mine == left.end()) return ncclInvalidArgument;
  CommTag* made = fresh(static_cast<int>(left.size()), static_cast<int>(mine - left.begin()),
                        comm->device, blocks(config, comm));
  return make_child(comm, made, child, [=] {
    SegmentHandle where;
    if (made->rank == 0) where = make_segment();
    for (std::size_t peer = 1; peer < left.size(); ++peer) {
      StandinMessage message;
      message.bytes = sizeof where;
      message.sends = made->rank == 0;
      message.peer = message.sends ? left[peer] : left[0];
      message.input = message.output = &where;
      if (made->rank == 0 || left[peer] == comm->rank)
        wait_for([&] { return message.step(*comm); }, [] { return false; });
    }
    const Result joined = join(made, where);
    if (made->rank == 0) ::close(where.file);
    return joined;
  });
}

/// Returns an id for ncclCommGrow: a rank of the parent gets it and gives it to the new ranks.
STANDIN_API Result ncclCommGetUniqueId(Comm comm, UniqueId* id) {
  if (state_of(comm) != ncclSuccess) return ncclInvalidArgument;
  comm->grown_at = make_segment();
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->bytes, &comm->grown_at, sizeof comm->grown_at);
  return ncclSuccess;
}

/// Stores the handle at once; its own state shows the progress.
STANDIN_API Result ncclCommGrow(Comm comm, int ranks, const UniqueId* id, int rank, Comm* child,
                                void* config) {
  const bool joins = comm == nullptr;
  if (ranks > kMaxRanks || joins != (id != nullptr) || joins != (rank >= 0) ||
      (!joins && state_of(comm) != ncclSuccess))
    return ncclInvalidArgument;
  CommTag* made = *child =
      fresh(ranks, joins ? rank : comm->rank, joins ? rank : comm->device, blocks(config, comm));
  SegmentHandle where;
  if (joins) std::memcpy(&where, id->bytes, sizeof where);
  return make_now_or_later(made, [=]() mutable {
    if (!joins) {
      const std::vector<char> shown =
          gather(comm->segment->making, comm->rank, comm->ranks, &comm->grown_at, sizeof where,
                 [comm] { return comm->aborted.load(); });
      for (std::size_t at = 0; at < shown.size() && where.process == 0; at += sizeof where)
        std::memcpy(&where, shown.data() + at, sizeof where);
    }
    return join(made, where);
  });
}

/// Waits for all ranks, as NCCL does.
STANDIN_API Result ncclCommSuspend(Comm comm, int flags) {
  if (state_of(comm) != ncclSuccess || comm->suspended) return ncclInvalidUsage;
  barrier(comm->segment->making, comm->rank, comm->ranks, [comm] { return comm->aborted.load(); });
  comm->suspended = (flags & 1) != 0;
  return ncclSuccess;
}

/// Waits for all ranks; with STANDIN_RESUMES_ALONE for none.
STANDIN_API Result ncclCommResume(Comm comm) {
  if (state_of(comm) != ncclSuccess || !comm->suspended) return ncclInvalidUsage;
  if (std::getenv("STANDIN_RESUMES_ALONE") == nullptr)
    barrier(comm->segment->making, comm->rank, comm->ranks,
            [comm] { return comm->aborted.load(); });
  comm->suspended = false;
  return ncclSuccess;
}

/// Answers 1000, whether it is suspended, 2000 and 3000 for ncclCommMemStat_t.
STANDIN_API Result ncclCommMemStats(Comm comm, int stat, std::uint64_t* value) {
  if (comm == nullptr || value == nullptr || stat < 0 || stat > 3) return ncclInvalidArgument;
  *value = stat == 1   ? (comm->suspended ? 1 : 0)
           : stat == 0 ? 1000
                       : static_cast<std::uint64_t>(stat) * 1000;
  return ncclSuccess;
}

/// Returns when the communicator's calls have ended.
STANDIN_API Result ncclCommFinalize(Comm comm) {
  count("ncclCommFinalize");
  if (state_of(comm) != ncclSuccess) return ncclInvalidArgument;
  comm->is_finalized = true;
  const Result result = make_now_or_later(comm, [last = comm->last.last] {
    if (last != nullptr) last->wait();
    return ncclSuccess;
  });
  return comm->blocks ? result : state_of(comm);
}

STANDIN_API Result ncclCommDestroy(Comm comm) {
  count("ncclCommDestroy");
  if (comm == nullptr) return ncclInvalidArgument;
  const std::shared_ptr<CommTag> last = std::move(comm->self);
  last->job = nullptr;  // joined
  return ncclSuccess;
}

STANDIN_API Result ncclCommAbort(Comm comm) {
  count("ncclCommAbort");
  if (comm->aborted.exchange(true)) count("ncclCommAbort again");
  // STANDIN_ABORT_S: abort of a split communicator takes that long, as NCCL may wait for lost
  // ranks.
  const char* const waits = std::getenv("STANDIN_ABORT_S");
  if (waits != nullptr && comm->is_split)
    std::this_thread::sleep_for(std::chrono::duration<double>(std::atof(waits)));
  comm->job = nullptr;  // joined
  static std::mutex guard;
  static auto* const kept = new std::vector<Comm>;  // tasks may still read it
  const std::lock_guard<std::mutex> hold(guard);
  kept->push_back(comm);
  return ncclSuccess;
}

/// Refuses flags, and a communicator that is being finalized.
STANDIN_API Result ncclCommRevoke(Comm comm, int flags) {
  if (flags != 0 || comm->is_finalized) return ncclInvalidArgument;
  comm->aborted.store(true);
  return ncclSuccess;
}

STANDIN_API Result ncclCommGetAsyncError(Comm comm, Result* error) {
  *error = state_of(comm);
  return ncclSuccess;
}

/// Refuses queries of a communicator in progress. Answers 0 before a group has made the
/// communicator, as NCCL does.
STANDIN_API Result ncclCommCount(Comm comm, int* ranks) {
  if (state_of(comm) == ncclInProgress) return ncclInvalidArgument;
  *ranks = comm->is_made.load() ? comm->ranks : 0;
  return ncclSuccess;
}

STANDIN_API Result ncclCommUserRank(Comm comm, int* rank) {
  if (state_of(comm) == ncclInProgress) return ncclInvalidArgument;
  *rank = comm->rank;
  return ncclSuccess;
}

STANDIN_API Result ncclCommCuDevice(Comm comm, int* device) {
  if (state_of(comm) == ncclInProgress) return ncclInvalidArgument;
  *device = comm->device;
  return ncclSuccess;
}
