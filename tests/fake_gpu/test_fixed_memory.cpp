// Arenas at fixed addresses: processes see writes of peers, suspend and resume keep addresses and
// contents, and all ranks share by CUDA IPC if a GPU maps no memory. The fake driver maps real
// memory: an access to memory that was given up ends the process.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "base/text.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/arena/arena_layout.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/host_path/with_host_part.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "gpu/select/large_steps.hpp"
#include "gpu/select/select.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "plait/error.hpp"
#include "tests/fake_gpu/fixed_rank.hpp"
#include "tests/fake_gpu/require.hpp"
#include "unit/scale.hpp"

using namespace plait;
using plait::cuda::CallMode;
using namespace plait_test;

TEST_CASE("suspend frees the arenas, resume brings back addresses and contents") {
  for (const int ranks : {2, 3})
    on_fixed_ranks(ranks, [](const FixedRank& me) {
      const GpuMemory memory = me.cuda().gpu_memory();
      require(memory.suspendable == me.taken() && memory.suspendable > 8'000'000,
              "wanted all arenas at fixed addresses");
      const char* const before = me.at(cuda::kFlagPackets, 0);
      require(me.at(cuda::kSentinelPackets, 1)[0] == static_cast<char>(0xff), "not filled");
      for (int turn = 0; turn < 4; ++turn) {
        me.exchange_values(cuda::kFlagPackets, turn);
        me.suspend();
        require(me.taken() == 0 && me.cuda().memory().of(MemoryPart::small_arena) == 0,
                "suspended, and the arena is there");
        require(me.cuda().gpu_memory().suspendable == memory.suspendable, "forgotten bytes");
        me.resume();
        require(me.at(cuda::kFlagPackets, 0) == before && me.taken() == memory.suspendable,
                "not as before");
        me.check_values(cuda::kFlagPackets, turn);
      }
    });
}

namespace {

/// on_fixed_ranks() of ranks that open at the first call.
void on_opening_ranks(
    int ranks, const std::function<void(const FixedRank&)>& body,
    const std::function<bool(int rank)>& has = [](int) { return true; }, double first_wait_s = 60) {
  on_fixed_ranks(ranks, body, has, [](int) {}, 0, true, first_wait_s);
}

}  // namespace

TEST_CASE("a rank that opens at its first call has no memory, events or streams before") {
  for (const int ranks : {2, 3})
    on_opening_ranks(ranks, [](const FixedRank& me) {
      require(me.taken() == 0 && me.cuda().gpu_memory().suspendable == 0, "memory before a call");
      require(me.cuda().memory().of(MemoryPart::streams) <= 600'000,
              "more than a stream of probes");
      require(!me.cuda().is_open(), "open without a call");
      require(me.cuda().reserve_arena() && me.cuda().is_open(), me.cuda().why_not_open());
      require(me.cuda().gpu_memory().suspendable == me.taken() && me.taken() > 8'000'000,
              "wanted the small arena alone");
      me.exchange_values(cuda::kFlagPackets, 1);
      while (!me.cuda().reserve_large_arena(CallMode::alone)) std::this_thread::sleep_for(kLook);
      me.exchange_values(cuda::kTileMemory, 2);
      me.cuda().end_large_call();
    });
}

TEST_CASE("a second communicator of a process launches no probe and makes no stream") {
  bench::Board* const board = bench::make_board(2);
  CHECK(bench::run_ranks(board, true, [&](int rank) {
          const cuda::Exchange exchange = [&](const std::string& mine) {
            return board->exchange(rank, mine);
          };
          fake_cuda().gpu.maps_memory = true;
          std::vector<std::unique_ptr<GpuCalls>> all;
          for (int i = 0; i < 2; ++i) {
            fake_cuda().launches.clear();
            GpuCallsOptions options;
            options.rank.proves_paths = false;  // No kernel runs here.
            options.opens_at_first_call = i == 1;
            options.checks = load_topology("hgx-h200");
            all.push_back(
                std::make_unique<GpuCalls>(h200_group(rank, 2, exchange, ""), options, exchange));
            require(fake_cuda().launches.empty() == (i == 1), "probes of a communicator");
          }
          require(all[1]->rank().memory().of(MemoryPart::streams) == 0, "a stream before a call");
          require(all[1]->rank().reserve_arena(), all[1]->rank().why_not_open());
          board->barrier();
          for (const auto& one : all) one->rank().unmap_peers();
          board->barrier();
          all.clear();
        }) == 0);
}

