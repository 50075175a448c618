// Tuning tables: which row a request takes, what is no table, and whose file is believed.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/text.hpp"
#include "comm/tuning.hpp"
#include "folder.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

std::string row(const std::string& collective, const std::string& type, std::uint64_t max_bytes,
                const std::string& kernel, int blocks = 0) {
  return text("{\"collective\":\"", collective, "\",\"type\":\"", type,
              "\",\"ranks\":2,\"max_bytes\":", max_bytes, ",\"kernel\":\"", kernel,
              "\",\"blocks\":", blocks, ",\"us\":2.5}");
}

std::string table(const std::string& rows) {
  return text("{\"schema\":\"plait.tuning/2\",\"machine\":\"m\",\"fingerprint\":\"f\",",
              "\"gpu\":\"g\",\"cuda_driver\":13000,\"plait\":\"0\",\"date\":\"d\",\"rows\":[", rows,
              "]}");
}

Request request_of(DataType type, std::uint64_t count, int ranks = 2) {
  Request request;
  request.type = type;
  request.count = count;
  request.ranks = ranks;
  return request;
}

std::string kernel_for(const TuningTable& table, const Request& request) {
  const TunedRow* row = table.find(request);
  return row == nullptr ? "none" : row->kernel;
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
  CHECK(tuned.find(request_of(DataType::fp32, 2049))->tuning.blocks == 32);
  CHECK(kernel_for(tuned, request_of(DataType::fp32, 1 << 20)) == "none");
  CHECK(kernel_for(tuned, request_of(DataType::bf16, 5)) == "tiled");
  CHECK(kernel_for(tuned, request_of(DataType::fp16, 5)) == "tiled");  // of bf16's size
  CHECK(kernel_for(tuned, request_of(DataType::int16, 5)) == "none");
  CHECK(kernel_for(tuned, request_of(DataType::int32, 5)) == "none");
  CHECK(kernel_for(tuned, request_of(DataType::fp32, 1, 4)) == "none");
  CHECK(TuningTable("").empty());
}

TEST_CASE("what is no table is refused") {
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), table("3"), table(row("all_reduce", "fp31", 1, "x")),
        table(row("all_rdeuce", "fp32", 1, "x")), table(row("all_reduce", "fp32", 1, "x", -1)),
        table(row("all_reduce", "fp32", 1, "x", 5000))}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(TuningTable{bad}, Error);
  }
}

TEST_CASE("only a file of this user alone is believed") {
  TestFolder folder;
  const std::string file = folder.socket() + ".json";
  Env env;
  CHECK(read_tuning(env, file).empty());  // nobody named it, and it is not there
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
