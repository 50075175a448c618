// What the paths of a machine give by themselves, all GPUs at once: links to kernels and to copy
// engines, host memory to copy engines. The floors that collectives are held against.
#pragma once
#include "base/text.hpp"
#include "bench/gpu_ranks.hpp"
#include "exec/cuda/cuda_rank.hpp"

namespace plait::bench {

using namespace plait::cuda;

using Enqueue = std::function<void(cuda::Stream)>;

/// A rank, as the benchmark has it.
struct PathRank {
  int gpus = 0;
  bool processes = false;
  Board* board = nullptr;
  int rank = 0;
  CudaRank* cuda = nullptr;
  cuda::Stream stream = nullptr;
  std::vector<std::byte*> rings;  ///< by rank, as CudaRank has them
  std::uint64_t ring_bytes = 0;
  std::function<double(const Enqueue&)> eager_us;  ///< median of a round, all ranks' slowest
};

class PathBench {
 public:
  explicit PathBench(PathRank rank) : in_(std::move(rank)) {
    PLAIT_CUDA_CALL(memory_alloc, &input_, kBufferBytes);
    PLAIT_CUDA_CALL(memory_alloc, &output_, kBufferBytes + kWordsBytes);
    PLAIT_CUDA_CALL(memory_set_async, input_, 0x5a, kBufferBytes, in_.stream);
    PLAIT_CUDA_CALL(stream_synchronize, in_.stream);
  }
  ~PathBench() {
    api().memory_free(input_);
    api().memory_free(output_);
  }
  PathBench(const PathBench&) = delete;
  PathBench& operator=(const PathBench&) = delete;

  /// What links give to kernels: all ranks push to (pull from) one peer, or all peers at once.
  void push() {
    if (in_.processes) return;
    struct LinkArgs {
      DevicePointer remote[kMaxCudaRanks];
      DevicePointer local;
      unsigned long long units;
      int peers;
    } args{};
    const std::uint64_t bytes = 256ull << 20;
    const std::vector<std::string> all =
        in_.board->exchange(in_.rank, std::string(reinterpret_cast<const char*>(&output_), 8));
    for (const std::string kernel : {"push_bulk", "push", "push_in_turn", "pull", "pull_in_turn"})
      for (const int peers : {1, in_.gpus - 1})
        for (const unsigned blocks : {33u, 66u, 100u, 132u, 264u})
          for (const unsigned threads : {32u, 256u, 512u}) {
            const bool bulk = kernel == "push_bulk";  // of one thread, a block an SM
            if (bulk != (threads == 32) || (bulk && blocks > 132)) continue;
            args.peers = peers;
            args.local = input_;
            args.units = bytes / 16 / static_cast<unsigned>(peers);
            for (int k = 1; k <= peers; ++k)
              std::memcpy(&args.remote[k - 1],
                          all[static_cast<std::size_t>((in_.rank + k) % in_.gpus)].data(), 8);
            // Peers write to parts of their own, or links would carry what caches merge.
            for (int k = 1; k <= peers; ++k)
              args.remote[k - 1] += static_cast<unsigned>(k - 1) * args.units * 16;
            const Enqueue enqueue = [&](cuda::Stream stream) {
              in_.cuda->kernels().launch(
                  in_.cuda->kernels().find("plait_link_" + kernel),
                  {blocks, threads, false, bulk ? kPushStages * kBulkBytes : 0}, stream, {&args});
            };
            const double us = in_.eager_us(enqueue);
            if (in_.rank == 0)
              std::printf("%s, %d peers, blocks %u, threads %u: %.1f GB/s out of each GPU\n",
                          kernel.c_str(), peers, blocks, threads,
                          static_cast<double>(bytes) / us / 1e3);
          }
  }

  /// What copy engines give when all ranks copy at once, in rotation or to all peers side by side.
  void engines() {
    if (!in_.processes) return;
    EngineRoom room;
    room.remote = map_outputs();
    room.streams.resize(static_cast<std::size_t>(std::max(3, in_.gpus - 1)));
    for (cuda::Stream& stream : room.streams)
      PLAIT_CUDA_CALL(stream_create, &stream, kStreamNonBlocking, 0);
    PLAIT_CUDA_CALL(event_create, &room.event, kEventDisableTiming);
    PLAIT_CUDA_CALL(host_register, room.host.data(), room.host.size(), 0);
    const char* names[] = {"push",
                           "pull",
                           "half push, half pull",
                           "push on two streams",
                           "push, a stream a peer",
                           "push, ports passed on",
                           "push, ports passed on, a tenth more through host memory both ways"};
    for (const std::uint64_t mib : {2, 8, 16, 32, 64, 128})
      for (unsigned kind = 0; kind < kEngineKinds; ++kind) {
        const std::uint64_t piece = mib << 20;
        if (kEngineBytes % piece != 0) continue;
        if (kind >= kStreamAPeer && kind != kPortsAndHost && in_.gpus < 3) continue;
        const Enqueue enqueue = [&](cuda::Stream stream) {
          engine_copies(room, static_cast<EngineKind>(kind), piece, stream);
        };
        const double us = in_.eager_us(enqueue);
        if (in_.rank == 0)
          std::printf("copy engines, %s, pieces of %s: %.1f GB/s out of each GPU\n", names[kind],
                      text(mib, " MiB").c_str(),
                      static_cast<double>(kEngineBytes) * (in_.gpus - 1) / us / 1e3);
        in_.board->meet();
      }
    in_.board->meet();
    api().host_unregister(room.host.data());
    for (cuda::Stream stream : room.streams) api().stream_destroy(stream);
    api().event_destroy(room.event);
    for (int rank = 0; rank < in_.gpus; ++rank)
      if (rank != in_.rank) api().ipc_close(room.remote[static_cast<std::size_t>(rank)]);
  }

