// Messages between single ranks on real GPUs: random groups of any size and alignment, to and from
// any peers including the rank itself, eager and replayed; calls matched by endpoints in other
// groups; a peer that never comes. Skipped with fewer than two GPUs. Ranks are forked, hence this
// file sorts before tests that use CUDA in this process.
#include <doctest/doctest.h>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "tests/gpu/gpu_fixture.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kMostMessage = 3ull << 20;

/// A message of a group, known to all ranks.
struct Planned {
  int from, to;
  std::uint64_t bytes;
  std::uint64_t from_at, to_at;  // Offsets in the sender's input and the receiver's output.
  unsigned seed;
};

std::uint64_t random_size(std::mt19937& random) {
  switch (random() % 5) {
    case 0: return random() % 40;
    case 1: return random() % 5000;
    case 2: return (1 + random() % 64) << 10;
    case 3: return (random() % (1 << 18)) * 4;
    default: return random() % kMostMessage;
  }
}

/// The same on all ranks: up to two messages from each rank to each, itself included.
std::vector<Planned> random_group(int ranks, std::mt19937& random) {
  std::vector<Planned> group;
  std::vector<std::uint64_t> read(static_cast<std::size_t>(ranks)), written = read;
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to)
      for (auto n = random() % 3; n > 0; --n) {
        std::uint64_t& at = read[static_cast<std::size_t>(from)];
        std::uint64_t& into = written[static_cast<std::size_t>(to)];
        const std::uint64_t bytes = random_size(random);
        for (std::uint64_t* place : {&at, &into}) {
          *place = (*place + 31) / 32 * 32;
          if (random() % 3 == 0) *place += random() % 16;  // Any alignment.
        }
        if (at + bytes > kBufferBytes || into + bytes > kBufferBytes) continue;
        group.push_back({from, to, bytes, at, into, static_cast<unsigned>(random())});
        at += bytes;
        into += bytes;
      }
  return group;
}

/// This rank's endpoints; the order of endpoints that do not match each other is random.
std::vector<MessageEnd> ends_of(const GpuFixture& gpu, const std::vector<Planned>& group) {
  std::vector<MessageEnd> ends;
  for (const Planned& one : group) {
    if (one.from == gpu.rank)
      ends.push_back({true, one.to, reinterpret_cast<void*>(gpu.input + one.from_at), one.bytes});
    if (one.to == gpu.rank)
      ends.push_back({false, one.from, reinterpret_cast<void*>(gpu.output + one.to_at), one.bytes});
  }
  return ends;
}

void upload(const GpuFixture& gpu, const std::vector<Planned>& group) {
  for (const Planned& one : group)
    if (one.from == gpu.rank)
      GpuFixture::to_gpu(gpu.input + one.from_at, random_bytes(one.bytes, one.seed));
}

/// Received bytes are right, and no other byte of the output was written.
std::size_t wrong_bytes(const GpuFixture& gpu, const std::vector<Planned>& group) {
  Bytes expected(kBufferBytes, 0xa5);
  for (const Planned& one : group) {
    const Bytes sent = random_bytes(one.bytes, one.seed);
    if (one.to == gpu.rank)
      std::copy(sent.begin(), sent.end(),
                expected.begin() + static_cast<std::ptrdiff_t>(one.to_at));
  }
  const Bytes got = GpuFixture::from_gpu(gpu.output, kBufferBytes);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != expected[i] ? 1 : 0;
  return wrong;
}

void poison(GpuFixture& gpu) {
  PLAIT_CUDA_CALL(memory_set_async, gpu.output, 0xa5, kBufferBytes, gpu.stream);
  gpu.finish();
  gpu.board->barrier();  // On a shared GPU a rank's upload would wait for the peer's kernel.
}

void replay(GpuFixture& gpu, const std::vector<MessageEnd>& ends, const MessageTuning& tuning) {
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  PLAIT_CUDA_CALL(stream_begin_capture, gpu.stream, kCaptureThreadLocal);
  for (int k = 0; k < 3; ++k) gpu.cuda->messages(ends, gpu.stream, tuning);
  PLAIT_CUDA_CALL(stream_end_capture, gpu.stream, &graph);
  PLAIT_CUDA_CALL(graph_instantiate, &exec, graph, 0);
  gpu.board->barrier();
  for (int k = 0; k < 3; ++k) PLAIT_CUDA_CALL(graph_launch, exec, gpu.stream);
  gpu.finish();
  gpu.board->barrier();
  api().graph_exec_destroy(exec);
  api().graph_destroy(graph);
}

