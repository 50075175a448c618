// Tables of measured calls: how far rows reach, what is merged, and the files that keep them.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gpu/select/tuning_file.hpp"
#include "gpu/select/tuning_rows.hpp"
#include "plait/error.hpp"
#include "unit/folder.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

constexpr std::uint64_t kKib = 1 << 10, kMib = 1 << 20;

MeasuredCall call(std::uint64_t bytes, const std::string& engine, double us = 3,
                  double nccl_us = 0) {
  MeasuredCall made;
  made.when = RowUse::overlap_compute;
  made.bytes = bytes;
  made.engine = engine;
  made.us = us;
  made.nccl_us = nccl_us;
  return made;
}

const MeasuredFacts kFacts{.name = "made up",
                           .fingerprint = "00",
                           .kind = "Some GPU, 80 multiprocessors, no NVLink, through host memory",
                           .cuda_driver = 13000,
                           .nccl = "2.28.9",
                           .plait = "0",
                           .date = "today",
                           .source = "first start"};

TuningTable table(const std::vector<MeasuredCall>& calls) {
  return TuningTable(table_of_calls(kFacts, calls));
}

/// "engine" or "engine ahead" of the row that an all_reduce of fp32 takes; "" = none.
std::string row_at(const TuningTable& table, std::uint64_t bytes) {
  Request request;
  request.ranks = 2;
  request.count = bytes / 4;
  const TuningRow* const row = table.find(request, RowUse::overlap_compute);
  if (row == nullptr) return "";
  return row->engine->info().name + (row->ahead_of_nccl == true ? " ahead" : "");
}

}  // namespace

TEST_CASE("rows reach to the middle between two sizes") {
  const TuningTable made = table({call(4 * kKib, "two_shot"), call(kKib, "one_shot")});
  CHECK(made.rows().size() == 2);
  CHECK(row_at(made, 4) == "one_shot");  // smaller than any size
  CHECK(row_at(made, 2 * kKib) == "one_shot");
  CHECK(row_at(made, 2 * kKib + 4) == "two_shot");
  CHECK(row_at(made, 8 * kKib) == "two_shot");  // nothing larger was measured: twice the size
  CHECK(row_at(made, 8 * kKib + 4).empty());
  CHECK(made.gpus().model == "Some GPU");
  CHECK(made.gpus().links.front() == "no NVLink, through host memory");
}

TEST_CASE("sizes far apart leave a gap, and the largest of all has no end") {
  const TuningTable made =
      table({call(64 * kKib, "tiled"), call(kMib, "tiled"), call(1024 * kMib, "copy_exchange")});
  for (const std::uint64_t bytes : {32 * kKib, 128 * kKib, 512 * kKib, 2 * kMib})
    CHECK(row_at(made, bytes) == "tiled");
  for (const std::uint64_t bytes : {16 * kKib, 256 * kKib, 4 * kMib, 400 * kMib})
    CHECK(row_at(made, bytes).empty());
  CHECK(row_at(made, 4096 * kMib) == "copy_exchange");
}

TEST_CASE("from 256 MiB on the largest size has no end if its lead allows for NCCL's bandwidth") {
  for (const auto& [size_mib, us, beyond] :
       {std::tuple(256, 86.0, "tiled ahead"), std::tuple(256, 88.0, ""),
        std::tuple(256, 110.0, "tiled"), std::tuple(128, 50.0, "")}) {
    const auto bytes = static_cast<std::uint64_t>(size_mib) * kMib;
    CHECK(row_at(table({call(bytes, "tiled", us, 100)}), 1024 * kMib) == beyond);
  }
}

TEST_CASE("between two sizes NCCL counts as ahead if it was at either") {
  const TuningTable made = table({call(kKib, "two_shot", 3, 5), call(4 * kKib, "two_shot", 4, 4.02),
                                  call(16 * kKib, "two_shot", 5, 6)});
  CHECK(made.rows().size() == 3);
  CHECK(row_at(made, kKib) == "two_shot ahead");
  CHECK(row_at(made, kKib + 4) == "two_shot");  // less than 1 % at the next size
  CHECK(row_at(made, 16 * kKib - 4) == "two_shot");
  CHECK(row_at(made, 16 * kKib) == "two_shot ahead");
}

