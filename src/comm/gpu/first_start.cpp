// Rank 0 decides and tells all ranks: use a table, measure, or neither. A rank that measures holds
// the lock of the table's mark (tuning_file.hpp); other jobs wait for the table a moment.
#include "comm/gpu/first_start.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error_reason.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/host_name.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/gpu/measurement.hpp"
#include "gpu/arena/arena.hpp"
#include "gpu/device/gpu_kind.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "gpu/select/tuning_file.hpp"
#include "gpu/select/tuning_rows.hpp"
#include "plait/error.hpp"
#include "topo/names.hpp"

namespace plait {
namespace {

// Freeing takes at most this share of the time to open and kEndS more: through host memory, where
// NCCL frees much, 25 to 475 ms after 160 to 230 (E-0482).
constexpr double kEndShare = 0.6, kEndS = 0.45;
constexpr double kLeastTimedS = 1;  // of timing, however long the bench takes to open
constexpr double kProgressS = 1.0;  // until rank 0 says what takes so long
constexpr double kOtherJobS = 6.0;  // longest wait for the table of a job that measures
constexpr double kSpare = 2.0;      // ranks must wait this many budgets for rank 0
constexpr const char* kSwitch = "PLAIT_AUTOTUNE=0 turns this off";

/// What this process has measured, by file: a table, or why there is none. For folders that cannot
/// be written, and failures.
class Remembered {
 public:
  struct Outcome {
    std::string table, reason;
  };
  static std::optional<Outcome> of(const std::string& key) {
    const std::lock_guard lock(guard());
    const auto found = all().find(key);
    return found == all().end() ? std::nullopt : std::optional(found->second);
  }
  static void add(const std::string& key, Outcome outcome) {
    const std::lock_guard lock(guard());
    all()[key] = std::move(outcome);
  }

 private:
  static std::mutex& guard() {
    static std::mutex one;
    return one;
  }
  static std::map<std::string, Outcome>& all() {
    static std::map<std::string, Outcome> one;
    return one;
  }
};

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char words[32];
  std::strftime(words, sizeof words, "%Y-%m-%dT%H:%M:%S+00:00", &utc);
  return words;
}

/// Of calls through host memory, NCCL's go through host memory too, or have a table of their own.
std::string machine_of(const GpuGroup& group, const std::string& nccl) {
  if (group.tuning_machine.empty()) return "unknown";
  return group.tuning_machine + (!nccl.empty() && group.nccl_goes_direct ? "-ncclp2p" : "");
}

/// Rank 0's decision.
struct Decision {
  std::string table;      ///< text; empty = none
  bool measures = false;  ///< all ranks measure
  std::string key;        ///< names the outcome in Remembered
};

/// Rank 0's part: the file, and the mark while measuring.
class Lead {
 public:
  Lead(const GpuGroup& group, const Env& env, const FirstStart& first)
      : group_(group), env_(env), first_(first) {
    file_ = tuning_file(env, group, first.nccl);
    // An unknown machine has no table of its own, only the table named by PLAIT_TUNING.
    keeps_ = !group.tuning_machine.empty() && !file_.empty();
    key_ = text("{} {} {} {}", machine_of(group, first.nccl), first.nccl, group.ranks, group.kind);
  }

  Decision decide() {
    Decision made{cuda::offered_tuning(env_, file_, 0), false, key_};
    if (!file_.empty())
      log(LogLevel::info, 0,
          made.table.empty() ? text("no tuning table {}: by what is built in", file_)
                             : text("by the tuning table {}", file_));
    if (!made.table.empty() || !wants_table()) return made;
    if (const auto known = Remembered::of(key_)) {
      made.table = known->table;
      return made;
    }
    made.measures = keeps_ ? may_measure(made.table) : true;
    return made;
  }

  /// Keeps the table, if there is a folder to keep it in.
  void keep(const std::string& table) {
    if (mark_ == nullptr) return;
    try {
      cuda::write_tuning(file_, table);
      log(LogLevel::info, 0, text("keeps the tuning table {}", file_));
    } catch (const Error& error) {
      log(LogLevel::info, 0, text("{}; this process alone has the table", error.what()));
      mark_->remove();
    }
    mark_.reset();
  }

  /// Nothing was measured, and a later start may measure.
  void drop() {
    if (mark_ != nullptr) mark_->remove();
  }

