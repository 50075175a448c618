// Packs and unpacks buffers that are not contiguous, with the native MPI's MPI_Pack and MPI_Unpack.
#include "shims/mpi/staging/packed_call.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "base/text.hpp"
#include "comm/shm/buffers.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"
#include "shims/mpi/args/counting.hpp"

namespace plait::mpi {
namespace {

const std::byte* bytes_at(const void* base, std::intptr_t offset) {
  return reinterpret_cast<const std::byte*>(reinterpret_cast<std::uintptr_t>(base) +
                                            static_cast<std::uintptr_t>(offset));
}

std::byte* bytes_at(void* base, std::intptr_t offset) {
  return const_cast<std::byte*>(bytes_at(static_cast<const void*>(base), offset));
}

Layout committed_layout_of(Handle type) {
  const Layout layout = layout_of(type);
  require_committed(layout);
  return layout;
}

/// Returns whether the root's buffer is writable: a root may broadcast constants.
bool is_writable(const void* buffer, std::uint64_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(buffer);
  return plait::is_writable(at) && plait::is_writable(at + bytes - 1);
}

}  // namespace

PackedCall::PackedCall(CollectiveArgs args, const CallShape& shape, const RankPosition& position,
                       int gpu)
    : request_(shape.request), own_(shape.own), bytes_(counted_bytes(shape)), gpu_(gpu) {
  if (gpu < 0 && job_uses_gpus()) {
    staging_.add(args, {position.ranks, position.rank, args.root == position.rank});
    args.in = staging_.substitute(args.in);
    args.out = staging_.substitute(args.out);
  }
  set_buffers(args, shape, position);
}

void PackedCall::set_buffers(const CollectiveArgs& args, const CallShape& shape,
                             const RankPosition& position) {
  try {
    switch (args.collective) {
      case Collective::broadcast: broadcast(args, shape, position); break;
      case Collective::all_reduce:
      case Collective::reduce:
      case Collective::reduce_scatter:  // in place: the result comes first in the input's memory
        input_ = is_in_place(args.in) ? args.out : args.in;
        output_ = args.out;
        break;
      default: set_input(args, position); set_output(args, shape, position);
    }
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory,
                text("no host memory to stage a call: wanted {} bytes",
                     shape.part_bytes * static_cast<std::uint64_t>(position.ranks)));
  }
}

void PackedCall::bring_to_host(int rank) {
  const std::uint64_t in_bytes = input_bytes(request_, rank);
  const std::uint64_t out_bytes = output_bytes(request_, rank);
  const auto in = reinterpret_cast<std::uintptr_t>(input_);
  const auto out = reinterpret_cast<std::uintptr_t>(output_);
  if (in < out + out_bytes && out < in + in_bytes) {  // in place: both share a staging buffer
    const std::uintptr_t first = std::min(in, out);
    const std::uint64_t bytes = std::max(in + in_bytes, out + out_bytes) - first;
    const ByteRange written{static_cast<std::intptr_t>(out - first), out_bytes};
    std::byte* const host =
        staging_.add_bytes(gpu_, reinterpret_cast<const void*>(first), bytes, true, written);
    input_ = host + (in - first);
    output_ = host + (out - first);
  } else {
    if (in_bytes > 0) input_ = staging_.add_bytes(gpu_, input_, in_bytes, true, {});
    if (out_bytes > 0)
      output_ = staging_.add_bytes(gpu_, output_, out_bytes, false, {0, out_bytes});
  }
  gpu_ = -1;
}

std::byte* PackedCall::allocate(std::uint64_t bytes) {
  buffers_.emplace_back(new std::byte[bytes]);
  return buffers_.back().get();
}

const void* PackedCall::packed(const void* from, Count count, const Layout& layout,
                               std::uint64_t at_least) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(count) * layout.bytes;
  if (layout.contiguous && bytes >= at_least) return from;
  std::byte* const stage = allocate(std::max(bytes, at_least));
  pack(from, count, layout, stage);
  return stage;
}

const void* PackedCall::packed_parts(const void* from, const CountArray& counts,
                                     const CountArray& displs, Handle type, int ranks) {
  const Layout layout = committed_layout_of(type);
  if (layout.contiguous && are_contiguous(counts, displs, ranks)) return from;
  std::byte* const stage =
      allocate(static_cast<std::uint64_t>(sum_of(counts, ranks)) * layout.bytes);
  std::byte* at = stage;
  for (int rank = 0; rank < ranks; ++rank) {
    pack(bytes_at(from, displs[rank] * layout.extent), counts[rank], layout, at);
    at += static_cast<std::uint64_t>(counts[rank]) * layout.bytes;
  }
  return stage;
}