TEST_CASE("rows reach no further than a size at which no engine was best") {
  const TuningTable made = table(
      {call(kMib, "tiled"), call(2 * kMib, ""), call(4 * kMib, "tiled"), call(8 * kMib, "tiled")});
  CHECK(made.rows().size() == 2);  // of the last two a single row
  CHECK(row_at(made, kMib) == "tiled");
  CHECK(row_at(made, 2 * kMib).empty());
  CHECK(row_at(made, 4 * kMib) == "tiled");
  CHECK(row_at(made, 16 * kMib) == "tiled");
}

TEST_CASE("a table is written at once, for this user alone") {
  TestFolder folder;
  const std::string file = folder.socket() + "-cache/plait/table.json";
  const std::string text = table_of_calls(kFacts, {call(kKib, "one_shot")});
  write_tuning(file, text);
  struct stat facts{};
  REQUIRE(stat(file.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0600);
  CHECK(read_tuning(Env(), file) == text);
  CHECK(tuning_text(text) == text);
  const auto parent = std::filesystem::path(file).parent_path();
  CHECK(std::distance(std::filesystem::directory_iterator(parent), {}) == 1);
  CHECK_THROWS_AS(write_tuning(file, "{"), Error);
  CHECK(read_tuning(Env(), file) == text);
  CHECK_THROWS_AS(write_tuning("/proc/no/such.json", text), Error);
  std::filesystem::remove_all(parent.parent_path());
}

TEST_CASE("rows of an earlier measurement stay if nothing has changed") {
  MeasuredCall other = call(kKib, "direct_ll");
  other.collective = Collective::all_gather;
  const std::string older = table_of_calls(kFacts, {other, call(kKib, "one_shot")});
  const std::string newer = table_of_calls(kFacts, {call(kKib, "two_shot")});
  const TuningTable both(merged_tuning(older, newer));
  REQUIRE(both.rows().size() == 2);
  CHECK(both.rows()[0].engine->info().name == "two_shot");
  CHECK(both.rows()[1].collective == Collective::all_gather);
  MeasuredFacts changed = kFacts;
  changed.nccl = "2.29.1";
  const std::string now = table_of_calls(changed, {call(kKib, "two_shot")});
  CHECK(merged_tuning(older, now) == now);
  CHECK(merged_tuning("words", now) == now);
}

TEST_CASE("a mark is held by one process, and tells of a process that ended") {
  TestFolder folder;
  const std::string table = folder.socket() + "-cache/plait/table.json";
  {
    MeasuringMark mine(table), other(table);
    CHECK(mine.take() == MeasuringMark::Taken::yes);
    CHECK(mine.former().empty());
    CHECK(other.take() == MeasuringMark::Taken::by_another);
    mine.write("began");
  }
  MeasuringMark next(table);
  CHECK(next.take() == MeasuringMark::Taken::yes);
  CHECK(next.former() == "began");
  next.remove();
  MeasuringMark last(table);
  CHECK(last.take() == MeasuringMark::Taken::yes);
  CHECK(last.former().empty());
  last.remove();
  MeasuringMark nowhere("/proc/no/such.json");
  CHECK(nowhere.take() == MeasuringMark::Taken::no_folder);
  std::filesystem::remove_all(folder.socket() + "-cache");
}

TEST_CASE("a file's name has all that a table holds for") {
  Env env;
  REQUIRE(setenv("XDG_CACHE_HOME", "/x", 1) == 0);
  const std::string alone = tuning_file(env, {"abc", 4, 13000, ""});
  CHECK(alone == "/x/plait/tuning-abc-cuda13000-4.json");
  CHECK(tuning_file(env, {"abc", 4, 13000, "2.28.9"}) ==
        "/x/plait/tuning-abc-cuda13000-nccl2.28.9-4.json");
  env.tuning = "none";
  CHECK(tuning_file(env, {"abc", 4, 13000, ""}).empty());
  env.tuning = "/my/table.json";
  CHECK(tuning_file(env, {"abc", 4, 13000, ""}) == "/my/table.json");
  REQUIRE(unsetenv("XDG_CACHE_HOME") == 0);
}
