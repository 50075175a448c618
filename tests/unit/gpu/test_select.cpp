// Selection of engines by rows of choices: the requests that a row serves, and the comparison with
// NCCL.
#include <doctest/doctest.h>

#include "base/text.hpp"
#include "gpu/engine/group.hpp"
#include "gpu/select/select.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

constexpr std::uint64_t kAnySize = ~std::uint64_t{0};

/// Row for up to eight ranks.
TuningRow row_of(const Engine& engine, bool ahead, std::uint64_t upto_bytes = kAnySize,
                 const Tuning& tuning = {}, Collective collective = Collective::all_reduce) {
  TuningRow row;
  row.collective = collective;
  row.upto_ranks = 8;
  row.upto_bytes = upto_bytes;
  row.engine = &engine;
  row.tuning = tuning;
  row.ahead_of_nccl = ahead;
  return row;
}

/// Rows: tiles in order 2 for fp32, else two_shot, from 64 MiB on tiles in small pieces; NCCL is
/// slower than order 2.
const TuningTable& rows() {
  static const TuningTable made = [] {
    Tuning shifted, pieces;
    shifted.order = 2;
    shifted.shift = 1;
    pieces.piece_kib = 4;
    TuningRow first = row_of(tiled_engine(), true, 64 << 20, shifted);
    first.type = DataType::fp32;
    return TuningTable(std::vector<TuningRow>{first, row_of(two_shot_engine(), false, 64 << 20),
                                              row_of(tiled_engine(), false, kAnySize, pieces)});
  }();
  return made;
}

Request request_of(DataType type, std::uint64_t bytes, int ranks = 8) {
  Request request;
  request.type = type;
  request.count = bytes / bytes_of(type);
  request.ranks = ranks;
  return request;
}

std::string said(const EngineChoice& choice) {
  std::string words = choice.engine->info().name;
  for (const auto& [name, value] : params_of(choice.tuning)) words += text(" {}={}", name, value);
  return words + (choice.beats_nccl.value_or(false) ? ", ahead" : "");
}

Selector selector(const std::string& table = "", int ranks = 8) {
  return {usual_group(ranks), TuningTable(table), true, nullptr, rows()};
}

std::string chosen(const Request& request) {
  return said(*selector("", request.ranks).best(request));
}

std::string tuned(const std::string& more) {
  return text("{}{}{}{}{}{}",
              R"({"schema":"plait.tuning/4","name":"m","gpu":{"model":"g","multiprocessors":132,)",
              R"("links":["no NVLink"],"upto_ranks":8},"nccl":"","rows":[{"when":"alone",)",
              R"("collective":"all_reduce","type":"fp32","from_ranks":8,"upto_ranks":8,)",
              R"("upto_bytes":"1G","engine":"tiled",)", more, R"("source":"plait tune"}]})");
}

}  // namespace

TEST_CASE("a row's variant is used if the engine serves the request with it") {
  CHECK(chosen(request_of(DataType::fp32, 16 << 20)) == "tiled order=2 shift=1, ahead");
  CHECK(chosen(request_of(DataType::fp32, 16 << 20, 5)).starts_with("tiled order=2 shift=1"));
  CHECK(chosen(request_of(DataType::bf16, 16 << 20)) == "two_shot");  // a row of another type
  CHECK(chosen(request_of(DataType::bf16, 128 << 20)) == "tiled piece_kib=4");
  // A part through host memory wants memory that all ranks map.
  Tuning part;
  part.host_permille = 100;
  const TuningTable parts(std::vector<TuningRow>{row_of(tiled_engine(), true, kAnySize, part),
                                                 row_of(two_shot_engine(), false)});
  Group without = usual_group(8);
  without.host_bytes = 0;
  const Request request = request_of(DataType::fp32, 16 << 20);
  CHECK(said(*Selector(usual_group(8), {}, true, nullptr, parts).best(request)) ==
        "tiled host_permille=100, ahead");
  CHECK(said(*Selector(without, {}, true, nullptr, parts).best(request)) == "two_shot");
}

