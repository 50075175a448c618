// Agrees on the GPUs of a machine's ranks. Each step is an exchange of records. A rank with an
// error throws, and the exchange reports the error to the peers.
#include "comm/gpu/gpu_group.hpp"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>

#include "base/error_reason.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/gpu/tuning_machine.hpp"
#include "driver/cuda/api.hpp"
#include "gpu/arena/arena.hpp"
#include "gpu/device/gpu_kind.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr const char* kAsSet = "PLAIT_THROUGH_HOST=1 takes it for all GPUs";

/// Removes NVLinks from the topology, except within islands.
void remove_nvlinks(GpuGroup& group) {
  std::vector<std::string> links;
  const std::vector<int> devices = group.devices_of_ranks();
  const Topology& topology = group.topology;
  for (std::size_t one = 0; one < devices.size(); ++one)
    for (std::size_t other = 0; other < devices.size(); ++other) {
      const int link = find_link(topology, devices[one], devices[other]);
      if (link < 0 || topology.links[static_cast<std::size_t>(link)].kind != LinkKind::nvlink)
        continue;
      if (group.are_in_one_island(static_cast<int>(one), static_cast<int>(other))) continue;
      links.push_back(text("nvlink:{}>{}", device_label(topology, devices[one]),
                           device_label(topology, devices[other])));
    }
  if (links.empty()) return;
  const auto parameters = group.topology.parameters;
  group.topology = without(group.topology, links);
  group.topology.parameters = parameters;  // The links are missing, and not left out by masks.
}

}  // namespace

std::vector<int> GpuGroup::devices_of_ranks() const {
  std::vector<int> found = devices.empty() ? rank_devices(topology) : devices;
  found.resize(std::min(found.size(), ordinals.size()));
  return found;
}

bool GpuGroup::are_in_one_island(int one, int other) const {
  const auto first = static_cast<std::size_t>(one), second = static_cast<std::size_t>(other);
  return std::max(first, second) < islands.size() && islands[first] == islands[second];
}

GpuGroup bootstrap_gpus(const cuda::Exchange& exchange, int rank, int ranks, int ordinal) {
  GpuGroup group;
  group.rank = rank;
  group.ranks = ranks;
  std::vector<std::string> kinds;
  std::set<std::string> processes;
  for (const std::string& record :
       exchange(pack({text("{}", ordinal), cuda::uuid_of(ordinal), cuda::gpu_kind(ordinal),
                      text("{}", getpid())}))) {
    const std::vector<std::string> parts = unpack(record);
    if (parts.size() != 4)
      throw Error(ErrorCode::parse_error,
                  "GPU set-up record of a rank is malformed: wanted 4 fields");
    group.ordinals.push_back(static_cast<int>(parse_integer("ordinal", parts[0], 0, 1 << 20)));
    const auto same = std::find(group.uuids.begin(), group.uuids.end(), parts[1]);
    // Kernels of ranks that share a GPU would wait for each other.
    if (same != group.uuids.end())
      throw AgreedError(ErrorCode::invalid_argument,
                        text("ranks {} and {} have the same GPU: give each rank one of its own",
                             same - group.uuids.begin(), group.uuids.size()));
    group.uuids.push_back(parts[1]);
    kinds.push_back(parts[2]);
    processes.insert(parts[3]);
  }
  group.in_processes = processes.size() == kinds.size();
  group.kind = cuda::common_kind(kinds);
  return group;
}

std::string why_no_direct_access(const GpuGroup& group, const Env& env,
                                 const cuda::Measure& distance, const cuda::Addresses& addresses) {
  if (group.ranks == 1) return "";
  const std::string why = cuda::why_no_direct_access(cuda::direct_access(), group.rank, group.uuids,
                                                     distance, addresses);
  if (!why.empty() && env.through_host == AutoFlag::off)
    throw Error(
        ErrorCode::unsupported,
        text("{}, which plait needs; PLAIT_THROUGH_HOST=auto takes the way through host memory",
             why));
  return why.empty() && env.through_host == AutoFlag::on ? kAsSet : why;
}

std::string direct_peers(const GpuGroup& group, const Env& env, const cuda::Measure& distance,
                         const cuda::Addresses& addresses) {
  if (group.ranks <= 2 || env.through_host == AutoFlag::on) return "";
  return cuda::direct_peers(cuda::direct_access(), group.rank, group.uuids, distance, addresses);
}

void make_with_arenas(const GpuGroup& group, const cuda::Exchange& exchange, const Env& env,
                      const std::string& why_no_direct_access, const std::string& direct,
                      const std::function<void(GpuGroup)>& make) {
  const auto make_for = [&](const std::string& why, bool is_found, bool is_broken) {
    GpuGroup agreed = group;
    agreed.has_broken_paths = is_broken;
    agree_on_arenas(agreed, exchange, why, is_found ? "" : direct);
    agreed.nccl_goes_direct |= is_found;
    make(std::move(agreed));
  };
  try {
    make_for(why_no_direct_access, false, false);
  } catch (const cuda::NoDirectAccess& found) {
    if (env.through_host == AutoFlag::off) throw;
    if (group.rank == 0)
      log(LogLevel::warn, 0,
          text("GPUs of {} ranks communicate through host memory: {}", group.ranks,
               reason_of(found)));
    make_for(reason_of(found), true, found.is_broken());
  }
}