  /// What copy engines give to and from host memory: chunks of a rank's own ring, or up from the
  /// others', alone and beside an all_reduce over links.
  void host_memory() {
    HostRoom room;
    for (cuda::Stream* stream : {&room.down, &room.up})
      PLAIT_CUDA_CALL(stream_create, stream, kStreamNonBlocking, 0);
    PLAIT_CUDA_CALL(event_create, &room.event, kEventDisableTiming);
    for (const std::uint64_t chunk : {1ull << 20, 4ull << 20})
      for (const unsigned kinds :
           std::vector<unsigned>{kDown, kUp, kUp | kOthers, kDown | kUp, kDown | kUp | kOthers})
        for (const bool beside : {false, true}) {
          const double us = in_.eager_us([&](cuda::Stream stream) {
            fork(room, stream);
            if (beside) all_reduce(stream);
            host_copies(room, kinds, chunk);
            join(room, stream);
          });
          if (in_.rank == 0)
            std::printf("host memory:%s%s%s%s, chunks of %s: %.1f GB/s a GPU each way\n",
                        (kinds & kDown) != 0 ? " down" : "", (kinds & kUp) != 0 ? " up" : "",
                        (kinds & kOthers) != 0 ? " from others' rings" : "",
                        beside ? " beside all_reduce" : "", text(chunk >> 20, " MiB").c_str(),
                        static_cast<double>(kHostBytes) / us / 1e3);
          in_.board->meet();
        }
    for (cuda::Stream stream : {room.down, room.up}) api().stream_destroy(stream);
    api().event_destroy(room.event);
  }

 private:
  /// Every rank's output by rank, for processes; the last page holds words.
  std::vector<DevicePointer> map_outputs() {
    IpcHandle mine{};
    PLAIT_CUDA_CALL(ipc_get, &mine, output_);
    PLAIT_CUDA_CALL(memory_set_async, output_ + kBufferBytes, 0, kWordsBytes, in_.stream);
    PLAIT_CUDA_CALL(stream_synchronize, in_.stream);
    const std::vector<std::string> all = in_.board->exchange(
        in_.rank, std::string(reinterpret_cast<const char*>(&mine), sizeof mine));
    std::vector<DevicePointer> remote(static_cast<std::size_t>(in_.gpus), output_);
    for (int rank = 0; rank < in_.gpus; ++rank) {
      if (rank == in_.rank) continue;
      IpcHandle theirs{};
      std::memcpy(&theirs, all[static_cast<std::size_t>(rank)].data(), sizeof theirs);
      PLAIT_CUDA_CALL(ipc_open, &remote[static_cast<std::size_t>(rank)], theirs,
                      kIpcLazyPeerAccess);
    }
    return remote;
  }

  /// After so many steps of a rotation: the rank that comes next at the port just left may go on,
  /// with its next step or with its first one.
  void pass_port(const std::vector<DevicePointer>& remote, int steps, cuda::Stream stream) {
    const bool is_last = steps == in_.gpus - 1;
    const int next = (in_.rank + in_.gpus - (is_last ? 2 : 1)) % in_.gpus;
    const std::uint64_t word = kBufferBytes + (is_last ? 0u : 4u * static_cast<unsigned>(steps));
    DevicePointer theirs = remote[static_cast<std::size_t>(next)] + word;
    DevicePointer mine = output_ + word;
    unsigned value = sweeps_ + 1;
    sweeps_ += is_last ? 1 : 0;
    in_.cuda->kernels().launch(in_.cuda->kernels().find("plait_pass_port"), {1, 1, false}, stream,
                               {&theirs, &mine, &value});
  }

  enum EngineKind : unsigned {
    kPushes,
    kPulls,
    kHalfAndHalf,
    kTwoStreams,
    kStreamAPeer,
    kPorts,
    kPortsAndHost,
    kEngineKinds
  };
  struct EngineRoom {
    std::vector<DevicePointer> remote;
    std::vector<cuda::Stream> streams;
    cuda::Event event = nullptr;
    std::vector<char> host = std::vector<char>(kHostChunk);
  };