TEST_CASE("a caller's parameters replace the row's, and keep a budget of blocks") {
  const Request request = request_of(DataType::fp32, 16 << 20);
  CHECK(params_of(selector().best(request, {"", {{"blocks", 32}}})->tuning) ==
        std::map<std::string, std::int64_t>{{"blocks", 32}});
  CHECK(said(*selector().best(request, {"tiled", {}})) == "tiled");
  const Selector bounded(usual_group(8, false, kUsualMemoryBytes, 16), {}, true, nullptr, rows());
  CHECK(bounded.best(request)->tuning.shift == 1);
}

/// With the row's 48 blocks the packets are reused in 23 steps, with the budget's 8 in too many.
TEST_CASE("a row serves a request only with the blocks that a budget leaves the row") {
  Tuning many;
  many.blocks = 48;
  const TuningTable table(std::vector<TuningRow>{row_of(two_shot_engine(), true, kAnySize, many),
                                                 row_of(tiled_engine(), false)});
  const Group bounded = usual_group(4, false, 64 << 20, 8);
  const Request request = request_of(DataType::fp32, 32 << 20, 4);
  REQUIRE(why_not(two_shot_engine(), request, many, bounded).empty());
  CHECK(said(*Selector(bounded, {}, true, nullptr, table).best(request)) == "tiled");
  CHECK(said(*Selector(bounded, table, true, nullptr, table).best(request)) == "tiled");
}

TEST_CASE("a pace serves only measured links") {
  Tuning paced;
  paced.send_gb_per_s = 350;
  const TuningTable row(std::vector<TuningRow>{row_of(tiled_engine(), true, kAnySize, paced)});
  const Request request = request_of(DataType::fp32, 16 << 20);
  for (const bool as_measured : {true, false}) {
    const Selector selector(usual_group(8), {}, as_measured, nullptr, row);
    CHECK(selector.best(request)->tuning.send_gb_per_s == (as_measured ? 350 : 0));
    CHECK(selector.best(request, {"tiled", {{"send_gb_per_s", 400}}})->tuning.send_gb_per_s == 400);
  }
}

TEST_CASE("a ring is chosen if its pieces are as long as measured") {
  const TuningTable rows(std::vector<TuningRow>{
      row_of(copy_ring_engine(), true, kAnySize, {}, Collective::all_gather),
      row_of(direct_ll_engine(), false, kAnySize, {}, Collective::all_gather)});
  Request request;
  request.collective = Collective::all_gather;
  request.ranks = 8;
  request.count = 32 << 20;
  for (const std::uint64_t mib : {0, 96}) {
    const Selector selector(usual_group(8, false, mib << 20), {}, true, nullptr, rows);
    CHECK(said(*selector.best(request)) == (mib == 0 ? "copy_ring, ahead" : "direct_ll"));
  }
}

