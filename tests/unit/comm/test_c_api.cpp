// Tests the C API from C (c_api_calls.c), and the tables against the C++ tables.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "c_api_calls.h"
#include "plait/error.hpp"
#include "plait/plait.h"
#include "plait/plan.hpp"
#include "unit/folder.hpp"

using namespace plait;

TEST_CASE("a C program makes a communicator, calls every collective, and is told what is wrong") {
  // Makes the tables of names before there are threads: under the thread sanitizer the libraries of
  // these tables are not instrumented, and the sanitizer does not see the guards of their statics.
  CHECK(plaitCommSetStrategy(nullptr, "nonsense") == plait_invalid_argument);
  TestFolder folder;
  const std::string where = "unix:" + folder.socket();
  const auto thrown = as_threads(2, [&](int rank) {
    char sentence[1024] = "";
    if (c_api_calls(where.c_str(), rank, sentence, sizeof(sentence)) != 0)
      throw std::runtime_error(sentence);
  });
  for (const std::string& one : thrown) CHECK(one == "");
}

TEST_CASE("blocks too large to pack on one rank are an error on all ranks") {
  std::size_t elements = std::size_t{1} << 58;  // the sum over both ranks exceeds 2^58
  plaitResult_t wanted = plait_invalid_argument;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // end at such an allocation
  SUBCASE("memory") {
    elements = std::size_t{1} << 50;
    wanted = plait_out_of_memory;
  }
#endif
  SUBCASE("sum of counts") {}
  TestFolder folder;
  const std::string where = "unix:" + folder.socket();
  const auto thrown = as_threads(2, [&](int rank) {
    plaitOptions_t options;
    plaitOptionsDefault(&options, sizeof options);
    options.rank = rank;
    options.ranks = 2;
    options.rendezvous = where.c_str();
    options.arrive_s = 5;
    plaitComm_t comm = nullptr;
    if (plaitCommInitRank(&comm, &options) != plait_ok)
      throw std::runtime_error(plaitGetLastError(nullptr));
    double data[4] = {1, 2, 3, 4}, result[4] = {};
    const std::size_t ones[2] = {1, 1}, at[2] = {2, 0};
    const std::size_t huge[2] = {elements, elements}, far[2] = {1, 1 + elements};
    const plaitResult_t found = plaitAllToAllV(data, rank == 0 ? huge : ones, rank == 0 ? far : at,
                                               result, ones, at, plait_fp64, comm, nullptr);
    const std::string said = plaitGetLastError(comm);
    const plaitResult_t next =
        plaitAllToAllV(data, ones, at, result, ones, at, plait_fp64, comm, nullptr);
    plaitCommDestroy(comm);
    if (found != wanted || next != plait_ok)
      throw std::runtime_error(said + plaitGetErrorString(next));
    if (result[2] != (rank == 0 ? 3 : 1)) throw std::runtime_error("another result");
  });
  for (const std::string& one : thrown) CHECK(one == "");
}

TEST_CASE("results, types and ops are those of the tables") {
  CHECK(plait_peer_lost == static_cast<int>(ErrorCode::peer_lost));
  CHECK(std::strcmp(plaitGetErrorString(plait_peer_lost), "peer lost") == 0);
  CHECK(plait_fp8e5m2 == static_cast<int>(DataType::fp8e5m2));
  CHECK(plaitDataType_count == 14);
  CHECK(plaitRedOp_count == static_cast<int>(ReduceOp::bit_xor) + 1);
}

TEST_CASE("deadlines of the environment are the default") {
  plaitOptions_t options;
  ::setenv("PLAIT_ARRIVE_S", "7", 1);
  REQUIRE(plaitOptionsDefault(&options, sizeof options) == plait_ok);
  CHECK(options.arrive_s == 7.0);
  ::setenv("PLAIT_ARRIVE_S", "soon", 1);
  CHECK(plaitOptionsDefault(&options, sizeof options) == plait_invalid_argument);
  ::unsetenv("PLAIT_ARRIVE_S");
  REQUIRE(plaitOptionsDefault(&options, sizeof options) == plait_ok);
  CHECK(options.arrive_s == 600.0);
}

