// The stand-in's communicators: made over a segment that the unique id points to, split by showing
// each other colours, ended by a flag.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "tests/shims/standin/nccl.hpp"

namespace standin {
namespace {

bool blocks(const void* config) {
  if (config == nullptr) return true;
  ConfigHead head{};
  std::memcpy(&head, config, sizeof head);
  return head.blocking != 0;
}

Result join(CommTag* comm, const Where& where) {
  try {
    comm->segment = map_segment(where);
    meet(comm->segment->making, comm->rank, comm->ranks, [] { return false; });
    return ncclSuccess;
  } catch (const std::exception&) {
    return ncclSystemError;
  }
}

struct Choice {
  int color, key, rank;
  Where where;
};

/// All ranks of `parent` show their colour; the members of mine, in order of key.
Result split_now(CommTag* parent, CommTag* child, int color, int key) {
  try {
    Choice mine{color, key, parent->rank, make_segment()};
    const std::vector<char> shown = gather(parent->segment->making, parent->rank, parent->ranks,
                                           &mine, sizeof mine, [] { return false; });
    std::vector<Choice> members;
    for (std::size_t at = 0; at < shown.size(); at += sizeof(Choice)) {
      Choice choice;
      std::memcpy(&choice, shown.data() + at, sizeof choice);
      if (choice.color == color) members.push_back(choice);
    }
    if (child == nullptr) {
      ::close(mine.where.file);
      return ncclSuccess;
    }
    std::sort(members.begin(), members.end(), [](const Choice& a, const Choice& b) {
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

CommTag* fresh(int ranks, int rank, int device) {
  auto* comm = new CommTag;
  comm->self.reset(comm);
  comm->ranks = ranks;
  comm->rank = rank;
  comm->device = device;
  return comm;
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
  const Where where = make_segment();
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->bytes, &where, sizeof where);
  return ncclSuccess;
}

STANDIN_API Result ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank,
                                          void* config) {
  count("ncclCommInitRank");
  if (ranks > kMaxRanks || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  Where where;
  std::memcpy(&where, id.bytes, sizeof where);
  CommTag* made = *comm = fresh(ranks, rank, rank);
  return make_now_or_later(made, blocks(config), [made, where] { return join(made, where); });
}

STANDIN_API Result ncclCommInitRank(Comm* comm, int ranks, UniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

STANDIN_API Result ncclGroupStart();
STANDIN_API Result ncclGroupEnd();

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
  CommTag* made = color == kSplitNoColor ? nullptr : fresh(1, 0, comm->device);
  *child = made;
  if (made != nullptr) made->is_split = true;
  CommTag* waiting = made == nullptr ? comm : made;
  return make_now_or_later(waiting, blocks(config),
                           [=] { return split_now(comm, made, color, key); });
}

STANDIN_API Result ncclCommShrink(Comm comm, int* excluded, int excluded_count, Comm* child,
                                  void* config, int) {
  // Those left meet in a segment of the first of them; its place travels by the parent's mail.
  std::vector<int> left;
  for (int rank = 0; rank < comm->ranks; ++rank)
    if (std::find(excluded, excluded + excluded_count, rank) == excluded + excluded_count)
      left.push_back(rank);
  const auto mine = std::find(left.begin(), left.end(), comm->rank);
  if (mine == left.end()) return ncclInvalidArgument;
  CommTag* made = *child =
      fresh(static_cast<int>(left.size()), static_cast<int>(mine - left.begin()), comm->device);
  return make_now_or_later(made, blocks(config), [=] {
    Where where;
    if (made->rank == 0) where = make_segment();
    for (std::size_t peer = 1; peer < left.size(); ++peer) {
      Message message;
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

STANDIN_API Result ncclCommFinalize(Comm) { return ncclSuccess; }

STANDIN_API Result ncclCommDestroy(Comm comm) {
  count("ncclCommDestroy");
  if (comm == nullptr) return ncclInvalidArgument;
  const std::shared_ptr<CommTag> last = std::move(comm->self);
  return ncclSuccess;
}

STANDIN_API Result ncclCommAbort(Comm comm) {
  count("ncclCommAbort");
  if (comm->aborted.exchange(true)) count("ncclCommAbort again");
  // STANDIN_ABORT_S: that of a split communicator waits so long, as NCCL may for ranks that are
  // gone.
  const char* const waits = std::getenv("STANDIN_ABORT_S");
  if (waits != nullptr && comm->is_split)
    std::this_thread::sleep_for(std::chrono::duration<double>(std::atof(waits)));
  static std::mutex guard;
  static auto* const kept = new std::vector<Comm>;  // tasks may still look at it
  const std::lock_guard<std::mutex> hold(guard);
  kept->push_back(comm);
  return ncclSuccess;
}

STANDIN_API Result ncclCommRevoke(Comm comm, int) {
  comm->aborted.store(true);
  return ncclSuccess;
}

STANDIN_API Result ncclCommGetAsyncError(Comm comm, Result* error) {
  *error = comm->error.load();
  return ncclSuccess;
}

STANDIN_API Result ncclCommCount(Comm comm, int* ranks) {
  *ranks = comm->ranks;
  return comm->error.load() == ncclInProgress ? ncclInProgress : ncclSuccess;
}

STANDIN_API Result ncclCommUserRank(Comm comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

STANDIN_API Result ncclCommCuDevice(Comm comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}
