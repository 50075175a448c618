// Tuning tables: the row of a request, invalid tables, and trusted files.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/text.hpp"
#include "gpu/select/tuning_table.hpp"
#include "plait/error.hpp"
#include "unit/folder.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

std::string row(const std::string& collective, const std::string& type, std::uint64_t max_bytes,
                const std::string& kernel, int blocks = 0, const std::string& setting = "alone",
                double nccl_us = 0) {
  return text("{\"setting\":\"", setting, "\",\"collective\":\"", collective, "\",\"type\":\"",
              type, "\",\"ranks\":2,\"max_bytes\":", max_bytes, ",\"kernel\":\"", kernel,
              "\",\"blocks\":", blocks, ",\"us\":2.5,\"nccl_us\":", nccl_us, "}");
}

std::string table(const std::string& rows) {
  return text("{\"schema\":\"plait.tuning/3\",\"machine\":\"m\",\"fingerprint\":\"f\",",
              "\"gpu\":\"g\",\"cuda_driver\":13000,\"nccl\":\"2.28.9\",\"plait\":\"0\",\"date\":"
              "\"d\",\"rows\":[",
              rows, "]}");
}

Request request_of(DataType type, std::uint64_t count, int ranks = 2) {
  Request request;
  request.type = type;
  request.count = count;
  request.ranks = ranks;
  return request;
}

std::string kernel_for(const TuningTable& table, const Request& request,
                       TuningSetting setting = TuningSetting::alone) {
  const TunedRow* row = table.find(request, setting);
  return row == nullptr ? "none" : row->engine->info().name;
}

ErrorCode code_of_reading(const Env& env, const std::string& file) {
  try {
    static_cast<void>(read_tuning(env, file));
    return ErrorCode::ok;
  } catch (const Error& error) {
    return error.code();
  }
}

}  // namespace

TEST_CASE("a request takes the smallest row that holds it") {
  const TuningTable tuned(table(row("all_reduce", "fp32", 8192, "one_shot") + "," +
                                row("all_reduce", "fp32", 1 << 20, "two_shot", 32) + "," +
                                row("all_reduce", "bf16", 1 << 30, "tiled")));
  CHECK(kernel_for(tuned, request_of(DataType::fp32, 1)) == "one_shot");
  CHECK(kernel_for(tuned, request_of(DataType::fp32, 2048)) == "one_shot");
  CHECK(kernel_for(tuned, request_of(DataType::fp32, 2049)) == "two_shot");
  CHECK(tuned.find(request_of(DataType::fp32, 2049), TuningSetting::alone)->tuning.blocks == 32);
  CHECK(kernel_for(tuned, request_of(DataType::fp32, 1 << 20)) == "none");
  CHECK(kernel_for(tuned, request_of(DataType::bf16, 5)) == "tiled");
  CHECK(kernel_for(tuned, request_of(DataType::fp16, 5)) == "tiled");  // a type of bf16's size
  CHECK(kernel_for(tuned, request_of(DataType::int16, 5)) == "none");
  CHECK(kernel_for(tuned, request_of(DataType::int32, 5)) == "none");
  CHECK(kernel_for(tuned, request_of(DataType::fp32, 1, 4)) == "none");
  CHECK(kernel_for(TuningTable(""), request_of(DataType::fp32, 1)) == "none");
}

TEST_CASE("a row may have parameters of its engine") {
  const auto with = [](const std::string& params) {
    std::string one = row("all_reduce", "fp32", 1 << 20, "tiled", 32);
    return table(one.insert(1, text("\"params\":", params, ",")));
  };
  const TuningTable tuned(with(R"({"pull":1,"under_way_kib":2048})"));
  const TunedRow* const found = tuned.find(request_of(DataType::fp32, 5), TuningSetting::alone);
  REQUIRE(found != nullptr);
  CHECK(params_of(found->tuning) ==
        std::map<std::string, std::int64_t>{{"blocks", 32}, {"pull", 1}, {"under_way_kib", 2048}});
  CHECK_THROWS_WITH(
      TuningTable(with(R"({"batch":1})")),
      doctest::Contains("rows[0].params: wanted parameters that tiled takes (invalid argument"));
  CHECK_THROWS_WITH(TuningTable(with(R"({"fold":2})")),
                    doctest::Contains("rows[0].params: wanted"));
  CHECK_THROWS_AS(TuningTable(with("1")), Error);
}

TEST_CASE("rows of overlap_compute do not serve calls alone, and vice versa") {
  const TuningTable tuned(
      table(row("all_reduce", "fp32", 8192, "one_shot") + "," +
            row("all_reduce", "fp32", 1 << 20, "tiled", 0, "overlap_compute", 2.0)));
  const Request small = request_of(DataType::fp32, 1), large = request_of(DataType::fp32, 1 << 18);
  CHECK(kernel_for(tuned, small) == "one_shot");
  CHECK(kernel_for(tuned, large) == "none");
  CHECK(kernel_for(tuned, small, TuningSetting::overlap_compute) == "tiled");
  const TunedRow* const found = tuned.find(large, TuningSetting::overlap_compute);
  REQUIRE(found != nullptr);
  CHECK(found->us == 2.5);
  CHECK(found->nccl_us == 2.0);
  CHECK(tuned.nccl() == "2.28.9");
}

