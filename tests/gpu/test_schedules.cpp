// Schedules of tiled calls (orders, pieces, rates) and LL chains on a real GPU, against the
// reference. More ranks than GPUs, so that a single GPU is enough. Skipped, with the reason,
// without a GPU.
#include <doctest/doctest.h>

#include <array>
#include <atomic>

#include "gpu/ll/ll_cut.hpp"
#include "tests/gpu/examples.hpp"

namespace plait::cuda {
namespace {

/// Every schedule of a tiled call, and some combined, with small tiles, so that slots are reused.
/// Chains with few steps, with many, and with many pieces.
std::vector<EngineVariant> schedules() {
  std::vector<EngineVariant> found;
  const auto add = [&](const std::function<void(Tuning&)>& set) {
    Tuning tuning;
    tuning.tile_units = 64;
    set(tuning);
    found.push_back({"tiled", tuning});
  };
  add([](Tuning&) {});
  add([](Tuning& t) { t.order = kQuadratic; });
  add([](Tuning& t) { t.order = kQuadratic, t.shift = 1; });
  add([](Tuning& t) { t.piece_kib = 4, t.shift = 1; });
  add([](Tuning& t) { t.send_gb_per_s = 50, t.shift = 1; });
  add([](Tuning& t) { t.window = 3, t.piece_kib = 1; });
  found.push_back({"ll_chain", {}});
  for (const int ahead : {0, 3})
    for (const int piece_units : {0, 640, 1000}) {
      Tuning tuning;
      tuning.blocks = 5;
      tuning.threads = 64;
      tuning.ahead = ahead;
      tuning.tile_units = piece_units;
      found.push_back({"ll_chain", tuning});
    }
  return found;
}

/// Calls of every schedule that serves the request, in place too.
void check_schedules(int ranks) {
  std::vector<Plan> plans = exact_plans(ranks);
  std::erase_if(plans, [](const Plan& plan) {
    return plan.request.count != 33 && plan.request.count != 100003;
  });
  for (Plan& plan : plans_of_every_op(ranks)) plans.push_back(std::move(plan));
  std::array<std::atomic<int>, 20> calls{};
  std::atomic<int> long_chains = 0;
  const GpuFindings* all = on_gpus(ranks, false, [&](GpuFixture& gpu, GpuFindings& findings) {
    unsigned seed = 7000, which = 0;
    for (const EngineVariant& variant : schedules()) {
      for (const Plan& plan : plans)
        for (const bool in_place : {false, true}) {
          const Request& request = plan.request;
          if (in_place && !goes_in_place(request.collective)) continue;
          if (!bench::takes(*gpu.cuda, variant.kernel, request, variant.tuning)) continue;
          const auto variant_of = [&](bool) { return variant; };
          const std::size_t wrong = wrong_enqueued(gpu, plan, in_place, variant_of, ++seed);
          ++findings.checked;
          ++calls[which];
          const auto piece = static_cast<std::uint64_t>(variant.tuning.tile_units);
          if (variant.kernel == "ll_chain" && piece != 0 && units_of(request) > piece)
            ++long_chains;
          if (wrong != 0)
            findings.add(gpu.rank, text("{} x{} {} {} root {}{}, schedule {}: {} bytes wrong\n",
                                        name_of(request.collective), request.count,
                                        name_of(request.type), name_of(request.op), request.root,
                                        in_place ? " in place" : "", which, wrong));
        }
      ++which;
    }
  });
  MESSAGE(all->checked.load() << " calls by schedules checked on " << ranks << " ranks");
  MESSAGE(long_chains.load(), " of them along a chain in several pieces");
  CHECK(long_chains.load() > 20 * ranks);
  for (std::size_t which = 0; which < schedules().size(); ++which) {
    CAPTURE(which);
    const EngineVariant one = schedules()[which];
    if (ranks == 2 && one.kernel == "ll_chain" && one.tuning.tile_units == 0)
      CHECK(calls[which].load() == 0);  // direct_ll serves two ranks
    else
      CHECK(calls[which].load() > 20 * ranks);
  }
}

TEST_CASE("schedules of tiled calls and chains give the reference's bytes") {
  if (skipped(2 * gpus_to_use(), why_no_cuda())) return;
  for (const int ranks : {2, 4, 8}) check_schedules(ranks);
}

/// Blocks of a chain in several pieces count by atomics in the arena.
TEST_CASE("schedules of calls whose arenas lie in host memory give the reference's bytes") {
  if (skipped(2 * gpus_to_use(), why_no_cuda())) return;
  const ArenasInHost in_host;
  for (const int ranks : {2, 4}) check_schedules(ranks);
}

}  // namespace
}  // namespace plait::cuda
