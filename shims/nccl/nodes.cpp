// The pieces of a call and the two streams they move on: the caller's for what happens in the node,
// one of our own between nodes. RS0 | RS1, X0 | AG0, RS2, X1 | AG1, ... and the caller's stream
// ends up behind all of it.
#include "shims/nccl/nodes.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "comm/nccl/real.hpp"
#include "plait/error.hpp"
#include "shims/nccl/group.hpp"
#include "shims/nccl/serve.hpp"

namespace plait::nccl {
namespace {

constexpr std::uint64_t kPieceBytes = 8ull << 20;  // a piece's latency is small beside its transfer
constexpr std::uint64_t kMostPieces = 16;

class NodeEngine : public Engine {
 public:
  NodeEngine(const Nodes& nodes, int device, std::unique_ptr<Engine> inside, Comm whole,
             Comm across)
      : nodes_(nodes),
        inside_(std::move(inside)),
        side_(platform().side_stream(device)),
        whole_(whole),
        across_(across) {}
  bool uses_nccl() const override { return true; }
  bool takes(const Request& request) const override {
    // An average of averages would be rounded twice.
    if (request.collective != Collective::all_reduce || request.op == ReduceOp::avg) return false;
    const std::uint64_t shard = shard_count(request);
    return shard > 0 && inside_->takes(part(request, Collective::reduce_scatter, shard)) &&
           inside_->takes(part(request, Collective::all_gather, shard));
  }
  int enqueue(const Request& request, const void* input, void* output, Stream stream) override;
  void check() const override { inside_->check(); }
  void fail() noexcept override {
    inside_->fail();
    if (!aborted_.exchange(true)) abort_across();
  }
  void heed(Stream stream) override { inside_->heed(stream); }
  void abort() noexcept override {
    inside_->abort();
    if (!aborted_.exchange(true)) abort_across();
  }
  void end_nccl() noexcept override {
    const InReal in_real;
    if (aborted_.exchange(true)) return;
    real().destroy(across_);
    across_ended_->store(true);
  }
  bool has_ended(bool knows_calls) noexcept override { return inside_->has_ended(knows_calls); }
  void unmap_peers() noexcept override { inside_->unmap_peers(); }
  void await_abort(double wait_s) const noexcept override {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s);
    while (aborted_.load() && !across_ended_->load() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  }

 private:
  /// Elements of one rank's share of a whole piece.
  std::uint64_t shard_count(const Request& request) const {
    const auto size = static_cast<std::uint64_t>(nodes_.size());
    const std::uint64_t bytes = request.count * bytes_of(request.type);
    const std::uint64_t pieces = std::clamp<std::uint64_t>(bytes / kPieceBytes, 1, kMostPieces);
    return request.count / size / pieces;
  }
  Request part(const Request& request, Collective collective, std::uint64_t shard) const {
    Request made = request;
    made.collective = collective;
    made.count = shard;
    made.ranks = nodes_.size();
    made.root = 0;
    return made;
  }
  /// NCCL frees what it aborts, so once; and it may wait there for ranks that do not come, so not
  /// in the thread that watches for deaths.
  void abort_across() noexcept {
    try {
      quiet_thread([across = across_, ended = across_ended_, callers = callers_] {
        // Who has seen that it stands is through in a moment, but for one that waits inside NCCL.
        for (int looks = 0; callers->load() != 0 && looks < 1000; ++looks)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const InReal in_real;
        real().abort(across);
        ended->store(true);
      }).detach();
    } catch (const std::exception& error) {
      log(LogLevel::warn, -1, text("NCCL's communicator between nodes stays: ", error.what()));
      across_ended_->store(true);
    }
  }
  void all_reduce(Comm comm, const void* input, void* output, std::uint64_t count,
                  const Request& request, Stream stream) const {
    const Caller caller(*callers_);  // before it looks: who aborts waits for it
    if (aborted_.load())
      throw Error(ErrorCode::aborted, "the communicator between nodes was aborted");
    const InReal in_real;
    const Result result = real().all_reduce(input, output, count, nccl_type(request.type),
                                            nccl_op(request.op), comm, stream);
    if (result != ncclSuccess && result != ncclInProgress)
      throw Error(ErrorCode::peer_lost,
                  text("ncclAllReduce between nodes returned ", static_cast<int>(result)));
  }

  Nodes nodes_;
  std::unique_ptr<Engine> inside_;
  std::unique_ptr<SideStream> side_;
  Comm whole_, across_;
  /// One that may be inside a call of NCCL's between nodes.
  class Caller {
   public:
    explicit Caller(std::atomic<int>& all) : all_(all) { all_.fetch_add(1); }
    ~Caller() { all_.fetch_sub(1); }
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

   private:
    std::atomic<int>& all_;
  };
  const std::shared_ptr<std::atomic<int>> callers_ = std::make_shared<std::atomic<int>>(0);
  std::atomic<bool> aborted_{false};
  const std::shared_ptr<std::atomic<bool>> across_ended_ =
      std::make_shared<std::atomic<bool>>(false);
};

int NodeEngine::enqueue(const Request& request, const void* input, void* output, Stream stream) {
  const std::uint64_t element = bytes_of(request.type), shard = shard_count(request);
  const std::uint64_t piece = shard * static_cast<std::uint64_t>(nodes_.size());
  const std::uint64_t pieces = request.count / piece;
  const auto* from = static_cast<const char*>(input);
  auto* to = static_cast<char*>(output);
  const auto mine = [&](std::uint64_t index) {  // where my share of a piece lies in the output
    return to + (index * piece + static_cast<std::uint64_t>(nodes_.place) * shard) * element;
  };
  const auto gather = [&](std::uint64_t index) {
    inside_->enqueue(part(request, Collective::all_gather, shard), mine(index),
                     to + index * piece * element, stream);
  };
  for (std::uint64_t index = 0; index < pieces; ++index) {
    inside_->enqueue(part(request, Collective::reduce_scatter, shard),
                     from + index * piece * element, mine(index), stream);
    // What went between nodes while this piece was reduced is gathered now, and the next may go.
    if (index > 0) side_->join(stream);
    side_->fork(stream);
    all_reduce(across_, mine(index), mine(index), shard, request, side_->stream());
    if (index > 0) gather(index - 1);
  }
  side_->join(stream);
  gather(pieces - 1);
  const std::uint64_t rest = request.count - pieces * piece;  // fewer elements than ranks, or so
  if (rest != 0)
    all_reduce(whole_, from + pieces * piece * element, to + pieces * piece * element, rest,
               request, stream);
  inside_->heed(stream);
  return kByPlait;
}

}  // namespace

std::unique_ptr<Engine> node_engine(const Nodes& nodes, int device, std::unique_ptr<Engine> inside,
                                    Comm whole, Comm across) {
  return std::make_unique<NodeEngine>(nodes, device, std::move(inside), whole, across);
}

}  // namespace plait::nccl
