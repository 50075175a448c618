// Plan: the schedule of a collective at one size on one topology, as a value: lanes of ops on byte
// regions. Planner, verifier, simulator and executors share this header only.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "plait/topology.hpp"

namespace plait {

enum class DataType : std::uint8_t {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) name,
#include "plait/types.def"
#undef PLAIT_TYPE
};

enum class ReduceOp : std::uint8_t {
#define PLAIT_REDUCE_OP(name, on_floats, on_integers) name,
#include "plait/reduce_ops.def"
#undef PLAIT_REDUCE_OP
};

enum class Collective : std::uint8_t {
#define PLAIT_COLLECTIVE(name, input, output, busbw) name,
#include "plait/collectives.def"
#undef PLAIT_COLLECTIVE
};

enum class OpKind : std::uint8_t {
#define PLAIT_OP(name, meaning) name,
#include "plait/ops.def"
#undef PLAIT_OP
};

inline constexpr int kMaxRanks = 64;  ///< ranks of a plan; executors run up to 16 ranks of a node

const char* name_of(DataType type);
const char* name_of(ReduceOp op);
const char* name_of(Collective collective);
const char* name_of(OpKind kind);
DataType parse_type(std::string_view name);  ///< also float32, float, half, bfloat16, float8_e4m3
ReduceOp parse_reduce_op(std::string_view name);
Collective parse_collective(std::string_view name);  ///< also allreduce, all-reduce, ...
std::uint64_t bytes_of(DataType type);
bool is_float(DataType type);
/// True for 8- and 16-bit floats: sums accumulate in fp32, and a region cannot hold a partial sum.
bool is_widened(DataType type);
/// False for bitwise reductions of floats, and for premul_sum of integers.
bool has_reduction(DataType type, ReduceOp op);
/// True if the reduction gives the same bits in any order and grouping: integers wrap; min and max
/// of floats order -0 below +0 and return the type's canonical NaN.
bool has_no_order(DataType type, ReduceOp op);

/// A collective call. Counts are in elements, as in NCCL: the send count of all_gather, the count
/// per peer of all_to_all, the receive count of reduce_scatter and scatter. Uneven requests have a
/// count for each block; blocks are contiguous. counts[r] is the block of rank r (all_gather,
/// reduce_scatter, gather, scatter); counts[from * ranks + to] is the block from one rank to
/// another (all_to_all).
struct Request {
  Collective collective = Collective::all_reduce;
  std::uint64_t count = 0;
  DataType type = DataType::fp32;
  ReduceOp op = ReduceOp::sum;
  int ranks = 1;
  int root = 0;              ///< broadcast, reduce, gather, scatter; the source of copy
  int peer = 0;              ///< the destination of copy
  std::vector<int> devices;  ///< topology device of each rank; empty = the first rank devices
  std::vector<std::uint64_t> counts;  ///< empty = even; else `count` is the largest
  bool operator==(const Request&) const = default;
};

/// Returns the request with `devices` filled in, and normal(). Error(invalid_argument) for values
/// out of range; Error(unsupported) for a reduction that the type does not have.
Request checked(Request request, const Topology& topology);
/// Returns the request with `count` = the largest of `counts`; without `counts` if all are equal.
Request normal(Request request);
/// Returns "all_gather", or "all_gather_v" if counts differ.
std::string name_of(const Request& request);
/// Returns the number of elements for people: "1009", or "5+1009+0" if counts differ.
std::string amount_of(const Request& request);
/// Sizes of a rank's input and output buffers.
std::uint64_t input_bytes(const Request& request, int rank);
std::uint64_t output_bytes(const Request& request, int rank);
/// The message size printed by nccl-tests: count * ranks * type for gathering collectives. Uneven:
/// the bytes of all blocks; for all_to_all the most that a rank sends or receives.
std::uint64_t message_bytes(const Request& request);
/// busbw / algbw by the definition of nccl-tests. Uneven: the largest share of the message that a
/// rank sends to or receives from peers.
double busbw_factor(const Request& request);
bool reduces(Collective collective);

/// The library that moves data between nodes: NCCL for GPU buffers, the host's MPI for CPU buffers.
enum class Library : std::uint8_t { nccl, mpi };
const char* name_of(Library library);