  /// Says what went wrong, here and to later starts. A program that ended its communicator
  /// meanwhile is no failure.
  void failed(const Error& error) {
    const std::string reason = reason_of(error);
    if (error.code() == ErrorCode::aborted) return drop();
    if (mark_ != nullptr) mark_->write(text("{} {}", date_now(), reason));
    warn_unasked(0, text("measuring this machine failed: {}; {}{}", reason, without(), retry()));
  }
  /// Says why there was no bench. A later start may have more memory, and measures.
  void not_begun(const Error& error) {
    drop();
    if (error.code() == ErrorCode::aborted) return;
    warn_unasked(0,
                 text("this machine cannot be measured now: {}; {}, and a later start tries again",
                      reason_of(error), without()));
  }

 private:
  bool wants_table() const {
    const bool is_measured = first_.nccl.empty() ? cuda::is_measured(group_.kind, group_.ranks)
                                                 : is_measured_beside_nccl(group_);
    if (!env_.tuning.empty() || is_measured) return false;
    const std::string why = !env_.autotune ? "PLAIT_AUTOTUNE is 0"
                            : first_.arrive_s < kSpare * first_.budget_s
                                ? text("ranks wait for each other for {} s at most, wanted {}",
                                       first_.arrive_s, kSpare * first_.budget_s)
                                : first_.why_not;
    if (!why.empty()) log(LogLevel::info, 0, text("does not measure this machine: {}", why));
    return why.empty();
  }

  /// Takes the mark. While another job measures, waits for its table, unless the peers would give
  /// up before this rank has measured.
  bool may_measure(std::string& table) {
    mark_ = std::make_unique<cuda::MeasuringMark>(file_);
    const std::int64_t until_ns =
        deadline_in(std::min(kOtherJobS, first_.arrive_s - kSpare * first_.budget_s));
    cuda::MeasuringMark::Taken taken = mark_->take();
    while (taken == cuda::MeasuringMark::Taken::by_another && now_ns() < until_ns) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      taken = mark_->take();
    }
    if (taken == cuda::MeasuringMark::Taken::by_another) {
      log(LogLevel::info, 0, text("{}: another job measures still", mark_->file()));
      mark_.reset();
      return false;
    }
    if (taken == cuda::MeasuringMark::Taken::no_folder) {
      log(LogLevel::info, 0,
          text("{} cannot be written: this process alone will have the measured table", file_));
      mark_.reset();
      return true;
    }
    table = cuda::offered_tuning(env_, file_, 0);  // may be there by now
    if (!table.empty()) {
      mark_->remove();
      mark_.reset();
      return false;
    }
    if (!mark_->former().empty()) {
      warn_unasked(0,
                   text("an earlier start that measured this machine did not end well ({}): {}{}",
                        mark_->former(), without(), retry()));
      Remembered::add(key_, {"", mark_->former()});
      mark_.reset();
      return false;
    }
    mark_->write(
        text("{} process {} of {} began and did not end", date_now(), ::getpid(), host_name()));
    return true;
  }

  std::string without() const {
    return first_.nccl.empty() ? "the simulator chooses engines" : "calls stay on NCCL";
  }
  std::string retry() const {
    if (!keeps_) return "; `plait tune` measures by hand";
    return text("; remove {}.measuring to measure again, or run `plait tune`", file_);
  }

  const GpuGroup& group_;
  const Env& env_;
  const FirstStart& first_;
  std::string file_, key_;
  bool keeps_ = false;
  std::unique_ptr<cuda::MeasuringMark> mark_;
};

std::string table_of(const GpuGroup& group, const FirstStart& first,
                     const std::vector<cuda::MeasuredCall>& calls) {
  return cuda::table_of_calls({.name = group.topology.name,
                               .fingerprint = fingerprint(group.topology),
                               .kind = group.kind,
                               .cuda_driver = cuda::cuda_driver_version(),
                               .nccl = first.nccl,
                               .plait = PLAIT_VERSION,
                               .date = date_now(),
                               .source = "first start"},
                              calls);
}

/// Closes the bench and throws nothing that all ranks know of: the measurement has failed before.
void close_after_failure(CallBench& bench, MeasuringSteps& steps) {
  try {
    steps.together([&] { bench.close(); });
  } catch (const MeasuringFailed&) {
  }
}

/// Opens the bench with all ranks. Returns why there is none, alike on all ranks.
std::optional<MeasuringFailed> open(CallBench& bench, MeasuringSteps& steps) {
  try {
    steps.together([&] { bench.open(steps.exchange()); });
    return std::nullopt;
  } catch (const MeasuringFailed& error) {
    close_after_failure(bench, steps);
    return error;
  }
}