TEST_CASE("calls, suspends and resumes of opening ranks in any order") {
  for (unsigned seed = 0; seed < 6; ++seed)
    on_opening_ranks(
        2 + static_cast<int>(seed % 2),
        [seed](const FixedRank& me) {
          std::mt19937 random(seed), own(seed * 4 + static_cast<unsigned>(me.rank()));
          const char* packets = nullptr;
          for (int turn = 0; turn < 16; ++turn) {
            const auto what = random() % 4;
            if (what == 0) {
              if (own() % 2 == 0) me.cuda().begin_opening();  // as a watch thread may
              me.suspend();
              require(me.taken() == 0 || me.cuda().gpu_memory().suspendable == 0,
                      "suspended, and memory is there");
              me.resume();
            } else if (me.cuda().reserve_arena()) {
              if (me.cuda().gpu_memory().suspendable == 0) continue;  // no real memory by CUDA IPC
              if (packets == nullptr) packets = me.at(cuda::kFlagPackets, 1);
              require(packets == me.at(cuda::kFlagPackets, 1), "the arena has moved");
              me.exchange_values(cuda::kFlagPackets, turn);
            } else {
              require(false, me.cuda().why_not_open());
            }
          }
        },
        [seed](int rank) { return seed < 4 || rank != 1; });
}

TEST_CASE("a rank that suspends last frees nothing that a resumed rank has opened since") {
  for (const int ranks : {2, 3})
    on_opening_ranks(ranks, [](const FixedRank& me) {
      me.agree_on_suspend();
      if (me.rank() != 0)
        while (!me.cuda().should_open())
          std::this_thread::sleep_for(kLook);  // until rank 0 calls again
      me.calls.suspend();
      require(!me.cuda().is_suspended(), "suspended without an arena");
      me.resume();
      require(me.cuda().reserve_arena(), me.cuda().why_not_open());
      me.exchange_values(cuda::kFlagPackets, 1);
      me.suspend();
      require(me.cuda().is_suspended() && me.taken() == 0, "not suspended");
      me.resume();
      me.check_values(cuda::kFlagPackets, 1);
    });
}

TEST_CASE("first calls that are not made are rolled back, the granted one too") {
  auto* const has_called =
      new (bench::shared_memory(sizeof(std::atomic<int>))) std::atomic<int>(0);  // rank 0
  on_opening_ranks(
      2,
      [has_called](const FixedRank& me) {
        if (me.rank() == 0) {
          require(!me.cuda().reserve_arena(), "granted before the ranks have opened");
          has_called->store(1);
          while (me.cuda().should_open()) std::this_thread::sleep_for(kLook);
          require(me.cuda().reserve_arena(), me.cuda().why_not_open());
          for (int i = 0; i < 2; ++i) me.cuda().cancel_arena();
          require(!me.cuda().is_open(), "the first call of rank 1 is without an arena");
        } else {
          while (has_called->load() == 0) std::this_thread::sleep_for(kLook);
          require(me.cuda().should_open(), "rank 0's call is unknown");
          me.cuda().begin_opening();
        }
        me.board->barrier();
        require(!me.cuda().reserve_arena(), "granted to rank 0 alone");
        require(me.cuda().reserve_arena() && me.cuda().is_open(), "not granted");
      },
      [](int) { return true; }, 0);
}

