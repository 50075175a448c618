// Collectives of the stand-in: gathers all ranks' bytes, then computes this rank's output.
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "tests/shims/standin/nccl.hpp"

namespace standin {
namespace {

std::size_t bytes_of(int type) {
  constexpr std::size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type < 0 || type > 11 ? 0 : kBytes[type];
}

std::vector<char> all_of(CommTag* comm, const void* mine, std::size_t bytes) {
  return gather(comm->segment->streams, comm->rank, comm->ranks, mine, bytes,
                [comm] { return comm->aborted.load(); });
}

template <class T>
T combined(int op, T a, T b) {
  if (op == kProd) return static_cast<T>(a * b);
  if (op == kMax) return a < b ? b : a;
  if (op == kMin) return b < a ? b : a;
  return static_cast<T>(a + b);
}

template <class T>
void reduce_as(CommTag* comm, const std::vector<char>& all, std::size_t stride, std::size_t first,
               std::size_t count, int op, const std::vector<double>& scales, void* output) {
  for (std::size_t i = 0; i < count; ++i) {
    T total{};
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(comm->ranks); ++rank) {
      T value;
      std::memcpy(&value, all.data() + rank * stride + (first + i) * sizeof(T), sizeof(T));
      if (!scales.empty()) value = static_cast<T>(value * static_cast<T>(scales[rank]));
      total = rank == 0 ? value : combined(op, total, value);
    }
    if (op == kAvg) total = static_cast<T>(total / static_cast<T>(comm->ranks));
    std::memcpy(static_cast<char*>(output) + i * sizeof(T), &total, sizeof(T));
  }
}

bool reduce_any(CommTag* comm, const std::vector<char>& all, std::size_t stride, std::size_t first,
                std::size_t count, int type, int op, const std::vector<double>& scales,
                void* output) {
  const auto run = [&](auto sample) {
    reduce_as<decltype(sample)>(comm, all, stride, first, count, op, scales, output);
    return true;
  };
  switch (type) {
    case 0: return run(std::int8_t{});
    case 1: return run(std::uint8_t{});
    case 2: return run(std::int32_t{});
    case 3: return run(std::uint32_t{});
    case 4: return run(std::int64_t{});
    case 5: return run(std::uint64_t{});
    case 7: return run(float{});
    case 8: return run(double{});
    default: return false;
  }
}

/// Returns this rank's scalar of a user-defined op; a scalar in memory is read when the call runs.
double scalar_of(CommTag* comm, int op, int type) {
  const auto index = static_cast<std::size_t>(op - kBuiltInOps);
  const void* stream_state = comm->scalar_places.at(index);
  if (stream_state == nullptr) return comm->scalars.at(index);
  double wide = 0;
  float narrow = 0;
  if (type == 8) std::memcpy(&wide, stream_state, sizeof wide);
  if (type == 7) std::memcpy(&narrow, stream_state, sizeof narrow);
  return type == 8 ? wide : static_cast<double>(narrow);
}

/// Reduces all inputs; writes elements [first, first + count) of `total` to output, if any.
void reduce_task(CommTag* comm, const void* input, void* output, std::size_t total,
                 std::size_t first, std::size_t count, int type, int op) {
  std::vector<double> scales;
  if (op >= kBuiltInOps) {
    const double mine = scalar_of(comm, op, type);
    const std::vector<char> shown = all_of(comm, &mine, sizeof mine);
    scales.resize(static_cast<std::size_t>(comm->ranks));
    std::memcpy(scales.data(), shown.data(), shown.size());
  }
  const std::size_t stride = total * bytes_of(type);
  const std::vector<char> all = all_of(comm, input, stride);
  if (output != nullptr && !reduce_any(comm, all, stride, first, count, type, op, scales, output))
    throw std::runtime_error("the stand-in reduces no such type");
}

Result checked(CommTag* comm, const void* input, int type, int op, int root) {
  if (comm == nullptr || bytes_of(type) == 0 || op < 0 || root < 0 || root >= comm->ranks)
    return ncclInvalidArgument;
  if (op >= kBuiltInOps && static_cast<std::size_t>(op - kBuiltInOps) >= comm->scalars.size())
    return ncclInvalidArgument;
  (void)input;
  return ncclSuccess;
}

}  // namespace
}  // namespace standin

using namespace standin;

#define STANDIN_CHECK(input, op, root) \
  if (const Result bad = checked(comm, input, type, op, root); bad != ncclSuccess) return bad

STANDIN_API Result ncclAllReduce(const void* input, void* output, std::size_t elements, int type,
                                 int op, Comm comm, Stream stream) {
  count("ncclAllReduce");
  STANDIN_CHECK(input, op, 0);
  return submit(comm, stream,
                [=] { reduce_task(comm, input, output, elements, 0, elements, type, op); });
}

STANDIN_API Result ncclReduce(const void* input, void* output, std::size_t elements, int type,
                              int op, int root, Comm comm, Stream stream) {
  count("ncclReduce");
  STANDIN_CHECK(input, op, root);
  return submit(comm, stream, [=] {
    reduce_task(comm, input, comm->rank == root ? output : nullptr, elements, 0, elements, type,
                op);
  });
}

STANDIN_API Result ncclReduceScatter(const void* input, void* output, std::size_t elements,
                                     int type, int op, Comm comm, Stream stream) {
  count("ncclReduceScatter");
  STANDIN_CHECK(input, op, 0);
  return submit(comm, stream, [=] {
    const auto ranks = static_cast<std::size_t>(comm->ranks);
    reduce_task(comm, input, output, elements * ranks,
                elements * static_cast<std::size_t>(comm->rank), elements, type, op);
  });
}

