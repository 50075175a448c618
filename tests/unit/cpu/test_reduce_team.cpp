// A reduction by several threads gives the result of a single thread, for any slices, also in
// place.
#include <doctest/doctest.h>

#include <thread>

#include "cpu/cpu.hpp"
#include "cpu/reduce_team.hpp"
#include "unit/cpu/helpers.hpp"

using namespace plait;
using namespace plait_test;

namespace {

struct TeamSum {
  TeamSum(DataType type, ReduceOp op, std::uint64_t count, unsigned seed) {
    std::mt19937_64 random(seed);
    job.type = type;
    job.op = op;
    job.count = count;
    job.source_count = 3;
    for (int s = 0; s < job.source_count; ++s) {
      sources.push_back(random_elements(random, type, count));
      job.scales[s] = 0.5 * s - 1.0;
    }
    expected.resize(sources[0].size());
    std::vector<const void*> from;
    for (const Bytes& one : sources) from.push_back(one.data());
    reduce_cpu(type, op, expected.data(), from.data(), 3, count, 3, true,
               op == ReduceOp::premul_sum ? job.scales : nullptr);
    for (int s = 0; s < 3; ++s) job.sources[s] = sources[static_cast<std::size_t>(s)].data();
    job.dst = sources[1].data();
  }
  bool is_right() const { return sources[1] == expected; }
  std::vector<Bytes> sources;
  Bytes expected;
  ReduceJob job;
};

}  // namespace

TEST_CASE("a team reduces as one thread does") {
  for (const int helpers : {0, 1, 3}) {
    ReduceTeam team(helpers);
    unsigned seed = 0;
    for (const DataType type : {DataType::fp32, DataType::bf16, DataType::int8})
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::premul_sum})
        for (const std::uint64_t count : {0ull, 1ull, 1000ull, 65537ull, 100003ull}) {
          if (op == ReduceOp::premul_sum && type == DataType::int8) continue;
          TeamSum sum(type, op, count, ++seed);
          team.reduce(sum.job);
          CAPTURE(helpers);
          CAPTURE(count);
          CHECK(sum.is_right());
        }
  }
}

TEST_CASE("a team serves several threads one after the other") {
  ReduceTeam team(2);
  int wrong[3] = {};
  std::vector<std::thread> askers;
  for (unsigned asker = 0; asker < 3; ++asker)
    askers.emplace_back([&, asker] {
      for (unsigned i = 0; i < 10; ++i) {
        TeamSum sum(DataType::fp32, ReduceOp::sum, 60000 + i, 10 * asker + i);
        team.reduce(sum.job);
        wrong[asker] += sum.is_right() ? 0 : 1;
      }
    });
  for (std::thread& one : askers) one.join();
  CHECK(wrong[0] + wrong[1] + wrong[2] == 0);
}