void check_groups(int ranks, bool processes, int rounds) {
  GpuFindings* findings = on_gpus(ranks, processes, [&](GpuFixture& gpu, GpuFindings& found) {
    for (int round = 0; round < rounds; ++round) {
      std::mt19937 random(static_cast<unsigned>(round * 64 + ranks));
      const std::vector<Planned> group = random_group(ranks, random);
      MessageTuning tuning;
      if (round % 4 == 3) tuning = {0, kBulkBytes / 16};     // All by small tiles.
      if (round % 4 == 1) tuning = {0, kBulkBytes / 16, 1};  // Two ranks also through host memory.
      upload(gpu, group);
      poison(gpu);
      const std::vector<MessageEnd> ends = ends_of(gpu, group);
      gpu.cuda->messages(ends, gpu.stream, tuning);
      gpu.finish();
      std::size_t wrong = wrong_bytes(gpu, group);
      gpu.board->barrier();
      if (round % 3 == 0) {
        poison(gpu);
        replay(gpu, ends, tuning);
        wrong += wrong_bytes(gpu, group);
      }
      if (wrong != 0)
        found.add(gpu.rank,
                  text("round {}: {} wrong bytes of {} messages; ", round, wrong, group.size()));
      found.checked += static_cast<int>(group.size());
      gpu.board->barrier();
    }
  });
  const int checked = findings->checked.load() / ranks;
  MESSAGE(checked, " messages between ", ranks, " ranks");
}

}  // namespace

TEST_CASE("processes: groups of messages arrive whole, eager and replayed") {
  const int ranks = gpus_for_processes();
  if (skipped(ranks)) return;
  check_groups(ranks, true, 40);
  check_groups(8, true, 12);  // On any number of GPUs.
}

/// Blocks of a launch count by atomics in the arena, and claim tiles and endpoints there.
TEST_CASE("processes: messages whose arenas lie in host memory arrive whole") {
  const int ranks = gpus_for_processes();
  if (skipped(ranks)) return;
  const ArenasInHost in_host;
  check_groups(ranks, true, 12);
  check_groups(4, true, 8);
}

TEST_CASE("processes: a sender runs ahead of a receiver that comes with other groups") {
  const int ranks = gpus_for_processes();
  if (skipped(ranks)) return;
  on_gpus(2, true, [](GpuFixture& gpu, GpuFindings& found) {
    // Eight messages that fit the slots: a rank sends all at once and then receives all; the peer
    // receives three at a time and sends in between.
    constexpr std::uint64_t kEach = 300000;
    std::vector<Planned> group;
    for (unsigned i = 0; i < 8; ++i)
      for (const int from : {0, 1})
        group.push_back({from, 1 - from, kEach, i * kEach, i * kEach, 2 * i + (from != 0 ? 1 : 0)});
    upload(gpu, group);
    poison(gpu);
    std::vector<MessageEnd> out, in;
    for (const MessageEnd& end : ends_of(gpu, group)) (end.sends ? out : in).push_back(end);
    if (gpu.rank == 0) {
      gpu.cuda->messages(out, gpu.stream);
      gpu.cuda->messages(in, gpu.stream);
    } else {
      for (std::size_t at = 0; at < in.size(); at += 3) {
        const auto first = static_cast<std::ptrdiff_t>(at);
        const auto last = static_cast<std::ptrdiff_t>(std::min(at + 3, in.size()));
        gpu.cuda->messages({in.begin() + first, in.begin() + last}, gpu.stream);
        gpu.cuda->messages({out.begin() + first, out.begin() + last}, gpu.stream);
      }
    }
    gpu.finish();
    if (const std::size_t wrong = wrong_bytes(gpu, group); wrong != 0)
      found.add(gpu.rank, text("{} wrong bytes", wrong));
    gpu.board->barrier();
  });
}

TEST_CASE("processes: a receive without a send ends at a deadline that names the peer") {
  if (skipped(gpus_for_processes())) return;
  // Separate processes: a process with a failed stream cannot use the GPU any more.
  for (const std::uint64_t bytes : {1000u, 4u << 20}) {
    bench::Board* board = bench::make_board(2);
    std::byte* rings = shared_rings(2);
    GpuFindings* findings = GpuFindings::shared();
    const int failed = bench::run_ranks(board, true, [&](int rank) {
      GpuFixture gpu(board, rank, rings, 0.3);
      if (rank == 0) {
        gpu.cuda->messages({{false, 1, reinterpret_cast<void*>(gpu.output), bytes}}, gpu.stream);
        std::string said = "nothing";
        try {
          gpu.finish();
        } catch (const Error& error) {
          said = error.code() == ErrorCode::timeout ? error.what() : "another error";
        }
        if (said.find("for rank 1") == std::string::npos) findings->add(0, said);
      }
      board->barrier();
    });
    CHECK(failed == 0);
    findings->check_none();
  }
}

}  // namespace plait::cuda
