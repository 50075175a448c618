// Communicator for Python: takes addresses, and releases the GIL while ranks wait for each other. A
// waiting thread takes the GIL now and then to run signal handlers, so no call may hold the GIL
// while taking a lock of the communicator.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "base/env.hpp"
#include "bind.hpp"
#include "comm/bootstrap/rendezvous.hpp"
#include "comm/gpu/tuning_machine.hpp"
#include "gpu/device/gpu_kind.hpp"
#include "gpu/select/tuning_file.hpp"
#include "gpu/select/tuning_rows.hpp"
#include "plait/communicator.hpp"

using namespace plait;

namespace {

CallOptions call_options(const std::string& strategy,
                         const std::map<std::string, std::int64_t>& params, double scalar,
                         const std::vector<double>& scalars = {}) {
  return {strategy, params, scalar, scalars};
}

void bind_ranked(nb::module_& module) {
  nb::class_<RankedPlan>(module, "RankedPlan", "A proposed plan and its simulation.")
      .def_ro("plan", &RankedPlan::plan)
      .def_prop_ro(
          "timeline",
          [](const RankedPlan& one) -> std::optional<Timeline> {
            if (one.timeline.plan.empty()) return std::nullopt;
            return one.timeline;
          },
          "None if the budget ran out before its simulation.");
  module.def(
      "ranked",
      [](const Topology& topology, const Request& request, std::uint64_t budget_ops) {
        std::vector<Refusal> refusals;
        std::vector<RankedPlan> plans = ranked(topology, request, budget_ops, &refusals);
        std::vector<std::pair<std::string, std::string>> refused;
        for (const Refusal& one : refusals) refused.emplace_back(one.strategy, one.reason);
        return std::pair(std::move(plans), std::move(refused));
      },
      nb::arg("topology"), nb::arg("request"), nb::arg("budget_ops") = kSimulatedOps,
      nb::call_guard<nb::gil_scoped_release>(),
      "(proposals, fastest by simulation first; refusals as (strategy, reason)).");
}

nb::bytes as_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

/// Files of tuning tables, for `plait tune`, `plait plan` and `plait doctor`.
void bind_tuning(nb::module_& module) {
  module.def(
      "tuning_file",
      [](const std::string& machine, int ranks, const std::string& nccl) {
        return cuda::tuning_file(read_env(), {machine, ranks, cuda::cuda_driver_version(), nccl});
      },
      nb::arg("machine"), nb::arg("ranks"), nb::arg("nccl") = "",
      "Path of the tuning table that communicators read, or the drop-in under an NCCL of this "
      "version; empty = none.");
  module.def(
      "autotunes", [] { return read_env().autotune; },
      "True if GPUs without a table are measured at the first start (PLAIT_AUTOTUNE).");
  module.def(
      "tuning_machine",
      [](const Topology& topology, int ranks, bool through_host) {
        std::vector<int> devices = rank_devices(topology);
        devices.resize(std::min(devices.size(), static_cast<std::size_t>(std::max(ranks, 0))));
        return tuning_machine(topology, devices, through_host);
      },
      nb::arg("topology"), nb::arg("ranks"), nb::arg("through_host") = false,
      "The machine of tuning_file() for the first GPUs of a topology.");
  module.def("table_of_calls",
             nb::overload_cast<std::string_view, std::string_view>(&cuda::table_of_calls),
             nb::arg("facts"), nb::arg("calls"),
             "Text of the tuning table of measured calls (src/gpu/select/tuning_rows.hpp).");
  module.def("tuning_text", &cuda::tuning_text, nb::arg("json"),
             "Text of a tuning table as files have it.");
  module.def("merged_tuning", &cuda::merged_tuning, nb::arg("older"), nb::arg("newer"),
             "The newer table with the older one's rows of other calls.");
  module.def("write_tuning", &cuda::write_tuning, nb::arg("file"), nb::arg("json"),
             "Writes a tuning table at once or not at all.");
  module.def(
      "check_tuning", [](const std::string& json) { static_cast<void>(cuda::TuningTable(json)); },
      nb::arg("json"), "Raises ParseError if this is no tuning table.");
  module.def(
      "read_tuning",
      [](const std::string& file) {
        std::string table = cuda::read_tuning(read_env(), file);
        static_cast<void>(cuda::TuningTable(table, file));
        return table;
      },
      nb::arg("file"),
      "Text of a tuning table as communicators read the file; '' = no file. Raises "
      "FileError, "
      "AccessError or ParseError if communicators refuse the file.");
  module.def("beats_nccl", &cuda::beats_nccl, nb::arg("us"), nb::arg("nccl_us"),
             "Whether plait serves a call by its tuning table; None if NCCL was not measured.");
}

void bind_options(nb::module_& module) {
  nb::class_<CommunicatorOptions>(module, "CommunicatorOptions", "How a communicator is made.")
      .def(nb::init<>())
      .def_rw("rank", &CommunicatorOptions::rank)
      .def_rw("ranks", &CommunicatorOptions::ranks)
      .def_rw("rendezvous", &CommunicatorOptions::rendezvous)
      .def_rw("unique_id", &CommunicatorOptions::unique_id)
      .def_rw("topology", &CommunicatorOptions::topology)
      .def_rw("masks", &CommunicatorOptions::masks)
      .def_rw("arrive_s", &CommunicatorOptions::arrive_s)
      .def_rw("deadline_s", &CommunicatorOptions::deadline_s)
      .def_rw("device", &CommunicatorOptions::device)
      .def_rw("sm_budget", &CommunicatorOptions::sm_budget)
      .def_rw("overlap_compute", &CommunicatorOptions::overlap_compute)
      .def_rw("messages", &CommunicatorOptions::messages)
      .def_rw("beside_computing", &CommunicatorOptions::overlap_compute)  // former name
      .def_rw("bitwise", &CommunicatorOptions::bitwise)
      .def_rw("sum_order", &CommunicatorOptions::sum_order)
      .def_rw("graph_mixing", &CommunicatorOptions::graph_mixing);
  module.def("options_from_environment", &options_from_environment);
  module.def("default_options", [] {
    CommunicatorOptions options;
    const Env env = read_env();
    options.arrive_s = env.arrive_s;
    options.deadline_s = env.deadline_s;
    return options;
  });
  module.def("rendezvous_folder", &rendezvous_folder,
             "This user's folder for rendezvous sockets; makes it if missing.");
  module.def(
      "chosen_rendezvous_folder",
      [] {
        const RendezvousFolder folder = choose_rendezvous_folder();
        return std::pair(folder.path, folder.why_not_runtime);
      },
      "(rendezvous folder, reason why it is not in a set XDG_RUNTIME_DIR); makes nothing.");
  module.def(
      "check_environment", [] { static_cast<void>(read_env()); },
      "Raises InvalidArgumentError if a PLAIT_* variable is unknown or out of range.");
  module.def("unique_id", &unique_id,
             "Text that identifies a new communicator: made on one rank, sent by the program to "
             "the others, passed to plait.init(unique_id=) on all.");
  nb::class_<Counters>(module, "Counters", "Counts of calls, and bytes sent by path.")
      .def_ro("calls", &Counters::calls)
      .def_ro("calls_of", &Counters::calls_of)
      .def_ro("bytes_of_path", &Counters::bytes_of_path);
}

using release = nb::call_guard<nb::gil_scoped_release>;

using Counts = std::vector<std::uint64_t>;

/// Calls with own counts: `sends` and `gets` are elements by rank.
void bind_own_counts(nb::class_<Communicator>& type) {
  type.def(
          "run_by_own_counts",
          [](Communicator& comm, const Counts& sends, const Counts& gets, const Request& request,
             std::uintptr_t input, std::uintptr_t output, const std::string& strategy,
             const std::map<std::string, std::int64_t>& params, double scalar) {
            nb::gil_scoped_release unlocked;
            comm.run(request, {sends, gets}, reinterpret_cast<const void*>(input),
                     reinterpret_cast<void*>(output), call_options(strategy, params, scalar));
          },
          nb::arg("sends"), nb::arg("gets"), nb::arg("request"), nb::arg("input"),
          nb::arg("output"), nb::arg("strategy") = "",
          nb::arg("params") = std::map<std::string, std::int64_t>{}, nb::arg("scalar") = 1.0)
      .def(
          "enqueue_by_own_counts",
          [](Communicator& comm, const Counts& sends, const Counts& gets, const Request& request,
             std::uintptr_t input, std::uintptr_t output, std::uintptr_t stream,
             const std::string& strategy, const std::map<std::string, std::int64_t>& params,
             const std::vector<double>& scalars) {
            nb::gil_scoped_release unlocked;
            comm.enqueue(request, {sends, gets}, reinterpret_cast<const void*>(input),
                         reinterpret_cast<void*>(output), reinterpret_cast<void*>(stream),
                         call_options(strategy, params, 1.0, scalars));
          },
          nb::arg("sends"), nb::arg("gets"), nb::arg("request"), nb::arg("input"),
          nb::arg("output"), nb::arg("stream") = 0, nb::arg("strategy") = "",
          nb::arg("params") = std::map<std::string, std::int64_t>{},
          nb::arg("scalars") = std::vector<double>{});
}

/// Functions that inspect or abort a communicator, from any thread.
void bind_looks(nb::class_<Communicator>& type) {
  type.def(
          "plan_for",
          [](const Communicator& comm, const Request& request, const std::string& strategy,
             const std::map<std::string, std::int64_t>& params) {
            return comm.plan_for(request, call_options(strategy, params, 1.0));
          },
          nb::arg("request"), nb::arg("strategy") = "",
          nb::arg("params") = std::map<std::string, std::int64_t>{}, release())
      .def("explain", &Communicator::explain, nb::arg("request"), release())
      .def("counters", &Communicator::counters, release())
      .def("set_host_deadlines", &Communicator::set_host_deadlines, nb::arg("arrive_s"),
           nb::arg("deadline_s"))
      .def("abort", &Communicator::abort, release());
}

std::unique_ptr<Communicator> create(CommunicatorOptions options, const nb::object& why_stop) {
  const auto ask = std::make_shared<std::function<void()>>();
  if (!why_stop.is_none())
    *ask = [&why_stop] {
      std::string why;
      {
        const nb::gil_scoped_acquire locked;
        why = nb::cast<std::string>(why_stop());
      }
      if (!why.empty()) throw Error(ErrorCode::aborted, why);
    };
  options.interrupt = [ask] {
    check_signals();
    if (*ask) (*ask)();
  };
  const nb::gil_scoped_release unlocked;
  std::unique_ptr<Communicator> made = Communicator::create(options);
  *ask = nullptr;  // the communicator keeps the interrupt, but `why_stop` ends here
  return made;
}

void bind_device(nb::class_<Communicator>& type) {
  type.def(
          "enqueue",
          [](Communicator& comm, const Request& request, std::uintptr_t input,
             std::uintptr_t output, std::uintptr_t stream, const std::string& strategy,
             const std::map<std::string, std::int64_t>& params,
             const std::vector<double>& scalars) {
            nb::gil_scoped_release unlocked;
            comm.enqueue(request, reinterpret_cast<const void*>(input),
                         reinterpret_cast<void*>(output), reinterpret_cast<void*>(stream),
                         call_options(strategy, params, 1.0, scalars));
          },
          nb::arg("request"), nb::arg("input"), nb::arg("output"), nb::arg("stream") = 0,
          nb::arg("strategy") = "", nb::arg("params") = std::map<std::string, std::int64_t>{},
          nb::arg("scalars") = std::vector<double>{})
      .def("adopt_device", &Communicator::adopt_device, nb::arg("device"), release())
      .def("suspend", &Communicator::suspend, release())
      .def("resume", &Communicator::resume, release())
      .def("gpu_memory",
           [](const Communicator& comm) {
             const GpuMemory held = comm.gpu_memory();
             return std::pair(held.staying, held.suspendable);
           })
      .def("check", &Communicator::check, release())
      .def("tuning_file", &Communicator::tuning_file, nb::arg("nccl") = "")
      .def_prop_ro("device", &Communicator::device)
      .def_prop_ro("transport", &Communicator::transport)
      .def_prop_ro("device_topology",
                   [](const Communicator& comm) { return comm.device_topology(); });
}

}  // namespace

