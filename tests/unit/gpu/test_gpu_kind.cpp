// Kinds of GPUs and links as a single line, and the kinds on which tuning tables were measured.
#include <doctest/doctest.h>

#include "gpu/device/gpu_kind.hpp"
#include "gpu/select/gpu_tables.hpp"

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

TEST_CASE("a table counts for the GPUs and links that it was measured on, and no others") {
  const GpuFacts whole = linked(18, NvlinkEnd::nvswitch);
  CHECK(is_measured(kind("NVIDIA H200", 132, whole), 2));
  CHECK(is_measured(kind("NVIDIA H200", 132, linked(18, NvlinkEnd::unknown)), 2));
  CHECK(is_measured(kind("NVIDIA H200", 132, GpuFacts{}),
                    2));  // the virtual machine that was measured
  CHECK(is_measured(gpu_kind("NVIDIA H200", 132, nullptr), 2));

  CHECK_FALSE(is_measured(kind("NVIDIA H200 NVL", 132, whole), 2));
  CHECK_FALSE(is_measured(kind("NVIDIA H100 PCIe", 132, whole), 2));
  CHECK_FALSE(is_measured(kind("NVIDIA H200", 66, whole), 2));  // a part of a GPU
  CHECK_FALSE(is_measured(kind("NVIDIA H200", 132, linked(17, NvlinkEnd::nvswitch)), 2));
  CHECK_FALSE(is_measured(kind("NVIDIA H200", 132, linked(18, NvlinkEnd::gpu)), 2));
  CHECK_FALSE(is_measured(kind("NVIDIA H200", 132, linked(0, NvlinkEnd::unknown)), 2));
  CHECK_FALSE(is_measured("", 2));
}

TEST_CASE("a table counts for as many ranks as were measured") {
  const std::string h100 = kind("NVIDIA H100 80GB HBM3", 132, linked(18, NvlinkEnd::nvswitch));
  const std::string h200 = kind("NVIDIA H200", 132, linked(18, NvlinkEnd::nvswitch));
  CHECK(is_measured(h100, 4));
  CHECK_FALSE(is_measured(h100, 5));
  CHECK(is_measured(h200, 8));
  CHECK_FALSE(is_measured(h200, 9));
  CHECK(are_measured_models({"NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"}, 4));
  CHECK_FALSE(are_measured_models({"NVIDIA H100 80GB HBM3"}, 8));
  CHECK_FALSE(are_measured_models({"NVIDIA H100"}, 2));
  CHECK_FALSE(are_measured_models({""}, 2));
  CHECK_FALSE(are_measured_models({"NVIDIA H100 80GB HBM3", "NVIDIA H200"}, 2));
}

TEST_CASE("links of several kinds are kept apart") {
  GpuFacts facts = linked(18, NvlinkEnd::nvswitch);
  facts.nvlinks[3].end = NvlinkEnd::gpu;
  CHECK(kind("X", 1, facts) == "X, 1 multiprocessors, 18 NVLinks to several kinds of ends");
}

TEST_CASE("ranks have one GPU kind, or none") {
  CHECK(common_kind({"a", "a", "a"}) == "a");
  CHECK(common_kind({"a", "b", "a"}).empty());
  CHECK(common_kind({}).empty());
}