TEST_CASE("rows for graphs serve captured calls that may take the whole GPU") {
  std::vector<TuningRow> with_graphs = rows().rows();
  TuningRow in_graphs = row_of(scatter_ring_engine(), true);
  in_graphs.when = RowUse::captured;
  in_graphs.from_ranks = 8;
  in_graphs.from_bytes = 32 << 20;
  with_graphs.insert(with_graphs.begin(), in_graphs);
  const TuningTable both(with_graphs);
  const Request long_one = request_of(DataType::fp32, 128 << 20);
  const Selector selector(usual_group(8), {}, true, nullptr, both);
  CHECK(said(*selector.best(long_one, {"", {}, true})) == "scatter_ring, ahead");
  CHECK(said(*selector.best(long_one)) == "tiled piece_kib=4");
  CHECK(!selector.no_slower_than_nccl(long_one));  // eager calls are behind NCCL
  for (TuningRow& row : with_graphs)
    if (row.engine == &tiled_engine()) row.ahead_of_nccl = true;
  const TuningTable both_ahead(with_graphs);
  const Selector ahead(usual_group(8), {}, true, nullptr, both_ahead);
  CHECK(said(*ahead.no_slower_than_nccl(long_one)) == "scatter_ring, ahead");  // in any launch
  CHECK(said(*ahead.best(long_one)) == "tiled piece_kib=4, ahead");
  CHECK(said(*selector.best(request_of(DataType::bf16, 16 << 20), {"", {}, true})) ==
        "two_shot");  // from 32 MiB on alone
  CHECK(said(*selector.best(long_one, {"tiled", {}, true})) == "tiled");
  CHECK(selector.explain(long_one).starts_with(
      "chosen: engine tiled (piece_kib=4), as measured on such GPUs\n"
      "in graphs: engine scatter_ring, as measured on such GPUs\n"));
  CHECK(selector.explain(request_of(DataType::bf16, 16 << 20)).find("in graphs") ==
        std::string::npos);
  CHECK(selector.differs_in_graphs(long_one));
  CHECK(!selector.differs_in_graphs(request_of(DataType::bf16, 16 << 20)));
  const EngineRequest windows{"", {{"window", 3}}, true};  // a parameter that rings lack
  CHECK(said(*selector.best(long_one, windows)) == "tiled window=3");
  CHECK(!selector.differs_in_graphs(long_one, windows));
  CHECK(selector.explain(long_one, windows).find("in graphs") == std::string::npos);
  CHECK(said(*Selector(usual_group(7), {}, true, nullptr, both)
                  .best(request_of(DataType::fp32, 128 << 20, 7), {"", {}, true})) ==
        "tiled piece_kib=4");  // another number of ranks
  // A tuning table has a single row for both launches, hence these rows do not count there.
  const Selector with_table(usual_group(8), TuningTable(tuned("")), true, nullptr, both);
  CHECK(with_table.best(long_one)->by == EngineChoice::By::built_in);
  CHECK(said(*with_table.best(long_one, {"", {}, true})) == "scatter_ring, ahead");
  CHECK(with_table.best(request_of(DataType::fp32, 16 << 20))->by == EngineChoice::By::table);
  const Selector elsewhere(usual_group(8), TuningTable(tuned("")), false, nullptr, both);
  CHECK(elsewhere.best(long_one, {"", {}, true})->by == EngineChoice::By::table);
  const Selector overlapping(usual_group(8, true), {}, true, nullptr, both);
  CHECK(said(*overlapping.best(long_one, {"", {}, true})) == "tiled piece_kib=4");
}

TEST_CASE("a plan serves a request without measurements if it is predicted to be faster") {
  const Request request = request_of(DataType::fp32, 16 << 20);
  const Predict ten = [](const Engine&, const Request&) { return 10.0; };
  const auto with_plan = [&](double plan_us, bool as_measured = false,
                             const Group& group = usual_group(8), const std::string& table = "") {
    return Selector(group, TuningTable(table), as_measured, ten, rows(),
                    [=](const Request&) { return plan_us; });
  };
  const Selector slower = with_plan(10.4), faster = with_plan(9.0), near = with_plan(9.6);
  for (const Selector* const selector : {&slower, &near}) {  // within the accuracy of predictions
    REQUIRE(selector->best(request));
    CHECK(selector->best(request)->by == EngineChoice::By::simulated);
    CHECK_FALSE(selector->prefers_plan(request));
  }
  CHECK_FALSE(faster.best(request));
  CHECK(faster.prefers_plan(request));
  CHECK(faster.explain(request).starts_with("chosen: a plan, which is faster than each engine"));
  CHECK(said(*faster.best(request, {"tiled", {}})) == "tiled");
  for (const Selector& engine : {with_plan(9.0, true), with_plan(9.0, false, usual_group(8, true)),
                                 with_plan(9.0, false, usual_group(8), tuned(""))})
    CHECK(engine.best(request));  // as measured; overlap_compute; by this machine's table
  // Plans use the large arena only, hence a small call waits for that arena too.
  const Request small = request_of(DataType::fp32, 1 << 10);
  const Selector first(usual_group(8), {}, false, ten, rows());
  CHECK(wants_large_arena(first, faster, small));
  CHECK_FALSE(wants_large_arena(first, slower, small));
}

