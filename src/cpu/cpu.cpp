// run_cpu(): runs one rank's lanes, interleaved in the caller's thread. A lane runs until a wait
// stops it or it has raised a flag; then the last lane that can continue runs, so that a piece is
// reduced or forwarded while still in the cache. If no lane can continue, wait.hpp waits for any
// lane.
#include "cpu/cpu.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.hpp"
#include "cpu/arena.hpp"
#include "cpu/fault.hpp"
#include "cpu/wait.hpp"
#include "plait/error.hpp"
#include "plan/library_call.hpp"
#include "plan/origins.hpp"

namespace plait {
namespace {

constexpr std::uint32_t kRefreshShift = 28;
constexpr std::int64_t kGraceNs = 1'000'000'000;

class RankRun {
 public:
  RankRun(const Plan& plan, int rank, const Arenas& arenas, const CpuCall& call, Watch& watch)
      : plan_(plan), rank_(rank), view_(arenas), call_(call), watch_(watch) {
    for (std::size_t i = 0; i < plan.lanes.size(); ++i)
      if (plan.lanes[i].rank == rank && !plan.lanes[i].ops.empty())
        lanes_.push_back({&plan.lanes[i], i, 0});
    const bool scaled = plan.request.op == ReduceOp::premul_sum && !call.scalars.empty();
    if (scaled && is_nested()) origins_ = origins_of(plan);
    scaled_ = scaled;
  }

  void run() {
    while (!lanes_.empty()) {
      const auto ready = std::find_if(lanes_.rbegin(), lanes_.rend(),
                                      [&](const Cursor& lane) { return can_go_on(lane); });
      if (ready == lanes_.rend()) {
        wait();
        continue;
      }
      advance(*ready);
      if (ready->next == ready->lane->ops.size()) lanes_.erase(std::next(ready).base());
    }
    refresh_flags();
  }

 private:
  /// Whether some reduction continues a partial sum, or takes ranks in another order.
  bool is_nested() const {
    if (plan_.sum_order != SumOrder::rank_order) return true;
    const auto goes_on = [&](const Op& op) {
      const bool takes_all = op.srcs.size() == static_cast<std::size_t>(plan_.request.ranks);
      return op.kind == OpKind::reduce &&
             (!takes_all || !op.finish);  // a single rank's partial sum
    };
    return !plan_.calls.empty() ||
           std::any_of(plan_.lanes.begin(), plan_.lanes.end(), [&](const Lane& lane) {
             return std::any_of(lane.ops.begin(), lane.ops.end(), goes_on);
           });
  }
  struct Cursor {
    const Lane* lane;
    std::size_t index;     // index in the plan
    std::size_t next;      // index of the next op
    int call_handle = -1;  // join: handle of the library call
    const Op& op() const { return lane->ops[next]; }
  };

  bool can_go_on(const Cursor& lane) const {
    if (lane.op().kind == OpKind::join)
      return lane.call_handle < 0 || call_.library->is_done(lane.call_handle);
    return lane.op().kind != OpKind::wait || has_come(lane.op());
  }

  bool has_come(const Op& op) const {
    return reached(view_.flag_value(op.flag).load(std::memory_order_seq_cst),
                   call_.epoch + op.value);
  }

  bool is_between_nodes() const {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [](const Cursor& lane) { return lane.call_handle >= 0; });
  }

  // Runs the lane until it waits, ends, or has raised a flag.
  void advance(Cursor& lane) {
    while (lane.next < lane.lane->ops.size() && can_go_on(lane)) {
      const Op& op = lane.op();
      fault_point(rank_);
      if (op.kind == OpKind::copy) std::memmove(at(op.dst), at(op.srcs.at(0)), op.dst.bytes);
      if (op.kind == OpKind::reduce) reduce(lane);
      if (op.kind == OpKind::join && !join(lane)) return;
      ++lane.next;
      if (op.kind != OpKind::signal) continue;
      raise(view_.flag_value(op.flag), call_.epoch + op.value, view_.doorbell(op.flag.owner));
      return;
    }
  }

  void reduce(const Cursor& lane) {
    const Op& op = lane.op();
    const Request& request = plan_.request;
    srcs_.clear();
    for (const Region& src : op.srcs) srcs_.push_back(at(src));
    std::vector<double> scales;
    if (scaled_) scales = scales_of(origins_.empty() ? rank_order(op) : row(lane), call_.scalars);
    reduce_cpu(request.type, request.op, at(op.dst), srcs_.data(), static_cast<int>(srcs_.size()),
               op.dst.bytes / bytes_of(request.type), request.ranks, op.finish,
               scaled_ ? scales.data() : nullptr, plan_.sum_order);
  }

  // Begins or continues a library call; returns false until the call has ended.
  bool join(Cursor& lane) {
    const Op& op = lane.op();
    const LibraryCall& call = plan_.calls[static_cast<std::size_t>(op.call)];
    void* const dst = op.dst.bytes == 0 ? nullptr : at(op.dst);
    if (lane.call_handle < 0)
      lane.call_handle =
          call_.library->begin(request_of(plan_, call), call.ranks, member_of(call, rank_),
                               op.srcs.empty() ? nullptr : at(op.srcs[0]), dst);
    if (!call_.library->is_done(lane.call_handle)) return false;
    call_.library->end(std::exchange(lane.call_handle, -1));
    const Request& request = plan_.request;
    if (op.finish && request.op == ReduceOp::avg && dst != nullptr && reduces(call.collective)) {
      const void* sum = dst;
      reduce_cpu(request.type, request.op, dst, &sum, 1, op.dst.bytes / bytes_of(request.type),
                 request.ranks, true, nullptr);
    }
    return true;
  }

