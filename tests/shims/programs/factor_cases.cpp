// Cases of pre-multiplied sums with a factor a rank: random collectives, sizes, places and factors,
// in groups, in graphs and after the sum's end.
#include <cstring>
#include <random>

#include "tests/shims/programs/rank.hpp"

namespace program {
namespace {

constexpr int kAllReduce = 0, kReduceScatter = 1, kReduce = 2;

/// Returns values whose products and sums have different bits in any other order of roundings.
float value_of(int rank, std::size_t i, int turn) {
  const auto mixed = (i * 2654435761u + static_cast<std::size_t>(rank) * 40503u +
                      static_cast<std::size_t>(turn) * 977u) %
                     1000;
  return static_cast<float>(mixed) / 7.0f;
}

float factor_of(int rank, int turn) {
  return 1.0f + static_cast<float>((rank * 31 + turn * 17) % 23) / 11.0f;
}

/// Returns the sum in rank order of products that are rounded each.
float wanted_of(int ranks, std::size_t i, int turn) {
  volatile float sum = 0;  // no product is fused with a sum
  for (int rank = 0; rank < ranks; ++rank) {
    const volatile float product = value_of(rank, i, turn) * factor_of(rank, turn);
    sum = rank == 0 ? product : sum + product;
  }
  return sum;
}

/// A call of the same kind on all ranks.
struct FactorCall {
  FactorCall(const TestRank& r, int turn, std::mt19937& random) : r_(r), turn_(turn) {
    kind_ = static_cast<int>(random() % 3);
    in_place_ = random() % 2 == 0;
    on_device_ = random() % 2 == 0;
    root_ = static_cast<int>(random() % static_cast<unsigned>(r.ranks));
    count_ = 1 + random() % 3000;
    const std::size_t inputs =
        count_ * static_cast<std::size_t>(kind_ == kReduceScatter ? r.ranks : 1);
    for (std::size_t i = 0; i < inputs; ++i) input_.push_back(value_of(r.rank, i, turn));
    output_.assign(count_, -1.0f);
    factor_ = factor_of(r.rank, turn);
  }
  /// Makes and ends the sum; a factor on the device is set behind.
  void enqueue() {
    int op = 0;
    float* const scalar = &factor_;
    const float late = factor_;
    if (on_device_) factor_ = -7.0f;
    MUST(nccl().ncclRedOpCreatePreMulSum(&op, scalar, kFloat,
                                         on_device_ ? kScalarDevice : kScalarHost, r_.comm));
    if (on_device_) factor_ = late;
    const float* const in = input_.data();
    float* const out = result();
    if (kind_ == kAllReduce)
      MUST(nccl().ncclAllReduce(in, out, count_, kFloat, op, r_.comm, r_.stream));
    else if (kind_ == kReduceScatter)
      MUST(nccl().ncclReduceScatter(in, out, count_, kFloat, op, r_.comm, r_.stream));
    else
      MUST(nccl().ncclReduce(in, r_.rank == root_ ? out : nullptr, count_, kFloat, op, root_,
                             r_.comm, r_.stream));
    MUST(nccl().ncclRedOpDestroy(op, r_.comm));
  }
  std::uint64_t wrong() {
    if (kind_ == kReduce && r_.rank != root_) return 0;
    const std::size_t first =
        kind_ == kReduceScatter ? static_cast<std::size_t>(r_.rank) * count_ : 0;
    std::uint64_t found = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const float wanted = wanted_of(r_.ranks, first + i, turn_);
      found += std::memcmp(&wanted, result() + i, sizeof wanted) != 0;
    }
    return found;
  }

 private:
  float* result() {
    if (!in_place_) return output_.data();
    return input_.data() +
           (kind_ == kReduceScatter ? static_cast<std::size_t>(r_.rank) * count_ : 0);
  }
  const TestRank& r_;
  int turn_, kind_, root_;
  bool in_place_, on_device_;
  std::size_t count_;
  std::vector<float> input_, output_;
  float factor_;
};

/// A captured all_reduce reads its factor on the device at each replay.
std::uint64_t wrong_replays(const TestRank& r) {
  std::vector<float> value(10), sum(10);
  float factor = 0;
  int op = 0;
  MUST(nccl().ncclRedOpCreatePreMulSum(&op, &factor, kFloat, kScalarDevice, r.comm));
  standin_capture_begin(r.stream);
  MUST(nccl().ncclAllReduce(value.data(), sum.data(), 10, kFloat, op, r.comm, r.stream));
  void* graph = standin_capture_end(r.stream);
  MUST(nccl().ncclRedOpDestroy(op, r.comm));
  std::uint64_t wrong = 0;
  for (int turn = 0; turn < 3; ++turn) {
    for (std::size_t i = 0; i < 10; ++i) value[i] = value_of(r.rank, i, turn);
    factor = factor_of(r.rank, turn);
    standin_graph_launch(graph, r.stream);
    r.wait();
    for (std::size_t i = 0; i < 10; ++i) wrong += sum[i] != wanted_of(r.ranks, i, turn);
  }
  standin_graph_destroy(graph);
  return wrong;
}

}  // namespace

std::string factors(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::mt19937 random(11);
  std::uint64_t wrong = 0;
  int turn = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<FactorCall> calls;
    const auto together = 1 + random() % 3;
    for (unsigned i = 0; i < together; ++i) calls.emplace_back(r, turn++, random);
    if (together > 1) MUST(nccl().ncclGroupStart());
    for (FactorCall& call : calls) call.enqueue();
    if (together > 1) MUST(nccl().ncclGroupEnd());
    r.wait();
    for (FactorCall& call : calls) wrong += call.wrong();
  }
  wrong += wrong_replays(r);
  return number("wrong", wrong) + ", " + number("calls", static_cast<std::uint64_t>(turn)) + ", " +
         counted(nullptr);
}

/// Makes a call of a sum that has ended, which NCCL is to refuse or serve.
std::string factor_ended(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  float factor = 2, value = 1;
  int op = 0;
  MUST(nccl().ncclRedOpCreatePreMulSum(&op, &factor, kFloat, kScalarHost, r.comm));
  MUST(nccl().ncclRedOpDestroy(op, r.comm));
  MUST(nccl().ncclAllReduce(&value, &value, 1, kFloat, op, r.comm, r.stream));
  r.wait();
  return number("nccl", standin_calls("ncclAllReduce")) + ", " + counted("all_reduce");
}

}  // namespace program