TEST_CASE("counters name the row's variant, not the caller's parameters") {
  const Request request = request_of(DataType::fp32, 16 << 20);
  CHECK(label(*selector().best(request)) == "tiled(order=2,shift=1)");
  CHECK(label(*selector().best(request, {"tiled", {{"piece_kib", 1}}})) == "tiled");
  CHECK(label(*selector().best(request_of(DataType::bf16, 16 << 20))) == "two_shot");
}

TEST_CASE("explain() names the row's variant") {
  const std::string lines = selector().explain(request_of(DataType::fp32, 16 << 20));
  CHECK(lines.starts_with("chosen: engine tiled (order=2, shift=1), as measured on such GPUs\n"));
}

TEST_CASE("a row's comparison with NCCL holds for its own variant only") {
  const Request request = request_of(DataType::fp32, 16 << 20);
  CHECK(said(*selector(tuned("")).best(request)) == "tiled");
  CHECK(said(*selector(tuned(R"("params":{"order":2,"shift":1},)")).best(request)) ==
        "tiled order=2 shift=1, ahead");
  CHECK(said(*selector(tuned(R"("params":{"piece_kib":4},)")).best(request)) ==
        "tiled piece_kib=4");
}

TEST_CASE("averages over a power of two count as the sums whose kernels serve them") {
  const auto choice_of = [](ReduceOp op, int ranks, DataType type) {
    Request request = request_of(type, 16 << 20, ranks);
    request.op = op;
    return said(*selector("", ranks).best(request));
  };
  for (const int ranks : {2, 4, 8})
    CHECK(choice_of(ReduceOp::avg, ranks, DataType::fp32) ==
          choice_of(ReduceOp::sum, ranks, DataType::fp32));
  CHECK(choice_of(ReduceOp::avg, 8, DataType::fp32).ends_with(", ahead"));
  CHECK(!choice_of(ReduceOp::avg, 6, DataType::fp32).ends_with(", ahead"));
  CHECK(!choice_of(ReduceOp::avg, 8, DataType::int32).ends_with(", ahead"));
  CHECK(!choice_of(ReduceOp::max, 8, DataType::fp32).ends_with(", ahead"));
}

TEST_CASE("each shipped table serves every collective with any number of ranks and bytes") {
  CHECK(gpu_tables().size() >= 2);
  for (const TuningTable& table : gpu_tables()) {
    CAPTURE(table.name());
    CHECK(&table_of(table.gpus().kind()) == &table);
    // GPUs that do not address each other have a table of their own beside that of their model.
    CHECK(table_of_models({table.gpus().model}).gpus().model == table.gpus().model);
    for (const Collective collective : all_collectives())
      for (const int ranks : {2, 3, 5, 8, 9, 16})
        for (const std::uint64_t count : {1ull, 1ull << 40}) {
          Request request;
          request.collective = collective;
          request.ranks = ranks;
          request.count = count;
          CHECK(table.find(request, RowUse::any) != nullptr);
        }
  }
}

TEST_CASE("GPUs without a table of their own go by the default table") {
  CHECK(default_table().name() == "hgx-h200");
  CHECK(&table_of("NVIDIA B200, 148 multiprocessors, 18 NVLinks to switches") == &default_table());
  CHECK(&table_of("") == &default_table());
  constexpr const char* kInHost =
      "NVIDIA L40S, 142 multiprocessors, no NVLink, through host memory";
  CHECK(table_of(kInHost).name() == "through-host-h200");
  CHECK(guesses_for(kInHost).front()->name() == "through-host-h200");
  CHECK(guesses_for(kInHost).size() == gpu_tables().size());
  CHECK_FALSE(is_measured(kInHost, 2));
  CHECK(table_of("NVIDIA H100 80GB HBM3, 132 multiprocessors, NVLinks hidden").name() ==
        "hgx-h100");
  CHECK(&table_of_models({"NVIDIA H200 NVL"}) == &default_table());
  CHECK(&table_of_models({"NVIDIA H100 80GB HBM3", "NVIDIA H200"}) == &default_table());
  CHECK(table_of_models({"NVIDIA H100 80GB HBM3"}).name() == "hgx-h100");
}
