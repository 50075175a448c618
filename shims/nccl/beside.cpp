// Splits a communicator off the program's, waits until NCCL has made it, and makes calls on it.
#include "shims/nccl/beside.hpp"

#include <chrono>
#include <thread>

#include "base/text.hpp"
#include "comm/transport/nccl/native.hpp"
#include "comm/transport/nccl/nccl_transport.hpp"
#include "plait/error.hpp"
#include "shims/nccl/group.hpp"
#include "shims/nccl/setup_exchange.hpp"

namespace plait::nccl {
namespace {

constexpr double kAbortSeconds = 2;

/// Waits until NCCL has made the child of a non-blocking communicator.
void wait_for_child(const CommState& state, Comm child) {
  Result status = ncclInProgress;
  while (status == ncclInProgress) {
    require_not_cancelled(state);
    if (native().async_error(child, &status) != ncclSuccess) status = ncclInternalError;
    if (status == ncclInProgress) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  if (status != ncclSuccess)
    throw Error(ErrorCode::peer_lost,
                text("ncclCommSplit ended with {}", static_cast<int>(status)));
}

class NcclBeside : public BesideLibrary {
 public:
  explicit NcclBeside(CommState& state) : rank_(state.rank) {
    LateHandle handle;
    const Result result = native().split(state.comm, 0, state.rank, handle.place(), nullptr);
    if (result != ncclSuccess && result != ncclInProgress) {
      handle.stored();
      throw Error(ErrorCode::peer_lost,
                  text("ncclCommSplit returned {}", static_cast<int>(result)));
    }
    wait_ready(state);
    Comm child = handle.stored();
    if (child == nullptr) throw Error(ErrorCode::peer_lost, "ncclCommSplit made no communicator");
    transport_ = std::make_unique<NcclTransport>(child, true, nullptr,
                                                 [] { return std::make_shared<InNative>(); });
    wait_for_child(state, child);
  }
  ~NcclBeside() override {
    if (transport_ != nullptr) transport_->end();
  }
  bool takes(const Request& request) const override { return why_no_call(request).empty(); }
  void enqueue(const Request& request, const void* input, void* output, Stream stream) override {
    transport_->call(request, true, rank_, input, output, stream);
  }
  void abort() noexcept override {
    transport_->abort();
    transport_->await_abort(kAbortSeconds);
  }

 private:
  const int rank_;
  std::unique_ptr<NcclTransport> transport_;
};

}  // namespace

std::unique_ptr<BesideLibrary> nccl_beside(CommState& state) {
  return std::make_unique<NcclBeside>(state);
}

}  // namespace plait::nccl