TEST_CASE("tables of earlier versions call overlap_compute beside_computing") {
  const TuningTable former(
      table(row("all_reduce", "fp32", 1 << 20, "tiled", 0, "beside_computing", 2.0)));
  const Request request = request_of(DataType::fp32, 1 << 18);
  CHECK(kernel_for(former, request, TuningSetting::overlap_compute) == "tiled");
  CHECK(kernel_for(former, request) == "none");
}

TEST_CASE("calls that NCCL does faster, or nearly as fast, stay on NCCL") {
  TunedRow row;
  row.us = 2.0;
  CHECK(row.beats_nccl() == std::nullopt);
  row.nccl_us = 1.9;
  CHECK(row.beats_nccl() == false);
  row.nccl_us = 2.01;
  CHECK(row.beats_nccl() == false);
  row.nccl_us = 2.03;
  CHECK(row.beats_nccl() == true);
}

TEST_CASE("collectives without a reduction use rows of any type") {
  const TuningTable tuned(table(row("all_gather", "bf16", 8192, "direct_ll") + "," +
                                row("all_gather", "fp32", 1 << 20, "tiled")));
  for (const DataType type : {DataType::int64, DataType::uint8, DataType::fp16}) {
    Request request = request_of(type, 16);
    request.collective = Collective::all_gather;
    CHECK(kernel_for(tuned, request) == "direct_ll");
    request.count = 4096;
    CHECK(kernel_for(tuned, request) == (bytes_of(type) == 1 ? "direct_ll" : "tiled"));
  }
}

TEST_CASE("rank 0's table comes to all ranks in pieces") {
  for (const std::size_t bytes : {0u, 1u, 2047u, 2048u, 2049u, 100000u}) {
    CAPTURE(bytes);
    std::string table(bytes, 'x');
    for (std::size_t i = 0; i < bytes; ++i) table[i] = static_cast<char>('a' + i % 23);
    std::vector<std::string> said;  // sent by rank 0, received by rank 1
    const std::string first = of_rank_0(
        [&](const std::string& mine) {
          CHECK(mine.size() <= 2048);
          said.push_back(mine);
          return std::vector<std::string>{mine, "another table"};
        },
        table);
    CHECK(first == table);
    std::size_t round = 0;
    const std::string second = of_rank_0(
        [&](const std::string& mine) { return std::vector<std::string>{said.at(round++), mine}; },
        "");
    CHECK(second == table);
    CHECK(round == said.size());
  }
}

TEST_CASE("an invalid table is an error only if the user named it") {
  TestFolder folder;
  const std::string file = folder.socket() + ".json";
  std::ofstream(file) << "words";
  REQUIRE(chmod(file.c_str(), 0600) == 0);
  Env env;
  CHECK(offered_tuning(env, file, 0).empty());  // and a warning
  env.tuning = file;
  CHECK_THROWS_AS(static_cast<void>(offered_tuning(env, file, 0)), Error);
  std::ofstream(file) << table("");
  CHECK(offered_tuning(env, file, 0) == table(""));
  REQUIRE(unlink(file.c_str()) == 0);
}

TEST_CASE("an invalid table is refused") {
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), table("3"), table(row("all_reduce", "fp31", 1, "x")),
        table(row("all_rdeuce", "fp32", 1, "x")), table(row("copy", "fp32", 1, "x", 0, "besides")),
        table(row("copy", "fp32", 1, "x", 0, "alone", -1)),
        table(row("all_reduce", "fp32", 1, "x", -1)),
        table(row("all_reduce", "fp32", 1, "x", 5000))}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(TuningTable{bad}, Error);
  }
}

TEST_CASE("only a file of this user alone is believed") {
  TestFolder folder;
  const std::string file = folder.socket() + ".json";
  Env env;
  CHECK(read_tuning(env, file).empty());  // not named by the user, and missing
  CHECK(read_tuning(env, "").empty());
  env.tuning = file;
  CHECK(code_of_reading(env, file) == ErrorCode::io_error);
  std::ofstream(file) << "words";
  REQUIRE(chmod(file.c_str(), 0600) == 0);
  CHECK(read_tuning(env, file) == "words");
  REQUIRE(chmod(file.c_str(), 0620) == 0);
  CHECK(code_of_reading(env, file) == ErrorCode::permission);
  REQUIRE(unlink(file.c_str()) == 0);
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);  // must not wait for a writer
  CHECK(code_of_reading(env, file) == ErrorCode::io_error);
  REQUIRE(unlink(file.c_str()) == 0);
}
