// each_call: every collective with several types and sizes, equal parts and unequal ones. Prints a
// line of JSON a rank: "COLLECTIVE TYPE ELEMENTS SERVED" of each call, where ELEMENTS are of a part
// and SERVED is 1 if plait served the call.
#include <functional>
#include <string>
#include <vector>

#include "host_or_gpu.hpp"

namespace {

struct Type {
  const char* name;
  MPI_Datatype type;
  int bytes;
};

int ranks = 0, rank = 0;
void *from = nullptr, *to = nullptr;  // the buffers
std::string said;

/// Counts of parts: part p has (p + 1) times `count` elements.
struct Parts {
  std::vector<int> counts, displs;
  explicit Parts(int count) {
    int at = 0;
    for (int part = 0; part < ranks; ++part) {
      counts.push_back(count * (part + 1));
      displs.push_back(at);
      at += counts.back();
    }
  }
  int mine() const { return counts[static_cast<std::size_t>(rank)]; }
};

void call(const char* name, const Type& of, int count, const std::function<void()>& body) {
  const long before = calls_served();
  body();
  said += std::string(name) + " " + of.name + " " + std::to_string(count) + " " +
          (calls_served() > before ? "1;" : "0;");
}

void equal_parts(const Type& of, int count) {
  const MPI_Datatype type = of.type;
  const MPI_Comm world = MPI_COMM_WORLD;
  const int whole = count * ranks;  // the same bytes as the calls of parts
  call("all_reduce", of, whole, [&] { MPI_Allreduce(from, to, whole, type, MPI_SUM, world); });
  call("reduce", of, whole, [&] { MPI_Reduce(from, to, whole, type, MPI_SUM, 0, world); });
  call("broadcast", of, whole, [&] { MPI_Bcast(to, whole, type, 0, world); });
  call("reduce_scatter", of, count,
       [&] { MPI_Reduce_scatter_block(from, to, count, type, MPI_SUM, world); });
  call("all_gather", of, count, [&] { MPI_Allgather(from, count, type, to, count, type, world); });
  call("all_to_all", of, count, [&] { MPI_Alltoall(from, count, type, to, count, type, world); });
  call("gather", of, count, [&] { MPI_Gather(from, count, type, to, count, type, 0, world); });
  call("scatter", of, count, [&] { MPI_Scatter(from, count, type, to, count, type, 0, world); });
}

void unequal_parts(const Type& of, int count) {
  const MPI_Datatype type = of.type;
  const MPI_Comm world = MPI_COMM_WORLD;
  const Parts parts(count);
  const int *const counts = parts.counts.data(), *const displs = parts.displs.data();
  const std::vector<int> sent(static_cast<std::size_t>(ranks), parts.mine());
  std::vector<int> sent_at;
  for (int part = 0; part < ranks; ++part) sent_at.push_back(part * parts.mine());
  call("reduce_scatter_v", of, count,
       [&] { MPI_Reduce_scatter(from, to, counts, type, MPI_SUM, world); });
  call("all_gather_v", of, count,
       [&] { MPI_Allgatherv(from, parts.mine(), type, to, counts, displs, type, world); });
  call("gather_v", of, count,
       [&] { MPI_Gatherv(from, parts.mine(), type, to, counts, displs, type, 0, world); });
  call("scatter_v", of, count,
       [&] { MPI_Scatterv(from, counts, displs, type, to, parts.mine(), type, 0, world); });
  call("all_to_all_v", of, count, [&] {
    MPI_Alltoallv(from, sent.data(), sent_at.data(), type, to, counts, displs, type, world);
  });
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::size_t kBytes = 64 << 20;
  EmulatedCuda& gpu = EmulatedCuda::now();
  gpu.begin(1);
  std::vector<char> in(kBytes, 0), out(kBytes, 0);
  from = gpu.content == nullptr ? in.data() : device_ptr(gpu.content(kBytes));
  to = gpu.content == nullptr ? out.data() : device_ptr(gpu.content(kBytes));
  MPI_Init(&argc, &argv);
  ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  const Type types[] = {{"int32", MPI_INT, 4}, {"fp64", MPI_DOUBLE, 8}, {"int16", MPI_SHORT, 2}};
  for (const Type& of : types)
    for (const int bytes : {1 << 10, 64 << 10, 1 << 20, 4 << 20}) {
      if (bytes == 4 << 20 && of.bytes != 4) continue;  // seconds, where an MPI polls without rest
      equal_parts(of, bytes / of.bytes / ranks);
      unequal_parts(of, bytes / of.bytes / ranks);
    }
  std::printf("{\"rank\": %d, \"wrong\": 0, \"calls\": \"%s\"}\n", rank, said.c_str());
  MPI_Finalize();
  return 0;
}
