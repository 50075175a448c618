// Rows of a table from measured sizes. Where NCCL is ahead at one of two sizes, NCCL counts as
// ahead between them.
#include "gpu/select/tuning_rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/json_place.hpp"
#include "base/text.hpp"
#include "gpu/select/tuning_file.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kSmallest = 1 << 10;    // smaller messages take the row of this size
constexpr std::uint64_t kLargest = 1ull << 30;  // larger messages take the row of this size
constexpr std::uint64_t kFarApart = 4;          // sizes at a larger ratio are no neighbours
constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

/// 251658240 -> "240M", 8191 -> "8191".
std::string size_text(std::uint64_t bytes) {
  for (const auto& [unit, suffix] :
       {std::pair(1ull << 30, "G"), std::pair(1ull << 20, "M"), std::pair(1ull << 10, "K")})
    if (bytes != 0 && bytes % unit == 0) return text("{}{}", bytes / unit, suffix);
  return text("{}", bytes);
}

/// 2.0004 -> 2.0, as tables show times.
double rounded(double us) { return std::round(us * 1000.0) / 1000.0; }

bool are_neighbours(const MeasuredCall& smaller, const MeasuredCall& larger) {
  return larger.bytes <= kFarApart * smaller.bytes;
}

/// Returns whether the largest size that was timed says what is the fastest beyond.
bool says_all_beyond(const MeasuredCall& largest) {
  if (largest.bytes * 2 > kLargest) return true;
  return largest.bytes >= kFullFrom && (beats_nccl(largest.us, largest.nccl_us) == false ||
                                        largest.us * kFullBandwidth <= largest.nccl_us);
}

/// Last size in bytes that takes the row of `here`. next: the next larger size; null = none.
std::uint64_t upto(const MeasuredCall& here, const MeasuredCall* next) {
  if (next == nullptr && says_all_beyond(here)) return kNoLimit;
  if (next == nullptr || !are_neighbours(here, *next)) return here.bytes * 2;
  if (next->engine.empty()) return here.bytes;
  const std::optional<bool> ahead = beats_nccl(here.us, here.nccl_us);
  const std::optional<bool> next_ahead = beats_nccl(next->us, next->nccl_us);
  if (ahead == true && next_ahead == false) return here.bytes;
  if (ahead == false && next_ahead == true) return next->bytes - 1;
  return static_cast<std::uint64_t>(
      std::sqrt(static_cast<long double>(here.bytes) * static_cast<long double>(next->bytes)));
}

/// First size that takes the row. before: the next smaller size; null = none.
std::uint64_t from(const MeasuredCall& here, const MeasuredCall* before) {
  if (before == nullptr) return here.bytes <= kSmallest ? 0 : here.bytes / 2;
  if (before->engine.empty()) return are_neighbours(*before, here) ? here.bytes : here.bytes / 2;
  return are_neighbours(*before, here) ? upto(*before, &here) + 1 : here.bytes / 2;
}

struct Row {
  MeasuredCall call;
  std::uint64_t from_bytes, upto_bytes;

  /// True if one row can say both.
  bool continues(const Row& before) const {
    return before.upto_bytes + 1 == from_bytes && before.call.engine == call.engine &&
           before.call.params == call.params &&
           beats_nccl(before.call.us, before.call.nccl_us) == beats_nccl(call.us, call.nccl_us);
  }
  Json json(const std::string& source) const {
    Json row{{"collective", name_of(call.collective)},
             {"from_ranks", call.ranks},
             {"upto_ranks", call.ranks},
             {"when", name_of(call.when)}};
    if (from_bytes != 0) row["from_bytes"] = size_text(from_bytes);
    if (upto_bytes != kNoLimit) row["upto_bytes"] = size_text(upto_bytes);
    row["type"] = name_of(call.type);
    row["engine"] = call.engine;
    if (!call.params.empty()) row["params"] = call.params;
    if (const std::optional<bool> ahead = beats_nccl(call.us, call.nccl_us))
      row["ahead_of_nccl"] = *ahead;
    row["us"] = rounded(call.us);
    row["nccl_us"] = rounded(call.nccl_us);
    row["source"] = source;
    if (call.is_nccl_inferred) row["note"] = "NCCL takes at least nccl_us, by its other sizes";
    return row;
  }
};

/// Rows of calls that differ in size alone, smallest first.
std::vector<Row> rows_of(const std::vector<MeasuredCall>& series) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const MeasuredCall* const before = i == 0 ? nullptr : &series[i - 1];
    const MeasuredCall* const next = i + 1 == series.size() ? nullptr : &series[i + 1];
    if (series[i].engine.empty()) continue;
    Row row{series[i], from(series[i], before), upto(series[i], next)};
    if (!rows.empty() && row.continues(rows.back())) {
      row.from_bytes = rows.back().from_bytes;
      rows.pop_back();
    }
    rows.push_back(row);
  }
  return rows;
}

