// Executors with the same interface: a plan, every rank's input and factor -> every rank's output.
#pragma once
#include <vector>

#include "cpu/reference.hpp"
#include "unit/cpu/helpers.hpp"

namespace plait_test {

struct Inputs {
  std::vector<Bytes> bytes;  ///< by rank
  std::vector<double> scalars;
};

/// Random elements for every rank, and buffers large enough for in-place use.
inline Inputs random_inputs(const plait::Request& request, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Inputs made;
  for (int rank = 0; rank < request.ranks; ++rank) {
    const std::uint64_t bytes = plait::input_bytes(request, rank);
    made.bytes.push_back(
        random_elements(random, request.type, bytes / plait::bytes_of(request.type)));
    made.scalars.push_back(0.25 * static_cast<double>(random() % 16) - 2.0);
  }
  return made;
}

struct ReferenceExecutor {
  static constexpr const char* kName = "reference";
  explicit ReferenceExecutor(const plait::Plan& plan) : plan_(plan) {}

  std::vector<Bytes> run(const Inputs& inputs) {
    std::vector<Bytes> outputs = poisoned(plan_);
    std::vector<const void*> in;
    std::vector<void*> out;
    for (const Bytes& one : inputs.bytes) in.push_back(one.data());
    for (Bytes& one : outputs) out.push_back(one.data());
    plait::run_reference(plan_, in, out, inputs.scalars);
    return outputs;
  }

  static std::vector<Bytes> poisoned(const plait::Plan& plan) {
    std::vector<Bytes> outputs;
    for (int rank = 0; rank < plan.request.ranks; ++rank)
      outputs.emplace_back(plait::output_bytes(plan.request, rank), std::byte{0xc3});
    return outputs;
  }

 private:
  const plait::Plan& plan_;
};

/// Threads as ranks. Calls of an executor share arenas, as calls of a communicator do.
class CpuExecutor {
 public:
  static constexpr const char* kName = "cpu";
  explicit CpuExecutor(const plait::Plan& plan) : plan_(plan), heap_(plait::sizes_for(plan)) {}

  std::vector<Bytes> run(const Inputs& inputs) {
    std::vector<Bytes> outputs = ReferenceExecutor::poisoned(plan_);
    on_ranks(plan_.request.ranks, [&](int rank) {
      const auto at = static_cast<std::size_t>(rank);
      Calm calm;
      plait::run_cpu(plan_, rank, heap_.arenas,
                     {inputs.bytes[at].data(), outputs[at].data(), inputs.scalars, epoch_,
                      calls_ % 2, in_ms(60000)},
                     calm);
    });
    epoch_ += plait::epochs_per_call(plan_);
    ++calls_;
    return outputs;
  }

 private:
  const plait::Plan& plan_;
  HeapArenas heap_;
  std::uint32_t epoch_ = 0;
  int calls_ = 0;
};

}  // namespace plait_test
