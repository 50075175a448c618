// Reads a tuning table, strict JSON, and looks up rows.
#include "gpu/select/tuning_table.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/env.hpp"
#include "base/json_place.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr const char* kDocument = "tuning table";
constexpr int kTypes = static_cast<int>(DataType::fp8e5m2) + 1;
constexpr int kCollectives = static_cast<int>(Collective::copy) + 1;
constexpr int kMostBlocks = 4096;

/// "26M", as in PLAIT_MIN_BYTES.
std::uint64_t size_at(const JsonPlace& place) {
  const std::string words = place.string();
  try {
    return parse_bytes(place.name(), words, 0, std::numeric_limits<std::int64_t>::max());
  } catch (const Error&) {
    place.refuse("bytes, as in \"64K\", \"64M\" or \"1G\"");
  }
}

Tuning tuning_at(const JsonPlace& place, const std::string& engine) {
  std::map<std::string, std::int64_t> given;
  for (const auto& [name, value] : place.members())
    given[name] = value.integer(0, std::numeric_limits<int>::max());
  try {
    return tuning_from(engine, given);
  } catch (const Error& error) {
    place.refuse(text("parameters that {} takes ({})", engine, error.what()));
  }
}

const Engine* engine_at(const JsonPlace& place, const TuningRow& row) {
  Request request;
  request.collective = row.collective;
  request.ranks = row.upto_ranks;
  const Engine* const engine = engine_named(place.string(), request);
  if (engine == nullptr) place.refuse(text("one of {}", engine_names()));
  const std::vector<Collective>& served = engine->info().collectives;
  if (std::find(served.begin(), served.end(), row.collective) == served.end())
    place.refuse(text("an engine that serves {}", name_of(row.collective)));
  return engine;
}

bool is_of_messages(const JsonPlace& row) { return row.at("engine").string() == kMessagesRow; }

TuningRow row_at(const JsonPlace& place) {
  place.object_of_some({"collective", "from_ranks", "upto_ranks", "when", "upto_blocks",
                        "from_bytes", "upto_bytes", "type", "engine", "params", "ahead_of_nccl",
                        "us", "nccl_us", "source", "note"});
  TuningRow row;
  row.collective = place.at("collective").name_in<Collective>(kCollectives);
  row.upto_ranks = static_cast<int>(place.at("upto_ranks").integer(2, kMaxRanks));
  if (place.has("from_ranks"))
    row.from_ranks = static_cast<int>(place.at("from_ranks").integer(2, row.upto_ranks));
  if (place.has("when")) row.when = place.at("when").name_in<RowUse>(kRowUses);
  if (place.has("upto_blocks")) {
    if (row.when != RowUse::leaving_sms)
      place.at("upto_blocks")
          .refuse(text("a row with \"when\": \"{}\"", name_of(RowUse::leaving_sms)));
    row.upto_blocks = static_cast<unsigned>(place.at("upto_blocks").integer(1, kMostBlocks));
  }
  if (place.has("from_bytes")) row.from_bytes = size_at(place.at("from_bytes"));
  if (place.has("upto_bytes")) row.upto_bytes = size_at(place.at("upto_bytes"));
  if (row.upto_bytes < row.from_bytes)
    place.at("upto_bytes").refuse(text("at least from_bytes, {}", row.from_bytes));
  if (place.has("type")) row.type = place.at("type").name_in<DataType>(kTypes);
  if (!is_of_messages(place))
    row.engine = engine_at(place.at("engine"), row);
  else if (row.collective != Collective::send_recv && row.collective != Collective::all_to_all)
    place.at("collective").refuse("send_recv or all_to_all for messages");
  if (place.has("params") && row.engine != nullptr)
    row.tuning = tuning_at(place.at("params"), row.engine->info().name);
  if (place.has("ahead_of_nccl")) row.ahead_of_nccl = place.at("ahead_of_nccl").boolean();
  for (const char* const time : {"us", "nccl_us"})
    if (place.has(time)) static_cast<void>(place.at(time).number(true));
  for (const char* const words : {"source", "note"})
    if (place.has(words)) static_cast<void>(place.at(words).string());
  static_cast<void>(place.at("source"));
  return row;
}

MeasuredGpus gpus_at(const JsonPlace& place) {
  place.object({"model", "multiprocessors", "links", "upto_ranks"});
  MeasuredGpus gpus;
  gpus.model = place.at("model").string();
  gpus.multiprocessors = static_cast<int>(place.at("multiprocessors").integer(1, kMostBlocks));
  for (const JsonPlace& link : place.at("links").items()) gpus.links.push_back(link.string());
  if (gpus.links.empty()) place.at("links").refuse("at least one kind of links");
  gpus.upto_ranks = static_cast<int>(place.at("upto_ranks").integer(2, kMaxRanks));
  return gpus;
}

