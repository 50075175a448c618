// Parses the embedded tuning/*.json, and finds the table of a GPU.
#include "gpu/select/gpu_tables.hpp"

#include <algorithm>

#include "base/env.hpp"
#include "base/text.hpp"
#include "gpu/select/shipped_tuning.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr const char* kDefault = "hgx-h200";
constexpr const char* kThroughHost = "through-host-h200";
constexpr const char* kInHost = ", through host memory";  // as agree_on_arenas() ends a kind

template <class Fits>
const TuningTable* first(const Fits& fits) {
  const std::vector<TuningTable>& all = gpu_tables();
  const auto found = std::find_if(all.begin(), all.end(), fits);
  return found == all.end() ? nullptr : &*found;
}

const TuningTable* of_kind(const std::string& kind) {
  return first([&](const TuningTable& table) { return table.gpus().are(kind); });
}

/// The table whose rows are a guess for GPUs of this kind.
const TuningTable& guess_for(const std::string& kind) {
  const TuningTable* const in_host =
      kind.ends_with(kInHost)
          ? first([](const TuningTable& table) { return table.name() == kThroughHost; })
          : nullptr;
  return in_host != nullptr ? *in_host : default_table();
}

const TuningTable* of_models(const std::vector<std::string>& models) {
  return first([&](const TuningTable& table) {
    return !models.empty() &&
           std::all_of(models.begin(), models.end(),
                       [&](const std::string& model) { return table.gpus().are_model(model); });
  });
}

}  // namespace

const std::vector<TuningTable>& gpu_tables() {
  static const std::vector<TuningTable> all = [] {
    std::vector<TuningTable> made;
    for (const ShippedFile& file : shipped_tuning()) {
      const std::string place = text("tuning/{}.json", file.name);
      made.emplace_back(std::string_view(file.begin, file.end), place);
      if (made.back().name() != file.name)
        throw Error(ErrorCode::internal,
                    text("{}: name: wanted {}, found {}", place, file.name, made.back().name()));
    }
    return made;
  }();
  return all;
}

const TuningTable& default_table() {
  static const TuningTable* const found =
      first([](const TuningTable& table) { return table.name() == kDefault; });
  if (found == nullptr)
    throw Error(ErrorCode::internal, text("tuning/: wanted {}.json, found none", kDefault));
  return *found;
}

const TuningTable& table_of(const std::string& kind) {
  const TuningTable* const found = of_kind(kind);
  return found != nullptr ? *found : guess_for(kind);
}

const TuningTable& table_of_models(const std::vector<std::string>& models) {
  const TuningTable* const found = of_models(models);
  return found != nullptr ? *found : default_table();
}

std::vector<const TuningTable*> guesses_for(const std::string& kind) {
  const TuningTable* const hidden = read_env().test_hide_tables ? of_kind(kind) : nullptr;
  const TuningTable* const guess = &guess_for(kind);
  std::vector<const TuningTable*> found;
  if (hidden != guess) found.push_back(guess);
  for (const TuningTable& table : gpu_tables())
    if (&table != hidden && &table != guess) found.push_back(&table);
  return found;
}

bool is_measured(const std::string& kind, int ranks) {
  if (read_env().test_hide_tables) return false;
  const TuningTable* const found = of_kind(kind);
  return found != nullptr && ranks <= found->gpus().upto_ranks;
}

bool are_measured_models(const std::vector<std::string>& models, int ranks) {
  if (read_env().test_hide_tables) return false;
  const TuningTable* const found = of_models(models);
  return found != nullptr && ranks <= found->gpus().upto_ranks;
}

std::string measured_gpus() {
  std::string words;
  for (const TuningTable& table : gpu_tables())
    words += text("{}up to {} of {}", words.empty() ? "" : " and ", table.gpus().upto_ranks,
                  table.gpus().model);
  return words;
}

}  // namespace plait::cuda
