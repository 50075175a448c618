// A thread a communicator, from its first large call until the room stands.
#include "exec/cuda/share/growth.hpp"

#include <unistd.h>

#include <chrono>
#include <system_error>

#include "base/text.hpp"
#include "base/threads.hpp"
#include "plait/error.hpp"

namespace plait::cuda {

Growth::Growth(GrowthPage& page, int rank, int ranks, double patience_s,
               std::function<void(const Exchange&)> make)
    : page_(page),
      make_(std::move(make)),
      owner_(::getpid()),
      agreed_(page.switched, rank, ranks),
      meeting_(page.meeting, rank, ranks),
      patience_s_(patience_s) {}

Growth::~Growth() {
  if (::getpid() == owner_)
    stop();
  else
    static_cast<void>(thread_.release());  // a fork's child does not have it
}

void Growth::begin() {
  if (begun_.load(std::memory_order_relaxed) || stopping_.load()) return;
  const std::lock_guard<std::mutex> hold(guard_);
  if (begun_.exchange(true) || stopping_.load()) return;
  page_.wanted.store(1);
  try {
    thread_ = std::make_unique<std::thread>(quiet_thread([this] { run(); }));
  } catch (const std::system_error& error) {
    meeting_.fail(text("no thread to make room in: ", error.what()));
  }
}

void Growth::run() noexcept {
  const auto give_up = [this] {
    if (stopping_.load()) throw Error(ErrorCode::aborted, "the communicator was closed");
  };
  try {
    make_([&](const std::string& mine) { return meeting_.exchange(mine, give_up); });
    agreed_.say_ready();
  } catch (const std::exception& error) {
    meeting_.fail(error.what());
  }
}

/// Until all have it, some rank has said that it will not, or patience is at its end.
void Growth::wait_a_moment() {
  const auto began = std::chrono::steady_clock::now();
  std::chrono::duration<double> waited(0);
  while (waited.count() < patience_s_ && !stopping_.load() && !agreed_.all_ready() &&
         failure().empty()) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    waited = std::chrono::steady_clock::now() - began;
  }
  patience_s_ -= waited.count();
}

bool Growth::next(RoomCall call) {
  if (call != RoomCall::captured && !agreed_.is_on()) begin();
  if (call == RoomCall::alone && !agreed_.is_on()) wait_a_moment();
  return agreed_.next();
}

void Growth::stop() noexcept {
  cancel();
  const std::lock_guard<std::mutex> hold(guard_);
  if (thread_ != nullptr && thread_->joinable()) thread_->join();
}

}  // namespace plait::cuda