void bind_rms_norm(nb::module_& module, nb::class_<Communicator>& type);
void bind_transport(nb::module_& module);

void bind_communicator(nb::module_& module) {
  bind_transport(module);
  module.attr("MOST_RANKS") = kMostRanks;
  bind_options(module);
  bind_tuning(module);
  bind_ranked(module);
  nb::class_<Communicator> type(module, "Communicator", "Ranks that run collectives together.");
  bind_device(type);
  bind_own_counts(type);
  type.def_static(
          "create", &create, nb::arg("options"), nb::arg("why_stop") = nb::none(),
          "why_stop(): called every 0.1 s while the ranks set up; a text ends the set-up with "
          "AbortedError, an empty one does not.")
      .def_prop_ro("rank", &Communicator::rank)
      .def_prop_ro("ranks", &Communicator::ranks)
      .def_prop_ro("topology", [](const Communicator& comm) { return comm.topology(); })
      .def(
          "run_request",
          [](Communicator& comm, const Request& request, std::uintptr_t input,
             std::uintptr_t output, const std::string& strategy,
             const std::map<std::string, std::int64_t>& params, double scalar) {
            nb::gil_scoped_release unlocked;
            comm.run(request, reinterpret_cast<const void*>(input), reinterpret_cast<void*>(output),
                     call_options(strategy, params, scalar));
          },
          nb::arg("request"), nb::arg("input"), nb::arg("output"), nb::arg("strategy") = "",
          nb::arg("params") = std::map<std::string, std::int64_t>{}, nb::arg("scalar") = 1.0)
      .def(
          "run_plan",
          [](Communicator& comm, const Plan& plan, std::uintptr_t input, std::uintptr_t output,
             double scalar) {
            nb::gil_scoped_release unlocked;
            comm.run(plan, reinterpret_cast<const void*>(input), reinterpret_cast<void*>(output),
                     scalar);
          },
          nb::arg("plan"), nb::arg("input"), nb::arg("output"), nb::arg("scalar") = 1.0)
      .def(
          "refuse",
          [](Communicator& comm, int code, const std::string& reason) {
            comm.refuse(static_cast<ErrorCode>(code), reason);
            throw_pending_interrupt();
          },
          nb::arg("code"), nb::arg("reason"), release())
      .def("pair", &Communicator::pair, nb::arg("peer"), nb::rv_policy::reference_internal,
           release())
      .def("barrier", &Communicator::barrier, release())
      .def(
          "exchange",
          [](Communicator& comm, const nb::bytes& mine) {
            const std::string sent(mine.c_str(), mine.size());
            std::vector<std::string> received;
            {
              nb::gil_scoped_release unlocked;
              received = comm.exchange(sent);
            }
            nb::list all;
            for (const std::string& one : received) all.append(as_bytes(one));
            return all;
          },
          nb::arg("mine"));
  bind_looks(type);
  bind_rms_norm(module, type);
}
