// toy: the smallest engine, as an example. An all_gather by copy engines in the caller's stream:
// every rank pushes its part into slots of all peers. The peers copy the parts to the outputs.
#include <algorithm>

#include "gpu/copy/copy_plans.hpp"
#include "gpu/copy/copy_tuning.hpp"
#include "plan/direct_shape.hpp"

namespace plait::cuda {
namespace {

class ToyReady : public PreparedCall, private EngineCall {
 public:
  ToyReady(const Request& request, const Tuning& tuning, EngineRank& rank)
      : EngineCall(rank.queue(), rank.engine_path(), call_, request.type),
        part_bytes_(request.count * bytes_of(request.type)) {
    rank.fill_call(call_, request);
    const std::uint64_t slots = static_cast<std::uint64_t>(request.ranks) - 1;
    slot_bytes_ = inbox_bytes(rank.group()) / slots / 4096 * 4096;
    if (tuning.tile_units != 0) slot_bytes_ = std::min(slot_bytes_, wished_piece_bytes(tuning));
  }

  /// All ranks synchronise before each piece, after the piece's arrival, and at the end.
  void enqueue(const CallBuffers& buffers, Stream stream) override {
    const auto* const input = static_cast<const char*>(buffers.input);
    auto* const output = static_cast<char*>(buffers.output);
    std::uint32_t met = 0;
    const auto next_meeting = [&] {
      return barrier_step(&EngineFlags::ring_barriers, &EngineFlags::ring_barrier, ++met);
    };
    for (std::uint64_t at = 0; at < part_bytes_; at += slot_bytes_) {
      const std::uint64_t bytes = std::min(slot_bytes_, part_bytes_ - at);
      launch(stream, next_meeting());
      for (int step = 1; step < call_.ranks; ++step)
        copy(stream, slot((call_.rank + step) % call_.ranks, call_.rank), input + at, bytes);
      launch(stream, next_meeting());
      for (int from = 0; from < call_.ranks; ++from)
        copy(stream, output + static_cast<std::uint64_t>(from) * part_bytes_ + at,
             from == call_.rank ? input + at : slot(call_.rank, from), bytes);
    }
    const EngineStep last = next_meeting();
    launch_end(stream, last, {{&EngineFlags::ring_barriers, met}});
  }

 private:
  char* slot(int owner, int from) const {
    return path_.slots[static_cast<std::size_t>(owner)] +
           static_cast<std::uint64_t>(place_among_others(owner, from)) * slot_bytes_;
  }

  CallArgs call_{};
  const std::uint64_t part_bytes_;
  std::uint64_t slot_bytes_ = 0;
};

class ToyEngine : public CopyEngine<ToyReady> {
 public:
  const StrategyInfo& info() const override {
    static const StrategyInfo info{
        "toy", "every rank pushes to all", "direct all-gather", {Collective::all_gather}};
    return info;
  }
};

}  // namespace

const Engine& toy_engine() {
  static const ToyEngine engine;
  return engine;
}

}  // namespace plait::cuda