bool is_of_type(const TuningRow& row, const Request& request) {
  return !row.type || *row.type == request.type;
}

bool is_near_type(const TuningRow& row, const Request& request) {
  return !row.type || !reduces(request.collective) ||
         (bytes_of(*row.type) == bytes_of(request.type) &&
          is_float(*row.type) == is_float(request.type));
}

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

}  // namespace

std::string name_of(RowUse use) {
  constexpr const char* kNames[] = {"any", "alone", "overlap_compute", "leaving_sms", "captured"};
  static_assert(std::size(kNames) == kRowUses);
  return kNames[static_cast<int>(use)];
}

std::optional<bool> beats_nccl(double us, double nccl_us) {
  constexpr double kNoise = 0.99;
  if (nccl_us == 0) return std::nullopt;
  return us <= kNoise * nccl_us;
}

bool TuningRow::covers(const Request& request) const {
  const std::uint64_t bytes = message_bytes(request);
  return collective == request.collective && from_ranks <= request.ranks &&
         request.ranks <= upto_ranks && from_bytes <= bytes && bytes <= upto_bytes;
}

bool MeasuredGpus::are(const std::string& kind) const {
  return std::any_of(links.begin(), links.end(), [&](const std::string& link) {
    return matches(text("{}, {} multiprocessors, {}", model, multiprocessors, link), kind);
  });
}

bool MeasuredGpus::are_model(const std::string& name) const { return matches(model, name); }

std::string MeasuredGpus::kind() const {
  return text("{}, {} multiprocessors, {}", model, multiprocessors, links.front());
}

TuningTable::TuningTable(std::string_view json, const std::string& file) {
  if (json.empty()) return;
  const std::string named = file.empty() ? kDocument : text("{} {}", kDocument, file);
  const Json document = parse_json(json, named.c_str());
  const JsonPlace whole(document, "", named.c_str());
  const JsonPlace schema = whole.at("schema");
  if (schema.string() != kTuningSchema)
    schema.refuse(kTuningSchema, text("{}: run `plait tune` again", schema.string()));
  whole.object_of_some(
      {"schema", "name", "fingerprint", "gpu", "cuda_driver", "nccl", "plait", "date", "rows"});
  name_ = whole.at("name").string();
  gpus_ = gpus_at(whole.at("gpu"));
  nccl_ = whole.at("nccl").string();
  for (const JsonPlace& place : whole.at("rows").items())
    (is_of_messages(place) ? messages_ : rows_).push_back(row_at(place));
}

std::optional<bool> TuningTable::messages_are_ahead(int ranks) const {
  constexpr std::uint64_t kUsual[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20};
  for (const TuningRow& row : messages_)
    if (row.from_ranks <= ranks && ranks <= row.upto_ranks && row.ahead_of_nccl != true)
      return false;
  const auto is_covered = [&](Collective collective, std::uint64_t bytes) {
    return std::any_of(messages_.begin(), messages_.end(), [&](const TuningRow& row) {
      return row.collective == collective && row.from_ranks <= ranks && ranks <= row.upto_ranks &&
             row.from_bytes <= bytes && bytes <= row.upto_bytes;
    });
  };
  for (const Collective collective : {Collective::send_recv, Collective::all_to_all})
    for (const std::uint64_t bytes : kUsual)
      if (!is_covered(collective, bytes)) return std::nullopt;
  return true;
}

const TuningRow* TuningTable::find(const Request& request, const Applies& applies) const {
  for (const auto& is_for : {&is_of_type, &is_near_type})
    for (const TuningRow& row : rows_)
      if (row.covers(request) && is_for(row, request) && applies(row)) return &row;
  return nullptr;
}

const TuningRow* TuningTable::find(const Request& request, RowUse use) const {
  return find(request,
              [use](const TuningRow& row) { return row.when == RowUse::any || row.when == use; });
}

bool TuningTable::has(RowUse use, int ranks) const {
  return std::any_of(rows_.begin(), rows_.end(), [&](const TuningRow& row) {
    return (row.when == RowUse::any || row.when == use) && row.from_ranks <= ranks &&
           ranks <= row.upto_ranks;
  });
}

std::string of_rank_0(const Exchange& exchange, const std::string& mine) {
  constexpr std::uint64_t kPieceBytes = 2048;
  const std::uint64_t bytes =
      parse_integer("bytes of rank 0", exchange(text("{}", mine.size()))[0], 0, kMaxJsonBytes);
  std::string whole;
  while (whole.size() < bytes)
    whole += exchange(mine.substr(std::min(whole.size(), mine.size()), kPieceBytes))[0];
  return whole;
}

}  // namespace plait::cuda
