// Reading a tuning table: a file that this user alone may write, and strict JSON.
// Rows are looked up by what they hold.
#include "comm/tuning.hpp"

#include "base/json_place.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"

namespace plait {
namespace {

constexpr const char* kDocument = "tuning table";
constexpr const char* kSchema = "plait.tuning/2";
constexpr int kTypes = static_cast<int>(DataType::fp8e5m2) + 1;
constexpr int kCollectives = static_cast<int>(Collective::copy) + 1;

TunedRow row_at(const JsonPlace& place) {
  place.object({"collective", "type", "ranks", "max_bytes", "kernel", "blocks", "us"});
  TunedRow row;
  row.collective = place.at("collective").name_in<Collective>(kCollectives);
  row.type = place.at("type").name_in<DataType>(kTypes);
  row.ranks = static_cast<int>(place.at("ranks").integer(2, kMaxRanks));
  row.max_bytes = place.at("max_bytes").bytes();
  row.kernel = place.at("kernel").string();
  row.tuning.blocks = static_cast<unsigned>(place.at("blocks").integer(0, 4096));
  place.at("us").number(true);
  return row;
}

}  // namespace

TuningTable::TuningTable(std::string_view json) {
  if (json.empty()) return;
  const Json document = parse_json(json, kDocument);
  const JsonPlace whole(document, "", kDocument);
  whole.object({"schema", "machine", "fingerprint", "gpu", "cuda_driver", "plait", "date", "rows"});
  if (whole.at("schema").string() != kSchema) whole.at("schema").refuse(kSchema);
  for (const JsonPlace& place : whole.at("rows").items()) rows_.push_back(row_at(place));
}

const TunedRow* TuningTable::smallest(const Request& request, bool same_type) const {
  const TunedRow* best = nullptr;
  for (const TunedRow& row : rows_) {
    const bool fits = row.collective == request.collective && row.ranks == request.ranks &&
                      row.max_bytes >= message_bytes(request) &&
                      (same_type ? row.type == request.type
                                 : bytes_of(row.type) == bytes_of(request.type) &&
                                       is_float(row.type) == is_float(request.type));
    if (fits && (best == nullptr || row.max_bytes < best->max_bytes)) best = &row;
  }
  return best;
}

const TunedRow* TuningTable::find(const Request& request) const {
  const TunedRow* row = smallest(request, true);
  return row != nullptr ? row : smallest(request, false);
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

}  // namespace plait
