// others: runs native collectives on device memory (emulated by tests/fake_cuda), and checks that
// each leaves the same bytes as in host memory, gaps of datatypes included. Then runs the queries
// by which programs find out whether an MPI accepts device memory. Each rank prints a line of JSON.
#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "device_ints.hpp"

namespace {

constexpr int kRoom = 400;  ///< ints per buffer
const char* const kForms[] = {"", "I", "_init"};

/// A communicator with a topology, and this rank's neighbours in the order of MPI's buffers.
struct ProcessTopology {
  const char* name;
  MPI_Comm comm;
  std::vector<int> sources, destinations;
};

ProcessTopology grid(const char* name, std::vector<int> sizes, std::vector<int> periods) {
  ProcessTopology made{name, MPI_COMM_NULL, {}, {}};
  const int dimensions = static_cast<int>(sizes.size());
  MPI_Cart_create(MPI_COMM_WORLD, dimensions, sizes.data(), periods.data(), 0, &made.comm);
  for (int at = 0; at < dimensions; ++at) {
    int before = 0, behind = 0;
    MPI_Cart_shift(made.comm, at, 1, &before, &behind);
    for (const int one : {before, behind}) made.sources.push_back(one);
  }
  made.destinations = made.sources;
  return made;
}

ProcessTopology ring_graph() {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  std::vector<int> ends, edges;
  for (int one = 0; one < ranks; ++one) {
    ends.push_back(one + 1);
    edges.push_back((one + 1) % ranks);
  }
  ProcessTopology made{"a graph", MPI_COMM_NULL, {(rank + 1) % ranks}, {(rank + 1) % ranks}};
  if (ranks > 2) {  // both ends list an edge
    ends.clear();
    edges.clear();
    for (int one = 0; one < ranks; ++one) {
      edges.push_back((one + 1) % ranks);
      edges.push_back((one + ranks - 1) % ranks);
      ends.push_back(static_cast<int>(edges.size()));
    }
    made.sources = made.destinations = {(rank + 1) % ranks, (rank + ranks - 1) % ranks};
  }
  MPI_Graph_create(MPI_COMM_WORLD, ranks, ends.data(), edges.data(), 0, &made.comm);
  return made;
}

/// Each rank sends to the next rank, and rank 0 also to the last: in- and out-degrees differ.
ProcessTopology uneven_graph() {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD), last = ranks - 1;
  ProcessTopology made{
      "an uneven graph", MPI_COMM_NULL, {(rank + last) % ranks}, {(rank + 1) % ranks}};
  if (ranks > 2 && rank == 0) made.destinations.push_back(last);
  if (ranks > 2 && rank == last) made.sources.push_back(0);
  MPI_Dist_graph_create_adjacent(
      MPI_COMM_WORLD, static_cast<int>(made.sources.size()), made.sources.data(), MPI_UNWEIGHTED,
      static_cast<int>(made.destinations.size()), made.destinations.data(), MPI_UNWEIGHTED,
      MPI_INFO_NULL, 0, &made.comm);
  return made;
}

