// Sets up GPUs of several nodes, and sends messages of pairs across nodes through NCCL.
#include "comm/multinode/multinode_device.hpp"

#include "base/error_reason.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

namespace plait {
namespace {

constexpr const char* kFarPair =
    "between GPUs of two nodes NCCL sends and receives alone: wanted send, recv or exchange_with "
    "and no strategy";
/// After NCCL's timeout, ranks still exchange the missing ranks' names.
constexpr double kAnswerS = 2.0;

/// Makes the GPU side in each node. Returns null on all ranks if a rank has no GPU, with the first
/// such rank's reason.
std::unique_ptr<GpuSide> node_gpus(const CommunicatorOptions& options, MultinodeHostSide& host,
                                   std::string& why_not) {
  std::unique_ptr<GpuSide> made;
  const std::optional<Error> error = attempt([&] {
    made = GpuSide::create(options_in_node(options, host.nodes()), host, nullptr, why_not);
  });
  const Deadline arrival_deadline = host.deadline_after(options.arrive_s);
  agree(host.transport_comm(), error, arrival_deadline);
  const std::string word = made != nullptr   ? ""
                           : why_not.empty() ? "it was asked for none"
                                             : why_not;
  int rank = 0;
  for (const std::string& why : host.transport_comm().exchange(word, arrival_deadline)) {
    if (!why.empty()) why_not = text("rank {} has none: {}", rank, why);
    if (!why.empty()) return nullptr;
    ++rank;
  }
  return made;
}

}  // namespace

std::unique_ptr<DeviceSide> MultinodeDevice::create(const CommunicatorOptions& options,
                                                    MultinodeHostSide& host) {
  std::string why_not;
  std::unique_ptr<GpuSide> node =
      publish_errors(host.transport_comm(), [&] { return node_gpus(options, host, why_not); });
  if (node == nullptr) return std::make_unique<NoDevice>(why_not);
  host.watch(node->peers());
  std::unique_ptr<MultinodeDevice> made(new MultinodeDevice(host, std::move(node)));
  try {
    made->join_rails(options);
  } catch (const AgreedError& error) {
    if (options.device != kDeviceByLauncher) throw;
    log(LogLevel::warn, host.rank(), text("no GPUs: {}", reason_of(error)));
    return std::make_unique<NoDevice>(reason_of(error));
  }
  return made;
}

/// Returns this rank's connection between the node and GpuMultinode.
NodeSide MultinodeDevice::node_side() {
  TransportComm& transport_comm = host_.transport_comm();
  NodeSide side;
  side.calls = &node_->calls();
  side.failure = [this] { return node_->cause(); };
  side.fail = [this](const Error& error) { node_->fail(error); };
  side.poll_failures = [this, &transport_comm] {
    if (const auto remote_failure = attempt([&] { transport_comm.check(); }))
      node_->fail(*remote_failure);
  };
  side.publish_failure = [&transport_comm](const Error& cause) {
    transport_comm.publish_failure(cause);
  };
  side.name = [&transport_comm](int rank) { return transport_comm.name_of_rank(rank); };
  return side;
}

void MultinodeDevice::join_rails(const CommunicatorOptions& options) {
  const Deadline arrival_deadline = host_.deadline_after(options.arrive_s),
                 answers = host_.deadline_after(options.arrive_s + kAnswerS);
  const cuda::Exchange exchange = [&](const std::string& mine) {
    return host_.transport_comm().exchange(mine, answers);
  };
  const Joined& joined = host_.joined();
  rails_ = std::make_unique<GpuMultinode>(
      host_.nodes(), node_side(),
      GpuMultinodeOptions{joined.forced, joined.bitwise, joined.sum_order, options.graph_mixing,
                          options.arrive_s},
      exchange, arrival_deadline);
}

MultinodeDevice::~MultinodeDevice() {
  if (!host_.is_owner()) static_cast<void>(rails_.release());
}

void MultinodeDevice::abort() noexcept {
  node_->abort();
  rails_->abort();
}

std::unique_ptr<DeviceSide> MultinodeDevice::far_pair(int peer, const HostSide& host) {
  return std::make_unique<FarPairDevice>(*this, peer, host);
}

void FarPairDevice::enqueue(const Request& request, const void* input, void* output, void* stream,
                            const CallOptions& options) {
  const bool is_message = request.collective == Collective::copy && request.root != request.peer;
  if ((!is_message && request.collective != Collective::send_recv) || request.ranks != 2 ||
      !options.strategy.empty())
    throw Error(ErrorCode::unsupported, kFarPair);
  whole_.message(peer_, request, host_.rank(), input, output, stream);
}

}  // namespace plait