void agree_on_arenas(GpuGroup& group, const cuda::Exchange& exchange,
                     const std::string& why_no_direct_access, const std::string& direct) {
  bool holds_for_nccl = false;
  std::vector<std::string> all_direct;
  for (const std::string& record : exchange(pack({why_no_direct_access, direct}))) {
    const std::vector<std::string> parts = unpack(record);
    if (parts.size() != 2) throw Error(ErrorCode::parse_error, "a rank sent no reason");
    const std::string& reason = parts[0];
    if (group.through_host.empty()) group.through_host = reason;
    holds_for_nccl |= !reason.empty() && reason != kAsSet;
    all_direct.push_back(parts[1]);
  }
  group.nccl_goes_direct = !group.through_host.empty() && !holds_for_nccl;
  if (group.through_host.empty()) return;
  log(LogLevel::info, group.rank, text("through host memory: {}", group.through_host));
  if (!group.reach.host)
    throw AgreedError(ErrorCode::invalid_argument,
                      text("{}, and masks leave no way through host memory", group.through_host));
  if (!group.kind.empty()) group.kind += ", through host memory";
  group.islands = islands_of(all_direct);
  if (!group.tuning_machine.empty())
    group.tuning_machine = tuning_machine(group.topology, group.devices_of_ranks(), true);
  remove_nvlinks(group);
  group.reach.why_no_kernels.clear();
}

void learn_topology(GpuGroup& group, const cuda::Exchange& exchange,
                    const std::function<Topology()>& look, const std::vector<std::string>& masks) {
  std::string json, reason;
  if (group.rank == 0) {
    const std::optional<Error> failure = attempt([&] {
      const Topology found = look();
      json = to_json(masks.empty() ? found : without(found, masks));
    });
    if (failure) reason = reason_of(*failure);
  }
  const std::vector<std::string> parts = unpack(cuda::of_rank_0(exchange, pack({json, reason})));
  if (parts.size() != 2) throw Error(ErrorCode::parse_error, "rank 0 sent no topology");
  if (!parts[0].empty()) group.topology = topology_from_json(parts[0]);
  if (parts[0].empty())
    group.why_no_topology = text("the machine's links are not known: {}", parts[1]);
  std::vector<int> devices;
  for (std::size_t rank = 0; rank < group.ordinals.size(); ++rank) {
    const int device = device_of_gpu(group.topology, group.uuids[rank], group.ordinals[rank]);
    if (device >= 0 && std::find(devices.begin(), devices.end(), device) == devices.end())
      devices.push_back(device);
  }
  // Ordinals depend on the GPUs visible to each process. If the topology has no uuids and lacks the
  // ordinals, ranks take the topology's GPUs in order.
  if (devices.size() == group.ordinals.size()) group.devices = devices;
  if (group.why_no_topology.empty() && rank_devices(group.topology).size() < group.ordinals.size())
    group.why_no_topology = text("topology {} has {} devices for {} ranks", group.topology.name,
                                 rank_devices(group.topology).size(), group.ordinals.size());
  if (!group.topology.devices.empty())
    group.tuning_machine = tuning_machine(group.topology, group.devices_of_ranks());
  if (masks.empty()) return;
  if (!group.why_no_topology.empty())
    throw AgreedError(ErrorCode::invalid_argument,
                      text("masks of GPUs: {}", group.why_no_topology));
  group.reach = reach_of(group.topology, group.devices_of_ranks(), masks);
}

bool is_measured_beside_nccl(const GpuGroup& group) {
  return cuda::is_measured(group.kind, group.ranks) && !group.nccl_goes_direct;
}

void require_measured(const GpuGroup& group, const std::string& why_no_table) {
  if (is_measured_beside_nccl(group)) return;
  const std::vector<cuda::TuningRow>& rows = group.tuning.rows();
  if (group.tuning.has(cuda::RowUse::overlap_compute, group.ranks)) {
    const bool is_ahead = std::any_of(rows.begin(), rows.end(), [](const cuda::TuningRow& row) {
      return row.ahead_of_nccl == true;
    });
    if (is_ahead || group.tuning.messages_are_ahead(group.ranks) == true) return;
    throw Error(ErrorCode::unsupported, "NCCL was faster at every size measured on this machine");
  }
  throw Error(ErrorCode::unsupported,
              text("plait was measured beside NCCL on {}, not on {}{}; {}", cuda::measured_gpus(),
                   group.kind.empty() ? "unlike GPUs" : text("{} of {}", group.ranks, group.kind),
                   group.through_host.empty() ? "" : text(" ({})", group.through_host),
                   why_no_table.empty() ? "`plait tune` measures this machine" : why_no_table));
}

Topology discovered() {
  static std::mutex guard;
  static std::optional<Topology> found;
  const std::lock_guard<std::mutex> hold(guard);
  if (!found) found = discover();
  return *found;
}

}  // namespace plait