STANDIN_API Result ncclAllGather(const void* input, void* output, std::size_t elements, int type,
                                 Comm comm, Stream stream) {
  count("ncclAllGather");
  STANDIN_CHECK(input, 0, 0);
  // STANDIN_STUCK: the first connection of a split communicator blocks inside NCCL until an abort,
  // as if a rank did not come.
  if (comm->is_split && std::getenv("STANDIN_STUCK") != nullptr) {
    while (!comm->aborted.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return ncclInternalError;
  }
  return submit(comm, stream, [=] {
    const std::vector<char> all = all_of(comm, input, elements * bytes_of(type));
    std::memcpy(output, all.data(), all.size());
  });
}

STANDIN_API Result ncclBroadcast(const void* input, void* output, std::size_t elements, int type,
                                 int root, Comm comm, Stream stream) {
  count("ncclBroadcast");
  STANDIN_CHECK(input, 0, root);
  return submit(comm, stream, [=] {
    const std::size_t bytes = elements * bytes_of(type);
    const std::vector<char> all = all_of(comm, comm->rank == root ? input : nullptr, bytes);
    std::memcpy(output, all.data() + static_cast<std::size_t>(root) * bytes, bytes);
  });
}

STANDIN_API Result ncclBcast(void* buffer, std::size_t elements, int type, int root, Comm comm,
                             Stream stream) {
  return ncclBroadcast(buffer, buffer, elements, type, root, comm, stream);
}

STANDIN_API Result ncclAlltoAll(const void* input, void* output, std::size_t elements, int type,
                                Comm comm, Stream stream) {
  count("ncclAlltoAll");
  STANDIN_CHECK(input, 0, 0);
  return submit(comm, stream, [=] {
    const std::size_t piece = elements * bytes_of(type);
    const auto ranks = static_cast<std::size_t>(comm->ranks);
    const std::vector<char> all = all_of(comm, input, piece * ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      std::memcpy(static_cast<char*>(output) + rank * piece,
                  all.data() + rank * piece * ranks + static_cast<std::size_t>(comm->rank) * piece,
                  piece);
  });
}

STANDIN_API Result ncclGather(const void* input, void* output, std::size_t elements, int type,
                              int root, Comm comm, Stream stream) {
  count("ncclGather");
  STANDIN_CHECK(input, 0, root);
  return submit(comm, stream, [=] {
    const std::vector<char> all = all_of(comm, input, elements * bytes_of(type));
    if (comm->rank == root) std::memcpy(output, all.data(), all.size());
  });
}

STANDIN_API Result ncclScatter(const void* input, void* output, std::size_t elements, int type,
                               int root, Comm comm, Stream stream) {
  count("ncclScatter");
  STANDIN_CHECK(input, 0, root);
  return submit(comm, stream, [=] {
    const std::size_t piece = elements * bytes_of(type);
    const std::size_t whole = piece * static_cast<std::size_t>(comm->ranks);
    const std::vector<char> all = all_of(comm, comm->rank == root ? input : nullptr, whole);
    std::memcpy(output,
                all.data() + static_cast<std::size_t>(root) * whole +
                    static_cast<std::size_t>(comm->rank) * piece,
                piece);
  });
}

/// From NCCL 2.31 on; ignores the configuration.
STANDIN_API Result ncclAllReduceConfig(const void* input, void* output, std::size_t elements,
                                       int type, int op, Comm comm, Stream stream, const void*) {
  return ncclAllReduce(input, output, elements, type, op, comm, stream);
}

/// Signals only take a place in the order of calls.
STANDIN_API Result ncclSignal(int, int, int, unsigned, Comm comm, Stream stream) {
  return submit(comm, stream, [] {});
}

STANDIN_API Result ncclWaitSignal(int, void*, Comm comm, Stream stream) {
  return submit(comm, stream, [] {});
}

STANDIN_API Result ncclSend(const void* input, std::size_t elements, int type, int peer, Comm comm,
                            Stream stream) {
  count("ncclSend");
  STANDIN_CHECK(input, 0, peer);
  StandinMessage message;
  message.sends = true;
  message.peer = peer;
  message.input = input;
  message.bytes = elements * bytes_of(type);
  return submit(comm, stream, message);
}

STANDIN_API Result ncclRecv(void* output, std::size_t elements, int type, int peer, Comm comm,
                            Stream stream) {
  count("ncclRecv");
  STANDIN_CHECK(output, 0, peer);
  StandinMessage message;
  message.peer = peer;
  message.output = output;
  message.bytes = elements * bytes_of(type);
  return submit(comm, stream, message);
}

STANDIN_API Result ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence,
                                            Comm comm) {
  count("ncclRedOpCreatePreMulSum");
  if (comm == nullptr || op == nullptr || (type != 7 && type != 8)) return ncclInvalidArgument;
  comm->scalar_places.push_back(scalar);
  comm->scalars.push_back(0);
  *op = kBuiltInOps + static_cast<int>(comm->scalars.size()) - 1;
  if (residence == kScalarDevice) return ncclSuccess;
  comm->scalars.back() = scalar_of(comm, *op, type);
  comm->scalar_places.back() = nullptr;
  return ncclSuccess;
}

STANDIN_API Result ncclRedOpDestroy(int op, Comm comm) {
  return op < kBuiltInOps || comm == nullptr ? ncclInvalidArgument : ncclSuccess;
}