/// A collective that a library runs among some ranks of a plan, each with a single `join` op. Type
/// and reduction are the plan's; an average is a sum here, divided by a later op.
struct LibraryCall {
  Library library = Library::nccl;
  Collective collective = Collective::all_reduce;
  std::uint64_t count = 0;  ///< as in Request
  std::vector<int> ranks;   ///< ranks in the order of the library's communicator
  int root = 0;             ///< root, peer: indices into `ranks`
  int peer = 0;
  auto operator<=>(const LibraryCall&) const = default;
};

/// The memory of a region. input and output are the caller's; only their own rank accesses them,
/// unless the plan is `symmetric`. scratch, inbox and ring are the communicator's, for all ranks.
enum class Space : std::uint8_t {
  input,
  output,
  scratch,  ///< device memory; peers use it only between the owner's begin and end of the call
  inbox,    ///< device memory in two halves, by call parity; peers may write before the owner
            ///< begins, so every rank must get a flag or data from all peers before the end
  ring,     ///< pinned host memory of the owner; same rule as for scratch
};
const char* name_of(Space space);

/// Bytes [offset, offset + bytes) of one space of one place. Places 0..ranks-1 are the ranks; later
/// places are the plan's `relay_devices`: GPUs outside the job that only lend scratch.
struct Region {
  Space space = Space::scratch;
  int rank = 0;  ///< the place
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Region&) const = default;
};

/// A flag in the memory of `owner`, raised by a single lane of `writer`. Values go 1, 2, ... within
/// a call; executors add the epochs of all earlier calls, so flags are never reset. In an engine's
/// plan (Plan::counts) values may jump, and several lanes of the writer may raise a flag in turn.
struct Flag {
  int owner = 0;
  int writer = 0;
  int index = 0;  ///< among the flags of this (owner, writer)
  bool operator==(const Flag&) const = default;
  auto operator<=>(const Flag&) const = default;
};

inline constexpr int kLocalPath = -1;  ///< a copy inside a memory

struct Op {
  OpKind kind = OpKind::copy;
  Region dst;                ///< copy, reduce, join
  std::vector<Region> srcs;  ///< copy: one; reduce: in summation order; all as long as dst
  int path = kLocalPath;     ///< copy: index into Plan::paths
  int hop = 0;               ///< copy: index of the hop on that path
  int call = -1;  ///< join: index into Plan::calls; no src = gives none, empty dst = gets none
  bool finish = false;       ///< reduce, join: the last reduction of the elements (avg divides)
  Flag flag;                 ///< signal, wait
  std::uint32_t value = 0;   ///< signal: the new value; wait: the least value to go on
  std::uint32_t before = 0;  ///< wait for 0, in an engine's plan: the awaited value is the count
                             ///< of all earlier calls minus `before`
  bool operator==(const Op&) const = default;
};

/// The executor of a lane: a copy-engine stream, a kernel, or a CPU worker.
enum class LaneKind : std::uint8_t { copy_engine, kernel, cpu };
const char* name_of(LaneKind kind);

/// Ops of one rank in order. Lanes start when the rank enters the call, and end before the call
/// returns.
struct Lane {
  int rank = 0;
  LaneKind kind = LaneKind::kernel;
  std::string name;  ///< unique within the rank
  std::vector<Op> ops;
  bool operator==(const Lane&) const = default;
};

/// Bytes [offset, offset + bytes) of the message, by `route`: "nvlink", "relay:2", "host+cpu".
struct Stripe {
  std::string route;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Stripe&) const = default;
};

