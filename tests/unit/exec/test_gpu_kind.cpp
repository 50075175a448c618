// What measurements hold for: kinds of GPUs and links as one line, and those of choices.def.
#include <doctest/doctest.h>

#include "exec/cuda/choices.hpp"
#include "exec/cuda/device/gpu_kind.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

GpuFacts linked(std::size_t links, NvlinkEnd end) {
  GpuFacts facts;
  facts.tells_links = true;
  facts.nvlinks.assign(links, NvlinkFacts{end, "", 7});
  return facts;
}

std::string kind(const std::string& model, int multiprocessors, const GpuFacts& facts) {
  return gpu_kind(model, multiprocessors, &facts);
}

}  // namespace

TEST_CASE("rows of choices.def count for the GPUs and links they were measured on, and no others") {
  const GpuFacts whole = linked(18, NvlinkEnd::nvswitch);
  CHECK(is_measured(kind("NVIDIA H200", 132, whole)));
  CHECK(is_measured(kind("NVIDIA H200", 132, linked(18, NvlinkEnd::unknown))));
  CHECK(is_measured(kind("NVIDIA H200", 132, GpuFacts{})));  // the guest that was measured
  CHECK(is_measured(gpu_kind("NVIDIA H200", 132, nullptr)));

  CHECK_FALSE(is_measured(kind("NVIDIA H200 NVL", 132, whole)));
  CHECK_FALSE(is_measured(kind("NVIDIA H100 80GB HBM3", 132, whole)));
  CHECK_FALSE(is_measured(kind("NVIDIA H200", 66, whole)));  // a part of one
  CHECK_FALSE(is_measured(kind("NVIDIA H200", 132, linked(17, NvlinkEnd::nvswitch))));
  CHECK_FALSE(is_measured(kind("NVIDIA H200", 132, linked(18, NvlinkEnd::gpu))));
  CHECK_FALSE(is_measured(kind("NVIDIA H200", 132, linked(0, NvlinkEnd::unknown))));
  CHECK_FALSE(is_measured(""));
}

TEST_CASE("links of several kinds are not taken for one") {
  GpuFacts facts = linked(18, NvlinkEnd::nvswitch);
  facts.nvlinks[3].end = NvlinkEnd::gpu;
  CHECK(kind("X", 1, facts) == "X, 1 multiprocessors, 18 NVLinks to several kinds of ends");
}

TEST_CASE("ranks are of one kind, or of none") {
  CHECK(common_kind({"a", "a", "a"}) == "a");
  CHECK(common_kind({"a", "b", "a"}).empty());
  CHECK(common_kind({}).empty());
}