  const std::vector<int>& row(const Cursor& lane) const { return origins_[lane.index][lane.next]; }

  static std::vector<int> rank_order(const Op& op) {
    std::vector<int> origins;
    for (std::size_t s = 0; s < op.srcs.size(); ++s) origins.push_back(static_cast<int>(s));
    return origins;
  }

  std::byte* at(const Region& region) const {
    if (region.space != Space::input && region.space != Space::output)
      return view_.at(region, plan_, call_.parity);
    const bool is_input = region.space == Space::input;
    if (region.rank != rank_)
      throw Error(
          ErrorCode::unsupported,
          text("rank {} cannot reach {}: on CPU ranks another rank's buffers are not mapped", rank_,
               print(region)));
    const std::uint64_t size =
        is_input ? input_bytes(plan_.request, rank_) : output_bytes(plan_.request, rank_);
    if (region.offset > size || region.bytes > size - region.offset)
      throw Error(ErrorCode::invalid_argument,
                  text("region {} leaves its buffer of {} bytes", print(region), size));
    void* base = is_input ? const_cast<void*>(call_.input) : call_.output;
    return static_cast<std::byte*>(base) + region.offset;
  }

  void wait() {
    const auto any_can_go_on = [this] {
      return std::any_of(lanes_.begin(), lanes_.end(),
                         [this](const Cursor& lane) { return can_go_on(lane); });
    };
    WaitPolicy policy = wait_policy(view_.ranks_here());
    if (spin(policy, any_can_go_on)) return;
    const bool is_between = is_between_nodes();
    // A wait for a rank of this node that waits for another node gets a grace period: that rank's
    // error names the cause.
    const std::int64_t grace_ns = plan_.calls.empty() || is_between ? 0 : kGraceNs;
    const WaitFor wait{&view_.doorbell(rank_), call_.deadline_ns + grace_ns, &watch_,
                       [this] { return describe(); }};
    if (is_between) policy.most_sleep_ns = 50'000;  // no signaller rings the doorbell
    wait_until(policy, wait, any_can_go_on);
  }

  std::string describe() const {
    std::string waits;
    for (const Cursor& lane : lanes_) {
      const Op& op = lane.op();
      if (op.kind == OpKind::join) {
        waits += text("{}{} op {} for {} in call {} between nodes",
                      waits.empty() ? text("rank {} waits in lane ", rank_) : "; in lane ",
                      lane.lane->name, lane.next,
                      lane.call_handle < 0 ? "its turn" : call_.library->awaits(lane.call_handle),
                      op.call);
        continue;
      }
      const std::uint32_t found = view_.flag_value(op.flag).load() - call_.epoch;
      waits += text("{}{} op {} for flag (owner {}, writer {}, index {}) >= {}, found {}",
                    waits.empty() ? text("rank {} waits in lane ", rank_) : "; in lane ",
                    lane.lane->name, lane.next, op.flag.owner, op.flag.writer, op.flag.index,
                    op.value, std::max(0, static_cast<int>(found)));
    }
    return waits;
  }

  // A flag that no plan raises for 2^31 epochs would seem to be ahead. Every 2^28 epochs each rank
  // therefore sets all flags that it writes to the present epoch. Its signals of this call are
  // done, so no waiter is affected.
  void refresh_flags() {
    const std::uint32_t after = call_.epoch + epochs_per_call(plan_);
    if (call_.epoch >> kRefreshShift == after >> kRefreshShift) return;
    const ArenaSizes& sizes = view_.sizes();
    for (int owner = 0; owner < sizes.ranks; ++owner)
      for (int index = 0; view_.is_here(owner) && index < sizes.flags_per_pair; ++index)
        raise(view_.flag_value({owner, rank_, index}), after, view_.doorbell(owner));
  }

  const Plan& plan_;
  const int rank_;
  const ArenaView view_;
  const CpuCall& call_;
  Watch& watch_;
  std::vector<Cursor> lanes_;  // lanes that have not ended
  std::vector<const void*> srcs_;
  bool scaled_ = false;
  Origins origins_;
};

}  // namespace

void run_cpu(const Plan& plan, int rank, const Arenas& arenas, const CpuCall& call, Watch& watch) {
  if (!fits(plan, arenas.sizes) ||
      arenas.base.size() != static_cast<std::size_t>(arenas.sizes.ranks))
    throw Error(ErrorCode::internal, text("plan {} does not fit the arenas", label(plan)));
  if (rank < 0 || rank >= plan.request.ranks)
    throw Error(ErrorCode::invalid_argument,
                text("wanted a rank of 0 to {}, found {}", plan.request.ranks - 1, rank));
  if (!call.scalars.empty() && call.scalars.size() != static_cast<std::size_t>(plan.request.ranks))
    throw Error(ErrorCode::invalid_argument, text("wanted {} scalars or none, found {}",
                                                  plan.request.ranks, call.scalars.size()));
  if (!plan.calls.empty() && call.library == nullptr)
    throw Error(ErrorCode::unsupported, text("{} wants a library between nodes", label(plan)));
  RankRun(plan, rank, arenas, call, watch).run();
}

}  // namespace plait