void PackedCall::broadcast(const CollectiveArgs& args, const CallShape& shape,
                           const RankPosition& position) {
  const Layout layout = committed_layout_of(args.out_type);
  if (layout.contiguous) {
    input_ = output_ = args.out;
    const bool is_host_root = position.rank == args.root && !is_on_gpu();
    if (is_host_root && !is_writable(args.out, shape.part_bytes))
      output_ = allocate(shape.part_bytes);
    return;
  }
  if (position.rank == args.root) {
    input_ = packed(args.in, args.in_count, layout, 0);
    output_ = const_cast<void*>(input_);
    return;
  }
  std::byte* const stage = allocate(shape.part_bytes);
  output_ = stage;
  outputs_.push_back({stage, bytes_at(args.out, 0), args.out_count, layout});
}

/// Sets this rank's input of a gather, scatter or exchange.
void PackedCall::set_input(const CollectiveArgs& args, const RankPosition& position) {
  if (args.own_counts && sum_of(own_.sends) == 0) return;
  const bool is_root = args.root == position.rank;
  const bool all = args.collective == Collective::all_to_all;
  const std::uint64_t own = input_bytes(request_, position.rank);
  if (args.own_counts && (all || args.collective == Collective::scatter)) {
    if (!all && !is_root) return;
    if (is_in_place(args.in))
      input_ = packed_parts(args.out, args.counts, args.displs, args.out_type, position.ranks);
    else
      input_ = packed_parts(args.in, args.in_counts, args.in_displs, args.in_type, position.ranks);
    return;
  }
  if (args.collective == Collective::scatter) {
    if (is_root)
      input_ =
          packed(args.in, args.in_count * position.ranks, committed_layout_of(args.in_type), 0);
    return;
  }
  if (!is_in_place(args.in)) {
    const Count count = all ? args.in_count * position.ranks : args.in_count;
    input_ = packed(args.in, count, committed_layout_of(args.in_type), all ? 0 : own);
    return;
  }
  const Layout layout = committed_layout_of(args.out_type);
  if (all) {
    input_ = packed(args.out, args.out_count * position.ranks, layout, 0);
    return;
  }
  const Count mine = args.counts ? args.counts[position.rank] : args.out_count;
  const Count at = args.counts ? args.displs[position.rank] : args.out_count * position.rank;
  input_ = packed(bytes_at(args.out, at * layout.extent), mine, layout, own);
}

/// Sets this rank's output of a gather, scatter or exchange.
void PackedCall::set_output(const CollectiveArgs& args, const CallShape& shape,
                            const RankPosition& position) {
  if (args.own_counts && sum_of(own_.gets) == 0) return;
  const bool is_root = args.root == position.rank;
  const auto ranks = static_cast<std::uint64_t>(position.ranks);
  if (args.collective == Collective::gather && !is_root) return;
  if (args.collective == Collective::scatter && is_in_place(args.out)) {
    output_ =
        allocate(shape.part_bytes);  // the root's part stays in place: the memory may be read-only
    return;
  }
  if (args.counts) return set_output_parts(args, position);
  const Layout layout = committed_layout_of(args.out_type);
  output_ = args.out;
  if (layout.contiguous) return;
  const bool one = args.collective == Collective::scatter;
  std::byte* const stage = allocate(shape.part_bytes * (one ? 1 : ranks));
  output_ = stage;
  outputs_.push_back({stage, bytes_at(args.out, 0),
                      one ? args.out_count : args.out_count * position.ranks, layout});
}

void PackedCall::set_output_parts(const CollectiveArgs& args, const RankPosition& position) {
  const Layout layout = committed_layout_of(args.out_type);
  output_ = args.out;
  if (layout.contiguous && are_contiguous(args.counts, args.displs, position.ranks)) return;
  const auto elements = static_cast<std::uint64_t>(sum_of(args.counts, position.ranks));
  std::byte* at = allocate(elements * layout.bytes);
  output_ = at;
  for (int rank = 0; rank < position.ranks; ++rank) {
    outputs_.push_back(
        {at, bytes_at(args.out, args.displs[rank] * layout.extent), args.counts[rank], layout});
    at += static_cast<std::uint64_t>(args.counts[rank]) * layout.bytes;
  }
}

void PackedCall::retain_types() {
  for (StagedOutput& one : outputs_) {
    if (one.layout.contiguous) continue;
    one.layout.type = retained_types_.emplace_back(one.layout.type).type();
  }
}

void PackedCall::end() {
  for (const StagedOutput& one : outputs_) unpack(one.from, one.count, one.layout, one.to);
  staging_.put_back();
  retained_types_.clear();
  outputs_.clear();
  buffers_.clear();
}

}  // namespace plait::mpi
