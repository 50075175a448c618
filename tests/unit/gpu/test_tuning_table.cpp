// Tuning tables: the row of a request, invalid tables, and trusted files.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/text.hpp"
#include "gpu/select/tuning_file.hpp"
#include "gpu/select/tuning_table.hpp"
#include "plait/error.hpp"
#include "unit/folder.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

std::string row(const std::string& collective, const std::string& type, std::uint64_t upto_bytes,
                const std::string& engine, int blocks = 0, const std::string& when = "alone",
                const std::string& more = "") {
  return text(
      "{{\"when\":\"{}\",\"collective\":\"{}\",\"type\":\"{}\",\"upto_ranks\":2,\"upto_bytes\":\"{}"
      "\",\"engine\":\"{}\",\"params\":{{\"blocks\":{}}},{}\"source\":\"plait tune\"}}",
      when, collective, type, upto_bytes, engine, blocks, more);
}

std::string table(const std::string& rows) {
  return text("{}{}{}{}]}}",
              R"({"schema":"plait.tuning/4","name":"m","fingerprint":"f","gpu":{"model":"g",)",
              R"("multiprocessors":132,"links":["no NVLink"],"upto_ranks":2},"cuda_driver":13000,)",
              R"("nccl":"2.28.9","plait":"0","date":"d","rows":[)", rows);
}

