// A new engine takes a file, a line of engines.def and rows of parameters (CMakeLists.txt here
// makes these edits). Lists, selection, proofs and emulation then include the engine.
#include <doctest/doctest.h>

#include <algorithm>

#include "comm/choose/prove_engines.hpp"
#include "comm/choose/what_runs.hpp"
#include "conformance/conformance.hpp"
#include "gpu/select/tuning_table.hpp"
#include "plait/error.hpp"

using namespace plait_test;
using namespace plait_test::conformance;

namespace {

Request gather_of(std::uint64_t count, int ranks) {
  Request request;
  request.collective = Collective::all_gather;
  request.count = count;
  request.ranks = ranks;
  return checked(request, linked_machine(ranks));
}

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& where, const std::string& what) {
  return where.find(what) != std::string::npos;
}

std::string chosen(const std::optional<EngineChoice>& choice) {
  return choice ? text("{}, {}", choice->engine->info().name, name_of(choice->by)) : "none";
}

}  // namespace

TEST_CASE("a new engine stands in the lists, with its parameters") {
  CHECK(has(engine_names(), "tiled, toy, copy_exchange"));
  CHECK(engine_named("toy", gather_of(1, 3)) == &toy_engine());
  CHECK(tuning_from("toy", {{"tile_units", 64}, {"blocks", 2}}).tile_units == 64);
  const std::string refused = error_of([] { tuning_from("toy", {{"bare", 1}}); });
  CHECK(has(refused, "parameter of toy: wanted one of blocks, tile_units, "));
}

TEST_CASE("a new engine is chosen by all words that there are") {
  const Group group = budget_group(4);
  const Request small = gather_of(7, 4), large = gather_of(1 << 20, 4);
  const Selector built_in(group, {}, true);
  CHECK(chosen(built_in.best(small)) == "toy, built in");
  CHECK(chosen(built_in.best(large)) != "toy, built in");
  CHECK(chosen(built_in.best(large, {"toy", {{"tile_units", 8192}}})) == "toy, caller");
  const TuningTable table(
      R"({"schema":"plait.tuning/4","name":"m","gpu":{"model":"g","multiprocessors":132,)"
      R"("links":["no NVLink"],"upto_ranks":4},"nccl":"2.28.9","rows":[{"collective":"all_gather",)"
      R"("from_ranks":4,"upto_ranks":4,"when":"alone","upto_bytes":"1G","type":"fp32",)"
      R"("engine":"toy","params":{"blocks":8},"ahead_of_nccl":true,"source":"plait tune"}]})");
  REQUIRE(table.find(large, RowUse::alone) != nullptr);
  CHECK(table.find(large, RowUse::alone)->engine == &toy_engine());
  CHECK(table.find(large, RowUse::alone)->tuning.blocks == 8);
  const Predict fastest = [](const Engine& engine, const Request&) {
    return &engine == &toy_engine() ? 1.0 : 2.0;
  };
  CHECK(chosen(Selector(group, {}, false, fastest).best(large)) == "toy, simulated");
}

TEST_CASE("a new kind of GPU is a file") {
  const std::string kind = "Toy GPU 80GB, 132 multiprocessors, 18 NVLinks to switches";
  CHECK(table_of(kind).name() == "toy-gpu");
  CHECK(is_measured(kind, 4));
  CHECK_FALSE(is_measured(kind, 5));
  CHECK_FALSE(is_measured("Toy GPU 80GB, 66 multiprocessors, 18 NVLinks to switches", 2));
  CHECK(table_of_models({"Toy GPU 80GB", "Toy GPU 96GB"}).name() == "toy-gpu");
  CHECK(has(measured_gpus(), "up to 4 of Toy GPU *"));
  const Selector selector(budget_group(4), {}, true, nullptr, table_of(kind));
  CHECK(chosen(selector.best(gather_of(7, 4))) == "direct_ll, built in");  // not the toy's row
}

TEST_CASE("what refuses says why, and other errors list the new engine") {
  Request sum = gather_of(7, 4);
  sum.collective = Collective::all_reduce;
  Group group = budget_group(4);
  CHECK(why_not(toy_engine(), sum, {}, group) == "it does not serve all_reduce");
  CHECK(has(Selector(group, {}, true).explain(sum), "not toy: it does not serve all_reduce"));
  group.in_processes = false;
  CHECK(has(why_not(toy_engine(), gather_of(7, 4), {}, group), "a process for each rank"));
  const Selector selector(budget_group(4), {}, true);
  CHECK(has(error_of([&] { static_cast<void>(selector.best(sum, {"toys", {}})); }),
            "tiled, toy, copy_exchange, copy_rotation, copy_ring, scatter_ring, host_cores, "
            "found toys"));
  CHECK(has(error_of([&] { static_cast<void>(selector.best(sum, {"toy", {}})); }),
            "toy does not take all_reduce"));
}

TEST_CASE("a new engine is among the cases of plait verify --all, and is priced") {
  int proved = 0, in_a_row = 0;
  for (const EngineCase& one : engine_cases()) {
    const bool is_row = has(one.label, "toy: ") && has(one.label, "tiny");
    if (one.engine != "toy" && !(is_row && ++in_a_row % 16 == 0)) continue;
    const EngineProof proof = prove(one);
    CAPTURE(one.label);
    CHECK(proof.findings.empty());
    proved += proof.refusal.empty();
  }
  MESSAGE(proved, " cases proved");
  CHECK(proved > 100);
  CHECK(in_a_row > 100);
  const Request request = gather_of(1 << 20, 4);
  const double us = predictor(linked_machine(4), budget_group(4))(toy_engine(), request);
  CHECK(us > 3 * 4.0 * (1 << 20) / 400e3);  // three pushes at 400 GB/s
  CHECK(us < 1e4);
}

TEST_CASE("a new engine is covered by the one body" * doctest::skip(kLooksForRaces)) {
  check_engine(toy_engine(), {});
}
