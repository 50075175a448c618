// A collective at one size on one topology, as a value: lanes of copies, reductions, signals and
// waits over byte regions. The narrow waist of plait: planner, verifier, simulator and every
// executor know plans, and none knows another.
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

inline constexpr int kMaxRanks = 64;  ///< in a plan; executors run up to 16 of a node

const char* name_of(DataType type);
const char* name_of(ReduceOp op);
const char* name_of(Collective collective);
const char* name_of(OpKind kind);
DataType parse_type(std::string_view name);  ///< also float32, float, half, bfloat16, float8_e4m3
ReduceOp parse_reduce_op(std::string_view name);
Collective parse_collective(std::string_view name);  ///< also allreduce, all-reduce, ...
std::uint64_t bytes_of(DataType type);
bool is_float(DataType type);
/// Sums of 8- and 16-bit floats are wider than what a region can hold of them so far.
bool is_widened(DataType type);
/// The same bits in whatever order and groups: integers wrap, and min and max of floats have -0
/// below +0 and turn every NaN into the type's canonical one.
bool has_no_order(DataType type, ReduceOp op);

/// What is asked for. Counts are elements, as in NCCL: the send count of all_gather and of
/// all_to_all's one peer, the receive count of reduce_scatter and scatter.
/// Uneven: ranks' blocks have a count each, and follow each other without gaps. In `counts` is
/// rank r's block at r (all_gather, reduce_scatter, gather, scatter), or what rank `from` sends
/// rank `to` at from * ranks + to (all_to_all).
struct Request {
  Collective collective = Collective::all_reduce;
  std::uint64_t count = 0;
  DataType type = DataType::fp32;
  ReduceOp op = ReduceOp::sum;
  int ranks = 1;
  int root = 0;              ///< broadcast, reduce, gather, scatter; the source of copy
  int peer = 0;              ///< the destination of copy
  std::vector<int> devices;  ///< topology device of each rank; empty = the first rank devices
  std::vector<std::uint64_t> counts;  ///< empty = even; else `count` is the largest of them
  bool operator==(const Request&) const = default;
};

/// Throws Error(invalid_argument / unsupported) where the request cannot be meant on the topology:
/// ranks or root out of range, counts whose bytes overflow, an op the type has not.
/// Returns the request with `devices` filled in, and normal().
Request checked(Request request, const Topology& topology);
/// `count` set to the largest of `counts`; these left out where they are all equal, since the
/// request is then an even one.
Request normal(Request request);
/// "all_gather", or "all_gather_v" where counts differ.
std::string name_of(const Request& request);
/// "1009", or of an uneven request "5+1009+0".
std::string amount_of(const Request& request);
std::uint64_t input_bytes(const Request& request, int rank);
std::uint64_t output_bytes(const Request& request, int rank);
/// The message size that nccl-tests prints for it: count * ranks * type for gathering collectives.
/// Uneven: the bytes of all blocks; of an all_to_all the most that a rank sends or gets.
std::uint64_t message_bytes(const Request& request);
/// busbw / algbw as nccl-tests defines it. Uneven: of the message, the most that one rank has to
/// send to others or to get from them.
double busbw_factor(const Request& request);
bool reduces(Collective collective);

/// Who moves data between nodes: NCCL for GPU buffers, the host's MPI for CPU buffers.
enum class Library : std::uint8_t { nccl, mpi };
const char* name_of(Library library);

/// A collective that a library does among some ranks of a plan, each of which has one `join` op in
/// it. Type and reduction are the plan's; an average is summed here and divided elsewhere.
struct LibraryCall {
  Library library = Library::nccl;
  Collective collective = Collective::all_reduce;
  std::uint64_t count = 0;  ///< as in Request
  std::vector<int> ranks;   ///< of the library's communicator, in its order
  int root = 0;             ///< root, peer: indices into `ranks`
  int peer = 0;
  auto operator<=>(const LibraryCall&) const = default;
};

/// Where a region lies. input and output are the caller's and seen by their own rank alone, unless
/// the plan is `symmetric`. scratch, inbox and ring belong to the communicator and are seen by all.
enum class Space : std::uint8_t {
  input,
  output,
  scratch,  ///< device memory; peers touch it only between its owner's begin and end of the call
  inbox,    ///< device memory kept twice, by call parity; peers may write before the owner begins,
            ///< and in return every rank must hear from every rank before it ends
  ring,     ///< pinned host memory of the owner; same rule as scratch
};
const char* name_of(Space space);

/// Bytes [offset, offset + bytes) of one space of one place. Places 0..ranks-1 are the ranks,
/// further ones the plan's `relay_devices`: GPUs outside the job that only lend scratch.
struct Region {
  Space space = Space::scratch;
  int rank = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Region&) const = default;
};

/// A word in the memory of `owner`, raised by `writer` only, on one lane of it only. Values go
/// 1, 2, ... within a call; executors add the epochs of all earlier calls, so no word is reset.
/// In an engine's plan (Plan::counts) values may jump, and several lanes may raise a word in turn.
struct Flag {
  int owner = 0;
  int writer = 0;
  int index = 0;  ///< among the words of this (owner, writer)
  bool operator==(const Flag&) const = default;
  auto operator<=>(const Flag&) const = default;
};

inline constexpr int kLocalPath = -1;  ///< a copy inside one memory

