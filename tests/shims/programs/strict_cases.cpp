// Cases of strict mode: the result of each kind of call.
#include <cstdlib>
#include <cstring>

#include "tests/shims/programs/rank.hpp"

namespace program {

std::string strict(const TestJob& job, int rank) {
  const TestRank r(job, rank);
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
  const auto configured = [&](const CallConfig* config) {
    const int said =
        api.ncclAllReduceConfig(value, value, 8, kFloat, kSum, r.comm, r.stream, config);
    r.wait();
    return said;
  };
  CallConfig unset{sizeof(CallConfig), kConfigMagic, 23203};
  unset.user_profiler_tag = 7;
  unset.cta_policy = kDefaultCtaPolicy;
  line += ", " + number("unconfigured", configured(nullptr) + configured(&unset));
  const char* const algorithm = "ring";
  const int event = 0;
  CallConfig obeyed[4] = {unset, unset, unset, unset};
  obeyed[0].max_ctas = 4;
  obeyed[1].min_ctas = 4;
  obeyed[2].cta_policy = kZeroCtaPolicy;
  obeyed[3].cta_policy = kEfficientCtaPolicy;
  for (std::size_t i = 0; i < std::size(obeyed); ++i)
    line += ", " + number(("obeyed" + std::to_string(i)).c_str(), configured(&obeyed[i]));
  CallConfig asking[6] = {unset, unset, unset, unset, unset, unset};
  asking[0].max_ctas = 1;  // fewer than the test's engine needs
  asking[1].cga_cluster_size = 4;
  asking[2].alg_selection = algorithm;
  asking[3].cta_policy = 4;  // unknown
  asking[4].launch_completion_event = &event;
  asking[5].size = sizeof(CallConfig) + 8;  // of a later NCCL
  for (std::size_t i = 0; i < std::size(asking); ++i)
    line += ", " + number(("configured" + std::to_string(i)).c_str(), configured(&asking[i]));
  return line;
}

namespace {

/// Returns values whose sum has different bits in any other order.
template <class T>
T uneven(int rank, std::size_t i) {
  const auto mixed = (i * 2654435761u + static_cast<std::size_t>(rank) * 40503u) % 1000;
  return static_cast<T>(mixed) / T(7) * static_cast<T>(rank % 2 == 0 ? 1 : 4096);
}

/// Reduces element i of ranks [first, first + ranks) in rank order, or in a tree.
template <class T>
T reduced(int first, int ranks, std::size_t i, int op, bool in_tree) {
  if (ranks == 1) return uneven<T>(first, i);
  const int left = in_tree ? ranks / 2 : ranks - 1;
  const T a = reduced<T>(first, left, i, op, in_tree);
  const T b = reduced<T>(first + left, ranks - left, i, op, in_tree);
  return op == kSum ? a + b : a * b;
}

template <class T>
std::uint64_t wrong_bits(const TestRank& r, std::size_t count, int type, int op, bool in_place) {
  std::vector<T> input(count), output(count, T(-1));
  for (std::size_t i = 0; i < count; ++i) input[i] = uneven<T>(r.rank, i);
  T* const to = in_place ? input.data() : output.data();
  MUST(nccl().ncclAllReduce(input.data(), to, count, type, op, r.comm, r.stream));
  r.wait();
  const char* const order = std::getenv("PLAIT_SUM_ORDER");
  const bool in_tree = order != nullptr && std::strncmp(order, "tree", 4) == 0;
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const T wanted = reduced<T>(0, r.ranks, i, op, in_tree);
    wrong += std::memcmp(&wanted, &to[i], sizeof wanted) != 0;
  }
  return wrong;
}

}  // namespace

std::string rank_order(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = 0;
  for (const std::size_t count : {1, 2, 3, 7, 1000, 40001, 9 << 20})
    for (const bool in_place : {false, true}) {
      if (count > 1000000 && in_place) continue;
      wrong += wrong_bits<float>(r, count, kFloat, kSum, in_place);
      if (count > 1000000) continue;
      wrong += wrong_bits<double>(r, count, kDouble, kSum, in_place);
      wrong += wrong_bits<double>(r, count, kDouble, kProd, in_place);
    }
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

}  // namespace program
