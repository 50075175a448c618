// library: the whole collective as a single call of the library between nodes, among all ranks. The
// strategy is the baseline of all others, and serves collectives of blocks on nodes of unequal
// size.
#include "planner/node_calls.hpp"

namespace plait {
namespace {

std::vector<Params> candidates(const Topology&, const Request&) { return {{}}; }

void write(Builder& builder, const Params& params) {
  NodeCalls calls(builder, params);
  builder.sum_order(SumOrder::algorithm_order);
  ranks_of_nodes(builder);
  write_by_library(builder, calls);
  calls.write();
}

}  // namespace

void write_by_library(Builder& builder, NodeCalls& calls) {
  const Request& request = builder.request();
  const bool averages = request.op == ReduceOp::avg && reduces(request.collective);
  const bool scales = request.op == ReduceOp::premul_sum && reduces(request.collective);
  std::vector<Part> parts;
  for (int rank = 0; rank < request.ranks; ++rank) {
    Part part{rank, builder.input(rank, {0, input_bytes(request, rank)}),
              builder.output(rank, {0, output_bytes(request, rank)})};
    if (scales) {
      const Region input = part.src;
      const bool fits = part.dst.bytes == input.bytes;
      part.src = fits ? part.dst : builder.alloc(Space::scratch, rank, input.bytes);
      calls.sum(part.src, {input}, false);
    }
    parts.push_back(part);
  }
  const int call =
      calls.across(request.collective, request.count, request.root, parts, !averages, request.peer);
  calls.await(call);
  for (const Part& part : parts)
    if (averages) calls.sum(part.dst, {part.dst}, true);
}

const Strategy& library_strategy() {
  static const Strategy strategy{
      {"library",
       "one call of the library between nodes, among all ranks",
       "NCCL and MPI",
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::broadcast, Collective::reduce, Collective::all_to_all, Collective::gather,
        Collective::scatter, Collective::send_recv, Collective::copy}},
      candidates,
      write,
      {"mpi"},
      true};
  return strategy;
}

}  // namespace plait