/// "NVIDIA H200, 132 multiprocessors, 18 NVLinks to switches" as the table's `gpu`.
Json gpus_of(const std::string& kind, int ranks) {
  constexpr const char* kUnit = " multiprocessors, ";
  const std::size_t unit = kind.find(kUnit);
  const std::size_t comma = unit == std::string::npos ? unit : kind.rfind(", ", unit);
  if (comma == std::string::npos)
    return {{"model", kind.empty() ? "several models" : kind},
            {"multiprocessors", 1},
            {"links", Json::array({"of several kinds"})},
            {"upto_ranks", ranks}};
  return {{"model", kind.substr(0, comma)},
          {"multiprocessors",
           parse_integer("multiprocessors", kind.substr(comma + 2, unit - comma - 2), 1, 4096)},
          {"links", Json::array({kind.substr(unit + std::string(kUnit).size())})},
          {"upto_ranks", ranks}};
}

MeasuredCall call_at(const JsonPlace& place) {
  place.object(
      {"when", "collective", "type", "ranks", "bytes", "engine", "params", "us", "nccl_us"});
  constexpr int kCollectives = static_cast<int>(Collective::copy) + 1;
  constexpr int kTypes = static_cast<int>(DataType::fp8e5m2) + 1;
  MeasuredCall call;
  call.when = place.at("when").name_in<RowUse>(kRowUses);
  call.collective = place.at("collective").name_in<Collective>(kCollectives);
  call.type = place.at("type").name_in<DataType>(kTypes);
  call.ranks = static_cast<int>(place.at("ranks").integer(2, kMaxRanks));
  call.bytes = place.at("bytes").bytes();
  call.engine = place.at("engine").string();
  for (const auto& [name, value] : place.at("params").members())
    call.params[name] = value.integer(0, std::numeric_limits<int>::max());
  call.us = place.at("us").number(true);
  call.nccl_us = place.at("nccl_us").number(true);
  return call;
}

}  // namespace

std::string table_of_calls(const MeasuredFacts& facts, const std::vector<MeasuredCall>& calls) {
  std::vector<std::vector<MeasuredCall>> all;
  for (const MeasuredCall& call : calls) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& series) {
      const MeasuredCall& one = series.front();
      return one.when == call.when && one.collective == call.collective && one.type == call.type &&
             one.ranks == call.ranks &&
             (one.engine == kMessagesRow) == (call.engine == kMessagesRow);
    });
    if (found != all.end())
      found->push_back(call);
    else
      all.push_back({call});
  }
  int most_ranks = 2;
  Json rows = Json::array();
  for (std::vector<MeasuredCall>& series : all) {
    std::sort(series.begin(), series.end(), [](const MeasuredCall& one, const MeasuredCall& other) {
      return one.bytes < other.bytes;
    });
    most_ranks = std::max(most_ranks, series.front().ranks);
    for (const Row& row : rows_of(series)) rows.push_back(row.json(facts.source));
  }
  const Json table{{"schema", kTuningSchema},
                   {"name", facts.name},
                   {"gpu", gpus_of(facts.kind, most_ranks)},
                   {"fingerprint", facts.fingerprint},
                   {"cuda_driver", facts.cuda_driver},
                   {"nccl", facts.nccl},
                   {"plait", facts.plait},
                   {"date", facts.date},
                   {"rows", rows}};
  return tuning_text(table.dump());
}

std::string table_of_calls(std::string_view facts_json, std::string_view calls_json) {
  constexpr const char* kFacts = "facts of a measurement";
  constexpr const char* kCalls = "measured calls";
  const Json facts = parse_json(facts_json, kFacts), calls = parse_json(calls_json, kCalls);
  const JsonPlace place(facts, "", kFacts), list(calls, "", kCalls);
  place.object({"name", "fingerprint", "kind", "cuda_driver", "nccl", "plait", "date", "source"});
  std::vector<MeasuredCall> measured;
  for (const JsonPlace& one : list.items()) measured.push_back(call_at(one));
  return table_of_calls(
      {.name = place.at("name").string(),
       .fingerprint = place.at("fingerprint").string(),
       .kind = place.at("kind").string(),
       .cuda_driver = static_cast<int>(place.at("cuda_driver").integer(0, 1'000'000)),
       .nccl = place.at("nccl").string(),
       .plait = place.at("plait").string(),
       .date = place.at("date").string(),
       .source = place.at("source").string()},
      measured);
}

}  // namespace plait::cuda
