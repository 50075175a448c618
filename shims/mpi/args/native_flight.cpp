// Records native calls of all threads in one ring. A ring has one writer, so a mutex guards it.
#include "shims/mpi/args/native_flight.hpp"

#include <memory>
#include <mutex>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/liveness/flight_page.hpp"
#include "comm/liveness/peer_watch.hpp"
#include "comm/trace/flight.hpp"
#include "shims/mpi/abi/native_mpi.hpp"
#include "shims/mpi/args/counting.hpp"

namespace plait::mpi {

constinit std::atomic<bool> recording_native{false};

namespace {

/// The recorder, never destroyed: a call may run at exit.
struct NativeFlight {
  FlightPage page;
  std::unique_ptr<Flight> listed;
  std::mutex guard;  ///< guards the ring and `open`
  int open = 0;      ///< calls that have not returned
};

constinit std::atomic<NativeFlight*> flight{nullptr};

std::uint8_t reason_of_record(Fallback why) { return static_cast<std::uint8_t>(why) + 1; }

/// Returns the reason in short: explain.hpp has whole sentences.
std::string words(std::uint8_t reason) {
  switch (static_cast<Fallback>(reason - 1)) {
    case Fallback::none: return "plait lacks the function";
    case Fallback::job: return "no call of the job is served";
    case Fallback::bytes: return "smaller than PLAIT_MIN_BYTES, or not in PLAIT_OPS";
    case Fallback::arguments: return "no data, or a wrong argument";
    case Fallback::type: return "type";
    case Fallback::op: return "operation";
    case Fallback::op_on_type: return "operation on this type";
    case Fallback::short_sum: return "sum of short integers";
    case Fallback::communicator: return "communicator";
    case Fallback::attach: return "communicator could not be attached";
    case Fallback::not_attached: return "communicator is not attached yet";
    case Fallback::not_on_gpus: return "buffers were not on GPUs before";
    case Fallback::no_gpu_in_use: return "no rank uses a GPU";
    case Fallback::host_memory: return "buffers in host memory";
    case Fallback::own_counts: return "sizes that only two ranks know";
    case Fallback::resource: return "a rank lacks a resource";
    case Fallback::many_nodes: return "several nodes";
    case Fallback::uneven_nodes: return "unequal parts on several nodes";
    case Fallback::thin_nodes: return "one rank a node";
  }
  return "?";
}

FlightInfo info_of(NativeFlight& made) {
  FlightInfo info;
  const Handle world = native().abi.world;
  native().Comm_rank(world, &info.rank);
  native().Comm_size(world, &info.ranks);
  info.door = "mpi";
  info.id = unique_token();
  info.name = "calls that the MPI serves";
  info.memory = "host and GPU";
  info.mine = &made.page.ring();
  info.here.push_back({info.rank, made.page.process(), info.mine});
  info.why = words;
  return info;
}

}  // namespace

void begin_native_flight() noexcept {
  if (!records_native()) return;
  const std::optional<Error> failure = attempt([] {
    auto made = std::make_unique<NativeFlight>();
    made->listed = std::make_unique<Flight>(info_of(*made));
    answer_always();
    flight.store(made.release());
  });
  if (failure) log(LogLevel::warn, -1, text("native calls are not recorded: {}", failure->what()));
}

void RecordedNative::begin(const CollectiveArgs& args, Fallback why) noexcept {
  FlightCall call;
  call.kind = FlightKind::collective;
  call.collective = static_cast<std::uint8_t>(args.collective);
  call.reason = reason_of_record(why);
  static_cast<void>(attempt([&] { call.count = bytes_of_native(args); }));
  enter(args.comm, call);
}

void RecordedNative::begin(Handle comm) noexcept {
  FlightCall call;
  call.kind = FlightKind::barrier;
  call.reason = reason_of_record(Fallback::none);
  enter(comm, call);
}

void RecordedNative::enter(Handle comm, const FlightCall& call) noexcept {
  NativeFlight* const mine = flight.load();
  if (mine == nullptr || native().abi.key(comm) == native().abi.no_comm) return;
  const std::lock_guard<std::mutex> hold(mine->guard);
  mine->page.ring().enter(call);
  ++mine->open;
  is_open_ = true;
}

/// Calls of several threads overlap, so records end once none is open.
void RecordedNative::end() noexcept {
  NativeFlight* const mine = flight.load();
  const std::lock_guard<std::mutex> hold(mine->guard);
  if (--mine->open == 0) mine->page.ring().end_all();
}

}  // namespace plait::mpi
