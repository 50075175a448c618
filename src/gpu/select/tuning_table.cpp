// Reads a tuning table, a strict JSON file writable by this user alone, and looks up rows.
#include "gpu/select/tuning_table.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include "base/json_place.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr const char* kDocument = "tuning table";
constexpr const char* kSchema = "plait.tuning/3";
/// Name of TuningSetting::overlap_compute in tables of earlier versions.
constexpr const char* kFormerSetting = "beside_computing";
constexpr int kTypes = static_cast<int>(DataType::fp8e5m2) + 1;

/// Parameters of the engine, without the number of blocks.
Tuning tuning_at(const JsonPlace& place, const std::string& engine) {
  std::map<std::string, std::int64_t> given;
  for (const auto& [name, value] : place.members())
    given[name] = value.integer(0, std::numeric_limits<int>::max());
  try {
    return tuning_from(engine, given);
  } catch (const Error& error) {
    place.refuse(text("parameters that ", engine, " takes (", error.what(), ")"));
  }
}

TunedRow row_at(const JsonPlace& place, Collective collective) {
  // Tables written before the word "engine" say "kernel".
  const char* const engine = place.has("kernel") ? "kernel" : "engine";
  if (place.has("params"))
    place.object({"setting", "collective", "type", "ranks", "max_bytes", engine, "params", "blocks",
                  "us", "nccl_us"});
  else
    place.object(
        {"setting", "collective", "type", "ranks", "max_bytes", engine, "blocks", "us", "nccl_us"});
  TunedRow row;
  row.type = place.at("type").name_in<DataType>(kTypes);
  row.ranks = static_cast<int>(place.at("ranks").integer(2, kMaxRanks));
  row.max_bytes = place.at("max_bytes").bytes();
  Request request;
  request.collective = collective;
  request.ranks = row.ranks;
  row.engine = engine_named(place.at(engine).string(), request);
  if (row.engine == nullptr) place.at(engine).refuse(text("one of ", engine_names()));
  if (place.has("params")) row.tuning = tuning_at(place.at("params"), row.engine->info().name);
  row.tuning.blocks = static_cast<int>(place.at("blocks").integer(0, 4096));
  row.us = place.at("us").number(true);
  row.nccl_us = place.at("nccl_us").number(true);
  return row;
}

}  // namespace

std::optional<bool> beats_nccl(double us, double nccl_us) {
  constexpr double kNoise = 0.99;
  if (nccl_us == 0) return std::nullopt;
  return us <= kNoise * nccl_us;
}

std::string name_of(TuningSetting setting) {
  return setting == TuningSetting::alone ? "alone" : "overlap_compute";
}

TuningTable::TuningTable(std::string_view json) {
  if (json.empty()) return;
  const Json document = parse_json(json, kDocument);
  const JsonPlace whole(document, "", kDocument);
  whole.object(
      {"schema", "machine", "fingerprint", "gpu", "cuda_driver", "nccl", "plait", "date", "rows"});
  if (whole.at("schema").string() != kSchema) whole.at("schema").refuse(kSchema);
  nccl_ = whole.at("nccl").string();
  for (const JsonPlace& place : whole.at("rows").items()) {
    const JsonPlace named = place.at("setting");
    const auto setting = named.string() == kFormerSetting ? TuningSetting::overlap_compute
                                                          : named.name_in<TuningSetting>(kSettings);
    const auto collective = place.at("collective").name_in<Collective>(kCollectives);
    rows_[static_cast<std::size_t>(setting)][static_cast<std::size_t>(collective)].push_back(
        row_at(place, collective));
  }
}

const TunedRow* TuningTable::smallest(const Rows& rows, const Request& request, bool same_type) {
  const TunedRow* best = nullptr;
  for (const TunedRow& row : rows) {
    const bool is_near =
        same_type ? row.type == request.type
                  : !reduces(request.collective) || (bytes_of(row.type) == bytes_of(request.type) &&
                                                     is_float(row.type) == is_float(request.type));
    const bool fits =
        is_near && row.ranks == request.ranks && row.max_bytes >= message_bytes(request);
    if (fits && (best == nullptr || row.max_bytes < best->max_bytes)) best = &row;
  }
  return best;
}

const TunedRow* TuningTable::find(const Request& request, TuningSetting setting) const {
  const Rows& rows =
      rows_[static_cast<std::size_t>(setting)][static_cast<std::size_t>(request.collective)];
  const TunedRow* row = smallest(rows, request, true);
  return row != nullptr ? row : smallest(rows, request, false);
}

bool TuningTable::has(TuningSetting setting, int ranks) const {
  for (const Rows& rows : rows_[static_cast<std::size_t>(setting)])
    for (const TunedRow& row : rows)
      if (row.ranks == ranks) return true;
  return false;
}

std::string tuning_file(const Env& env, const std::string& fingerprint, int ranks) {
  if (env.tuning == "none") return "";
  if (!env.tuning.empty()) return env.tuning;
  std::string folder = foreign_env("XDG_CACHE_HOME");
  if (folder.empty() || folder[0] != '/') {
    const std::string home = foreign_env("HOME");
    if (home.empty() || home[0] != '/') return "";
    folder = home + "/.cache";
  }
  return text(folder, "/plait/tuning-", fingerprint, "-", ranks, ".json");
}

std::string read_tuning(const Env& env, const std::string& file) {
  if (file.empty()) return "";
  const FileTerms terms{.what = kDocument,
                        .most_bytes = 1 << 20,
                        .writers = Writers::this_user_alone,
                        .advice = "correct that, or remove it and run `plait tune`",
                        .may_be_missing = env.tuning.empty()};
  return read_whole_file(file, terms).value_or("");
}

std::string offered_tuning(const Env& env, const std::string& file, int rank) {
  try {
    std::string table = read_tuning(env, file);
    static_cast<void>(TuningTable(table));
    return table;
  } catch (const Error& error) {
    if (!env.tuning.empty()) throw;
    log(LogLevel::warn, rank, error.what());
    return "";
  }
}

std::string of_rank_0(const Exchange& exchange, const std::string& mine) {
  constexpr std::uint64_t kPieceBytes = 2048;
  const std::uint64_t bytes =
      parse_integer("bytes of rank 0", exchange(text(mine.size()))[0], 0, kMaxJsonBytes);
  std::string whole;
  while (whole.size() < bytes)
    whole += exchange(mine.substr(std::min(whole.size(), mine.size()), kPieceBytes))[0];
  return whole;
}

}  // namespace plait::cuda
