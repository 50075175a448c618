// Reductions run on plait's types; data movement runs on bytes.
#include "shims/mpi/args/shape.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plait/communicator.hpp"
#include "shims/mpi/args/gpu_memory.hpp"

namespace plait::mpi {
namespace {

/// Open MPI's vector code saturates sums of short integers. The scalar remainder wraps, like
/// plait's sums. Sums of short integers stay native, so that small and large sums follow the same
/// rule.
bool saturates(const MpiType& type, const MpiOp& op) {
  return native().abi.family == MpiFamily::open_mpi && op.op == ReduceOp::sum &&
         type.kind == TypeClass::integer && bytes_of(type.type) <= 2;
}

/// Sets type and operation of a reduction; returns why the reduction is native, or none.
Fallback set_reduction(const CollectiveArgs& args, Request& request) {
  const MpiType* type = native().abi.type(args.out_type);
  const MpiOp* op = native().abi.op(args.op);
  if (op == nullptr) return Fallback::op;
  if (type == nullptr || type->kind == TypeClass::moved) return Fallback::type;
  if (saturates(*type, *op)) return Fallback::short_sum;
  const bool floats =
      type->kind == TypeClass::floating || type->kind == TypeClass::queried_floating;
  if (floats && !op->on_floats) return Fallback::op_on_type;
  if (type->kind == TypeClass::byte && op->on_floats) return Fallback::op_on_type;
  if (type->kind >= TypeClass::queried_integer && size_of(args.out_type) != bytes_of(type->type))
    return Fallback::type;
  request.type = type->type;
  request.op = op->op;
  return Fallback::none;
}

/// Sets the count of each part; returns false for a negative count.
bool set_counts(const CollectiveArgs& args, const RankPosition& position, RankPart& part,
                Request& request) {
  part.count = 0;
  for (int rank = 0; rank < position.ranks; ++rank) {
    const Count one = args.counts[rank];
    if (one < 0) return false;
    part.count = std::max(part.count, one);
    request.counts.push_back(static_cast<std::uint64_t>(one));
  }
  return true;
}

bool is_rooted(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter;
}

bool reads_input(Collective collective, bool is_root) {
  return is_root || (collective != Collective::broadcast && collective != Collective::scatter);
}

bool writes_output(Collective collective, bool is_root) {
  return is_root || (collective != Collective::reduce && collective != Collective::gather);
}

/// Returns false if input and output share memory in a layout that engines refuse. In place,
/// engines put a rank's part of a reduce_scatter where the rank's part of the input is, as NCCL
/// does. MPI puts the part at the start of the buffer. Engines have no all_to_all in place. The
/// result is the same on all ranks: MPI has all ranks of these calls pass MPI_IN_PLACE, or none.
bool has_engine_layout(const CollectiveArgs& args) {
  return !is_in_place(args.in) || (args.collective != Collective::reduce_scatter &&
                                   args.collective != Collective::all_to_all);
}

/// Sizes of parts in bytes by rank, as far as this rank knows them.
struct PartSizes {
  std::vector<std::uint64_t>& bytes_by_rank;
  /// Returns false for a negative count or a type that the MPI does not know.
  bool set(int rank, Count count, Handle type) {
    const std::uint64_t bytes = count == 0 ? 0 : size_of(type).value_or(~std::uint64_t{0});
    if (count < 0 || bytes == ~std::uint64_t{0}) return false;
    const auto most = (std::uint64_t{1} << 62) / kMostRanks;
    if (bytes > 0 && static_cast<std::uint64_t>(count) > most / bytes) return false;
    bytes_by_rank[static_cast<std::size_t>(rank)] = static_cast<std::uint64_t>(count) * bytes;
    return true;
  }
  bool set_all(const CountArray& counts, int ranks, Handle type) {
    if (!counts) return false;
    for (int rank = 0; rank < ranks; ++rank)
      if (!set(rank, counts[rank], type)) return false;
    return true;
  }
};

bool set_sends(const CollectiveArgs& args, const RankPosition& position, PartSizes sizes) {
  const bool in_place = is_in_place(args.in);
  const Handle type = in_place ? args.out_type : args.in_type;
  const bool all = args.collective == Collective::all_to_all;
  if (all || (args.collective == Collective::scatter && args.root == position.rank))
    return sizes.set_all(in_place ? args.counts : args.in_counts, position.ranks, type);
  if (args.collective == Collective::scatter) return true;
  if (in_place && (args.root != position.rank || !args.counts)) return false;
  return sizes.set(args.root, in_place ? args.counts[position.rank] : args.in_count, type);
}

bool set_gets(const CollectiveArgs& args, const RankPosition& position, PartSizes sizes) {
  const bool in_place = is_in_place(args.out);
  const Handle type = in_place ? args.in_type : args.out_type;
  const bool all = args.collective == Collective::all_to_all;
  if (all || (args.collective == Collective::gather && args.root == position.rank))
    return sizes.set_all(args.counts, position.ranks, type);
  if (args.collective == Collective::gather) return true;
  if (in_place && (args.root != position.rank || !args.in_counts)) return false;
  return sizes.set(args.root, in_place ? args.in_counts[position.rank] : args.out_count, type);
}

/// Returns whether a buffer of a predefined type cannot be valid. Null is also MPI_BOTTOM, from
/// which displacements may reach the parts.
bool lacks_memory(const void* buffer, Handle type, const CountArray& counts,
                  const CountArray& displs, int ranks) {
  if (buffer != nullptr || native().abi.type(type) == nullptr) return false;
  if (!counts || !displs) return true;
  constexpr std::int64_t kFirstPage = 4096;
  const auto element = static_cast<std::int64_t>(size_of(type).value_or(0));
  for (int rank = 0; rank < ranks; ++rank)
    if (counts[rank] > 0 && displs[rank] < kFirstPage / std::max<std::int64_t>(element, 1))
      return true;
  return false;
}

/// Sets this rank's sizes of a call with own_counts; returns false if an argument is wrong.
bool set_own_counts(const CollectiveArgs& args, const RankPosition& position, CallShape& shape) {
  const auto ranks = static_cast<std::size_t>(position.ranks);
  shape.own = {std::vector<std::uint64_t>(ranks), std::vector<std::uint64_t>(ranks)};
  if (!set_sends(args, position, {shape.own.sends})) return false;
  if (!set_gets(args, position, {shape.own.gets})) return false;
  const std::uint64_t sent = sum_of(shape.own.sends), got = sum_of(shape.own.gets);
  shape.part_bytes = args.collective == Collective::scatter ? got : sent;
  shape.request.type = DataType::uint8;
  if (sent > 0 &&
      lacks_memory(args.in, args.in_type, args.in_counts, args.in_displs, position.ranks))
    return false;
  return got == 0 ||
         !lacks_memory(args.out, args.out_type, args.counts, args.displs, position.ranks);
}

/// Returns whether this rank's pointers can be valid; if not, the native call reports the error.
bool has_buffers(const CollectiveArgs& args, const RankPosition& position) {
  const bool is_root = args.root == position.rank;
  const bool no_part = args.counts && args.counts[position.rank] == 0;
  const bool gives = !no_part || args.collective != Collective::all_gather;
  const bool takes = !no_part || args.collective != Collective::reduce_scatter;
  if (gives && reads_input(args.collective, is_root) &&
      lacks_memory(args.in, args.in_type, {}, {}, position.ranks))
    return false;
  return !takes || !writes_output(args.collective, is_root) ||
         !lacks_memory(args.out, args.out_type, args.counts, args.displs, position.ranks);
}

}  // namespace

std::uint64_t most_bytes(const CollectiveArgs& args) {
  const MpiType* in = native().abi.type(args.in_type);
  const MpiType* out = args.out_type == args.in_type ? in : native().abi.type(args.out_type);
  const Count count = std::max(args.in_count, args.out_count);
  // In place, the arguments of a side are ignored and may be anything.
  if (args.own_counts || args.counts || in == nullptr || out == nullptr || count < 0 ||
      count > 1 << 30)
    return ~std::uint64_t{0};
  const std::uint64_t element = std::max(bytes_of(in->type), bytes_of(out->type));
  return message_of(args.collective, count, element, kMaxRanks);
}

std::uint64_t even_bytes(const CollectiveArgs& args, const RankPosition& position) {
  const RankPart part = part_of(args, position);
  const std::uint64_t bytes = size_of(part.type).value_or(0);
  if (part.count <= 0 || bytes == 0) return 0;
  const auto count = static_cast<std::uint64_t>(part.count);
  if (count > (std::uint64_t{1} << 62) / bytes / kMaxRanks) return 0;
  return message_of(args.collective, part.count, bytes, position.ranks);
}

std::uint64_t sum_of(const std::vector<std::uint64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

std::optional<CallShape> shape_of(const CollectiveArgs& args, const RankPosition& position,
                                  Fallback& why) {
  CallShape shape;
  why = Fallback::arguments;
  Request& request = shape.request;
  request.collective = args.collective;
  request.ranks = position.ranks;
  if (is_rooted(args.collective)) {
    if (args.root < 0 || args.root >= position.ranks) return std::nullopt;
    request.root = args.root;
  }
  if (args.own_counts)
    return set_own_counts(args, position, shape) ? std::optional(shape) : std::nullopt;
  RankPart part = part_of(args, position);
  if (args.counts && !set_counts(args, position, part, request)) return std::nullopt;
  const std::optional<std::uint64_t> bytes = size_of(part.type);
  if (!bytes || *bytes == 0 || part.count <= 0) return std::nullopt;
  const auto count = static_cast<std::uint64_t>(part.count);
  if (count > (std::uint64_t{1} << 62) / *bytes / static_cast<std::uint64_t>(position.ranks))
    return std::nullopt;
  shape.part_bytes = count * *bytes;
  request.count = count;
  if (reduces(args.collective)) {
    const Fallback found = set_reduction(args, request);
    if (found != Fallback::none) return why = found, std::nullopt;
  } else {
    request.type = DataType::uint8;
    request.count = shape.part_bytes;
    for (std::uint64_t& one : request.counts) one *= *bytes;
  }
  request = normal(std::move(request));
  if (!has_buffers(args, position)) return std::nullopt;
  return shape;
}

bool touches_gpu_memory(const CollectiveArgs& args, const RankPosition& position) {
  const bool is_root = args.root == position.rank;
  const auto is_device_data = [&](const void* buffer, Handle type, Count count) {
    return !is_in_place(buffer) && is_on_gpu(buffer, type, args.counts ? 1 : count);
  };
  return (reads_input(args.collective, is_root) &&
          is_device_data(args.in, args.in_type, args.in_count)) ||
         (writes_output(args.collective, is_root) &&
          is_device_data(args.out, args.out_type, args.out_count));
}

/// Engines need contiguous parts of equal size; normal() turns equal counts into a single count.
int gpu_of_call(const CollectiveArgs& args, const CallShape& shape, const RankPosition& position,
                const char*& why) {
  const auto staged = [&](const char* reason) { return why = reason, -1; };
  if (args.own_counts || !shape.request.counts.empty()) return staged("the parts have own sizes");
  if (is_in_place(args.out) || !has_engine_layout(args))
    return staged("the engines lack MPI's layout in place");
  if (args.displs && !are_contiguous(args.counts, args.displs, position.ranks))
    return staged("the parts are not adjacent in the order of ranks");
  const bool is_root = args.root == position.rank;
  int gpu = -1;
  /// Returns null if engines can use the buffer.
  const auto why_not = [&](const void* buffer, Handle type) -> const char* {
    if (!layout_of(type).contiguous) return "the layout of the type has holes";
    const MemoryOwner owner = owner_of(buffer);
    if (owner.gpu < 0 || shape.part_bytes == 0) return "a buffer is in host memory";
    if (!owner.in_primary)
      return "the memory is of another CUDA context than the GPU's primary context";
    if (gpu >= 0 && owner.gpu != gpu) return "the buffers are on two GPUs";
    gpu = owner.gpu;
    return nullptr;
  };
  const bool reads = reads_input(args.collective, is_root) && !is_in_place(args.in);
  const bool writes = writes_output(args.collective, is_root);
  if (reads)
    if (const char* const reason = why_not(args.in, args.in_type)) return staged(reason);
  if (writes)
    if (const char* const reason = why_not(args.out, args.out_type)) return staged(reason);
  return gpu;
}

}  // namespace plait::mpi
