// Implements the order of choice of select.hpp.
#include "gpu/select/select.hpp"

#include <algorithm>
#include <limits>

#include "base/text.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/copy/ring_cut.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

bool takes(const Engine& engine, const Request& request, const Tuning& tuning, const Group& group) {
  return why_not(engine, request, tuning, group).empty();
}

/// Returns the tuning within the group's SM budget, which limits tables and callers; 0 blocks = the
/// engine chooses.
Tuning within_budget(Tuning tuning, const Group& group) {
  if (group.most_blocks != 0)
    tuning.blocks = std::min(tuning.blocks, static_cast<int>(group.most_blocks));
  return tuning;
}

/// True if the row's engine takes the request with the blocks that the budget leaves the row.
bool takes(const TuningRow& row, const Request& request, const Group& group) {
  return takes(*row.engine, request, within_budget(row.tuning, group), group);
}

/// True if both run a call the same way, apart from the number of blocks.
bool are_one_way(Tuning one, Tuning other) {
  one.blocks = other.blocks = 0;
  return one == other;
}

/// Engine that serves any size from LL packets alone, in as many pieces or steps as needed.
const Engine* without_slots(const Request& request, const Group& group) {
  if (!has_ll_only(group)) return nullptr;
  for (const Engine* const engine : {&two_shot_engine(), &direct_ll_engine()})
    if (takes(*engine, request, {}, group)) return engine;
  return nullptr;
}

/// "(order=2,shift=1)", with `open` = "(" and `next` = ","; "" if no parameter is set.
std::string params_in_words(const Tuning& tuning, const char* open, const char* next) {
  std::string words;
  for (const auto& [name, value] : params_of(tuning))
    words += text("{}{}={}", words.empty() ? open : next, name, value);
  return words.empty() ? words : words + ")";
}

const char* whose_word(const EngineChoice& choice, bool as_measured) {
  switch (choice.by) {
    case EngineChoice::By::caller: return "as asked for";
    case EngineChoice::By::table: return "as tuned here";
    case EngineChoice::By::simulated:
      return "as simulated for this machine: `plait tune` measures it";
    default:
      return as_measured ? "as measured on such GPUs"
                         : "as measured on other GPUs: `plait tune` measures these";
  }
}

/// "engine tiled (order=2, shift=1), as measured on such GPUs".
std::string in_words(const EngineChoice& choice, bool as_measured) {
  return text("engine {}{}, {}", choice.engine->info().name,
              params_in_words(choice.tuning, " (", ", "), whose_word(choice, as_measured));
}

}  // namespace

std::string label(const EngineChoice& choice) {
  Tuning tuning = choice.by == EngineChoice::By::caller ? Tuning{} : choice.tuning;
  tuning.blocks = Tuning{}.blocks;
  return choice.engine->info().name + params_in_words(tuning, "(", ",");
}

const char* name_of(EngineChoice::By by) {
  constexpr const char* kNames[] = {"caller", "table", "built in", "simulated"};
  return kNames[static_cast<int>(by)];
}

Selector::Selector(const Group& group, TuningTable table, bool as_measured, Predict predict,
                   const TuningTable& built_in, PredictPlan predict_plan)
    : group_(group),
      table_(std::move(table)),
      as_measured_(as_measured),
      predict_(std::move(predict)),
      built_in_(built_in),
      predict_plan_(std::move(predict_plan)) {}

/// Returns the first row for the request with an engine that accepts the request with the row's
/// tuning. Rows were measured with even blocks, so a request with a count per block uses rows only
/// if it is long; otherwise plans serve it. Rows for graphs apply only to the GPUs measured.
const TuningRow* Selector::built_in(const Request& request, bool captured) const {
  constexpr std::uint64_t kLongBytes = 128ull << 20;
  if (!request.counts.empty() && message_bytes(request) < kLongBytes) return nullptr;
  return built_in_.find(request, [&](const TuningRow& row) {
    return is_for_calls(row, captured) &&
           (!request.counts.empty() || has_ring_as_measured(*row.engine)) &&
           takes(row, request, group_);
  });
}