std::string refusal(const std::string& json) {
  try {
    static_cast<void>(TuningTable(json, "t.json"));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Request request_of(DataType type, std::uint64_t count, int ranks = 2) {
  Request request;
  request.type = type;
  request.count = count;
  request.ranks = ranks;
  return request;
}

std::string kernel_for(const TuningTable& table, const Request& request,
                       RowUse use = RowUse::alone) {
  const TuningRow* row = table.find(request, use);
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

TEST_CASE("a request takes the first row that covers it") {
  const TuningTable tuned(table(row("all_reduce", "fp32", 8192, "one_shot") + "," +
                                row("all_reduce", "fp32", 1 << 20, "two_shot", 32) + "," +
                                row("all_reduce", "bf16", 1 << 30, "tiled")));
  CHECK(kernel_for(tuned, request_of(DataType::fp32, 1)) == "one_shot");
  CHECK(kernel_for(tuned, request_of(DataType::fp32, 2048)) == "one_shot");
  CHECK(kernel_for(tuned, request_of(DataType::fp32, 2049)) == "two_shot");
  CHECK(tuned.find(request_of(DataType::fp32, 2049), RowUse::alone)->tuning.blocks == 32);
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
    const std::string plain = R"({"blocks":32})";
    return table(one.replace(one.find(plain), plain.size(), params));
  };
  const TuningTable tuned(with(R"({"blocks":32,"piece_kib":4,"send_gb_per_s":350})"));
  const TuningRow* const found = tuned.find(request_of(DataType::fp32, 5), RowUse::alone);
  REQUIRE(found != nullptr);
  CHECK(params_of(found->tuning) == std::map<std::string, std::int64_t>{
                                        {"blocks", 32}, {"piece_kib", 4}, {"send_gb_per_s", 350}});
  CHECK_THROWS_WITH(
      TuningTable(with(R"({"batch":1})")),
      doctest::Contains("rows[0].params: wanted parameters that tiled takes (invalid argument"));
  CHECK_THROWS_WITH(TuningTable(with(R"({"shift":2})")),
                    doctest::Contains("rows[0].params: wanted"));
  CHECK_THROWS_WITH(TuningTable(with(R"({"shift":1,"fold":1})")),
                    doctest::Contains("fold=1 of tiled: removed in 0.2.0"));
  CHECK_THROWS_AS(TuningTable(with("1")), Error);
}

TEST_CASE("rows of overlap_compute do not serve calls alone, and vice versa") {
  const TuningTable tuned(table(row("all_reduce", "fp32", 8192, "one_shot") + "," +
                                row("all_reduce", "fp32", 1 << 20, "tiled", 0, "overlap_compute",
                                    R"("us":2.5,"nccl_us":2.0,"ahead_of_nccl":false,)")));
  const Request small = request_of(DataType::fp32, 1), large = request_of(DataType::fp32, 1 << 18);
  CHECK(kernel_for(tuned, small) == "one_shot");
  CHECK(kernel_for(tuned, large) == "none");
  CHECK(kernel_for(tuned, small, RowUse::overlap_compute) == "tiled");
  const TuningRow* const found = tuned.find(large, RowUse::overlap_compute);
  REQUIRE(found != nullptr);
  CHECK(found->ahead_of_nccl == false);
  CHECK(tuned.find(small, RowUse::alone)->ahead_of_nccl == std::nullopt);
  CHECK(tuned.has(RowUse::overlap_compute, 2));
  CHECK_FALSE(tuned.has(RowUse::overlap_compute, 3));
  CHECK(tuned.nccl() == "2.28.9");
}

TEST_CASE("a row covers a range of ranks and bytes") {
  const auto with = [](const std::string& ranks, const std::string& bytes) {
    return TuningTable(table(text("{}{}{}{}", R"({"collective":"all_reduce",)", ranks, bytes,
                                  R"("engine":"tiled","source":"guess"})")));
  };
  const TuningTable ranks = with(R"("from_ranks":3,"upto_ranks":5,)", "");
  for (const auto& [count, is_in] : {std::pair{2, false}, {3, true}, {5, true}, {6, false}})
    CHECK((kernel_for(ranks, request_of(DataType::fp32, 1, count)) == "tiled") == is_in);
  const TuningTable bytes = with(R"("upto_ranks":2,)", R"("from_bytes":"8","upto_bytes":"1K",)");
  for (const auto& [count, is_in] : {std::pair{1, false}, {2, true}, {256, true}, {257, false}})
    CHECK((kernel_for(bytes, request_of(DataType::fp32, static_cast<std::uint64_t>(count))) ==
           "tiled") == is_in);
}

TEST_CASE("a table of an earlier version is refused with a sentence that says what to do") {
  const std::string older = R"({"schema":"plait.tuning/3","machine":"m","rows":[]})";
  CHECK(
      refusal(older) ==
      "malformed input: tuning table t.json: schema: wanted plait.tuning/4, found plait.tuning/3: "
      "run `plait tune` again");
}

TEST_CASE("an error names the file, the row, what was wanted and what was found") {
  const auto of = [](const std::string& one) {
    return refusal(table(row("all_reduce", "fp32", 1, "tiled") + "," + one));
  };
  CHECK(of(row("all_reduce", "fp32", 1, "tilde"))
            .starts_with(
                "malformed input: tuning table t.json: rows[1].engine: wanted one of one_shot"));
  CHECK(of(row("all_gather", "fp32", 1, "one_shot")) ==
        "malformed input: tuning table t.json: rows[1].engine: wanted an engine that serves "
        "all_gather, found \"one_shot\"");
  CHECK(of(R"({"collective":"all_reduce","upto_ranks":2,"upto_bytes":"1 MiB","engine":"tiled",)"
           R"("source":"guess"})") ==
        "malformed input: tuning table t.json: rows[1].upto_bytes: wanted bytes, as in \"64K\", "
        "\"64M\" or \"1G\", found \"1 MiB\"");
  CHECK(of(R"({"collective":"all_reduce","upto_ranks":2,"upto_blocks":15,"engine":"tiled",)"
           R"("source":"guess"})") ==
        "malformed input: tuning table t.json: rows[1].upto_blocks: wanted a row with \"when\": "
        "\"leaving_sms\", found 15");
  CHECK(of(R"({"collective":"all_reduce","upto_ranks":2,"engine":"tiled"})") ==
        "malformed input: tuning table t.json: rows[1].source: wanted a value, found none");
}

TEST_CASE("calls that NCCL does faster, or nearly as fast, stay on NCCL") {
  CHECK(beats_nccl(2.0, 0) == std::nullopt);
  CHECK(beats_nccl(2.0, 1.9) == false);
  CHECK(beats_nccl(2.0, 2.01) == false);
  CHECK(beats_nccl(2.0, 2.03) == true);
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
        table(row("all_reduce", "fp32", 1, "tiled", 0, "alone", R"("us":-1,)")),
        table(row("all_reduce", "fp32", 1, "tiled", -1)),
        table(row("all_reduce", "fp32", 1, "tiled", 5000))}) {
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

TEST_CASE("messages are ahead if every row of messages is, at all usual sizes") {
  const auto rows = [](const std::string& collective, const std::string& ahead,
                       std::uint64_t upto = 32 << 20) {
    return row(collective, "bf16", upto, "messages", 0, "overlap_compute",
               "\"ahead_of_nccl\":" + ahead + ",");
  };
  const std::string one = rows("send_recv", "true"), all = rows("all_to_all", "true");
  CHECK(TuningTable(table(one + "," + all)).messages_are_ahead(2) == true);
  CHECK(TuningTable(table(one + "," + all)).messages_are_ahead(3) == std::nullopt);
  CHECK(TuningTable(table(one)).messages_are_ahead(2) == std::nullopt);
  CHECK(TuningTable(table(one + "," + rows("all_to_all", "true", 1 << 20))).messages_are_ahead(2) ==
        std::nullopt);
  const std::string small = rows("all_to_all", "true", 1 << 20);
  CHECK(TuningTable(table(one + "," + small + "," + small)).messages_are_ahead(2) == std::nullopt);
  CHECK(TuningTable(table(one + "," + rows("all_to_all", "false"))).messages_are_ahead(2) == false);
  // A size at which NCCL is ahead decides, though other sizes were not timed.
  CHECK(TuningTable(table(rows("send_recv", "false", 1024))).messages_are_ahead(2) == false);
  CHECK(TuningTable(table(one + "," + all)).rows().empty());
  CHECK(TuningTable().messages_are_ahead(2) == std::nullopt);
  CHECK(refusal(table(rows("broadcast", "true"))).find("send_recv or all_to_all") !=
        std::string::npos);
}

TEST_CASE("rows of messages and of an engine for the same calls are kept apart in a merge") {
  const std::string messages = row("all_to_all", "bf16", 99, "messages", 0, "overlap_compute");
  const std::string engine = row("all_to_all", "bf16", 99, "tiled", 16, "overlap_compute");
  const TuningTable merged(merged_tuning(table(messages), table(engine)));
  CHECK(merged.rows().size() == 1);
  CHECK(merged_tuning(table(messages), table(engine)).find("\"messages\"") != std::string::npos);
}
