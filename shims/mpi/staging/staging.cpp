// Fills staging buffers before a call, and copies back only what the call wrote: the gaps belong to
// the program, and kernels may write there.
#include "shims/mpi/staging/staging.hpp"

#include <algorithm>

#include "shims/mpi/abi/lengths.hpp"

namespace plait::mpi {
namespace {

/// In an intercommunicator, parts are the remote group's, and the root passes MPI_ROOT. Ranks
/// beside the root pass MPI_PROC_NULL.
StagingRank staging_rank_of(const CollectiveArgs& args) {
  int inter = 0;
  StagingRank rank_here;
  native().Comm_test_inter(args.comm, &inter);
  native().Comm_rank(args.comm, &rank_here.rank);
  rank_here.ranks = ranks_in(args.comm).in;
  rank_here.is_root = args.root == (inter != 0 ? native().abi.root : rank_here.rank);
  rank_here.is_peer_of_root = inter == 0 || args.root >= 0;
  if (inter != 0 && args.collective == Collective::reduce_scatter)
    native().Comm_size(args.comm, &rank_here.ranks);
  return rank_here;
}

/// Returns whether a failed call may return 0: MPICH 5 does after a handler that is a function.
bool may_hide_errors(Handle comm) {
  const Abi& abi = native().abi;
  if (abi.family == MpiFamily::open_mpi || comm == 0 || abi.key(comm) == abi.no_comm) return false;
  Handle handler = 0;
  if (native().Comm_get_errhandler(comm, &handler) != 0) return false;
  handler = abi.at(&handler, 0);
  constexpr Handle kPage = 4096;  // predefined handles of the standard ABI are less
  const bool is_predefined = abi.family == MpiFamily::mpich ? handler >> 30 == 1 : handler < kPage;
  if (!is_predefined) native().Errhandler_free(&handler);
  return !is_predefined;
}

ByteRange joined(ByteRange a, ByteRange b) {
  if (a.bytes == 0) return b;
  if (b.bytes == 0) return a;
  const auto end = [](ByteRange one) { return one.at + static_cast<std::intptr_t>(one.bytes); };
  const std::intptr_t first = std::min(a.at, b.at);
  return {first, static_cast<std::uint64_t>(std::max(end(a), end(b)) - first)};
}

ByteRange span_of(const std::vector<TypedRange>& ranges) {
  ByteRange span;
  for (const TypedRange& range : ranges) {
    ByteRange part = mpi::span_of(range.type, range.count);
    part.at += range.at;
    span = joined(span, part);
  }
  return span;
}

/// Returns false if all data of the buffer must be in host memory, as most are.
bool may_reach_gpu(const void* buffer, Handle type) {
  if (is_in_place(buffer)) return false;
  // Null is also MPI_BOTTOM.
  return gpu_of(buffer) >= 0 ||
         (uses_gpus() && (buffer == nullptr || native().abi.type(type) == nullptr));
}

bool may_reach_gpu(const PartsBuffer& parts) {
  if (parts.types == nullptr) return may_reach_gpu(parts.buffer, parts.type);
  return !is_in_place(parts.buffer) && uses_gpus();
}

/// Locates the data of all parts. Throws split_data() for split data.
DataLocation data_location(const PartsBuffer& parts, const std::vector<TypedRange>& ranges) {
  if (!may_reach_gpu(parts)) return {};
  std::optional<DataLocation> all;
  for (const TypedRange& range : ranges) {
    if (mpi::span_of(range.type, range.count).bytes == 0) continue;
    const auto at = reinterpret_cast<std::uintptr_t>(parts.buffer);
    const auto* const begin =
        reinterpret_cast<const void*>(at + static_cast<std::uintptr_t>(range.at));
    const DataLocation one = mpi::data_location(begin, range.type, range.count);
    if (all && all->gpu != one.gpu) throw split_data();
    const bool in_parts = one.in_parts || (all && parts.types != nullptr);
    all = DataLocation{one.gpu, false, in_parts || (all && all->in_parts)};
  }
  return all.value_or(DataLocation{});
}

void add_pieces(std::vector<ByteRange>& pieces, const std::vector<TypedRange>& ranges) {
  for (const TypedRange& range : ranges)
    if (range.count > 0) mpi::add_pieces(pieces, layout_of(range.type), range.at, range.count);
}

}  // namespace

const void* CallStaging::found(const void* argument, bool is_input) const {
  const StagedArgument* best = nullptr;
  for (const StagedArgument& one : buffers_)
    if (one.staging_buffer.buffer() == argument && (best == nullptr || one.is_input == is_input))
      best = &one;
  return best != nullptr ? best->staging_buffer.host() : argument;
}

template <class Pieces>
CallStaging::StagedArgument* CallStaging::stage_argument(const DataLocation& where,
                                                         const void* buffer, ByteRange span,
                                                         bool is_input, bool read,
                                                         const Pieces& pieces, bool is_pinned) {
  // Nothing is read or written: the address may be another buffer's, with its own staging buffer.
  if (where.gpu < 0 || span.bytes == 0) return nullptr;
  // Gaps between parts may be large, hence a buffer with gaps is not pinned.
  StagingBuffer staging_buffer(where.gpu, buffer, span, is_pinned && !where.in_parts);
  StagedArgument& one =
      buffers_.emplace_back(StagedArgument{std::move(staging_buffer), is_input, read, {}, {}, {}});
  if (read && where.in_parts) pieces(one.parts);
  if (read) fetch(one);
  return &one;
}

void CallStaging::fetch(StagedArgument& one) {
  if (one.parts.empty())
    one.staging_buffer.fetch();
  else
    one.staging_buffer.fetch(one.parts);
}

std::byte* CallStaging::add_bytes(int gpu, const void* buffer, std::uint64_t bytes, bool reads,
                                  ByteRange written) {
  StagedArgument& one = buffers_.emplace_back(
      StagedArgument{StagingBuffer(gpu, buffer, {0, bytes}), reads, reads, {}, {}, {}});
  if (reads) one.staging_buffer.fetch({{0, bytes}});
  if (written.bytes != 0) one.written.push_back(written);
  return one.staging_buffer.host();
}

void CallStaging::add_input(const void* buffer, Handle type, Count count) {
  if (is_in_place(buffer)) return;
  stage_argument(data_location(buffer, type, count), buffer, span_of(type, count), true, true,
                 [&](auto& pieces) { mpi::add_pieces(pieces, layout_of(type), 0, count); });
}

/// A call that fails unseen then leaves the output as is.
bool CallStaging::reads_output(const DataLocation& where, bool whole) const {
  return !whole || (where.gpu >= 0 && may_hide_errors(comm_));
}

void CallStaging::add_output(void* buffer, Handle type, Count count, bool whole) {
  if (is_in_place(buffer)) return;
  const auto add = [&](auto& pieces) { mpi::add_pieces(pieces, layout_of(type), 0, count); };
  const DataLocation where = data_location(buffer, type, count);
  StagedArgument* const one =
      stage_argument(where, buffer, span_of(type, count), false, reads_output(where, whole), add);
  if (one != nullptr) add(one->written);
}

void CallStaging::add_received(void* buffer, Handle type, Count count, bool is_pinned) {
  StagedArgument* const one = stage_argument(
      data_location(buffer, type, count), buffer, span_of(type, count), false, false, [](auto&) {},
      is_pinned);
  if (one != nullptr) one->received.emplace(Received{RetainedLayout(layout_of(type)), count});
}

/// The output of some scans is undefined on the first rank.
void CallStaging::add_scan(const void* in, void* out, Handle type, Count count) {
  add_input(in, type, count);
  add_output(out, type, count, false);
}

std::vector<TypedRange> PartsBuffer::ranges(int ranks) const {
  if (!counts) return {{0, is_one ? count : count * ranks, type}};
  const std::intptr_t unit = types == nullptr ? layout_of(type).extent : 1;
  std::vector<TypedRange> found;
  for (int rank = 0; rank < ranks; ++rank)
    found.push_back({displs[rank] * unit, counts[rank],
                     types == nullptr ? type : native().abi.at(types, rank)});
  return found;
}

void CallStaging::add_inputs(const PartsBuffer& parts, int ranks) {
  if (is_in_place(parts.buffer)) return;
  const std::vector<TypedRange> ranges = parts.ranges(ranks);
  stage_argument(data_location(parts, ranges), parts.buffer, span_of(ranges), true, true,
                 [&](auto& pieces) { add_pieces(pieces, ranges); });
}

void CallStaging::add_outputs(const PartsBuffer& parts, int ranks, bool whole) {
  if (is_in_place(parts.buffer)) return;
  const std::vector<TypedRange> ranges = parts.ranges(ranks);
  const auto add = [&](auto& pieces) { add_pieces(pieces, ranges); };
  const DataLocation where = data_location(parts, ranges);
  StagedArgument* const one =
      stage_argument(where, parts.buffer, span_of(ranges), false, reads_output(where, whole), add);
  if (one != nullptr) add(one->written);
}

void CallStaging::add_of_ranks(Handle comm, const PartsBuffer& in, const PartsBuffer& out) {
  if (!may_reach_gpu(in) && !may_reach_gpu(out)) return;
  const int ranks = ranks_in(comm).in;
  add_inputs(in, ranks);
  add_outputs(out, ranks, !is_in_place(in.buffer));
}

void CallStaging::add_of_neighbours(Handle comm, const PartsBuffer& in, const PartsBuffer& out) {
  if (!may_reach_gpu(in) && !may_reach_gpu(out)) return;
  const Lengths neighbours = neighbours_in(comm);
  add_inputs(in, neighbours.in);
  add_outputs(out, neighbours.out, !may_lack_neighbours(comm));
}

void CallStaging::add(const CollectiveArgs& args) {
  if (may_reach_gpu(args.in, args.in_type) || may_reach_gpu(args.out, args.out_type))
    add(args, staging_rank_of(args));
}

void CallStaging::add(const CollectiveArgs& args, const StagingRank& rank_here) {
  if (!may_reach_gpu(args.in, args.in_type) && !may_reach_gpu(args.out, args.out_type)) return;
  const bool whole = !is_in_place(args.in);
  const auto all = [&](Count one) { return one * rank_here.ranks; };
  const PartsBuffer inputs{args.in, args.in_count, args.in_type, args.in_counts, args.in_displs};
  const PartsBuffer outputs{args.out, args.out_count, args.out_type, args.counts, args.displs};
  switch (args.collective) {
    case Collective::broadcast:
      if (rank_here.is_root) return add_input(args.in, args.in_type, args.in_count);
      if (rank_here.is_peer_of_root) add_output(args.out, args.out_type, args.out_count, true);
      return;
    case Collective::all_reduce:
    case Collective::reduce:
      if (rank_here.is_peer_of_root) add_input(args.in, args.in_type, args.in_count);
      if (args.collective == Collective::all_reduce || rank_here.is_root)
        add_output(args.out, args.out_type, args.out_count, whole);
      return;
    case Collective::reduce_scatter: {
      const Count sum = args.counts ? sum_of(args.counts, rank_here.ranks) : all(args.in_count);
      const Count mine = args.counts ? args.counts[rank_here.rank] : args.out_count;
      add_input(args.in, args.in_type, sum);
      return add_output(args.out, args.out_type, whole ? mine : sum, whole);
    }
    case Collective::scatter:
      if (rank_here.is_root) add_inputs(inputs, rank_here.ranks);
      if (rank_here.is_peer_of_root) add_output(args.out, args.out_type, args.out_count, true);
      return;
    case Collective::gather:
      if (rank_here.is_peer_of_root) add_input(args.in, args.in_type, args.in_count);
      if (rank_here.is_root) add_outputs(outputs, rank_here.ranks, whole);
      return;
    default:
      if (args.collective == Collective::all_to_all)
        add_inputs(inputs, rank_here.ranks);
      else
        add_input(args.in, args.in_type, args.in_count);
      add_outputs(outputs, rank_here.ranks, whole);
  }
}

void CallStaging::fetch() {
  for (StagedArgument& one : buffers_)
    if (one.read) fetch(one);
}

void CallStaging::put_back(std::uint64_t received) {
  for (StagedArgument& one : buffers_) {
    if (one.received)
      one.written = first_pieces(*one.received->layout, one.received->count, received);
    if (!one.written.empty()) one.staging_buffer.put(one.written);
  }
}

}  // namespace plait::mpi