bool Selector::is_for_calls(const TuningRow& row, bool captured) const {
  switch (row.when) {
    case RowUse::alone: return !group_.leaves_sms();
    case RowUse::overlap_compute: return group_.overlap_compute && group_.most_blocks == 0;
    case RowUse::leaving_sms: return group_.leaves_sms() && group_.blocks() <= row.upto_blocks;
    case RowUse::captured: return captured && as_measured_ && !group_.leaves_sms();
    default: return true;
  }
}

/// Prefers an engine unless a plan is faster by more than the error of predictions. Plans are not
/// compared if calls leave SMs to other work.
Selector::Simulated Selector::simulated(const Request& request) const {
  constexpr double kSure = 1.05;
  Simulated found;
  double least = std::numeric_limits<double>::infinity();
  for (const Engine* const engine : engines()) {
    if (!takes(*engine, request, {}, group_)) continue;
    const double us = predict_(*engine, request);
    if (us < least) least = us, found.engine = engine;
  }
  if (found.engine != nullptr && predict_plan_ && !group_.leaves_sms())
    found.plan_is_faster = least > kSure * predict_plan_(request);
  return found;
}

/// Skips requests with a count per block, since a single engine takes counts per block.
bool Selector::goes_by_simulation(const Request& request) const {
  return !as_measured_ && predict_ && request.counts.empty() && measured(request) == nullptr;
}

bool Selector::prefers_plan(const Request& request) const {
  return goes_by_simulation(request) && simulated(request).plan_is_faster;
}

bool Selector::has_row_for_graphs(const Request& request) const {
  const TuningRow* const row = built_in(request, true);
  return row != nullptr && row->when == RowUse::captured;
}

/// Returns the tuning table's row. The table was not measured under an SM budget. A row holds for
/// eager and captured calls alike, so no row counts if eager and captured calls use different
/// engines.
const TuningRow* Selector::measured(const Request& request) const {
  const RowUse use = group_.overlap_compute ? RowUse::overlap_compute : RowUse::alone;
  const TuningRow* const row = table_.find(request, use);
  if (row == nullptr || has_row_for_graphs(request) || !takes(*row, request, group_))
    return nullptr;
  if (group_.overlap_compute) return group_.most_blocks == 0 ? row : nullptr;
  const TuningRow* const choice = built_in(request, false);
  return choice != nullptr && choice->when == RowUse::leaving_sms ? nullptr : row;
}

EngineChoice Selector::by_caller(const Request& request, const EngineRequest& wanted) const {
  const EngineChoice choice{
      engine_named(wanted.engine, request), {}, EngineChoice::By::caller, std::nullopt};
  if (choice.engine == nullptr)
    throw Error(ErrorCode::invalid_argument,
                text("engine: wanted one of {}, found {}", engine_names(), wanted.engine));
  return choice;
}

/// Rows of rings were measured with pieces of 32 MiB. With 8 MiB, tiles with slots are faster.
bool Selector::has_ring_as_measured(const Engine& engine) const {
  constexpr std::uint64_t kLeastPiece = 20ull << 20;
  const bool is_ring = &engine == &copy_ring_engine() || &engine == &scatter_ring_engine();
  return !is_ring || ring_bytes(group_) / kRingSlots >= kLeastPiece;
}

/// Reductions were measured as sums of the common floats. Averages that the same kernels serve take
/// a product more, and kernels of other reductions are slower. Large messages with fewer blocks
/// than NCCL's bandwidth needs are slower too.
bool Selector::is_within_budget(const Request& request) const {
  constexpr std::uint64_t kSmallBytes = 4ull << 20;
  const unsigned enough_blocks = request.ranks == 2 ? 32 : 64;
  const bool is_short = group_.most_blocks != 0 && group_.most_blocks < enough_blocks &&
                        message_bytes(request) > kSmallBytes;
  return !is_short && (!reduces(request.collective) || is_common_sum(request));
}

