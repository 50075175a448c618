// Host memory in the place of GPU memory for exchanges of a communicator's set-up over NCCL.
#pragma once
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "shims/nccl/engine.hpp"
#include "tests/shims/standin/standin.hpp"

namespace plait::nccl {

class HostStaging : public ExchangeStaging {
 public:
  HostStaging() : stream_(standin_stream_create()) {}
  ~HostStaging() override {
    standin_count("staging freed");
    standin_stream_destroy(stream_);
  }
  bool is_alive() const noexcept override { return resets_ == standin_calls("device reset"); }
  std::string swap(const std::string& mine, int ranks, const Gather& gather,
                   const GiveUp& give_up) override {
    mine_ = mine;
    all_.assign(mine.size() * static_cast<std::size_t>(ranks), '\0');
    gather(mine_.data(), all_.data(), stream_);
    while (standin_stream_idle(stream_) == 0) {
      give_up();
      ::usleep(50);
    }
    return all_;
  }

 private:
  std::string mine_, all_;  // read and written by the stream also after give_up() has thrown
  Stream stream_;
  const std::uint64_t resets_ = standin_calls("device reset");
};

}  // namespace plait::nccl
