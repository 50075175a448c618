// Parses the embedded gpus/models.json, and finds the row of a GPU by name.
#include "topo/gpu_models.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/json_place.hpp"
#include "topo/shipped.hpp"

namespace plait {
namespace {

/// Returns the words of letters and digits in a name: " nvidia a100 sxm4 40gb ".
std::string words_of(const std::string& name) {
  std::string words = " ";
  for (const char letter : name)
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0)
      words += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    else if (words.back() != ' ')
      words += ' ';
  return words.back() == ' ' ? words : words + ' ';
}

GpuModel model_in(const JsonPlace& row) {
  row.object_of_some({"name", "devices", "vendor", "capability", "multiprocessors",
                      "memory_gb_per_s", "pcie", "nvlink_gb_per_s", "nvlinks", "host_kind",
                      "host_width", "host_gb_per_s", "like", "speeds_of", "switch_links"});
  GpuModel made;
  made.words = words_of(row.at("name").string());
  made.is_of_amd = row.string_or_empty("vendor") == "AMD";
  if (!made.is_of_amd)
    made.capability = static_cast<int>(std::lround(10 * row.at("capability").number(false)));
  if (row.has("multiprocessors"))
    made.multiprocessors = static_cast<unsigned>(row.at("multiprocessors").index(1));
  made.speeds_of = row.string_or_empty(row.has("speeds_of") ? "speeds_of" : "like");
  if (row.has("switch_links")) made.switch_links = row.at("switch_links").index(1);
  return made;
}

GpuModels read(const ShippedFile& file) {
  constexpr const char* kDocument = "gpus/models.json";
  const Json json = parse_json({file.begin, file.end}, kDocument);
  const JsonPlace whole(json, "", kDocument);
  whole.object({"source", "share_of_nominal", "bus_gb_per_s", "dram_gb_per_s", "models"});
  GpuModels made{.share_of_nominal = whole.at("share_of_nominal").number(false),
                 .bus_gb_per_s = whole.at("bus_gb_per_s").number(false),
                 .dram_gb_per_s = whole.at("dram_gb_per_s").number(false),
                 .rows = {}};
  for (const JsonPlace& row : whole.at("models").items()) made.rows.push_back(model_in(row));
  return made;
}

}  // namespace

const GpuModels& gpu_models() {
  static const GpuModels models = read(shipped_gpus().front());
  return models;
}

const GpuModel* gpu_model(const std::string& name) {
  const std::string words = words_of(name);
  const std::vector<GpuModel>& rows = gpu_models().rows;
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const GpuModel& row) {
    return words.find(row.words) != std::string::npos;
  });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace plait
