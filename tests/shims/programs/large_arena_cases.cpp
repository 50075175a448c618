// Cases of calls that need the large arena: all ranks switch from NCCL to plait at the same call,
// in captures, groups and crossing orders.
#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/shims/programs/rank.hpp"

namespace program {
namespace {

constexpr std::size_t kLarge = 300000;  // 1.2 MB

/// A large all_reduce with values of this call alone.
struct LargeCall {
  LargeCall(int rank, int number) : number_(number), values(filled<std::int32_t>(rank, kLarge)) {
    for (std::int32_t& value : values) value += number;
  }
  void enqueue(Comm comm, Stream stream) {
    MUST(nccl().ncclAllReduce(values.data(), sums.data(), kLarge, kInt32, kSum, comm, stream));
  }
  std::uint64_t wrong(int ranks) const {
    std::uint64_t found = 0;
    for (std::size_t i = 0; i < kLarge; ++i)
      found += sums[i] != expected<std::int32_t>(kSum, ranks, i) + ranks * number_;
    return found;
  }

 private:
  int number_;

 public:
  std::vector<std::int32_t> values, sums = std::vector<std::int32_t>(kLarge, -1);
};

/// Returns the GPU memory of a communicator by ncclCommMemStats, of every kind.
std::string memory_of(const std::string& name, Comm comm) {
  std::string kinds;
  for (const int stat : {0, 1, 2, 3}) {
    std::uint64_t bytes = 0;
    MUST(nccl().ncclCommMemStats(comm, stat, &bytes));
    kinds += (stat == 0 ? "" : ", ") + std::to_string(bytes);
  }
  return "\"" + name + "\": [" + kinds + "]";
}

/// Returns the sum of plait_nccl_memory() over all parts of plait's memory; 0 without the drop-in.
std::string held_of_process() {
  using Read = std::uint64_t (*)(int, const char**);
  void* drop_in = ::dlopen("libplait_nccl.so", RTLD_LAZY | RTLD_NOLOAD);
  const auto read =
      drop_in == nullptr ? nullptr : reinterpret_cast<Read>(::dlsym(drop_in, "plait_nccl_memory"));
  std::uint64_t all = 0;
  const char* name = "";
  for (int part = 0; read != nullptr && name != nullptr; ++part) all += read(part, &name);
  return number("held", all);
}

std::string counts(std::uint64_t wrong) {
  return number("wrong", wrong) + ", " + counted("all_reduce") + ", " +
         number("nccl", standin_calls("ncclAllReduce")) + ", " +
         number("large_arenas", standin_calls("large arena made"));
}

/// Makes large calls until plait serves a call or the limit is reached.
std::uint64_t call_until_served(const TestRank& r, Comm comm, int most) {
  std::uint64_t wrong = 0;
  for (int turn = 0; turn < most; ++turn) {
    LargeCall large(r.rank, turn);
    large.enqueue(comm, r.stream);
    r.wait();
    wrong += large.wrong(r.ranks);
  }
  return wrong;
}

/// Simulates a group on a single rank.
void simulate_one(const TestRank& r) {
  LargeCall dropped(r.rank, 0);
  MUST(nccl().ncclGroupStart());
  dropped.enqueue(r.comm, r.stream);
  MUST(nccl().ncclGroupSimulateEnd(nullptr));
}

/// Passes misaligned memory on a single rank, refused there locally.
void misalign_one(const TestRank& r) {
  constexpr int kInvalidArgument = 4;
  std::vector<std::int32_t> sums(kLarge + 1);
  char* const between = reinterpret_cast<char*>(sums.data()) + 1;
  if (nccl().ncclAllReduce(between, between, kLarge, kInt32, kSum, r.comm, r.stream) !=
      kInvalidArgument)
    throw std::runtime_error("memory that is not aligned was not refused");
}

}  // namespace

/// Small calls, then large calls, among them a call after a simulation or an error of rank 0 alone.
std::string large_arena(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_sum(r, r.comm, r.ranks);
  const std::uint64_t early = standin_calls("large arena made");
  if (rank == 0 && job.name == "large_arena_simulated") simulate_one(r);
  if (rank == 0 && job.name == "large_arena_misaligned") misalign_one(r);
  const std::string before = memory_of("memory_before", r.comm);
  wrong += call_until_served(r, r.comm, 5);
  return counts(wrong) + ", " + number("early", early) + ", " + before + ", " +
         memory_of("memory_after", r.comm) + ", " + held_of_process();
}

/// Rank 0 simulates a group of two calls. The other ranks' first call makes the arena between the
/// two, so the second call gets the arena. Reports whether ranks give the arena up later.
std::string large_arena_simulated_late(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_sum(r, r.comm, r.ranks);
  const auto await_count = [](const char* name) {
    for (int i = 0; i < 3000 && standin_calls(name) == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  if (rank == 0) {
    LargeCall dropped(rank, 0);
    MUST(nccl().ncclGroupStart());
    dropped.enqueue(r.comm, r.stream);
    ++*job.attached;
    await_count("large arena ready");
    dropped.enqueue(r.comm, r.stream);
    MUST(nccl().ncclGroupSimulateEnd(nullptr));
  }
  while (*job.attached == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  wrong += call_until_served(r, r.comm, 3);
  const std::string made = counts(wrong);
  await_count("large arena given up");
  return made + ", " + number("trims", standin_calls("large arena given up"));
}

/// Captures a call before the arena is ready and a second call after; replays both alternately.
std::string large_arena_captured(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  LargeCall before(rank, 1), after(rank, 2);
  const auto capture = [&](LargeCall& large) {
    standin_capture_begin(r.stream);
    large.enqueue(r.comm, r.stream);
    return standin_capture_end(r.stream);
  };
  void* first = capture(before);
  const std::uint64_t early = standin_calls("large arena made");
  std::uint64_t wrong = call_until_served(r, r.comm, 2);
  void* second = capture(after);
  for (int turn = 0; turn < 6; ++turn) {
    standin_graph_launch(turn % 2 == 0 ? first : second, r.stream);
    r.wait();
    LargeCall& large = turn % 2 == 0 ? before : after;
    wrong += large.wrong(r.ranks);
    std::fill(large.sums.begin(), large.sums.end(), -1);
  }
  standin_graph_destroy(first);
  standin_graph_destroy(second);
  return counts(wrong) + ", " + number("early", early);
}

namespace {

bool has_served() {
  const auto rows = counter_rows();
  return rows &&
         std::any_of(rows->begin(), rows->end(), [](const auto& row) { return row.served != 0; });
}

}  // namespace

/// Ranks use two communicators in opposite orders, each on a separate stream.
std::string large_arena_crossed(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  Comm other = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, 0, rank, &other, nullptr));
  Stream side = standin_stream_create();
  std::uint64_t wrong = 0;
  // On a busy machine the arena may come late. Ranks agree on the library of each call, hence all
  // ranks make as many turns.
  for (int turn = 0; turn < 12 || (turn < 2000 && !has_served()); ++turn) {
    LargeCall one(rank, turn), two(rank, turn + 100);
    if (rank % 2 == 0) one.enqueue(r.comm, r.stream);
    two.enqueue(other, side);
    if (rank % 2 == 1) one.enqueue(r.comm, r.stream);
    r.wait();
    standin_stream_synchronize(side);
    wrong += one.wrong(r.ranks) + two.wrong(r.ranks);
  }
  standin_stream_destroy(side);
  MUST(nccl().ncclCommDestroy(other));
  return counts(wrong);
}

/// A single thread drives all ranks, in groups.
std::string large_arena_of_one_thread(const TestJob& job, int rank) {
  if (rank != 0) return "\"wrong\": 0";
  const auto n = static_cast<std::size_t>(job.ranks);
  std::vector<Comm> comms(n);
  MUST(nccl().ncclCommInitAll(comms.data(), job.ranks, nullptr));
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < n; ++i) streams.push_back(standin_stream_create());
  std::uint64_t wrong = 0;
  for (int turn = 0; turn < 20; ++turn) {
    std::vector<LargeCall> larges;
    for (std::size_t i = 0; i < n; ++i) larges.emplace_back(static_cast<int>(i), turn);
    MUST(nccl().ncclGroupStart());
    for (std::size_t i = 0; i < n; ++i) larges[i].enqueue(comms[i], streams[i]);
    MUST(nccl().ncclGroupEnd());
    for (Stream stream : streams) standin_stream_synchronize(stream);
    for (const LargeCall& large : larges) wrong += large.wrong(job.ranks);
  }
  for (Stream stream : streams) standin_stream_destroy(stream);
  for (Comm comm : comms) MUST(nccl().ncclCommDestroy(comm));
  return counts(wrong);
}

/// Rank 0 starts the allocation; all ranks close before the peers make a large call.
std::string large_arena_closed_early(const TestJob& job, int rank) {
  {
    const TestRank r(job, rank);
    LargeCall never(rank, 0);
    if (rank == 0) {
      MUST(nccl().ncclGroupStart());
      never.enqueue(r.comm, r.stream);
      MUST(nccl().ncclGroupSimulateEnd(nullptr));
    }
  }
  return number("freed", standin_calls("engine freed")) + ", " +
         number("large_arenas", standin_calls("large arena made"));
}

}  // namespace program