/// Measures with all ranks; returns the table's text on rank 0. began_ns: when the bench was asked
/// for. Arenas, streams and NCCL's communicator of the bench take a second of the budget.
std::string measured(const GpuGroup& group, CallBench& bench, MeasuringSteps& steps,
                     const FirstStart& first, std::int64_t began_ns) {
  const auto elapsed_s = [began_ns] { return static_cast<double>(now_ns() - began_ns) / 1e9; };
  const double opened_s = elapsed_s();
  bool has_told = false;
  MeasuringTerms terms;
  terms.rank = group.rank;
  terms.when = first.when;
  terms.budget_s = std::max(first.budget_s - kEndS - kEndShare * opened_s, opened_s + kLeastTimedS);
  terms.elapsed_s = elapsed_s;
  terms.progress = [&](std::size_t done, std::size_t all) {
    if (has_told || elapsed_s() < kProgressS) return;
    has_told = true;
    tell_unasked(
        0,
        text("measures this machine once, for at most {} s: {} of {} sizes of calls are timed; {}",
             first.budget_s, done, all, kSwitch));
  };
  const cuda::Exchange exchange = steps.exchange();
  Measurement measurement(bench, exchange, std::move(terms));
  std::vector<cuda::MeasuredCall> calls;
  try {
    steps.together(
        [&] { calls = measurement.run(requests_by_use(group.ranks, !first.nccl.empty())); });
  } catch (const MeasuringFailed&) {
    close_after_failure(bench, steps);
    throw;
  }
  std::string table;
  steps.together([&] {
    bench.close();
    if (group.rank != 0) return;
    if (calls.empty())  // an empty table would keep later starts from measuring
      throw Error(ErrorCode::timeout, text("no size of a call was timed within {} s", elapsed_s()));
    table = table_of(group, first, calls);
  });
  if (group.rank == 0)
    log(LogLevel::info, 0,
        text("measured {} sizes of calls in {} s, of which {} s to open the bench; {} of "
             "them without NCCL; {} are left out",
             measurement.timed(), elapsed_s(), opened_s, measurement.timed_alone(),
             measurement.left_out()));
  return table;
}

/// Rank 0's table on all ranks; empty with a `reason` if the ranks could not measure. lead: null =
/// not rank 0.
std::string measured_by_all(const GpuGroup& group, const cuda::Exchange& exchange,
                            const FirstStart& first, Lead* lead, std::string& reason) {
  const std::int64_t began_ns = now_ns();
  MeasuringSteps steps(exchange);
  std::string table;
  try {
    std::unique_ptr<CallBench> bench;
    steps.together([&] { bench = first.bench(); });
    const std::optional<MeasuringFailed> closed = open(*bench, steps);
    if (!closed) {
      table = measured(group, *bench, steps, first, began_ns);
      if (lead != nullptr) lead->keep(table);
    } else {
      reason = reason_of(*closed);
      if (lead != nullptr) lead->not_begun(*closed);
    }
  } catch (const MeasuringFailed& error) {
    reason = reason_of(error);
    if (lead != nullptr) lead->failed(error);
  } catch (const cuda::NoDirectAccess&) {  // all ranks try again through host memory
    if (lead != nullptr) lead->drop();
    throw;
  } catch (const Error& error) {
    if (lead != nullptr) lead->failed(error);
    throw;
  }
  return cuda::of_rank_0(exchange, table);
}

}  // namespace

std::string tuning_file(const Env& env, const GpuGroup& group, const std::string& nccl) {
  return cuda::tuning_file(
      env, {machine_of(group, nccl), group.ranks, cuda::cuda_driver_version(), nccl});
}

void learn_tuning(GpuGroup& group, const cuda::Exchange& exchange, const Env& env,
                  const FirstStart& first) {
  std::unique_ptr<Lead> lead;
  Decision decision;
  if (group.rank == 0) {
    lead = std::make_unique<Lead>(group, env, first);
    decision = lead->decide();
  }
  const std::vector<std::string> told = unpack(cuda::of_rank_0(
      exchange, pack({decision.table, decision.measures ? "measure" : "", decision.key})));
  if (told.size() != 3) throw Error(ErrorCode::parse_error, "rank 0 sent no tuning table");
  std::string table = told[0];
  if (!told[1].empty()) {
    std::string reason;
    table = measured_by_all(group, exchange, first, lead.get(), reason);
    Remembered::add(told[2], {table, reason});
  }
  group.tuning = cuda::TuningTable(table);
  const std::string& beside = group.tuning.nccl();
  if (group.rank == 0 && !first.nccl.empty() && !beside.empty() && beside != first.nccl)
    log(LogLevel::warn, 0,
        text(
            "the tuning table was measured beside NCCL {}, this is NCCL {}: run `plait tune` again",
            beside, first.nccl));
}

}  // namespace plait
