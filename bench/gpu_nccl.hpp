// libnccl.so.2 beside plait in the same process: opened at run time, own declarations of the few
// functions used. PLAIT_NCCL_LIB names the library; without it there is no comparison.
#pragma once
#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "driver/cuda/types.hpp"
#include "plait/plan.hpp"

namespace plait::bench {

struct NcclId {
  char bytes[128];
};

class Nccl {
 public:
  /// Null where no library is named.
  static bool wanted() { return std::getenv("PLAIT_NCCL_LIB") != nullptr; }
  Nccl() {
    const char* path = std::getenv("PLAIT_NCCL_LIB");
    void* library = path == nullptr ? nullptr : ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(std::string("no NCCL: ") + ::dlerror());
    find(library, "ncclGetUniqueId", get_id);
    find(library, "ncclCommInitRank", init_rank);
    find(library, "ncclAllReduce", all_reduce_);
    find(library, "ncclReduceScatter", reduce_scatter_);
    find(library, "ncclAllGather", all_gather_);
    find(library, "ncclBroadcast", broadcast_);
    find(library, "ncclReduce", reduce_);
    find(library, "ncclAlltoAll", all_to_all_);
    find(library, "ncclSend", send_);
    find(library, "ncclRecv", receive_);
    find(library, "ncclGroupStart", group_start);
    find(library, "ncclGroupEnd", group_end);
    find(library, "ncclCommDestroy", destroy_);
    find(library, "ncclGetVersion", version_);
  }
  std::string new_id() {
    NcclId id{};
    require(get_id(&id));
    return {id.bytes, sizeof id.bytes};
  }
  void join(int ranks, const std::string& id, int rank) {
    NcclId given{};
    id.copy(given.bytes, sizeof given.bytes);
    require(init_rank(&comm_, ranks, given, rank));
  }
  /// Sums, root 0; gather and scatter by sends and receives, as NCCL's manual has them.
  void run(const Request& request, int rank, const void* input, void* output, cuda::Stream stream) {
    static constexpr int kTypes[] = {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) nccl_value,
#include "plait/types.def"
#undef PLAIT_TYPE
    };
    const int type = kTypes[static_cast<int>(request.type)], last = request.ranks - 1;
    const std::size_t count = request.count, bytes = count * bytes_of(request.type);
    switch (request.collective) {
      case Collective::all_reduce:
        return require(all_reduce_(input, output, count, type, 0, comm_, stream));
      case Collective::reduce_scatter:
        return require(reduce_scatter_(input, output, count, type, 0, comm_, stream));
      case Collective::all_gather:
        return require(all_gather_(input, output, count, type, comm_, stream));
      case Collective::broadcast:
        return require(broadcast_(input, output, count, type, 0, comm_, stream));
      case Collective::reduce:
        return require(reduce_(input, output, count, type, 0, 0, comm_, stream));
      case Collective::all_to_all:
        return require(all_to_all_(input, output, count, type, comm_, stream));
      case Collective::send_recv:
        return exchange(input, output, bytes, (rank + 1) % request.ranks,
                        (rank + last) % request.ranks, stream);
      case Collective::copy:
        if (rank <= 1)
          exchange(input, output, bytes, rank == 0 ? 1 : -1, rank == 0 ? -1 : 0, stream);
        return;
      case Collective::gather:
      case Collective::scatter: return to_or_from_root(request, rank, input, output, stream);
      default: throw std::runtime_error("NCCL has no such call");
    }
  }
  void to_or_from_root(const Request& request, int rank, const void* input, void* output,
                       cuda::Stream stream) {
    const std::size_t bytes = request.count * bytes_of(request.type);
    const bool gathers = request.collective == Collective::gather;
    const auto part = [&](auto* base, int peer) {
      return base + static_cast<std::size_t>(peer) * bytes;
    };
    require(group_start());
    if (gathers) require(send_(input, bytes, 0, 0, comm_, stream));
    for (int peer = 0; rank == 0 && peer < request.ranks; ++peer)
      require(
          gathers
              ? receive_(part(static_cast<char*>(output), peer), bytes, 0, peer, comm_, stream)
              : send_(part(static_cast<const char*>(input), peer), bytes, 0, peer, comm_, stream));
    if (!gathers) require(receive_(output, bytes, 0, 0, comm_, stream));
    require(group_end());
  }
  void exchange(const void* input, void* output, std::size_t bytes, int to, int from,
                cuda::Stream stream) {
    require(group_start());
    if (to >= 0) require(send_(input, bytes, 0, to, comm_, stream));
    if (from >= 0) require(receive_(output, bytes, 0, from, comm_, stream));
    require(group_end());
  }
  int version() {
    int number = 0;
    require(version_(&number));
    return number;
  }
  void leave() {
    if (comm_ != nullptr) destroy_(comm_);
    comm_ = nullptr;
  }

 private:
  using Comm = void*;
  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("NCCL lacks ") + name);
  }
  static void require(int result) {
    if (result != 0) throw std::runtime_error("NCCL call failed: " + std::to_string(result));
  }
  int (*get_id)(NcclId*) = nullptr;
  int (*init_rank)(Comm*, int, NcclId, int) = nullptr;
  int (*all_reduce_)(const void*, void*, std::size_t, int, int, Comm, cuda::Stream) = nullptr;
  int (*reduce_scatter_)(const void*, void*, std::size_t, int, int, Comm, cuda::Stream) = nullptr;
  int (*all_gather_)(const void*, void*, std::size_t, int, Comm, cuda::Stream) = nullptr;
  int (*broadcast_)(const void*, void*, std::size_t, int, int, Comm, cuda::Stream) = nullptr;
  int (*reduce_)(const void*, void*, std::size_t, int, int, int, Comm, cuda::Stream) = nullptr;
  int (*all_to_all_)(const void*, void*, std::size_t, int, Comm, cuda::Stream) = nullptr;
  int (*send_)(const void*, std::size_t, int, int, Comm, cuda::Stream) = nullptr;
  int (*receive_)(void*, std::size_t, int, int, Comm, cuda::Stream) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*destroy_)(Comm) = nullptr;
  int (*version_)(int*) = nullptr;
  Comm comm_ = nullptr;
};

}  // namespace plait::bench
