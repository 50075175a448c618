// The kernels that a GPU runs, by the model's name alone.
#include <doctest/doctest.h>

#include <algorithm>

#include "gpu/select/engines.hpp"
#include "gpu/select/usual_group.hpp"
#include "plait/topology.hpp"
#include "topo/gpu_models.hpp"

using namespace plait;
using namespace plait::cuda;

TEST_CASE("a model's name says its compute capability") {
  const auto capability_of = [](const std::string& name) {
    const GpuModel* const model = gpu_model(name);
    return model == nullptr ? 0 : model->capability;
  };
  CHECK(capability_of("NVIDIA A100-SXM4-40GB") == 80);
  CHECK(capability_of("Tesla V100-SXM2-32GB") == 70);
  CHECK(capability_of("NVIDIA A10") == 86);
  CHECK(capability_of("NVIDIA L4") == 89);
  CHECK(capability_of("NVIDIA L40S") == 89);
  CHECK(capability_of("NVIDIA H100 80GB HBM3") == 90);
  CHECK(capability_of("NVIDIA GH200 120GB") == 90);
  CHECK(capability_of("NVIDIA B200") == 100);
  CHECK(capability_of("NVIDIA GeForce RTX 4090") == 89);
  CHECK(capability_of("NVIDIA GeForce RTX 5090") == 120);
  CHECK(capability_of("NVIDIA RTX PRO 6000 Blackwell Server Edition") == 120);
  CHECK(capability_of("NVIDIA RTX 6000 Ada Generation") == 89);
  CHECK(capability_of("") == 0);
  CHECK(capability_of("EPYC memory") == 0);
  for (const std::string& name : shipped_topologies())
    for (const plait::Device& device : load_topology(name).devices)
      if (device.kind == DeviceKind::gpu) {
        CAPTURE(device.model);
        CHECK(gpu_model(device.model) != nullptr);
      }
}

TEST_CASE("blocks of a kernel fit on the smallest of the GPUs") {
  const auto blocks_on = [](const std::vector<std::string>& models) {
    return usual_group(2, false, 0, 0, models).blocks();
  };
  CHECK(blocks_on({}) == 132);
  CHECK(blocks_on({"NVIDIA H200", "NVIDIA H200"}) == 132);
  CHECK(blocks_on({"NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"}) == 108);
  CHECK(blocks_on({"NVIDIA A30", "NVIDIA H200"}) == 56);
  CHECK(blocks_on({"NVIDIA B200", "NVIDIA B200"}) == 148);
  CHECK(blocks_on({"NVIDIA B200", "a GPU that plait does not know"}) == 132);
}

TEST_CASE("engines serve no request on GPUs that do not run their kernels") {
  Request request;
  request.ranks = 4;
  request.count = 64 << 20;
  const auto takers = [&](const std::string& model) {
    const Group group =
        usual_group(4, false, 0, 0, {"NVIDIA H200", model, "NVIDIA H200", "NVIDIA H200"});
    std::vector<std::string> names;
    for (const Engine* const engine : engines())
      if (why_not(*engine, request, {}, group).empty()) names.push_back(engine->info().name);
    return names;
  };
  const std::vector<std::string> all = takers("NVIDIA H200");
  const auto has = [](const std::vector<std::string>& names, const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  CHECK(has(all, "tiled"));
  CHECK(takers("a GPU that plait does not know") == all);
  CHECK(takers("NVIDIA B200") == all);
  for (const char* model : {"NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 5090"}) {
    CAPTURE(model);
    CHECK(has(takers(model), "two_shot"));
    CHECK_FALSE(has(takers(model), "tiled"));
    CHECK_FALSE(has(takers(model), "scatter_ring"));
  }
  CHECK(takers("Tesla V100-SXM2-16GB").empty());

  const Group old = usual_group(4, false, 0, 0, {"Tesla V100-SXM2-16GB"});
  CHECK(why_not(two_shot_engine(), request, {}, old).find("compute capability 7.0") !=
        std::string::npos);
}
