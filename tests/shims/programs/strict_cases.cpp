// Sums that must be in rank order, or errors: what each kind of call returns.
#include "tests/shims/programs/rank.hpp"

namespace program {

std::string strict(const Job& job, int rank) {
  const Rank r(job, rank);
  const auto& api = nccl();
  float value[8] = {1, 2, 3, 4, 5, 6, 7, 8}, result[64] = {};
  std::int32_t whole[8] = {};
  const auto reduced = [&](void* data, std::size_t count, int type, int op) {
    const int said = api.ncclAllReduce(data, data, count, type, op, r.comm, r.stream);
    r.wait();
    return said;
  };
  int premul = 0;
  float factor = 0.5F;
  MUST(api.ncclRedOpCreatePreMulSum(&premul, &factor, kFloat, 1, r.comm));
  std::string line = number("sum", reduced(value, 8, kFloat, kSum));
  line += ", " + number("average", reduced(value, 8, kFloat, kAvg));
  line += ", " + number("premul", reduced(value, 8, kFloat, premul));
  line += ", " + number("whole", reduced(whole, 8, kInt32, kSum));
  line += ", " + number("largest", reduced(value, 8, kFloat, kMax));
  line += ", " + number("none", reduced(value, 0, kFloat, kSum));
  line += ", " + number("gather", api.ncclAllGather(value, result, 8, kFloat, r.comm, r.stream));
  r.wait();
  return line;
}

}  // namespace program