TEST_CASE("a rank without memory at the first call leaves all ranks without an arena for good") {
  on_opening_ranks(3, [](const FixedRank& me) {
    if (me.rank() == 1) fake_cuda().refuses.of("physical_create", 1);
    require(!me.cuda().reserve_arena(), "granted without memory");
    require(me.cuda().why_not_open().find("physical_create") != std::string::npos,
            me.cuda().why_not_open());
    me.board->barrier();
    require(!me.cuda().reserve_arena(), "granted later");
    const auto has_none = [&] {
      return me.taken() == 0 && me.cuda().gpu_memory().suspendable == 0;
    };
    for (int i = 0; i < 10'000 && !has_none(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    require(has_none(), "memory is kept");
    me.suspend();
    require(!me.cuda().is_suspended(), "suspended without an arena");
  });
}

namespace {

/// Steps of calls by packets, by tiles and by copy engines.
constexpr unsigned kStepsOfCalls[] = {cuda::kPacketStep, cuda::kTileStep,
                                      cuda::kTileStep | cuda::kCopyStep};

/// Returns the last part that a call of the steps uses.
const cuda::ArenaPart& part_of(unsigned steps) {
  if (steps == cuda::kPacketStep) return cuda::kSentinelPackets;
  return steps == cuda::kTileStep ? cuda::kTileMemory : cuda::kCopyMemory;
}

/// Makes a call of the steps. The call writes into the memory of all ranks.
void call_with(const FixedRank& me, unsigned steps, int turn) {
  while (!me.cuda().reserve_large_arena(CallMode::alone, steps)) std::this_thread::sleep_for(kLook);
  me.exchange_values(part_of(steps), turn);
  me.cuda().end_large_call(steps);
}

std::uint64_t large_bytes(const FixedRank& me) {
  return me.cuda().memory().of(MemoryPart::large_arena);
}

/// Looks for memory to trim until `done`.
void trim_until(const FixedRank& me, const std::function<bool()>& done) {
  for (int i = 0; i < 10'000 && !done(); ++i) {
    if (me.cuda().wants_trim()) me.cuda().trim([] { return true; });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  require(done(), "not given up in time");
}

/// Requires that slots of copies follow those of tiles in each rank's arena.
void check_slots_follow(const FixedRank& me) {
  const std::uint64_t tiles = me.cuda().full_group().sizes[cuda::kTileMemory];
  for (int owner = 0; owner < me.ranks(); ++owner)
    require(me.at(cuda::kCopyMemory, owner) ==
                me.at(cuda::kTileMemory, owner) + cuda::rounded_to_page(tiles),
            "slots of copies do not follow those of tiles");
}

}  // namespace

TEST_CASE("calls make the steps of the large arena that they need, in any order") {
  for (const int ranks : {2, 3, 4})
    for (unsigned seed = 0; seed < (takes_few() ? 1 : 3); ++seed)
      on_fixed_ranks(ranks, [seed](const FixedRank& me) {
        std::mt19937 random(seed);
        const cuda::DeviceArenaSizes& sizes = me.cuda().full_group().tiers.large;
        unsigned made = 0;
        for (int turn = 0; turn < 12; ++turn) {
          const unsigned steps = kStepsOfCalls[(seed + random()) % 3];
          call_with(me, steps, turn);
          made |= steps;
          if (turn == 6) {
            me.suspend();
            require(me.taken() == 0, "suspended, and memory is there");
            me.resume();
          }
          std::uint64_t wanted = 0;
          for (const unsigned one : kStepsOfCalls)
            if ((made & one) == one) wanted += sizes[part_of(one)] * part_of(one).halves;
          const std::uint64_t held = large_bytes(me);
          const bool has_plans = (made & cuda::kCopyStep) != 0;
          require(held >= wanted && (has_plans || held < wanted + (3u << 21)),
                  text("{} bytes for steps {}, wanted {}", held, made, wanted));
          if (made == cuda::kAllLargeSteps) {
            check_slots_follow(me);
            require(me.taken() <= (me.ranks() == 2 ? 196'000'000 : 260'000'000), "too much");
          }
        }
      });
}

TEST_CASE("requests of every kind ask for the steps that their engines use") {
  for (const int ranks : {2, 3, 4, 8})
    for (unsigned seed = 0; seed < (takes_few() ? 1 : 3); ++seed)
      on_fixed_ranks(ranks, [seed](const FixedRank& me) {
        const cuda::Selector whole(me.cuda().full_group(), {}, true);
        std::mt19937 random(seed);
        std::set<unsigned> kinds;
        unsigned made = 0;
        for (int call = 0; call < 150; ++call) {
          Request request;
          request.ranks = me.ranks();
          request.collective = static_cast<Collective>(
              random() % (static_cast<unsigned>(Collective::send_recv) + 1));
          request.type = random() % 2 == 0 ? DataType::fp32 : DataType::bf16;
          request.count = 64 * (1 + random() % (1u << (6 + random() % 19)));
          const unsigned steps = me.calls.large_steps(request);
          if (steps == 0 || steps == cuda::kAllLargeSteps) continue;
          require(me.cuda().reserve_large_arena(CallMode::alone, steps), "no memory");
          made |= steps;
          kinds.insert(steps);
          for (const bool captured : {false, true}) {
            const auto choice = whole.best(request, {"", {}, captured});
            require(choice.has_value(), "no engine");
            // prepare() throws if no call has asked for the step of a part.
            require(me.cuda().prepare(*choice->engine, request, choice->tuning) != nullptr, "");
            const bool by_copies = &choice->engine->resources() == &cuda::copy_resources();
            require(!by_copies || !me.cuda().engine_path().slots.empty(), "no slots of copies");
            // Calls with parameters have a single choice for both kinds of launch.
            const bool has_part = cuda::may_have_host_part(*choice->engine, request, choice->tuning,
                                                           me.cuda().full_group());
            const int permille =
                cuda::eager_tuning(*choice->engine, request, choice->tuning, me.cuda().full_group())
                    .host_permille;
            require(permille <= 0 || has_part || by_copies, "a part that asks for no step");
            const unsigned of_launch =
                cuda::large_steps_of(*choice, request, me.cuda().full_group());
            require(!(has_part || by_copies) || (of_launch & cuda::kCopyStep) != 0,
                    "a part through host memory without its step");
          }
          me.cuda().end_large_call(steps);
        }
        require(kinds.size() >= 3 && made == cuda::kAllLargeSteps, "calls of one kind");
      });
}

TEST_CASE("a step goes when no call has used it, and the rest stay, at their addresses") {
  on_fixed_ranks(
      3,
      [](const FixedRank& me) {
        for (const unsigned steps : kStepsOfCalls) call_with(me, steps, 0);
        const char* const slots = me.at(cuda::kCopyMemory, 1);
        const std::uint64_t all = large_bytes(me);
        me.board->barrier();
        // Tiles are in use. The steps of packets and copies go.
        require(me.cuda().reserve_large_arena(CallMode::alone, cuda::kTileStep), "no tiles");
        const std::uint64_t tiles = me.cuda().full_group().sizes[cuda::kTileMemory];
        trim_until(me, [&] { return large_bytes(me) < tiles + (4u << 20); });
        require(large_bytes(me) >= tiles && large_bytes(me) < all,
                "slots of tiles in use are gone");
        me.exchange_values(cuda::kTileMemory, 1);
        me.cuda().end_large_call(cuda::kTileStep);
        call_with(me, cuda::kTileStep | cuda::kCopyStep, 2);
        require(me.at(cuda::kCopyMemory, 1) == slots, "slots of copies have moved");
        check_slots_follow(me);
        trim_until(me, [&] { return large_bytes(me) == 0; });
        me.board->barrier();
        for (const unsigned steps : kStepsOfCalls) call_with(me, steps, 3);
        require(me.at(cuda::kCopyMemory, 1) == slots, "slots of copies have moved");
      },
      [](int) { return true; }, [](int) {}, 0.004);
}

TEST_CASE("without memory for a step on one rank, calls of the other steps go on") {
  on_fixed_ranks(
      2,
      [](const FixedRank& me) {
        const unsigned copies = cuda::kTileStep | cuda::kCopyStep;
        call_with(me, cuda::kTileStep, 0);
        const std::uint64_t tiles = large_bytes(me);
        me.board->barrier();
        if (me.rank() == 1) fake_cuda().refuses.of("physical_create", 1);
        require(!me.cuda().reserve_large_arena(CallMode::alone, copies), "granted without memory");
        me.cuda().cancel_reservation(copies, false);  // the same call again gets the same answer
        require(!me.cuda().reserve_large_arena(CallMode::counted, copies),
                "granted without memory");
        require(me.cuda().why_no_large_arena().find("physical_create") != std::string::npos,
                me.cuda().why_no_large_arena());
        call_with(me, cuda::kTileStep, 1);
        require(me.rank() == 0 || large_bytes(me) == tiles,
                "memory of a failed attempt is counted");
        me.board->barrier();
        call_with(me, copies, 2);  // a later attempt
        check_slots_follow(me);
        me.board->barrier();
        trim_until(me, [&] { return large_bytes(me) == 0; });  // no refused call holds a step
      },
      [](int) { return true; }, [](int) {}, 0.004);
}

TEST_CASE("captures wait for further steps once a program has got one, and keep them") {
  on_fixed_ranks(
      2,
      [](const FixedRank& me) {
        require(!me.cuda().reserve_large_arena(CallMode::captured, cuda::kTileStep),
                "a first step for a capture");
        call_with(me, cuda::kPacketStep, 0);
        me.board->barrier();
        require(!me.cuda().reserve_large_arena(CallMode::captured_grouped, cuda::kTileStep),
                "a step for a capture in a group");
        me.board->barrier();
        require(me.cuda().reserve_large_arena(CallMode::captured, cuda::kTileStep),
                "no second step for a capture");
        me.exchange_values(cuda::kTileMemory, 1);
        me.cuda().end_large_call(cuda::kTileStep);
        const std::uint64_t tiles = me.cuda().full_group().sizes[cuda::kTileMemory];
        trim_until(me, [&] { return large_bytes(me) < tiles + (4u << 20); });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        require(!me.cuda().wants_trim(), "would give up memory of a graph");
        require(large_bytes(me) >= tiles, "memory of a graph is gone");
      },
      [](int) { return true; }, [](int) {}, 0.004);
}

TEST_CASE("slots of tiles by CUDA IPC hold those of copies too") {
  on_fixed_ranks(2, [](const FixedRank& me) {
    call_with(me, cuda::kPacketStep, 0);
    me.board->barrier();
    if (me.rank() == 1) fake_cuda().refuses.of("physical_open", 1, 801);
    for (const unsigned steps : {unsigned{cuda::kTileStep}, cuda::kTileStep | cuda::kCopyStep}) {
      while (!me.cuda().reserve_large_arena(CallMode::alone, steps))
        std::this_thread::sleep_for(kLook);
      me.cuda().end_large_call(steps);
      me.board->barrier();
    }
    check_slots_follow(me);
    const std::uint64_t before = me.taken(), large = large_bytes(me);
    require(me.cuda().gpu_memory().suspendable < before, "memory by CUDA IPC would go");
    me.suspend();
    me.resume();
    require(me.taken() == before && large_bytes(me) == large, "not as before");
    check_slots_follow(me);
  });
}

TEST_CASE("the large arena goes and comes back too, also if it is begun amid") {
  for (unsigned seed = 0; seed < (takes_few() ? 3 : 6); ++seed)
    on_fixed_ranks(2, [seed](const FixedRank& me) {
      std::mt19937 random(seed), own(seed * 2 + static_cast<unsigned>(me.rank()));
      const char* slots = nullptr;
      for (int turn = 0; turn < 12; ++turn) {
        const auto what = random() % 4;
        if (what == 0) {  // A rank may have begun the arena when the ranks suspend.
          if (own() % 2 == 0) me.cuda().begin_large_arena(cuda::kPacketStep);
        } else if (what == 1) {
          while (!me.cuda().reserve_large_arena(CallMode::alone))
            std::this_thread::sleep_for(kLook);
          if (slots == nullptr) slots = me.at(cuda::kTileMemory, 1);
          require(slots == me.at(cuda::kTileMemory, 1), "the large arena has moved");
          me.exchange_values(cuda::kTileMemory, turn);
        } else if (what == 2) {
          me.suspend();
          require(me.taken() == 0, "suspended, and memory is there");
          me.resume();
        }
        me.exchange_values(cuda::kFlagPackets, turn);
      }
    });
}

TEST_CASE("large calls, trims, suspends and resumes in any order: addresses stay, values arrive") {
  for (unsigned seed = 0; seed < (takes_few() ? 2 : 4); ++seed)
    on_fixed_ranks(
        2 + static_cast<int>(seed % 2),
        [seed](const FixedRank& me) {
          std::mt19937 random(seed), own(seed * 4 + static_cast<unsigned>(me.rank()));
          const char* slots = nullptr;
          const auto look = [&] {
            if (me.cuda().wants_trim()) me.cuda().trim([&] { return own() % 4 != 0; });
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          };
          for (int turn = 0; turn < 24; ++turn) {
            const auto what = random() % 6;
            if (what == 0) {
              me.suspend();
              require(me.taken() == 0, "suspended, and memory is there");
              me.resume();
            } else if (what == 1) {
              for (int i = 0; i < 20; ++i) look();
            } else if (what < 4 && me.cuda().reserve_large_arena(CallMode::alone)) {
              if (slots == nullptr) slots = me.at(cuda::kTileMemory, 1);
              require(slots == me.at(cuda::kTileMemory, 1), "the large arena has moved");
              me.exchange_values(cuda::kTileMemory, turn);
              me.cuda().end_large_call();
            } else if (what == 4) {  // a call that needs a part of the arena
              const unsigned steps = kStepsOfCalls[random() % 3];
              if (me.cuda().reserve_large_arena(CallMode::alone, steps)) {
                me.exchange_values(part_of(steps), turn);
                me.cuda().end_large_call(steps);
              }
            }
            if (own() % 3 == 0) look();
            me.exchange_values(cuda::kFlagPackets, turn);
          }
          while (!me.cuda().reserve_large_arena(CallMode::alone))
            std::this_thread::sleep_for(kLook);
          me.exchange_values(cuda::kTileMemory, 5);
          me.cuda().end_large_call();
          while (me.cuda().memory().of(MemoryPart::large_arena) != 0) look();
          me.board->barrier();
        },
        [](int) { return true; }, [](int) {}, 0.004);
}

TEST_CASE("a rank frees what it made for an attempt in which another rank had no memory") {
  on_fixed_ranks(
      2,
      [](const FixedRank& me) {
        const auto until = [](const std::function<bool()>& done) {
          for (int i = 0; i < 10'000 && !done(); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          require(done(), "not in time");
        };
        const auto has_none = [&] { return me.cuda().memory().of(MemoryPart::large_arena) == 0; };
        while (!me.cuda().reserve_large_arena(CallMode::alone)) std::this_thread::sleep_for(kLook);
        me.cuda().end_large_call();
        until([&] {
          if (me.cuda().wants_trim()) me.cuda().trim([] { return true; });
          return has_none();
        });
        const std::uint64_t small = me.taken();
        me.board->barrier();
        if (me.rank() == 1) fake_cuda().refuses.of("physical_create", 1);
        require(!me.cuda().reserve_large_arena(CallMode::grouped), "granted before it was made");
        until([&] {
          return me.cuda().why_no_large_arena().find("physical_create") != std::string::npos;
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // rank 0's attempt may run
        until([&] { return me.taken() == small && has_none(); });
        me.board->barrier();
        while (!me.cuda().reserve_large_arena(CallMode::alone)) std::this_thread::sleep_for(kLook);
        me.exchange_values(cuda::kTileMemory, 1);
        me.cuda().end_large_call();
      },
      [](int) { return true; }, [](int) {}, 0.004);
}

TEST_CASE(
    "a step of the large arena that falls back to CUDA IPC, also in two attempts, is never given "
    "up") {
  constexpr unsigned kTiles = cuda::kTileStep;
  for (const bool lacks : {false, true})
    on_fixed_ranks(
        2,
        [lacks](const FixedRank& me) {
          if (me.rank() == 1) fake_cuda().refuses.of("physical_open", 1, 801);
          if (me.rank() == 0 && lacks) fake_cuda().refuses.of("memory_alloc", 1);
          while (!me.cuda().reserve_large_arena(CallMode::alone, kTiles))
            std::this_thread::sleep_for(kLook);
          me.cuda().end_large_call(kTiles);
          me.board->barrier();
          const std::uint64_t before = me.taken();
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          require(!me.cuda().wants_trim(), "would give up memory that calls address");
          me.suspend();
          require(me.taken() != 0 && me.taken() < before, "wanted the large arena alone");
          me.resume();
          require(me.taken() == before, "not as before");
          require(me.cuda().reserve_large_arena(CallMode::alone, kTiles), "lost by the resume");
          me.cuda().end_large_call(kTiles);
        },
        [](int) { return true; }, [](int) {}, 0.004);
}

TEST_CASE("a call of a suspended rank is refused, and breaks nothing off") {
  on_fixed_ranks(2, [](const FixedRank& me) {
    Request request;
    request.ranks = 2;
    request.count = 100;
    const auto choice =
        cuda::Selector(me.cuda().small_arena_group(), {}, true).best(request).value();
    const auto ready =
        me.cuda().prepare(*choice.engine, request, choice.tuning, cuda::CudaRank::ArenaTier::small);
    me.suspend();
    auto* const values = reinterpret_cast<void*>(1 << 20);
    try {
      me.cuda().run(*ready, request, {values, values, {}}, nullptr);
      require(false, "a call of a suspended rank was enqueued");
    } catch (const Error& error) {
      require(error.code() == ErrorCode::invalid_argument, error.what());
    }
    me.resume();
    me.cuda().run(*ready, request, {values, values, {}}, nullptr);
  });
}

TEST_CASE("a rank whose GPU maps no memory takes all ranks to CUDA IPC") {
  on_fixed_ranks(
      3,
      [](const FixedRank& me) {
        require(me.cuda().gpu_memory().suspendable == 0, "memory at fixed addresses");
        const std::uint64_t before = me.taken();
        me.suspend();
        require(me.taken() == before, "memory by CUDA IPC was freed");
        me.resume();
      },
      [](int rank) { return rank != 1; });
}

TEST_CASE("NCCL_CUMEM_ENABLE=0 on a rank takes all ranks to CUDA IPC") {
  on_fixed_ranks(
      3,
      [](const FixedRank& me) {
        require(me.cuda().gpu_memory().suspendable == 0, "memory at fixed addresses");
      },
      [](int) { return true; },
      [](int rank) {
        if (rank == 1) ::setenv("NCCL_CUMEM_ENABLE", "0", 1);
      });
}

TEST_CASE("a driver that opens no peer's file takes all ranks to CUDA IPC") {
  for (const char* const call : {"physical_open", "physical_show", "memory_set_access"})
    on_fixed_ranks(
        2,
        [](const FixedRank& me) {
          require(me.cuda().gpu_memory().suspendable == 0, "memory at fixed addresses");
        },
        [](int) { return true; },
        [call](int rank) {
          if (rank == 1) fake_cuda().refuses.of(call, 1, 801);
        });
}

TEST_CASE("a rank without memory at resume fails all ranks, and ends their calls") {
  on_fixed_ranks(3, [](const FixedRank& me) {
    me.suspend();
    if (me.rank() == 1) fake_cuda().refuses.of("physical_create", 1);
    try {
      me.resume();
      require(false, "resumed without memory");
    } catch (const Error& error) {
      require(std::string(error.what()).find(me.rank() == 1 ? "physical_create" : "rank 1: ") !=
                  std::string::npos,
              error.what());
    }
    require(me.cuda().has_broken_off(), "calls may follow");
  });
}
