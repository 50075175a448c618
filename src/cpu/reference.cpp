// The reference executor, which defines what plans mean: runs a plan in one thread over plain
// memory.
#include "cpu/reference.hpp"

#include <cstddef>
#include <cstring>
#include <map>

#include "base/text.hpp"
#include "cpu/reference_reduce.hpp"
#include "plait/builder.hpp"
#include "plait/error.hpp"
#include "plan/library_call.hpp"
#include "plan/origins.hpp"

namespace plait {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<Bytes> memories(const std::vector<std::uint64_t>& sizes) {
  std::vector<Bytes> made;
  for (const std::uint64_t size : sizes) made.emplace_back(size, std::byte{0xa5});
  return made;
}

class ReferenceRun {
 public:
  ReferenceRun(const Plan& plan, const std::vector<const void*>& inputs,
               const std::vector<void*>& outputs, const std::vector<double>& scalars)
      : plan_(plan),
        inputs_(inputs),
        outputs_(outputs),
        scalars_(scalars),
        scratch_(memories(plan.scratch_bytes)),
        inbox_(memories(plan.inbox_bytes)),
        ring_(memories(plan.ring_bytes)),
        next_(plan.lanes.size(), 0),
        given_(plan.calls.size()) {
    if (plan.request.op == ReduceOp::premul_sum && !scalars.empty()) origins_ = origins_of(plan);
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t lane = 0; lane < next_.size(); ++lane) moved = step(lane) || moved;
    }
    for (std::size_t lane = 0; lane < next_.size(); ++lane)
      if (next_[lane] < plan_.lanes[lane].ops.size()) give_up(lane);
  }

 private:
  // Runs an op of a lane; returns false if the lane has ended or waits.
  bool step(std::size_t lane) {
    const std::vector<Op>& ops = plan_.lanes[lane].ops;
    if (next_[lane] == ops.size()) return false;
    const Op& op = ops[next_[lane]];
    switch (op.kind) {
      case OpKind::wait:
        if (flags_[op.flag] < op.value) return false;
        break;
      case OpKind::signal: flags_[op.flag] = op.value; break;
      case OpKind::copy:
        if (op.dst.bytes != 0) std::memmove(at(op.dst), at(op.srcs.at(0)), op.dst.bytes);
        break;
      case OpKind::reduce: reduce(op, lane); break;
      case OpKind::join:
        if (!join(op, lane)) return false;
        break;
    }
    ++next_[lane];
    return true;
  }

  void reduce(const Op& op, std::size_t lane) {
    std::vector<const void*> srcs;
    for (const Region& src : op.srcs) srcs.push_back(at(src));
    std::vector<double> scales;
    if (!origins_.empty()) scales = scales_of(origins_[lane][next_[lane]], scalars_);
    const Request& request = plan_.request;
    reduce_reference(request.type, request.op, at(op.dst), srcs,
                     op.dst.bytes / bytes_of(request.type), request.ranks, op.finish, scales,
                     plan_.sum_order);
  }

  // Each member stores its source; when all have, each gets its output. Returns false until then.
  bool join(const Op& op, std::size_t lane) {
    const auto index = static_cast<std::size_t>(op.call);
    const LibraryCall& call = plan_.calls.at(index);
    const Request request = request_of(plan_, call);
    std::map<int, Bytes>& given = given_[index];
    const int member = member_of(call, plan_.lanes[lane].rank);
    if (!given.contains(member)) {
      Bytes& mine = given[member];
      for (const Region& src : op.srcs) mine.assign(at(src), at(src) + src.bytes);
    }
    if (given.size() < call.ranks.size()) return false;
    for (const Given& one : given_by(request, member)) {
      std::vector<const void*> srcs;
      for (const auto& [other, bytes] : given)
        if (one.from < 0 || one.from == other) srcs.push_back(bytes.data() + one.origin);
      std::byte* const dst = at(slice(op.dst, {one.lo, one.hi - one.lo}));
      if (one.from >= 0)
        std::memcpy(dst, srcs[0], one.hi - one.lo);
      else
        reduce_reference(request.type, request.op, dst, srcs,
                         (one.hi - one.lo) / bytes_of(request.type), plan_.request.ranks, op.finish,
                         {});
    }
    return true;
  }

  std::byte* at(const Region& region) {
    const auto place = static_cast<std::size_t>(region.rank);
    if (region.space == Space::input)
      return inside(region, static_cast<std::byte*>(const_cast<void*>(inputs_.at(place))),
                    input_bytes(plan_.request, region.rank));
    if (region.space == Space::output)
      return inside(region, static_cast<std::byte*>(outputs_.at(place)),
                    output_bytes(plan_.request, region.rank));
    Bytes& memory = (region.space == Space::scratch ? scratch_
                     : region.space == Space::inbox ? inbox_
                                                    : ring_)
                        .at(place);
    return inside(region, memory.data(), memory.size());
  }

  static std::byte* inside(const Region& region, std::byte* base, std::uint64_t size) {
    if (region.offset > size || region.bytes > size - region.offset)
      throw Error(ErrorCode::invalid_argument,
                  text("region {} leaves its space of {} bytes", print(region), size));
    return base + region.offset;
  }

  [[noreturn]] void give_up(std::size_t lane) {
    const Lane& stuck = plan_.lanes[lane];
    const Op& op = stuck.ops[next_[lane]];
    if (op.kind == OpKind::join)
      throw Error(
          ErrorCode::timeout,
          text("no lane can go on: rank {} waits for all to join call {}", stuck.rank, op.call));
    throw Error(ErrorCode::timeout,
                text("no lane can go on: rank {} waits in lane {} op {} for flag (owner {}, writer "
                     "{}, index {}) >= {}, found {}; verify the plan",
                     stuck.rank, stuck.name, next_[lane], op.flag.owner, op.flag.writer,
                     op.flag.index, op.value, flags_[op.flag]));
  }

  const Plan& plan_;
  const std::vector<const void*>& inputs_;
  const std::vector<void*>& outputs_;
  const std::vector<double>& scalars_;
  std::vector<Bytes> scratch_, inbox_, ring_;  // by place
  std::vector<std::size_t> next_;              // by lane: index of the next op
  std::map<Flag, std::uint32_t> flags_;
  std::vector<std::map<int, Bytes>> given_;  // by call and member: the source
  Origins origins_;
};

}  // namespace

void run_reference(const Plan& plan, const std::vector<const void*>& inputs,
                   const std::vector<void*>& outputs, const std::vector<double>& scalars) {
  const auto ranks = static_cast<std::size_t>(plan.request.ranks);
  if (inputs.size() != ranks || outputs.size() != ranks)
    throw Error(ErrorCode::invalid_argument, text("wanted {} inputs and outputs, found {} and {}",
                                                  ranks, inputs.size(), outputs.size()));
  if (!scalars.empty() && scalars.size() != ranks)
    throw Error(ErrorCode::invalid_argument,
                text("wanted {} scalars or none, found {}", ranks, scalars.size()));
  ReferenceRun(plan, inputs, outputs, scalars).run();
}

}  // namespace plait
