// Times by a formula: the higher ranks are slower, so that ranks must agree on the slowest.
#include "tests/shims/host_bench.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "gpu/select/engines.hpp"
#include "plait/error.hpp"
#include "tests/shims/standin/streams.hpp"

namespace plait::nccl {
namespace {

int named_rank(const char* name) {
  const char* given = std::getenv(name);
  return given == nullptr ? -1 : std::atoi(given);
}

class HostBench : public CallBench {
 public:
  HostBench(int rank, const BenchSource& source,
            std::function<void(const cuda::Exchange&)> prove_paths)
      : rank_(rank),
        source_(source),
        prove_paths_(std::move(prove_paths)),
        stream_(standin_stream_create()) {}
  ~HostBench() override {
    beside_.reset();
    standin_stream_destroy(stream_);
  }
  void open(const cuda::Exchange& exchange) override {
    if (rank_ == named_rank("STANDIN_BENCH_NO_MEMORY"))
      throw Error(ErrorCode::out_of_memory, "the test wants no memory here");
    prove_paths_(exchange);
    if (rank_ == named_rank("STANDIN_BENCH_LATE_NO_MEMORY"))
      throw Error(ErrorCode::out_of_memory, "the test wants no memory here");
    exchange("the paths are proved");
    beside_ = source_.beside();
  }
  std::uint64_t most_bytes() const override { return 64 << 20; }
  std::vector<CallWay> ways(const Request& request) override {
    std::vector<CallWay> found;
    const CallWay messages{nullptr, {}, true};
    if (request.collective == Collective::send_recv) return {messages};
    if (request.collective == Collective::all_to_all) found.push_back(messages);
    for (const cuda::Engine* const engine : cuda::engines()) {
      const std::vector<Collective>& served = engine->info().collectives;
      if (std::find(served.begin(), served.end(), request.collective) != served.end())
        found.push_back({engine, {}});
    }
    return found;
  }
  std::vector<bool> prepare(const Request& request, const std::vector<CallWay>& ways,
                            bool beside_nccl, double) override {
    request_ = request;
    beside_nccl_ = beside_nccl;
    if (beside_nccl && request.collective == Collective::all_gather &&
        message_bytes(request) == 4096) {
      std::vector<char> in(4096, 'a'), out(4096, 'b');
      beside_->enqueue(request, in.data(), out.data(), stream_);
      standin_stream_synchronize(stream_);
      if (out != in) throw Error(ErrorCode::internal, "a wrong result of NCCL's communicator");
      standin_count("calls beside");
    }
    // The last engine is missing on rank 0 alone: no rank may time it.
    std::vector<bool> ready(ways.size(), true);
    if (rank_ == 0 && ways.size() > 1) ready.back() = false;
    return ready;
  }
  std::vector<CallTimes> run(const std::vector<bool>& ready) override {
    source_.give_up();
    standin_count("requests timed");
    if (++requests_ == 3 && rank_ == named_rank("STANDIN_BENCH_DIES")) ::kill(::getpid(), SIGKILL);
    if (requests_ == 3 && rank_ == named_rank("STANDIN_BENCH_FAILS"))
      throw Error(ErrorCode::driver_error, "the test wants no times");
    const char* const seconds = std::getenv("STANDIN_BENCH_S");
    if (seconds != nullptr) ::usleep(static_cast<unsigned>(std::atof(seconds) * 1e6));
    const char* const kind = std::getenv("STANDIN_BENCH");
    const std::string times = kind == nullptr ? "" : kind;
    const bool is_behind =
        times == "behind" || (times != "ahead" && message_bytes(request_) >= 1 << 20);
    std::vector<CallTimes> found;
    for (std::size_t i = 0; i < ready.size(); ++i) {
      const double us = (is_behind ? 40.0 : 10.0) + static_cast<double>(i) + 0.5 * rank_;
      found.push_back(ready[i] ? CallTimes{us, us} : CallTimes{});
    }
    found.push_back(beside_nccl_ ? CallTimes{20, 20} : CallTimes{});
    return found;
  }

 private:
  const int rank_;
  const BenchSource source_;
  const std::function<void(const cuda::Exchange&)> prove_paths_;
  std::unique_ptr<BesideLibrary> beside_;
  cuda::Stream stream_;
  Request request_;
  bool beside_nccl_ = false;
  int requests_ = 0;
};

}  // namespace

double host_bench_seconds() {
  const char* const given = std::getenv("STANDIN_BUDGET_S");
  return given == nullptr ? 60 : std::atof(given);
}

std::unique_ptr<CallBench> host_bench(int rank, const BenchSource& source,
                                      std::function<void(const cuda::Exchange&)> prove_paths) {
  return std::make_unique<HostBench>(rank, source, std::move(prove_paths));
}

}  // namespace plait::nccl
