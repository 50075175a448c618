// Small machines and plans for tests of the simulator.
#pragma once
#include <string>

#include "plait/plan.hpp"
#include "plait/topology.hpp"

namespace plait::test {

inline constexpr std::uint64_t kMega = 1000000;

/// GPUs behind a switch: a port in and out each, all pairs linked; fixed costs all zero.
inline Topology switched(int gpus, double port_gb_per_s, double link_gb_per_s) {
  Topology topology;
  topology.name = "switched";
  for (int i = 0; i < gpus; ++i) {
    topology.devices.push_back({DeviceKind::gpu, i, 0, 0, "GPU", "", ""});
    topology.resources.push_back({"gpu" + std::to_string(i) + ".nvlink.out", port_gb_per_s});
    topology.resources.push_back({"gpu" + std::to_string(i) + ".nvlink.in", port_gb_per_s});
  }
  topology.devices.push_back({DeviceKind::host, 0, 0, 0, "host", "", ""});
  topology.resources.push_back({"numa0.dram", 100.0});
  const int dram = static_cast<int>(topology.resources.size()) - 1;
  for (int i = 0; i < gpus; ++i) {
    for (int j = 0; j < gpus; ++j)
      if (i != j)
        topology.links.push_back(
            {LinkKind::nvlink, i, j, 1, link_gb_per_s, 0.0, {2 * i, 2 * j + 1}});
    topology.links.push_back({LinkKind::pcie, i, gpus, 16, 25.0, 0.0, {dram}});
    topology.links.push_back({LinkKind::pcie, gpus, i, 16, 25.0, 0.0, {dram}});
  }
  for (const char* key : {"copy_launch_ns", "kernel_launch_ns", "host_call_ns", "signal_ns",
                          "stream_signal_ns", "cpu_signal_ns"})
    topology.parameters[key] = {0.0, "test"};
  topology.parameters["gpu_memory_gb_per_s"] = {1000.0, "test"};
  topology.parameters["gpu_reduce_gb_per_s"] = {600.0, "test"};
  topology.parameters["cpu_reduce_gb_per_s"] = {30.0, "test"};
  return topology;
}

inline Request all_reduce(int ranks, std::uint64_t bytes) {
  Request request;
  request.ranks = ranks;
  request.count = bytes / 4;
  for (int i = 0; i < ranks; ++i) request.devices.push_back(i);
  return request;
}

/// A plan without lanes.
inline Plan empty_plan(const Request& request) {
  Plan plan;
  plan.request = request;
  plan.strategy = "test";
  plan.scratch_bytes.assign(static_cast<std::size_t>(request.ranks), 1ULL << 40);
  plan.ring_bytes.assign(static_cast<std::size_t>(request.ranks), 1ULL << 40);
  return plan;
}

inline int path_over(Plan& plan, const Topology& topology, int src, int dst) {
  Path path;
  path.kind = PathKind::nvlink;
  path.devices = {src, dst};
  for (std::size_t i = 0; i < topology.links.size(); ++i)
    if (topology.links[i].src == src && topology.links[i].dst == dst)
      path.links = {static_cast<int>(i)};
  path.name = "nvlink:" + std::to_string(src) + ">" + std::to_string(dst);
  for (std::size_t i = 0; i < plan.paths.size(); ++i)
    if (plan.paths[i] == path) return static_cast<int>(i);
  plan.paths.push_back(path);
  return static_cast<int>(plan.paths.size()) - 1;
}

/// A copy src rank's input -> dst rank's scratch over the direct link.
inline Op push(Plan& plan, const Topology& topology, int src, int dst, std::uint64_t bytes,
               std::uint64_t offset = 0) {
  Op op;
  op.kind = OpKind::copy;
  op.dst = {Space::scratch, dst, offset, bytes};
  op.srcs = {{Space::input, src, offset, bytes}};
  op.path = path_over(plan, topology, src, dst);
  return op;
}

inline Op reduce_local(int rank, int sources, std::uint64_t bytes) {
  Op op;
  op.kind = OpKind::reduce;
  op.dst = {Space::output, rank, 0, bytes};
  for (int i = 0; i < sources; ++i)
    op.srcs.push_back({Space::scratch, rank, static_cast<std::uint64_t>(i) * bytes, bytes});
  return op;
}

inline Op flag_op(OpKind kind, int owner, int writer, int index, std::uint32_t value) {
  Op op;
  op.kind = kind;
  op.flag = {owner, writer, index};
  op.value = value;
  return op;
}

inline Lane lane_of(int rank, LaneKind kind, const std::string& name, std::vector<Op> ops) {
  return {rank, kind, name, std::move(ops)};
}

}  // namespace plait::test
