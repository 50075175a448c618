// Small facts about a plan: names, label, epochs, flags, ops, bytes per path.
#include <algorithm>
#include <limits>

#include "base/text.hpp"
#include "plait/plan.hpp"

namespace plait {

const char* name_of(OpKind kind) {
  constexpr const char* kNames[] = {
#define PLAIT_OP(name, meaning) #name,
#include "plait/ops.def"
#undef PLAIT_OP
  };
  return kNames[static_cast<std::size_t>(kind)];
}

const char* name_of(Space space) {
  constexpr const char* kNames[] = {"input", "output", "scratch", "inbox", "ring"};
  return kNames[static_cast<std::size_t>(space)];
}

const char* name_of(LaneKind kind) {
  constexpr const char* kNames[] = {"copy_engine", "kernel", "cpu"};
  return kNames[static_cast<std::size_t>(kind)];
}

const char* name_of(Library library) { return library == Library::nccl ? "nccl" : "mpi"; }

const char* name_of(SumOrder order) {
  constexpr const char* kNames[] = {"rank_order", "algorithm_order", "tree", "tree_rounded"};
  return kNames[static_cast<std::size_t>(order)];
}

std::string label(const Plan& plan) {
  std::string params;
  for (const auto& [name, value] : plan.params)
    params += text("{}{}={}", params.empty() ? "" : ",", name, value);
  return params.empty() ? plan.strategy : text("{}({})", plan.strategy, params);
}

std::uint32_t epochs_per_call(const Plan& plan) {
  std::uint32_t highest = 0;
  for (const Lane& lane : plan.lanes)
    for (const Op& op : lane.ops)
      if (op.kind == OpKind::signal) highest = std::max(highest, op.value);
  return highest;
}

int flags_per_pair(const Plan& plan) {
  int highest = -1;
  for (const Lane& lane : plan.lanes)
    for (const Op& op : lane.ops)
      if (op.kind == OpKind::signal || op.kind == OpKind::wait)
        highest = std::max(highest, op.flag.index);
  return highest == std::numeric_limits<int>::max()
             ? highest
             : highest + 1;  // plans read from JSON may hold any index
}

std::uint64_t op_count(const Plan& plan) {
  std::uint64_t count = 0;
  for (const Lane& lane : plan.lanes) count += lane.ops.size();
  return count;
}

std::map<std::string, std::uint64_t> bytes_per_path(const Plan& plan) {
  std::map<std::string, std::uint64_t> bytes;
  for (const Lane& lane : plan.lanes)
    for (const Op& op : lane.ops) {
      if (op.kind == OpKind::join && !op.srcs.empty() && op.call >= 0 &&
          op.call < static_cast<int>(plan.calls.size()))
        bytes[name_of(plan.calls[static_cast<std::size_t>(op.call)].library)] += op.srcs[0].bytes;
      if (op.kind != OpKind::copy || op.hop != 0) continue;
      const bool is_local = op.path < 0 || op.path >= static_cast<int>(plan.paths.size());
      bytes[is_local ? "local" : plan.paths[static_cast<std::size_t>(op.path)].name] +=
          op.dst.bytes;
    }
  return bytes;
}

}  // namespace plait