  /// A tenth of what goes over links: down on one stream, up on another.
  void copy_beside(const EngineRoom& room, std::uint64_t bytes) {
    const auto host = reinterpret_cast<DevicePointer>(room.host.data());
    for (std::uint64_t at = 0; at + kHostChunk <= bytes / 10; at += kHostChunk) {
      PLAIT_CUDA_CALL(memory_copy_async, host, input_ + at, kHostChunk, room.streams[1]);
      PLAIT_CUDA_CALL(memory_copy_async, output_ + at, host, kHostChunk, room.streams[2]);
    }
  }

  void engine_copies(const EngineRoom& room, EngineKind kind, std::uint64_t piece,
                     cuda::Stream stream) {
    for (const cuda::Stream other : room.streams) {
      PLAIT_CUDA_CALL(event_record, room.event, stream);
      PLAIT_CUDA_CALL(stream_wait_event, other, room.event, 0);
    }
    const auto peers = static_cast<unsigned>(in_.gpus - 1);
    if (kind == kPortsAndHost) copy_beside(room, kEngineBytes * peers);
    for (std::uint64_t at = 0; at < kEngineBytes; at += piece)
      for (unsigned k = 1; k <= peers; ++k) {
        const bool odd = (at / piece * peers + k) % 2 == 1;
        const bool pulls = kind == kPulls || (kind == kHalfAndHalf && odd);
        const auto to =
            (static_cast<unsigned>(in_.rank) + (pulls ? peers + 1 - k : k)) % (peers + 1);
        const DevicePointer theirs = room.remote[to] + at;
        cuda::Stream by = stream;
        if (kind == kStreamAPeer) by = room.streams[k - 1];
        if ((kind == kTwoStreams || kind == kHalfAndHalf) && odd) by = room.streams[0];
        PLAIT_CUDA_CALL(memory_copy_async, pulls ? input_ + at : theirs,
                        pulls ? theirs : input_ + at, piece, by);
        if (kind == kPorts || kind == kPortsAndHost)
          pass_port(room.remote, static_cast<int>(k), stream);
      }
    for (const cuda::Stream other : room.streams) {
      PLAIT_CUDA_CALL(event_record, room.event, other);
      PLAIT_CUDA_CALL(stream_wait_event, stream, room.event, 0);
    }
  }

  enum HostKind : unsigned { kDown = 1, kUp = 2, kOthers = 4 };
  struct HostRoom {
    cuda::Stream down = nullptr, up = nullptr;
    cuda::Event event = nullptr;
  };
  void fork(const HostRoom& room, cuda::Stream stream) {
    PLAIT_CUDA_CALL(event_record, room.event, stream);
    for (cuda::Stream other : {room.down, room.up})
      PLAIT_CUDA_CALL(stream_wait_event, other, room.event, 0);
  }
  void join(const HostRoom& room, cuda::Stream stream) {
    for (cuda::Stream other : {room.down, room.up}) {
      PLAIT_CUDA_CALL(event_record, room.event, other);
      PLAIT_CUDA_CALL(stream_wait_event, stream, room.event, 0);
    }
  }
  /// Shorter than what goes through host memory meanwhile.
  void all_reduce(cuda::Stream stream) {
    Request request;
    request.ranks = in_.gpus;
    request.count = kEngineBytes / 4;
    FusedTuning tuning;
    tuning.host_permille = 0;
    in_.cuda->run_fused("tiled", request, reinterpret_cast<const void*>(input_),
                        reinterpret_cast<void*>(output_), stream, {}, tuning);
  }
  void host_copies(const HostRoom& room, unsigned kinds, std::uint64_t chunk) {
    const std::uint64_t room_bytes = in_.ring_bytes / chunk * chunk;
    std::size_t other = 0;
    for (std::uint64_t at = 0; at < kHostBytes; at += chunk) {
      const auto n = static_cast<std::size_t>(in_.gpus), mine = static_cast<std::size_t>(in_.rank);
      if (n > 1) other = other % (n - 1) + 1;
      const auto own = reinterpret_cast<DevicePointer>(in_.rings[mine]) + at % room_bytes;
      const std::size_t from = (kinds & kOthers) != 0 ? (mine + other) % n : mine;
      const auto theirs = reinterpret_cast<DevicePointer>(in_.rings[from]) + at % room_bytes;
      if ((kinds & kDown) != 0)
        PLAIT_CUDA_CALL(memory_copy_async, own, input_ + kEngineBytes + at, chunk, room.down);
      if ((kinds & kUp) != 0)
        PLAIT_CUDA_CALL(memory_copy_async, output_ + kEngineBytes + at, theirs, chunk, room.up);
    }
  }

  static constexpr std::uint64_t kEngineBytes = 256ull << 20;  // to each peer
  static constexpr std::uint64_t kHostBytes = 192ull << 20;
  static constexpr std::uint64_t kBufferBytes = 2 * kEngineBytes, kWordsBytes = 4096;
  static constexpr std::uint64_t kHostChunk = 4ull << 20;

  const PathRank in_;
  DevicePointer input_ = 0, output_ = 0;
  unsigned sweeps_ = 0;
};

}  // namespace plait::bench