/// rank_order: every output element is reduced over ranks 0, 1, ..., n-1, accumulated in fp32 or
/// wider, and rounded once: the same bits from every such plan, path, size and processor. Types
/// that are not is_widened() may continue a partial sum; reductions that has_no_order() may take
/// any order. algorithm_order: each rank exactly once, in the order of the plan's ops, the same on
/// every rank; a library between nodes has an order of its own.
///
/// tree: a power of two of ranks, summed in pairs, ((r0+r1)+(r2+r3))+..., accumulated in fp32 or
/// wider, and rounded once. An op of n sources sums them in pairs, n a power of two. The sum
/// of half the ranks is half the tree, so the bits can be the same over any number of ranks.
/// tree_rounded: the same tree, with each sum of two rounded to the type. For types that are not
/// is_widened() both are the same.
enum class SumOrder : std::uint8_t {
  rank_order,
  algorithm_order,
  tree,
  tree_rounded,
  stated = algorithm_order  ///< the name up to version 0.1
};
const char* name_of(SumOrder order);
/// tree or tree_rounded.
inline bool is_tree(SumOrder order) {
  return order == SumOrder::tree || order == SumOrder::tree_rounded;
}
/// Returns the order that a caller may demand, by name: rank_order, tree or tree_rounded, also
/// "rank". Throws Error(invalid_argument) that names `what`.
SumOrder parse_sum_order(std::string_view what, std::string_view name);
/// Whether any order gives a request's result: no reduction, has_no_order(), or at most two ranks.
bool has_one_order(const Request& request);

struct Plan {
  Request request;
  std::string strategy;                        ///< "direct"
  std::map<std::string, std::int64_t> params;  ///< {"pieces", 2}, {"throttle", 1}
  std::string topology;                        ///< name of the topology
  SumOrder sum_order = SumOrder::rank_order;
  std::string kernel;      ///< fused kernel that gives the plan's price; empty = none
  bool symmetric = false;  ///< peers read and write input and output directly (registered buffers)
  std::vector<int> relay_devices;            ///< topology devices of places ranks, ranks + 1, ...
  std::vector<std::uint64_t> scratch_bytes;  ///< by place
  std::vector<std::uint64_t> inbox_bytes;    ///< by rank; of one half
  std::vector<std::uint64_t> ring_bytes;     ///< by rank
  std::vector<Stripe> stripes;
  std::vector<Path> paths;
  std::vector<LibraryCall> calls;  ///< between nodes; each rank joins calls on a single lane
  std::vector<Lane> lanes;
  /// Empty in a plan by lanes. In an engine's plan, by Flag::index: the amount by which a call
  /// raises the flags' values; all other flags rise by their highest value in the plan. An engine
  /// reuses its slots without a barrier: two calls in a row are proved together.
  std::map<int, std::uint32_t> counts;
  /// By rank: the lane of each op, in the order in which the rank enqueues the ops; empty = lanes
  /// start together. Ops that are not listed run on CPU cores or inside a kernel.
  std::vector<std::vector<int>> enqueued;
  bool operator==(const Plan&) const = default;
};

/// Returns the strategy with its parameters: "direct(pieces=2,throttle=1)".
std::string label(const Plan& plan);
/// The largest flag value of a call; executors advance the epoch by this value at every call.
std::uint32_t epochs_per_call(const Plan& plan);
/// The number of flags for each pair of owner and writer: the largest Flag::index + 1.
int flags_per_pair(const Plan& plan);
std::uint64_t op_count(const Plan& plan);
/// Bytes that cross each named path (hop 0 of every copy); "local" = copies inside a memory.
std::map<std::string, std::uint64_t> bytes_per_path(const Plan& plan);

std::string print(const Plan& plan);
std::string print(const Op& op, const Plan& plan);
std::string print(const Region& region);
std::string to_json(const Plan& plan);
/// Strict, as topology_from_json(). The plan is not yet proved: call verify().
Plan plan_from_json(std::string_view json);
std::string to_json(const Request& request);

/// Name of a strategy, a sentence on what it does, and its source.
struct StrategyInfo {
  std::string name;
  std::string idea;
  std::string source;
  std::vector<Collective> collectives;
};
std::vector<StrategyInfo> strategies();

/// Why a strategy has no plan for a request: "needs 2 ranks, found 4".
struct Refusal {
  std::string strategy;
  std::string reason;
};

/// Returns every plan worth trying, over all strategies and parameters, in the order of the
/// closed-form cost model. `refusals`, if not null, gets the reasons of all other strategies.
std::vector<Plan> propose(const Topology& topology, const Request& request,
                          std::vector<Refusal>* refusals = nullptr);
/// Returns a strategy's plan; parameters have defaults. Error(unsupported) if the strategy refuses.
Plan propose_one(const Topology& topology, const Request& request, const std::string& strategy,
                 const std::map<std::string, std::int64_t>& params = {});

}  // namespace plait
