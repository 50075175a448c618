// Reads the number of parts from the communicator's size or topology.
#include "shims/mpi/abi/lengths.hpp"

#include <algorithm>
#include <vector>

namespace plait::mpi {
namespace {

/// Dimensions of a cartesian grid; 0 for other topologies.
int dimensions_of(Handle comm) {
  int topology = 0, dimensions = 0;
  native().Topo_test(comm, &topology);
  if (topology == native().abi.cart) native().Cartdim_get(comm, &dimensions);
  return dimensions;
}

}  // namespace

Lengths ranks_in(Handle comm) {
  int inter = 0, ranks = 0;
  native().Comm_test_inter(comm, &inter);
  (inter != 0 ? native().Comm_remote_size : native().Comm_size)(comm, &ranks);
  return {ranks, ranks};
}

Lengths own_ranks_in(Handle comm) {
  int ranks = 0;
  native().Comm_size(comm, &ranks);
  return {ranks, ranks};
}

Lengths neighbours_in(Handle comm) {
  const Abi& abi = native().abi;
  int topology = 0;
  native().Topo_test(comm, &topology);
  if (topology == abi.cart) {
    const int both = 2 * dimensions_of(comm);
    return {both, both};
  }
  if (topology == abi.graph) {
    int rank = 0, neighbours = 0;
    native().Comm_rank(comm, &rank);
    native().Graph_neighbors_count(comm, rank, &neighbours);
    return {neighbours, neighbours};
  }
  Lengths found;
  int weighted = 0;
  if (topology == abi.dist_graph)
    native().Dist_graph_neighbors_count(comm, &found.out, &found.in, &weighted);
  return found;
}

Lengths sources_in(Handle comm) {
  const int sources = neighbours_in(comm).out;
  return {sources, sources};
}

bool may_lack_neighbours(Handle comm) {
  const int dimensions = dimensions_of(comm);
  if (dimensions == 0) return false;
  const auto each = static_cast<std::size_t>(dimensions);
  std::vector<int> sizes(each), periods(each), places(each);
  native().Cart_get(comm, dimensions, sizes.data(), periods.data(), places.data());
  return std::any_of(periods.begin(), periods.end(), [](int one) { return one == 0; });
}

}  // namespace plait::mpi
