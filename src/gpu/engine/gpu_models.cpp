// Table of GPU models.
#include "gpu/engine/gpu_models.hpp"

#include <algorithm>
#include <cctype>

#include "base/text.hpp"

namespace plait::cuda {
namespace {

struct Model {
  const char* word;  ///< Word of the name. Names are split into words of letters and digits.
  int capability;
  unsigned multiprocessors;  ///< Equal on every board of that name; 0 = boards differ.
};
constexpr int kOfAmd = 1;
/// Order matters: RTX cards of the same number belong to several generations, and only some names
/// tell the generation.
constexpr Model kModels[] = {
    {"Blackwell", 120, 0},   {"Ada", 89, 0},     {"P100", 60, 56},    {"V100", 70, 80},
    {"V100S", 70, 80},       {"T4", 75, 40},     {"A100", 80, 108},   {"A800", 80, 108},
    {"A30", 80, 56},         {"A10", 86, 72},    {"A10G", 86, 80},    {"A16", 86, 0},
    {"A2", 86, 10},          {"A40", 86, 84},    {"A4000", 86, 48},   {"A4500", 86, 56},
    {"A5000", 86, 64},       {"A5500", 86, 80},  {"A6000", 86, 84},   {"L4", 89, 58},
    {"L20", 89, 92},         {"L40", 89, 142},   {"L40S", 89, 142},   {"H20", 90, 78},
    {"H100", 90, 0},         {"H200", 90, 132},  {"H800", 90, 0},     {"GH200", 90, 132},
    {"B100", 100, 0},        {"B200", 100, 148}, {"GB200", 100, 148}, {"B300", 103, 0},
    {"GB300", 103, 0},       {"Thor", 110, 0},   {"GB10", 121, 0},    {"2080", 75, 0},
    {"3060", 86, 0},         {"3070", 86, 0},    {"3080", 86, 0},     {"3090", 86, 82},
    {"4060", 89, 0},         {"4070", 89, 0},    {"4080", 89, 0},     {"4090", 89, 128},
    {"5060", 120, 0},        {"5070", 120, 0},   {"5080", 120, 84},   {"5090", 120, 170},
    {"Instinct", kOfAmd, 0},
};
constexpr int kLeast = 80;  ///< Device code is built from here on (docs/nccl.md).

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

const Model* known_as(const std::string& name) {
  const std::vector<std::string> words = words_of(name);
  for (const Model& one : kModels)
    if (std::find(words.begin(), words.end(), one.word) != words.end()) return &one;
  return nullptr;
}

FamilyLacks lacks_of(const std::vector<std::string>& models,
                     const std::vector<const KernelFamily*>& families) {
  FamilyLacks lacks;
  for (const std::string& model : models) {
    const Model* const known = known_as(model);
    if (known == nullptr) continue;
    const int capability = known->capability;
    if (capability == kOfAmd) {
      lacks.add_all(text(model, " is a GPU of AMD, plait's device code runs on GPUs of NVIDIA"));
      return lacks;
    }
    const std::string found = text(model, " has compute capability ", number(capability));
    if (capability < kLeast) {
      lacks.add_all(text(found, ", plait's device code wants ", number(kLeast), " or later"));
      return lacks;
    }
    for (const KernelFamily* const family : families)
      if (lacks.of(*family).empty() && (capability < family->from || capability >= family->below))
        lacks.add(*family, text(found, ", ", family->wants));
  }
  return lacks;
}

}  // namespace

int capability_of(const std::string& model) {
  const Model* const known = known_as(model);
  return known == nullptr ? 0 : known->capability;
}

void describe(Group& group, const std::vector<std::string>& models,
              const std::vector<const KernelFamily*>& families) {
  if (models.empty()) return;
  group.why_not = lacks_of(models, families);
  unsigned fewest = ~0u;
  bool all_known = true;
  for (const std::string& model : models) {
    const Model* const known = known_as(model);
    if (known == nullptr || known->multiprocessors == 0)
      all_known = false;
    else
      fewest = std::min(fewest, known->multiprocessors);
  }
  group.multiprocessors = all_known ? fewest : std::min(fewest, group.multiprocessors);
}

}  // namespace plait::cuda
