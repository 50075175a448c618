// One table: names, ranges, and which kernels take them.
#include "comm/fused_params.hpp"

#include <algorithm>
#include <vector>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

const std::vector<std::string> kKernels{"one_shot", "two_shot", "hop", "tiled", "rotation"};

struct Known {
  const char* name;
  std::int64_t most;
  std::vector<std::string> kernels;  // empty = all
  void (*set)(cuda::FusedTuning&, int);
};

const std::vector<Known>& known() {
  using cuda::FusedTuning;
  static const std::vector<Known> all{
      {"blocks", 4096, {}, [](FusedTuning& t, int v) { t.blocks = static_cast<unsigned>(v); }},
      {"threads",
       512,
       {"one_shot", "two_shot", "hop"},
       [](FusedTuning& t, int v) { t.threads = static_cast<unsigned>(v); }},
      {"ahead",
       64,
       {"one_shot", "two_shot", "hop", "rotation"},
       [](FusedTuning& t, int v) { t.ahead = v; }},
      {"bare", 1, {"one_shot", "two_shot"}, [](FusedTuning& t, int v) { t.bare = v; }},
      {"tile_units",
       1 << 20,
       {"tiled", "rotation"},
       [](FusedTuning& t, int v) { t.tile_units = static_cast<std::uint32_t>(v); }},
      {"host_permille", 1000, {}, [](FusedTuning& t, int v) { t.host_permille = v; }},
      {"host_cpu_permille", 1000, {}, [](FusedTuning& t, int v) { t.host_cpu_permille = v; }},
  };
  return all;
}

bool takes(const Known& parameter, const std::string& kernel) {
  const std::vector<std::string>& by = parameter.kernels;
  return by.empty() || std::find(by.begin(), by.end(), kernel) != by.end();
}

std::string names_for(const std::string& kernel) {
  std::string names;
  for (const Known& one : known())
    if (takes(one, kernel)) names += text(names.empty() ? "" : ", ", one.name);
  return names;
}

}  // namespace

bool is_fused(const std::string& strategy) {
  return std::find(kKernels.begin(), kKernels.end(), strategy) != kKernels.end();
}

cuda::FusedTuning fused_tuning(const std::string& kernel,
                               const std::map<std::string, std::int64_t>& params) {
  cuda::FusedTuning tuning;
  for (const auto& [name, value] : params) {
    const auto found = std::find_if(known().begin(), known().end(),
                                    [&](const Known& one) { return one.name == name; });
    if (found == known().end() || !takes(*found, kernel))
      throw Error(ErrorCode::invalid_argument, text("parameter of ", kernel, ": wanted one of ",
                                                    names_for(kernel), ", found ", name));
    if (value < 0 || value > found->most)
      throw Error(ErrorCode::invalid_argument,
                  text(name, ": wanted a whole number from 0 to ", found->most, ", found ", value));
    if (name == "threads" && value % 32 != 0)
      throw Error(ErrorCode::invalid_argument,
                  text("threads: wanted a multiple of 32, found ", value));
    found->set(tuning, static_cast<int>(value));
  }
  return tuning;
}

}  // namespace plait
