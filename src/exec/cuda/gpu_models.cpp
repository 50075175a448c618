// The table of models, and what a family of kernels wants of a GPU.
#include "exec/cuda/gpu_models.hpp"

#include <algorithm>
#include <cctype>

#include "base/text.hpp"

namespace plait::cuda {
namespace {

struct Model {
  const char* word;  ///< of the name, which is read in words of letters and digits
  int capability;
};
/// In their order: RTX cards of one number are of several generations, which some names say.
constexpr Model kModels[] = {
    {"Blackwell", 120}, {"Ada", 89},   {"P100", 60},   {"V100", 70},  {"V100S", 70}, {"T4", 75},
    {"A100", 80},       {"A800", 80},  {"A30", 80},    {"A10", 86},   {"A10G", 86},  {"A16", 86},
    {"A2", 86},         {"A40", 86},   {"A4000", 86},  {"A4500", 86}, {"A5000", 86}, {"A5500", 86},
    {"A6000", 86},      {"L4", 89},    {"L20", 89},    {"L40", 89},   {"L40S", 89},  {"H20", 90},
    {"H100", 90},       {"H200", 90},  {"H800", 90},   {"GH200", 90}, {"B100", 100}, {"B200", 100},
    {"GB200", 100},     {"B300", 103}, {"GB300", 103}, {"Thor", 110}, {"GB10", 121}, {"2080", 75},
    {"3060", 86},       {"3070", 86},  {"3080", 86},   {"3090", 86},  {"4060", 89},  {"4070", 89},
    {"4080", 89},       {"4090", 89},  {"5060", 120},  {"5070", 120}, {"5080", 120}, {"5090", 120},
};
constexpr int kLeast = 80;         ///< device code is built from here on (docs/nccl.md)
constexpr int kTiled = 90;         ///< bulk copies came with it
constexpr int kSmallBlocks = 120;  ///< from here on a block has 99 KiB of shared memory

std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char letter : name)
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0)
      words.back() += letter;
    else if (!words.back().empty())
      words.emplace_back();
  return words;
}

std::string number(int capability) { return text(capability / 10, ".", capability % 10); }

}  // namespace

int capability_of(const std::string& model) {
  const std::vector<std::string> words = words_of(model);
  for (const Model& one : kModels)
    if (std::find(words.begin(), words.end(), one.word) != words.end()) return one.capability;
  return 0;
}

FamilyLacks lacks_of(const std::vector<std::string>& models) {
  FamilyLacks lacks;
  for (const std::string& model : models) {
    const int capability = capability_of(model);
    if (capability == 0) continue;
    const std::string found = text(model, " has compute capability ", number(capability));
    if (capability < kLeast) {
      lacks.fill(text(found, ", plait's device code wants ", number(kLeast), " or later"));
      return lacks;
    }
    std::string& tiled = lacks[static_cast<std::size_t>(Family::tiled)];
    if (!tiled.empty() || (capability >= kTiled && capability < kSmallBlocks)) continue;
    tiled = text(found, ", tiled kernels want ", number(kTiled),
                 " or later and 192 KiB of shared memory a block");
  }
  return lacks;
}

}  // namespace plait::cuda