std::optional<EngineChoice> Selector::by_itself(const Request& request, bool captured) const {
  EngineChoice choice;
  const bool is_as_sum =
      !reduces(request.collective) || request.op == ReduceOp::sum || sums_common_floats(request);
  if (const TuningRow* const row = measured(request)) {
    choice = {row->engine, row->tuning, EngineChoice::By::table, std::nullopt};
    if (is_as_sum) choice.beats_nccl = row->ahead_of_nccl;
    if (choice.beats_nccl || !as_measured_) return choice;
  }
  if (goes_by_simulation(request)) {
    const Simulated found = simulated(request);
    if (found.plan_is_faster) return std::nullopt;
    choice.engine = found.engine;
    choice.by = EngineChoice::By::simulated;
    if (choice.engine != nullptr) return choice;
  }
  const TuningRow* const row = built_in(request, captured);
  if (choice.engine == nullptr) {
    choice.by = EngineChoice::By::built_in;
    choice.engine = row != nullptr ? row->engine : without_slots(request, group_);
    if (choice.engine == nullptr) return std::nullopt;
    if (row != nullptr) choice.tuning = row->tuning;
    if (!as_measured_) choice.tuning.send_gb_per_s = 0;  // Links may be faster.
  }
  // A row's comparison with NCCL holds for the row's engine and tuning only.
  if (as_measured_ && row != nullptr && choice.engine == row->engine &&
      are_one_way(choice.tuning, row->tuning) && is_within_budget(request) &&
      request.counts.empty())
    choice.beats_nccl = row->ahead_of_nccl;
  return choice;
}

std::optional<EngineChoice> Selector::best(const Request& request,
                                           const EngineRequest& wanted) const {
  std::optional<EngineChoice> choice =
      wanted.engine.empty() ? by_itself(request, wanted.captured && wanted.params.empty())
                            : std::optional<EngineChoice>(by_caller(request, wanted));
  if (!choice) return choice;
  const std::string& name = choice->engine->info().name;
  if (!wanted.params.empty()) {  // Overrides measured tuning.
    choice->tuning = tuning_from(name, wanted.params);
    choice->by = EngineChoice::By::caller;
  }
  choice->tuning = within_budget(choice->tuning, group_);
  const std::string why = why_not(*choice->engine, request, choice->tuning, group_);
  if (!why.empty())
    throw Error(ErrorCode::unsupported,
                text("{} does not take {} of {} {} over {} ranks: {}{}", name, name_of(request),
                     amount_of(request), name_of(request.type), request.ranks, why,
                     wanted.engine.empty() ? "; leave params empty, or name a strategy"
                                           : "; leave strategy empty"));
  return choice;
}

/// Most requests return here, since few have rows for graphs.
bool Selector::differs_in_graphs(const Request& request, const EngineRequest& wanted) const {
  if (!wanted.engine.empty() || !wanted.params.empty() || !has_row_for_graphs(request))
    return false;
  const std::optional<EngineChoice> eager = best(request), captured = best(request, {"", {}, true});
  return captured && (!eager || !eager->runs_as(*captured));
}

/// One choice for both kinds of launch. Captured calls with a row of their own may be slower by the
/// engine of eager calls, so the engine of captured calls then serves both.
std::optional<EngineChoice> Selector::no_slower_than_nccl(const Request& request) const {
  std::optional<EngineChoice> choice = best(request);
  if (choice && choice->beats_nccl.value_or(false) && has_row_for_graphs(request))
    choice = best(request, {"", {}, true});
  if (choice && !choice->beats_nccl.value_or(false)) choice.reset();
  return choice;
}

bool wants_large_arena(const Selector& first, const Selector& whole, const Request& request) {
  const bool is_all_reduce = request.collective == Collective::all_reduce;
  if (message_bytes(request) > small_request_bytes(request.ranks, is_all_reduce)) return true;
  if (whole.prefers_plan(request)) return true;
  const std::optional<EngineChoice> least = first.best(request), most = whole.best(request);
  return most && (!least || !least->runs_as(*most));
}

std::string Selector::explain(const Request& request, const EngineRequest& wanted) const {
  std::string lines;
  if (const std::optional<EngineChoice> choice = best(request, wanted))
    lines = text("chosen: {}\n", in_words(*choice, as_measured_));
  else if (wanted.engine.empty() && prefers_plan(request))
    lines = "chosen: a plan, which is faster than each engine as simulated for this machine\n";
  if (differs_in_graphs(request, wanted))
    lines += text("in graphs: {}\n", in_words(*best(request, {"", {}, true}), as_measured_));
  for (const Engine* const engine : engines())
    if (const std::string why = why_not(*engine, request, {}, group_); !why.empty())
      lines += text("  not {}: {}\n", engine->info().name, why);
  return lines;
}

}  // namespace plait::cuda