TEST_CASE("options of another size are refused") {
  plaitOptions_t options;
  REQUIRE(plaitOptionsDefault(&options, sizeof options) == plait_ok);
  options.size += 8;
  plaitComm_t comm = nullptr;
  CHECK(plaitCommInitRank(&comm, &options) == plait_invalid_argument);
  CHECK(comm == nullptr);
  CHECK(std::string(plaitGetLastError(nullptr)).find("plaitOptionsDefault") != std::string::npos);
  options.size -= 8;
  options.ranks = 0;
  CHECK(plaitCommInitRank(&comm, &options) == plait_invalid_argument);
}

TEST_CASE("a C program names the order of sums, and a wrong name is refused") {
  plaitOptions_t options;
  REQUIRE(plaitOptionsDefault(&options, sizeof options) == plait_ok);
  CHECK(std::string(options.sum_order).empty());
  options.sum_order = "tree";
  plaitComm_t comm = nullptr;
  REQUIRE(plaitCommInitRank(&comm, &options) == plait_ok);
  CHECK(plaitCommDestroy(comm) == plait_ok);
  options.sum_order = "pairs";
  CHECK(plaitCommInitRank(&comm, &options) == plait_invalid_argument);
  CHECK(std::string(plaitGetLastError(nullptr)).find("tree_rounded, found 'pairs'") !=
        std::string::npos);
}

TEST_CASE("overlap_compute keeps its former name beside_computing") {
  plaitOptions_t options;
  REQUIRE(plaitOptionsDefault(&options, sizeof options) == plait_ok);
  CHECK(&options.beside_computing == &options.overlap_compute);
  options.beside_computing = 1;
  CHECK(options.overlap_compute == 1);
}

TEST_CASE("programs built before some fields were there are served, with no more written") {
  for (const std::size_t size :
       {offsetof(plaitOptions_t, device), offsetof(plaitOptions_t, overlap_compute),
        offsetof(plaitOptions_t, sum_order)}) {
    CAPTURE(size);
    plaitOptions_t options;
    std::memset(&options, 0x77, sizeof options);
    REQUIRE(plaitOptionsDefault(&options, size) == plait_ok);
    CHECK(options.size == size);
    CHECK((options.device == -1) == (size > offsetof(plaitOptions_t, device)));
    const bool has_overlap = size > offsetof(plaitOptions_t, overlap_compute);
    CHECK((options.graph_mixing == 0x77777777) == !has_overlap);
    CHECK((options.overlap_compute == 0x77777777) == !has_overlap);  // behind the program's struct
    std::uintptr_t behind = 0;
    std::memcpy(&behind, &options.sum_order, sizeof behind);
    CHECK(behind == static_cast<std::uintptr_t>(0x7777777777777777));
    plaitComm_t comm = nullptr;
    REQUIRE(plaitCommInitRank(&comm, &options) == plait_ok);
    CHECK(plaitCommDestroy(comm) == plait_ok);
    CHECK(plaitOptionsDefault(&options, size + 1) == plait_invalid_argument);
  }
}

TEST_CASE("a GPU that is not there is refused, and said to be") {
  plaitOptions_t options;
  REQUIRE(plaitOptionsDefault(&options, sizeof options) == plait_ok);
  options.device = 63;
  plaitComm_t comm = nullptr;
  CHECK(plaitCommInitRank(&comm, &options) == plait_no_device);
  CHECK(std::string(plaitGetLastError(nullptr)).find("wanted") != std::string::npos);
  options.device = -3;
  CHECK(plaitCommInitRank(&comm, &options) == plait_invalid_argument);
  options.device = -2;  // no launcher, hence no GPU: not an error
  REQUIRE(plaitCommInitRank(&comm, &options) == plait_ok);
  int device = 0;
  CHECK(plaitCommDevice(comm, &device) == plait_ok);
  CHECK(device == -1);
  CHECK(plaitCommDestroy(comm) == plait_ok);
}