/// Calls `name` in one of the call's forms; a persistent call is started twice.
template <class... Arguments>
void call(int form, std::string name, bool is_large, Arguments... arguments) {
  const std::string suffix = is_large ? "_c" : "";
  MPI_Request request = MPI_REQUEST_NULL;
  if (form == 0) named<int(Arguments...)>(("MPI_" + name + suffix).c_str())(arguments...);
  if (form == 1) {
    name[0] = static_cast<char>(std::tolower(name[0]));
    named<int(Arguments..., MPI_Request*)>(("MPI_I" + name + suffix).c_str())(arguments...,
                                                                              &request);
  }
  if (form == 2) {
    make(("MPI_" + name + "_init" + suffix).c_str(), &request, arguments...);
    for (int round = 0; round < 2; ++round) {
      MPI_Start(&request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_Request_free(&request);
  }
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/// Calls `function` with host memory, then with input, output or both in device memory, and
/// compares the outputs.
template <class Function>
void compare(const std::string& what, const Function& function) {
  const int rank = rank_in(MPI_COMM_WORLD);
  std::vector<int> in(kRoom), expected(kRoom, -1);
  for (int at = 0; at < kRoom; ++at)
    in[static_cast<std::size_t>(at)] =
        static_cast<int>(mixed(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(at)));
  function(in.data(), expected.data());
  const DeviceInts gpu_in(kRoom, 0), gpu_out(kRoom, -1);
  std::copy(in.begin(), in.end(), gpu_in.content());
  for (const int where : {1, 2, 3}) {
    std::vector<int> out(kRoom, -1);
    gpu_out.fill(-1);
    function((where & 1) != 0 ? gpu_in.device_ptr() : in.data(),
             (where & 2) != 0 ? gpu_out.device_ptr() : out.data());
    if ((where & 2) != 0) std::copy_n(gpu_out.content(), kRoom, out.begin());
    expect(out == expected, what.c_str());
    expect(std::equal(in.begin(), in.end(), gpu_in.content()), "a call leaves its input unchanged");
  }
}

/// Returns the number of ints that a rank sends to another.
int length(int from, int to) { return from < 0 || to < 0 ? 2 : 2 + (from * 3 + to) % 4; }

/// Send or receive arguments of a call with a count per peer.
template <class N, class D>
struct NeighborSide {
  std::vector<N> counts;
  std::vector<D> displs;      ///< in elements
  std::vector<D> addresses;   ///< in bytes
  std::vector<MPI_Aint> far;  ///< in bytes, for neighbour calls
  std::vector<MPI_Datatype> types;
  /// Adds a part of up to 20 ints. Displacements descend, with gaps.
  void add(int count, MPI_Datatype type) {
    const int at = kRoom - 20 * (static_cast<int>(counts.size()) + 1);
    counts.push_back(count);
    displs.push_back(at);
    addresses.push_back(at * static_cast<int>(sizeof(int)));
    far.push_back(at * static_cast<int>(sizeof(int)));
    types.push_back(type);
  }
};

template <class N, class D>
void neighbours(const ProcessTopology& topology, bool is_large, MPI_Datatype column,
                MPI_Datatype pairs) {
  const int rank = rank_in(topology.comm);
  NeighborSide<N, D> in, out, gathered;
  for (const int to : topology.destinations)
    in.add(length(rank, to), in.counts.size() % 2 == 0 ? MPI_INT : column);
  for (const int from : topology.sources) {
    out.add(length(from, rank), out.counts.size() % 2 == 0 ? column : MPI_INT);
    gathered.add(from < 0 ? 1 : 2 + from % 3, MPI_INT);
  }
  const MPI_Comm comm = topology.comm;
  for (const int form : {0, 1, 2}) {
    const auto check = [&](const std::string& name, const auto& function) {
      compare(name + kForms[form] + " of " + topology.name + (is_large ? ", wide" : ""), function);
    };
    const N few = 3, mine = 2 + rank % 3;
    check("Neighbor_allgather", [&](const void* from, void* to) {
      call(form, "Neighbor_allgather", is_large, from, few, column, to, few, MPI_INT, comm);
    });
    check("Neighbor_allgatherv", [&](const void* from, void* to) {
      call(form, "Neighbor_allgatherv", is_large, from, mine, column, to,
           static_cast<const N*>(gathered.counts.data()),
           static_cast<const D*>(gathered.displs.data()), MPI_INT, comm);
    });
    check("Neighbor_alltoall", [&](const void* from, void* to) {
      call(form, "Neighbor_alltoall", is_large, from, few, pairs, to, few, pairs, comm);
    });
    check("Neighbor_alltoallv", [&](const void* from, void* to) {
      call(form, "Neighbor_alltoallv", is_large, from, static_cast<const N*>(in.counts.data()),
           static_cast<const D*>(in.displs.data()), MPI_INT, to,
           static_cast<const N*>(out.counts.data()), static_cast<const D*>(out.displs.data()),
           MPI_INT, comm);
    });
    check("Neighbor_alltoallw", [&](const void* from, void* to) {
      call(form, "Neighbor_alltoallw", is_large, from, static_cast<const N*>(in.counts.data()),
           static_cast<const MPI_Aint*>(in.far.data()),
           static_cast<const MPI_Datatype*>(in.types.data()), to,
           static_cast<const N*>(out.counts.data()), static_cast<const MPI_Aint*>(out.far.data()),
           static_cast<const MPI_Datatype*>(out.types.data()), comm);
    });
  }
}

template <class N, class D>
void all_to_all(bool is_large, MPI_Datatype column) {
  const MPI_Comm world = MPI_COMM_WORLD;
  const int rank = rank_in(world);
  NeighborSide<N, D> in, out, both;
  for (int other = 0; other < ranks_of(world); ++other) {
    in.add(length(rank, other), other % 2 == 0 ? MPI_INT : column);
    out.add(length(other, rank), other % 2 == 0 ? column : MPI_INT);
    both.add(4, other % 2 == 0 ? column : MPI_INT);
  }
  const auto run = [&](int form, const void* from, void* to, const NeighborSide<N, D>& given,
                       const NeighborSide<N, D>& got) {
    call(form, "Alltoallw", is_large, from, static_cast<const N*>(given.counts.data()),
         static_cast<const D*>(given.addresses.data()),
         static_cast<const MPI_Datatype*>(given.types.data()), to,
         static_cast<const N*>(got.counts.data()), static_cast<const D*>(got.addresses.data()),
         static_cast<const MPI_Datatype*>(got.types.data()), world);
  };
  for (const int form : {0, 1, 2}) {
    compare(std::string("Alltoallw") + kForms[form] + (is_large ? ", wide" : ""),
            [&](const void* from, void* to) { run(form, from, to, in, out); });
    if (form == 2) continue;  // a second start of an in-place call would swap the parts back
    compare(std::string("Alltoallw in place") + kForms[form],
            [&](const void*, void* to) { run(form, MPI_IN_PLACE, to, both, both); });
  }
}

/// Two groups, of the last rank and of all others, joined by an intercommunicator.
struct TwoGroups {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank, ranks, others;  ///< in this rank's group; ranks of the other group
  bool is_last;
  TwoGroups() {
    const int world_rank = rank_in(MPI_COMM_WORLD), last = ranks_of(MPI_COMM_WORLD) - 1;
    is_last = world_rank == last;
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, is_last ? 1 : 0, world_rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, is_last ? 0 : last, 1, &comm);
    rank = rank_in(half);
    ranks = ranks_of(half);
    others = is_last ? last : 1;
    MPI_Comm_free(&half);
  }
  /// Returns MPI's argument for a root, which is a rank of MPI_COMM_WORLD.
  int argument(int root) const {
    if ((root == ranks_of(MPI_COMM_WORLD) - 1) != is_last) return is_last ? root : 0;
    return root == rank_in(MPI_COMM_WORLD) ? MPI_ROOT : MPI_PROC_NULL;
  }
};

/// MPI ignores some arguments of some ranks: buffers stay unchanged, and arrays and types are
/// invalid here.
template <class N, class D>
void roots_of_two_groups(const TwoGroups& groups, bool is_large) {
  NeighborSide<N, D> parts;
  for (int other = 0; other < groups.others; ++other) parts.add(5, MPI_INT);
  const N few = 5;
  const MPI_Comm comm = groups.comm;
  for (int world_root = 0; world_root < ranks_of(MPI_COMM_WORLD); ++world_root)
    for (const int form : {0, 1, 2}) {
      const int root = groups.argument(world_root);
      const bool is_root = root == MPI_ROOT;
      constexpr std::intptr_t kInvalid = 16;
      const N* const counts = is_root ? parts.counts.data() : reinterpret_cast<const N*>(kInvalid);
      const D* const displs = is_root ? parts.displs.data() : reinterpret_cast<const D*>(kInvalid);
      const auto invalid = (MPI_Datatype)kInvalid;  // a number or an address, by MPI
      const MPI_Datatype at_root = is_root ? MPI_INT : invalid;
      const MPI_Datatype at_others = root >= 0 ? MPI_INT : invalid;
      const auto check = [&](const std::string& name, const auto& function) {
        compare(name + kForms[form] + " of two groups" + (is_large ? ", wide" : ""), function);
      };
      check("Bcast", [&](const void* from, void* to) {
        void* const buffer = root == MPI_ROOT ? const_cast<void*>(from) : to;
        call(form, "Bcast", is_large, buffer, few, MPI_INT, root, comm);
      });
      check("Reduce", [&](const void* from, void* to) {
        call(form, "Reduce", is_large, from, to, few, MPI_INT, MPI_SUM, root, comm);
      });
      check("Gather", [&](const void* from, void* to) {
        call(form, "Gather", is_large, from, few, at_others, to, few, at_root, root, comm);
      });
      check("Scatter", [&](const void* from, void* to) {
        call(form, "Scatter", is_large, from, few, at_root, to, few, at_others, root, comm);
      });
      check("Gatherv", [&](const void* from, void* to) {
        call(form, "Gatherv", is_large, from, few, at_others, to, counts, displs, at_root, root,
             comm);
      });
      check("Scatterv", [&](const void* from, void* to) {
        call(form, "Scatterv", is_large, from, counts, displs, at_root, to, few, at_others, root,
             comm);
      });
    }
}

/// A group gets the sum of the other group's input, a part per rank of its own.
template <class N>
void reduce_scatter_of_two_groups(const TwoGroups& groups, bool is_large) {
  constexpr int kWhole = 12;
  const int part = kWhole / groups.ranks;
  std::vector<N> counts(static_cast<std::size_t>(groups.ranks), part);
  counts.push_back(static_cast<N>(-(std::int64_t{1} << 40)));  // behind the array
  for (const int form : {0, 1, 2}) {
    std::vector<int> in(kWhole), out(kWhole, -1), expected(kWhole, -1);
    for (int at = 0; at < kWhole; ++at)
      in[static_cast<std::size_t>(at)] = 100 * rank_in(MPI_COMM_WORLD) + at;
    const int first = groups.is_last ? 0 : ranks_of(MPI_COMM_WORLD) - 1;
    for (int at = 0; at < part; ++at) {
      int sum = 0;
      for (int other = 0; other < groups.others; ++other)
        sum += 100 * (first + other) + part * groups.rank + at;
      expected[static_cast<std::size_t>(at)] = sum;
    }
    call(form, "Reduce_scatter", is_large, static_cast<const void*>(in.data()),
         static_cast<void*>(out.data()), static_cast<const N*>(counts.data()), MPI_INT, MPI_SUM,
         groups.comm);
    expect(out == expected, "Reduce_scatter of two groups");
    compare(std::string("Reduce_scatter of two groups") + kForms[form],
            [&](const void* from, void* to) {
              call(form, "Reduce_scatter", is_large, from, to, static_cast<const N*>(counts.data()),
                   MPI_INT, MPI_SUM, groups.comm);
            });
  }
}

void reduce_locally() {
  compare("Reduce_local",
          [](const void* from, void* to) { MPI_Reduce_local(from, to, 300, MPI_INT, MPI_SUM); });
  compare("Reduce_local, wide", [](const void* from, void* to) {
    named<int(const void*, void*, MPI_Count, MPI_Datatype, MPI_Op)>("MPI_Reduce_local_c")(
        from, to, 300, MPI_INT, MPI_SUM);
  });
}

/// Probes as PETSc and E3SM do: a call on MPI_COMM_SELF must accept device memory.
void probe_with_self_calls() {
  const DeviceInts sum(2, 0), sent(8, 3), got(8, 0);
  sum.content()[0] = 1;
  MPI_Allreduce(sum.device_ptr(), sum.device_ptr() + 1, 1, MPI_INT, MPI_SUM, MPI_COMM_SELF);
  expect(sum.holds(1), "a sum of one element of one rank");
  MPI_Request request;
  MPI_Isend(sent.device_ptr(), 8, MPI_INT, 0, 0, MPI_COMM_SELF, &request);
  MPI_Recv(got.device_ptr(), 8, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(got.holds(3), "data from the rank itself");
  expect(named<int()>("MPIX_Query_cuda_support")() == 1, "device memory is taken");
}

}  // namespace

int main(int argc, char** argv) {
  EmulatedCuda::now().begin(1);
  MPI_Init(&argc, &argv);
  probe_with_self_calls();
  reduce_locally();
  MPI_Datatype hole, column, pairs;  // every second int; two contiguous ints
  MPI_Type_contiguous(1, MPI_INT, &hole);
  MPI_Type_create_resized(hole, 0, 2 * sizeof(int), &column);
  MPI_Type_contiguous(2, MPI_INT, &pairs);
  MPI_Type_commit(&column);
  MPI_Type_commit(&pairs);
  const int ranks = ranks_of(MPI_COMM_WORLD);
  std::vector<ProcessTopology> topologies = {grid("a ring", {ranks}, {1}),
                                             grid("a strip", {ranks, 1}, {0, 1}), ring_graph(),
                                             uneven_graph()};
  for (ProcessTopology& one : topologies) {
    neighbours<int, int>(one, false, column, pairs);
    neighbours<MPI_Count, MPI_Aint>(one, true, column, pairs);
    MPI_Comm_free(&one.comm);
  }
  if (ranks > 1) {  // Open MPI 5.0 skips a rank's part for itself if the displacements differ
    all_to_all<int, int>(false, column);
    all_to_all<MPI_Count, MPI_Aint>(true, column);
    TwoGroups groups;
    roots_of_two_groups<int, int>(groups, false);
    roots_of_two_groups<MPI_Count, MPI_Aint>(groups, true);
    reduce_scatter_of_two_groups<int>(groups, false);
    reduce_scatter_of_two_groups<MPI_Count>(groups, true);
    MPI_Comm_free(&groups.comm);
  }
  std::printf("{\"rank\": %d, \"wrong\": %ld}\n", rank_in(MPI_COMM_WORLD), wrong);
  std::fflush(stdout);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
