// A communicator of our own beside MPI_COMM_WORLD, one more for each group of ranks that calls
// name, and operations of our own, since MPI knows neither 16-bit floats nor how NaNs are to come
// out. All calls are begun and tested, so deadlines hold and pieces overlap.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <map>
#include <utility>

#include "base/text.hpp"
#include "comm/mpi/loaded.hpp"
#include "comm/world.hpp"
#include "exec/cpu/cpu.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

using mpi::Handle;

/// MPI_User_function.
using Combine = void(void* in, void* inout, int* count, void* type);

struct Functions {
#define PLAIT_MPI_FUNCTION(name, parameters) int(*name) parameters = nullptr;
#include "comm/mpi/node_functions.def"
#undef PLAIT_MPI_FUNCTION
};

Functions functions_of(const mpi::Loaded& loaded) {
  Functions found;
#define PLAIT_MPI_FUNCTION(name, parameters)                                                \
  found.name = reinterpret_cast<int(*) parameters>(::dlsym(loaded.library, "PMPI_" #name)); \
  if (found.name == nullptr)                                                                \
    throw Error(ErrorCode::unsupported, text(loaded.path, " has no MPI_" #name ": wanted MPI 3"));
#include "comm/mpi/node_functions.def"
#undef PLAIT_MPI_FUNCTION
  return found;
}

template <DataType type, ReduceOp op>
void combine(void* in, void* inout, int* count, void*) {
  const void* srcs[] = {inout, in};
  reduce_cpu(type, op, inout, srcs, 2, static_cast<std::uint64_t>(*count), 1, false, nullptr);
}

constexpr DataType kTypes[] = {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) DataType::name,
#include "plait/types.def"
#undef PLAIT_TYPE
};
constexpr ReduceOp kOps[] = {
#define PLAIT_REDUCE_OP(name, on_floats, on_integers) ReduceOp::name,
#include "plait/reduce_ops.def"
#undef PLAIT_REDUCE_OP
};

/// Averages and scaled sums are sums between nodes.
constexpr ReduceOp combined(ReduceOp op) {
  return op == ReduceOp::avg || op == ReduceOp::premul_sum ? ReduceOp::sum : op;
}

template <std::size_t... pairs>
constexpr auto combines(std::index_sequence<pairs...>) {
  return std::array<Combine*, sizeof...(pairs)>{
      combine<kTypes[pairs / std::size(kOps)], combined(kOps[pairs % std::size(kOps)])>...};
}
constexpr auto kCombines =
    combines(std::make_index_sequence<std::size(kTypes) * std::size(kOps)>());

class MpiWorld : public World {
 public:
  MpiWorld(mpi::Loaded loaded, int ranks) : loaded_(std::move(loaded)), ranks_(ranks) {
    call(mpi_.Comm_dup(loaded_.abi.world, &whole_), "MPI_Comm_dup");
    call(mpi_.Comm_group(whole_, &group_), "MPI_Comm_group");
  }
  ~MpiWorld() override {
    int is_over = 1;
    if (mpi_.Finalized(&is_over) != 0 || is_over != 0 || !is_idle()) return;
    for (auto& [ranks, comm] : comms_) mpi_.Comm_free(&comm);
    for (auto& [combine, op] : ops_) mpi_.Op_free(&op);
    for (auto& [bytes, type] : types_) mpi_.Type_free(&type);
    mpi_.Group_free(&group_);
    mpi_.Comm_free(&whole_);
  }
  int ranks() const override { return ranks_; }

  int begin(const Request& request, const std::vector<int>& ranks, int member, const void* src,
            void* dst) override {
    if (request.count > INT_MAX)
      throw Error(ErrorCode::unsupported, text("between nodes: wanted at most ", INT_MAX,
                                               " elements a call, found ", request.count));
    const auto free =
        std::find_if(begun_.begin(), begun_.end(), [](const Begun& one) { return !one.is_taken; });
    const auto number = static_cast<std::size_t>(free - begun_.begin());
    if (free == begun_.end()) begun_.emplace_back();
    Begun& begun = begun_[number];
    begun.is_taken = true;
    begun.is_done = begun.has_second = false;
    call(start(request, comm_of(ranks), member, src, dst, begun), "a call between nodes");
    return static_cast<int>(number);
  }
  bool is_done(int number) override {
    Begun& begun = begun_[static_cast<std::size_t>(number)];
    if (begun.is_done) return true;
    int flag = 0;
    call(mpi_.Test(&begun.request, &flag, loaded_.abi.status_ignore), "MPI_Test");
    if (flag != 0 && begun.has_second)
      call(mpi_.Test(&begun.second, &flag, loaded_.abi.status_ignore), "MPI_Test");
    return begun.is_done = flag != 0;
  }
  void end(int number) override {
    Begun& begun = begun_[static_cast<std::size_t>(number)];
    begun.is_taken = false;
    begun.staged.clear();
  }

  bool is_idle() const override {
    return std::all_of(begun_.begin(), begun_.end(),
                       [](const Begun& one) { return !one.is_taken || one.is_done; });
  }

  std::vector<std::string> exchange(const std::string& mine, const Patience& patience) override {
    const std::vector<std::uint64_t> sizes = gathered<std::uint64_t>({mine.size()}, patience);
    const std::uint64_t most = *std::max_element(sizes.begin(), sizes.end());
    std::vector<char> padded(mine.begin(), mine.end());
    padded.resize(most);
    const std::vector<char> all = most == 0 ? padded : gathered(padded, patience);
    std::vector<std::string> cards;
    for (std::size_t rank = 0; rank < sizes.size(); ++rank)
      cards.emplace_back(all.data() + rank * most, sizes[rank]);
    return cards;
  }

 private:
  struct Begun {
    bool is_taken = false, is_done = false, has_second = false;
    Handle request = 0, second = 0;
    std::vector<char> staged;  ///< what is sent, where the buffers overlap other than MPI lets them
  };

  void call(int result, const char* what) const {
    if (result != 0)
      throw Error(ErrorCode::peer_lost, text(what, " returned ", result, " (", loaded_.path, ")"));
  }

  /// The same elements of every rank, one rank behind another.
  template <class Element>
  std::vector<Element> gathered(const std::vector<Element>& mine, const Patience& patience) {
    Request request;
    request.collective = Collective::all_gather;
    request.type = DataType::uint8;
    request.count = mine.size() * sizeof(Element);
    std::vector<int> everybody(static_cast<std::size_t>(ranks_));
    for (int rank = 0; rank < ranks_; ++rank) everybody[static_cast<std::size_t>(rank)] = rank;
    request.ranks = ranks_;
    auto kept = std::make_unique<std::pair<std::vector<Element>, std::vector<Element>>>();
    kept->first = mine;
    kept->second.resize(mine.size() * everybody.size());
    const int number = begin(request, everybody, 0, kept->first.data(), kept->second.data());
    finish(number, kept, patience, "an exchange between nodes");
    return std::move(kept->second);
  }

  Handle comm_of(const std::vector<int>& ranks) {
    if (static_cast<int>(ranks.size()) == ranks_ && std::is_sorted(ranks.begin(), ranks.end()))
      return whole_;
    Handle& comm = comms_[ranks];
    if (comm != 0) return comm;
    Handle group = 0;
    call(mpi_.Group_incl(group_, static_cast<int>(ranks.size()), ranks.data(), &group),
         "MPI_Group_incl");
    call(mpi_.Comm_create_group(whole_, group, 0, &comm), "MPI_Comm_create_group");
    call(mpi_.Group_free(&group), "MPI_Group_free");
    return comm;
  }
  Handle type_of(DataType type) {
    const auto bytes = static_cast<int>(bytes_of(type));
    Handle& made = types_[bytes];
    if (made != 0) return made;
    call(mpi_.Type_contiguous(bytes, loaded_.abi.byte, &made), "MPI_Type_contiguous");
    call(mpi_.Type_commit(&made), "MPI_Type_commit");
    return made;
  }
  Handle op_of(DataType type, ReduceOp op) {
    Combine* const combine =
        kCombines[static_cast<std::size_t>(type) * std::size(kOps) + static_cast<std::size_t>(op)];
    Handle& made = ops_[combine];
    if (made == 0) call(mpi_.Op_create(combine, 1, &made), "MPI_Op_create");
    return made;
  }

  /// As MPI may read it: apart from what is written.
  const void* apart(const void* src, std::uint64_t src_bytes, const void* dst,
                    std::uint64_t dst_bytes, Begun& begun) {
    const auto* const from = static_cast<const char*>(src);
    const auto* const to = static_cast<const char*>(dst);
    if (src == nullptr || dst == nullptr || from + src_bytes <= to || to + dst_bytes <= from)
      return src;
    begun.staged.assign(from, from + src_bytes);
    return begun.staged.data();
  }

  int start(const Request& r, Handle comm, int member, const void* src, void* dst, Begun& begun) {
    const Handle type = type_of(r.type);
    const int count = static_cast<int>(r.count);
    const std::uint64_t block = r.count * bytes_of(r.type);
    void* const request = &begun.request;
    const void* const in_place = loaded_.abi.in_place;
    const bool is_root = member == r.root;
    const void* const in =
        src == dst ? src : apart(src, input_bytes(r, member), dst, output_bytes(r, member), begun);
    switch (r.collective) {
      case Collective::all_reduce:
        // Never in place: that is for all ranks to say alike, and each knows its own alone.
        return mpi_.Iallreduce(staged_if_same(in, dst, block, begun), dst, count, type,
                               op_of(r.type, r.op), comm, request);
      case Collective::reduce:
        return mpi_.Ireduce(src == dst && is_root ? in_place : in, dst, count, type,
                            op_of(r.type, r.op), r.root, comm, request);
      case Collective::reduce_scatter:
        return mpi_.Ireduce_scatter_block(staged_if_same(in, dst, input_bytes(r, member), begun),
                                          dst, count, type, op_of(r.type, r.op), comm, request);
      case Collective::broadcast:
        if (is_root && dst != nullptr && dst != src) std::memmove(dst, src, block);
        return mpi_.Ibcast(is_root ? const_cast<void*>(src) : dst, count, type, r.root, comm,
                           request);
      case Collective::all_gather:
        return mpi_.Iallgather(staged_if_same(in, dst, block, begun), count, type, dst, count, type,
                               comm, request);
      case Collective::gather:
        return mpi_.Igather(staged_if_same(in, dst, block, begun), count, type, dst, count, type,
                            r.root, comm, request);
      case Collective::scatter:
        return mpi_.Iscatter(staged_if_same(in, dst, input_bytes(r, member), begun), count, type,
                             dst, count, type, r.root, comm, request);
      case Collective::all_to_all:
        return mpi_.Ialltoall(staged_if_same(in, dst, input_bytes(r, member), begun), count, type,
                              dst, count, type, comm, request);
      case Collective::copy:
        if (is_root && r.root == r.peer) std::memmove(dst, src, block);
        if (r.root == r.peer) return begun.is_done = true, 0;
        if (is_root) return mpi_.Isend(src, count, type, r.peer, 0, comm, request);
        if (member == r.peer) return mpi_.Irecv(dst, count, type, r.root, 0, comm, request);
        begun.is_done = true;
        return 0;
      case Collective::send_recv: {
        const int behind = (member + r.ranks - 1) % r.ranks, ahead = (member + 1) % r.ranks;
        const int sent = mpi_.Isend(staged_if_same(in, dst, block, begun), count, type, ahead, 0,
                                    comm, &begun.second);
        begun.has_second = true;
        return sent != 0 ? sent : mpi_.Irecv(dst, count, type, behind, 0, comm, request);
      }
    }
    throw Error(ErrorCode::unsupported,
                text("between nodes: no ", name_of(r.collective), " by ", loaded_.path));
  }

  static const void* staged_if_same(const void* src, const void* dst, std::uint64_t bytes,
                                    Begun& begun) {
    if (src != dst || src == nullptr) return src;
    begun.staged.assign(static_cast<const char*>(src), static_cast<const char*>(src) + bytes);
    return begun.staged.data();
  }

  const mpi::Loaded loaded_;
  const Functions mpi_ = functions_of(loaded_);
  const int ranks_;
  Handle whole_ = 0, group_ = 0;
  std::map<std::vector<int>, Handle> comms_;
  std::map<int, Handle> types_;  // by bytes
  std::map<Combine*, Handle> ops_;
  std::vector<Begun> begun_;
};

}  // namespace

std::unique_ptr<World> mpi_world(int rank, int ranks) {
  mpi::Loaded loaded = mpi::find_loaded();
  if (loaded.library == nullptr) return nullptr;
  const Functions functions = functions_of(loaded);
  int is_begun = 0, is_over = 0;
  if (functions.Initialized(&is_begun) != 0 || is_begun == 0) return nullptr;
  if (functions.Finalized(&is_over) != 0 || is_over != 0) return nullptr;
  int its_rank = -1, its_ranks = -1;
  if (functions.Comm_rank(loaded.abi.world, &its_rank) != 0 ||
      functions.Comm_size(loaded.abi.world, &its_ranks) != 0 || its_rank != rank ||
      its_ranks != ranks)
    throw Error(ErrorCode::mismatch,
                text("this is rank ", rank, " of ", ranks, "; MPI_COMM_WORLD says ", its_rank,
                     " of ", its_ranks, ": both must be the same"));
  return std::make_unique<MpiWorld>(std::move(loaded), ranks);
}

}  // namespace plait
