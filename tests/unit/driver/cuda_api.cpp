// Tests of the driver table: symbols looked up, missing symbols, and a missing driver.
#include <doctest/doctest.h>

#include <cstring>
#include <set>
#include <string>

#include "driver/cuda/api.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

std::set<std::string> asked;

int answer() { return 7; }

void* find_all(const char* symbol, int) {
  asked.insert(symbol);
  return reinterpret_cast<void*>(&answer);
}

void* find_all_but_launch(const char* symbol, int version) {
  return std::strcmp(symbol, "cuLaunchKernelEx") == 0 ? nullptr : find_all(symbol, version);
}

void* find_what_12_0_has(const char* symbol, int version) {
  return version > 12000 ? nullptr : find_all(symbol, version);
}

TEST_CASE("the table is filled with every symbol once") {
  asked.clear();
  Api table;
  CHECK(fill_table(table, find_all) == nullptr);
  CHECK(table.context_synchronize() == 7);
  CHECK(asked.contains("cuGraphInstantiateWithFlags"));  // cuGraphInstantiate has another signature
  CHECK(asked.size() > 40);
  for (const std::string& symbol : asked) CHECK(symbol.find("Multicast") == std::string::npos);
}

TEST_CASE("a missing symbol is named") {
  Api table;
  const char* missing = fill_table(table, find_all_but_launch);
  REQUIRE(missing != nullptr);
  CHECK(std::string(missing) == "cuLaunchKernelEx");
}

TEST_CASE("functions of later drivers may be missing") {
  Api table;
  CHECK(fill_table(table, find_all) == nullptr);
  CHECK(bool{table.memory_copy_batch != nullptr});
  CHECK(fill_table(table, find_what_12_0_has) == nullptr);
  CHECK(bool{table.memory_copy_batch == nullptr});
  CHECK(sizeof(CopyAttributes) == 24);
}

TEST_CASE("a missing driver is an error, and has no devices") {
  if (why_no_cuda().empty()) {
    CHECK(device_count() > 0);
    return;
  }
  CHECK(device_count() == 0);
  try {
    api();
    FAIL("api() should have thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::no_device);
  }
}

TEST_CASE("the launch structures have the driver's layout") {
  CHECK(sizeof(LaunchAttribute) == 72);
  CHECK(offsetof(LaunchAttribute, value) == 8);
  CHECK(sizeof(LaunchConfig) == 56);
  CHECK(offsetof(LaunchConfig, stream) == 32);
  CHECK(offsetof(LaunchConfig, attributes) == 40);
}

}  // namespace
}  // namespace plait::cuda
