// The long inbox of two ranks: made by long calls alone. Eager calls have a share through host
// memory there, captured calls none.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <thread>

#include "gpu/consensus/host_share.hpp"
#include "gpu/copy/copy_tuning.hpp"
#include "tests/fake_gpu/fixed_rank.hpp"

using plait::cuda::CallMode;
using namespace plait_test;

namespace {

/// Enqueues an all_reduce of that many bytes, and returns its kernels that reduce.
std::size_t reductions_of(const FixedRank& me, std::uint64_t bytes, bool is_captured) {
  Request request;
  request.ranks = me.ranks();
  request.count = bytes / bytes_of(request.type);
  // Pushes read the input: zeros, which take no memory, at an address that counts as the GPU's.
  void* const memory =
      ::mmap(reinterpret_cast<void*>(std::uintptr_t{1} << 36), bytes, PROT_READ,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  require(memory != MAP_FAILED, "no addresses for the input");
  fake_cuda().launches.clear();
  fake_cuda().is_capturing = is_captured;
  me.calls.enqueue(request, memory, memory, nullptr, {});
  fake_cuda().is_capturing = false;
  me.board->barrier();
  ::munmap(memory, bytes);
  std::size_t reductions = 0;
  for (const FakeLaunch& launch : fake_cuda().launches)
    if (launch.kernel.find("plait_piece_") == 0) ++reductions;
  return reductions;
}

/// Returns the same of a call with that share.
std::size_t reductions_with(const FixedRank& me, std::uint64_t bytes, bool is_long, int permille) {
  cuda::Tuning tuning;
  tuning.host_permille = permille;
  const cuda::ExchangeCut cut = cuda::exchange_cut(bytes, me.cuda().full_group(), tuning, is_long);
  return cut.pieces.size() + cut.chunks;
}

/// Returns whether a captured call of a group gets the long inbox.
bool captured_in_group(const FixedRank& me) {
  me.cuda().reserve_large_arena(CallMode::captured_grouped);
  fake_cuda().is_capturing = true;
  cuda::EngineRank& engines = me.cuda();
  const bool is_held = engines.reserve_long_inbox(nullptr);
  fake_cuda().is_capturing = false;
  if (is_held) engines.end_long_inbox();
  me.cuda().end_large_call();
  me.board->barrier();
  return is_held;
}

}  // namespace

TEST_CASE("long calls make a longer inbox, in which eager calls have a share through host memory") {
  constexpr std::uint64_t kLong = cuda::kInboxesOfLong * cuda::kLongInboxBytes;
  constexpr std::uint64_t kShort = 256ull << 20;
  for (const bool has_memory : {true, false})
    on_fixed_ranks(2, [has_memory](const FixedRank& me) {
      while (!me.cuda().reserve_large_arena(CallMode::alone)) std::this_thread::sleep_for(kLook);
      me.cuda().end_large_call();
      me.board->barrier();
      require(me.taken() <= 196'000'000, "more than the budget before a long call");
      require(reductions_of(me, kShort, false) == reductions_with(me, kShort, false, 0) &&
                  me.taken() <= 196'000'000,
              "a call of 256 MiB takes more memory");
      require(!captured_in_group(me) && me.taken() <= 196'000'000,
              "a captured call of a group waits for the long inbox");
      const std::size_t alone = reductions_with(me, kLong, false, 0);
      // All calls, since a second after a failure a call asks for the memory again.
      if (!has_memory && me.rank() == 1) fake_cuda().refuses.all_of("physical_create");
      require(reductions_of(me, kLong, false) == alone, "the first eager call waits for its inbox");
      const std::size_t longer = reductions_with(me, kLong, true, 0);
      require(longer != alone, "a longer inbox does not show");
      const std::size_t captured = reductions_of(me, kLong, true);
      // Without memory on one rank a captured call goes on in the usual inbox, on both ranks.
      require(captured == (has_memory ? longer : alone),
              text("{} reductions of a captured call, in the long inbox {}, without {}", captured,
                   longer, alone));
      if (!has_memory) return;
      require(me.taken() >= cuda::kLongInboxBytes + 100'000'000, "no memory of its own");
      require(reductions_of(me, kLong, false) ==
                  reductions_with(me, kLong, true, static_cast<int>(cuda::kBestHostPermille)),
              "an eager call has another share");
      require(reductions_of(me, kShort, true) == reductions_with(me, kShort, false, 0),
              "a shorter call uses the longer inbox");
      me.suspend();
      require(me.taken() == 0, "suspended, and memory is there");
      me.resume();
      require(reductions_of(me, kLong, true) == longer, "not as before");
    });
}
