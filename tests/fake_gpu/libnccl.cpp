// Fake libnccl.so.2 that records calls beside the fake driver's launches, event records and waits.
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/text.hpp"
#include "comm/transport/nccl/abi.hpp"
#include "fake_cuda/fake_gpu.hpp"

#define FAKE_NCCL extern "C" [[gnu::visibility("default")]] Result

using namespace plait::nccl;
using plait::text;
using plait_test::fake_cuda;

namespace plait::nccl {
struct CommTag {
  int ranks = 0, rank = 0;
};
}  // namespace plait::nccl

namespace {

plait_test::FakeNccl& fake() { return fake_cuda().nccl; }

constexpr Result kRemoteError = static_cast<Result>(6);

void wait_while(const std::atomic<bool>& holds) {
  while (holds.load() && fake().aborted == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Result noted(const char* name, std::size_t count, Comm comm, Stream stream) {
  fake_cuda().notes.add({text("{} {} of {}", name, count, comm->ranks), stream});
  plait_test::FakeStill& still = fake_cuda().still;
  if (still.is_wanted) {
    const std::lock_guard<std::mutex> hold(still.guard);
    still.streams.insert(stream);
  }
  if (fake().holds_calls) return wait_while(fake().holds_calls), kRemoteError;
  return static_cast<Result>(fake().call_result.load());
}

}  // namespace

FAKE_NCCL ncclGetVersion(int* version) { return *version = 22809, ncclSuccess; }
FAKE_NCCL ncclGetUniqueId(UniqueId* id) {
  std::memset(id, 0, sizeof *id);
  ++fake().ids;
  return ncclSuccess;
}
FAKE_NCCL ncclCommInitRank(Comm* comm, int ranks, UniqueId, int rank) {
  wait_while(fake().holds_init);
  ++fake().made;
  if (fake().init_result != 0) return static_cast<Result>(fake().init_result.load());
  return *comm = new CommTag{ranks, rank}, ncclSuccess;
}
FAKE_NCCL ncclCommInitAll(Comm*, int, const int*) { return ncclInvalidUsage; }
FAKE_NCCL ncclCommDestroy(Comm comm) { return delete comm, ++fake().destroyed, ncclSuccess; }
/// Another thread may still be in a call of the communicator, hence the communicator is freed at
/// the end only.
FAKE_NCCL ncclCommAbort(Comm comm) {
  static std::mutex guard;
  static std::vector<std::unique_ptr<CommTag>> aborted;
  const std::lock_guard<std::mutex> hold(guard);
  aborted.emplace_back(comm);
  return ++fake().aborted, ncclSuccess;
}
FAKE_NCCL ncclCommGetAsyncError(Comm, Result* error) {
  return *error = static_cast<Result>(fake().async_error.load()), ncclSuccess;
}
FAKE_NCCL ncclCommCount(Comm comm, int* count) { return *count = comm->ranks, ncclSuccess; }
FAKE_NCCL ncclCommUserRank(Comm comm, int* rank) { return *rank = comm->rank, ncclSuccess; }
FAKE_NCCL ncclCommCuDevice(Comm, int* device) { return *device = 0, ncclSuccess; }
FAKE_NCCL ncclGroupStart() { return ncclSuccess; }
FAKE_NCCL ncclGroupEnd() { return ncclSuccess; }
FAKE_NCCL ncclAllReduce(const void*, void*, std::size_t count, int, int, Comm comm, Stream stream) {
  return noted("ncclAllReduce", count, comm, stream);
}
FAKE_NCCL ncclReduceScatter(const void*, void*, std::size_t count, int, int, Comm comm,
                            Stream stream) {
  return noted("ncclReduceScatter", count, comm, stream);
}
FAKE_NCCL ncclAllGather(const void*, void*, std::size_t count, int, Comm comm, Stream stream) {
  return noted("ncclAllGather", count, comm, stream);
}
FAKE_NCCL ncclBroadcast(const void*, void*, std::size_t count, int, int, Comm comm, Stream stream) {
  return noted("ncclBroadcast", count, comm, stream);
}
FAKE_NCCL ncclBcast(void*, std::size_t, int, int, Comm, Stream) { return ncclInvalidUsage; }
FAKE_NCCL ncclReduce(const void*, void*, std::size_t count, int, int, int, Comm comm,
                     Stream stream) {
  return noted("ncclReduce", count, comm, stream);
}
FAKE_NCCL ncclSend(const void*, std::size_t count, int, int peer, Comm comm, Stream stream) {
  return noted(text("ncclSend to {}", peer).c_str(), count, comm, stream);
}
FAKE_NCCL ncclRecv(void*, std::size_t count, int, int peer, Comm comm, Stream stream) {
  return noted(text("ncclRecv from {}", peer).c_str(), count, comm, stream);
}