struct Op {
  OpKind kind = OpKind::copy;
  Region dst;                ///< copy, reduce, join
  std::vector<Region> srcs;  ///< copy: one; reduce: in summation order; all as long as dst
  int path = kLocalPath;     ///< copy: index into Plan::paths
  int hop = 0;               ///< copy: which hop of that path
  int call = -1;            ///< join: index into Plan::calls; no src or empty dst where it has none
  bool finish = false;      ///< reduce, join: this is the element's last reduction (avg divides)
  Flag flag;                ///< signal, wait
  std::uint32_t value = 0;  ///< signal: the new value; wait: the least value to go on
  std::uint32_t before = 0;  ///< wait for 0, in an engine's plan: so far below what earlier calls
                             ///< have counted; 0 = all that they have
  bool operator==(const Op&) const = default;
};

/// What runs a lane: a copy-engine stream, a kernel, a CPU worker.
enum class LaneKind : std::uint8_t { copy_engine, kernel, cpu };
const char* name_of(LaneKind kind);

/// Ops of one rank that run in order. A rank's lanes start when it enters the call and the call
/// returns when all have ended.
struct Lane {
  int rank = 0;
  LaneKind kind = LaneKind::kernel;
  std::string name;  ///< unique within the rank
  std::vector<Op> ops;
  bool operator==(const Lane&) const = default;
};

/// Bytes [offset, offset + bytes) of the message go by `route`: "nvlink", "relay:2", "host",
/// "host+cpu".
struct Stripe {
  std::string route;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Stripe&) const = default;
};

/// rank_order: every output element is reduced over ranks 0, 1, ..., n-1, accumulated in fp32 (or
/// wider) and rounded once (types that sums do not widen may go on from a sum so far, and what
/// has_no_order() may come in any order): the same bits from every such plan, path, size and
/// processor. stated: each rank exactly once, in the order the ops say, the same on every rank; a
/// library between nodes has an order of its own.
enum class SumOrder : std::uint8_t { rank_order, stated };
const char* name_of(SumOrder order);

struct Plan {
  Request request;
  std::string strategy;                        ///< "direct"
  std::map<std::string, std::int64_t> params;  ///< {"pieces", 2}, {"throttle", 1}
  std::string topology;                        ///< name of the topology it was made for
  SumOrder sum_order = SumOrder::rank_order;
  std::string kernel;      ///< of the fused kernel whose cost it has, if any: "two_shot"
  bool symmetric = false;  ///< peers read and write input and output directly (registered buffers)
  std::vector<int> relay_devices;            ///< topology devices of places ranks, ranks + 1, ...
  std::vector<std::uint64_t> scratch_bytes;  ///< by place
  std::vector<std::uint64_t> inbox_bytes;    ///< by rank; one half
  std::vector<std::uint64_t> ring_bytes;     ///< by rank
  std::vector<Stripe> stripes;
  std::vector<Path> paths;
  std::vector<LibraryCall> calls;  ///< between nodes; each rank joins its calls on one lane
  std::vector<Lane> lanes;
  /// Empty in a plan by lanes. An engine states here, by Flag::index, what the next call counts on
  /// from; a word that is not here counts on from the highest value that it was raised to. An
  /// engine uses its slots again without a barrier: two of its calls in a row are proved together.
  std::map<int, std::uint32_t> counts;
  /// By rank: the lane of each op in the order in which the rank hands them to the GPU; empty =
  /// lanes start together. Ops that are not here run on CPU cores or inside a kernel.
  std::vector<std::vector<int>> enqueued;
  bool operator==(const Plan&) const = default;
};

/// "direct(pieces=2,throttle=1)".
std::string label(const Plan& plan);
/// The largest flag value of a call; executors advance their epoch by it at every call.
std::uint32_t epochs_per_call(const Plan& plan);
/// One more than the largest Flag::index.
int flags_per_pair(const Plan& plan);
std::uint64_t op_count(const Plan& plan);
/// Bytes that cross each named path (hop 0 of every copy), and "local".
std::map<std::string, std::uint64_t> bytes_per_path(const Plan& plan);

std::string print(const Plan& plan);
std::string print(const Op& op, const Plan& plan);
std::string print(const Region& region);
std::string to_json(const Plan& plan);
/// Strict, as topology_from_json. A plan read from a file is not yet proved: verify() it.
Plan plan_from_json(std::string_view json);
std::string to_json(const Request& request);

/// What a strategy is called, what it does, and where it comes from.
struct StrategyInfo {
  std::string name;
  std::string idea;
  std::string source;
  std::vector<Collective> collectives;
};
std::vector<StrategyInfo> strategies();

/// A proposal refused, with the reason ("needs 2 ranks, found 4").
struct Refusal {
  std::string strategy;
  std::string reason;
};

/// Every plan worth trying for the request, over all strategies and their parameters, in the
/// order the closed-form cost model ranks them; `refusals`, if given, says why others are not
/// there.
std::vector<Plan> propose(const Topology& topology, const Request& request,
                          std::vector<Refusal>* refusals = nullptr);
/// One strategy with given parameters (missing ones get defaults); Error(unsupported) if it
/// refuses.
Plan propose_one(const Topology& topology, const Request& request, const std::string& strategy,
                 const std::map<std::string, std::int64_t>& params = {});

}  // namespace plait
