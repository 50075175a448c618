// A launcher's environment -> rank, ranks and a meeting place that only this job's ranks derive.
// torchrun, Open MPI, PMI (MPICH, Intel MPI) and Slurm, in this order; PLAIT_* on top.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <optional>

#include "base/env.hpp"
#include "base/text.hpp"
#include "comm/choice/descriptor.hpp"
#include "comm/meet/rendezvous.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr int kMostLaunched = 1 << 24;  // which of them a communicator takes is its own to say

struct Launcher {
  const char* name;
  const char* rank;
  const char* ranks;
  const char* local_ranks;  ///< how many of them are on this host; null = it has no such word
  std::array<const char*, 2> local_rank;  ///< the rank's number among those
  /// Words of which each alone tells the launcher's jobs apart; "A+B" = only both together do.
  std::array<const char*, 3> identities;
};

constexpr std::array<Launcher, 4> kLaunchers = {{
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_WORLD_SIZE",
     {"LOCAL_RANK", nullptr},
     {"MASTER_PORT", nullptr, nullptr}},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"OMPI_COMM_WORLD_LOCAL_RANK", nullptr},
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"}},
    {"PMI",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALNRANKS",
     {"MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"},
     {"PMI_JOBID", "PMI_PORT", "PMIX_NAMESPACE"}},
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     nullptr,
     {"SLURM_LOCALID", nullptr},
     {"SLURM_JOB_ID+SLURM_STEP_ID", "SLURM_JOB_ID+SLURM_STEPID", nullptr}},
}};

/// What tells one job of a user from another, whoever launched it. All that is set is used; none
/// differs between ranks of one job on one node.
constexpr std::array<const char*, 12> kJobNames = {"TORCHELASTIC_RUN_ID",
                                                   "TORCHELASTIC_RESTART_COUNT",
                                                   "MASTER_ADDR",
                                                   "MASTER_PORT",
                                                   "PMIX_NAMESPACE",
                                                   "OMPI_MCA_orte_hnp_uri",
                                                   "OMPI_MCA_ess_base_jobid",
                                                   "PMI_JOBID",
                                                   "PMI_PORT",
                                                   "SLURM_JOB_ID",
                                                   "SLURM_STEP_ID",
                                                   "SLURM_STEPID"};

bool is_started_by(const Launcher& launcher) {
  return !foreign_env(launcher.rank).empty() && !foreign_env(launcher.ranks).empty();
}

/// True where the launcher that started this rank names its job. Others' names do not do: an
/// mpirun inside a Slurm job is one of several there.
bool launcher_names_job() {
  for (const Launcher& launcher : kLaunchers) {
    if (!is_started_by(launcher)) continue;
    for (const char* identity : launcher.identities) {
      if (identity == nullptr) continue;
      const std::vector<std::string> words = split(identity, '+');
      if (std::all_of(words.begin(), words.end(),
                      [](const std::string& word) { return !foreign_env(word.c_str()).empty(); }))
        return true;
    }
    return false;
  }
  return false;
}

/// A number that a launcher set; none where it set no such word, or something else.
std::optional<int> number_of(const char* name) {
  const std::string value = name == nullptr ? "" : foreign_env(name);
  if (value.empty() || value.size() > 7) return std::nullopt;
  if (value.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return static_cast<int>(std::stol(value));
}

/// Entry `index` of Slurm's list of tasks by node, such as "4(x2),3".
std::optional<int> entry_of(const std::string& list, int index) {
  for (const std::string& word : split(list, ',')) {
    int tasks = 0, times = 1;
    if (std::sscanf(word.c_str(), "%d(x%d)", &tasks, &times) < 1) return std::nullopt;
    if (index < times) return tasks;
    index -= times;
  }
  return std::nullopt;
}

struct Here {
  int ranks = 0;
  std::string said_by;
};

/// How many tasks of a Slurm step run on this node; a step's words come before those of its job.
std::optional<Here> slurm_tasks_here() {
  const char* const step_nodes = "SLURM_STEP_NUM_NODES";
  const char* nodes_word = number_of(step_nodes) ? step_nodes : "SLURM_NNODES";
  const std::optional<int> nodes = number_of(nodes_word), tasks = number_of("SLURM_NTASKS");
  if (!nodes || !tasks || *nodes < 2) return std::nullopt;
  for (const char* const word : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})
    if (const auto here = entry_of(foreign_env(word), number_of("SLURM_NODEID").value_or(0)))
      return Here{*here, text(word, '=', foreign_env(word))};
  return Here{*tasks - (*nodes - 1), text(nodes_word, '=', *nodes)};  // as many as can be
}

/// How many of a launcher's ranks, `ranks` in all, are on this host, where it says so.
std::optional<Here> ranks_here(int ranks) {
  for (const Launcher& launcher : kLaunchers) {
    if (!is_started_by(launcher)) continue;
    if (number_of(launcher.ranks) != ranks) return std::nullopt;  // others, that it knows not of
    if (const auto local = number_of(launcher.local_ranks))
      return Here{*local, text(launcher.local_ranks, '=', *local)};
    // Others' words are Slurm's job told again where the numbers of ranks are equal.
    return number_of("SLURM_NTASKS") == ranks ? slurm_tasks_here() : std::nullopt;
  }
  return std::nullopt;
}

/// The pid of the nearest process above this one that MPICH's launcher runs on each node; this
/// one's parent where there is none. Nothing in the environment tells that launcher's jobs apart.
int starter() {
  int process = getppid();
  for (int above = process; above > 1;) {
    std::ifstream file(text("/proc/", above, "/stat"));
    std::string line;
    std::getline(file, line);  // pid (name) state parent ...
    const std::size_t begin = line.find('('), end = line.rfind(')');
    if (begin == std::string::npos || end == std::string::npos) break;
    if (line.substr(begin + 1, end - begin - 1) == "hydra_pmi_proxy") return above;
    if (std::sscanf(line.c_str() + end + 1, " %*c %d", &above) != 1) break;
  }
  return process;
}

}  // namespace

std::string rendezvous_folder() {
  const std::string runtime = foreign_env("XDG_RUNTIME_DIR");
  const bool usable = !runtime.empty() && runtime[0] == '/' && is_private_folder(runtime);
  const std::string folder = usable ? runtime + "/plait" : text("/tmp/plait-", geteuid());
  private_folder(folder);
  return folder;
}

std::string derived_rendezvous(const Env& env, int communicator) {
  std::string job = env.rendezvous;
  for (const char* name : kJobNames) job += text('\n', name, '=', foreign_env(name));
  // The last resort, where nothing names the job: ranks that one process started on this node.
  // Not otherwise, since a script around each rank would be a parent of that rank alone.
  if (env.rendezvous.empty() && !launcher_names_job()) job += text("\nparent=", starter());
  return text("unix:", rendezvous_folder(), "/job-", hex(hash_bytes(job.data(), job.size())), "-",
              communicator);
}

/// Whoever has started this rank: a launcher inside another's job says it for its own.
int rank_on_host() {
  for (const Launcher& launcher : kLaunchers)
    for (const char* const name : launcher.local_rank) {
      const std::string value = name == nullptr ? "" : foreign_env(name);
      if (!value.empty()) return static_cast<int>(parse_integer(name, value, 0, 1 << 20));
    }
  return -1;
}

bool launcher_has_one_host() {
  for (const Launcher& launcher : kLaunchers)
    if (is_started_by(launcher))
      return number_of(launcher.local_ranks).value_or(-1) == number_of(launcher.ranks);
  return false;
}

std::string why_not_one_host(const Env& env, int ranks) {
  // PLAIT_RANKS is said by whoever starts the ranks. A launcher's words may then be about something
  // else with as many ranks: the batch step of a Slurm job runs on the first node alone, and has
  // the whole job's.
  if (env.ranks >= 0) return {};
  const std::optional<Here> here = ranks_here(ranks);
  if (!here || here->ranks >= ranks) return {};
  return text("wanted all ranks on one host, at most ", kMostRanks, " of them; found ", here->ranks,
              " of ", ranks, " on this one (", here->said_by,
              "): initialise MPI first (MPI_Init, or from mpi4py import MPI), which then carries "
              "what goes between hosts; or give each host a communicator of its own (PLAIT_RANK, "
              "PLAIT_RANKS); or run a program of NCCL as it is (plait run, docs/nccl.md); if all "
              "ranks are on this host after all, say where they meet: PLAIT_RENDEZVOUS=unix:PATH");
}

CommunicatorOptions options_from_environment() {
  const Env env = read_env();
  CommunicatorOptions options;
  for (const Launcher& launcher : kLaunchers) {
    if (!is_started_by(launcher)) continue;
    options.rank = static_cast<int>(
        parse_integer(launcher.rank, foreign_env(launcher.rank), 0, kMostLaunched - 1));
    options.ranks = static_cast<int>(
        parse_integer(launcher.ranks, foreign_env(launcher.ranks), 1, kMostLaunched));
    break;
  }
  if (env.rank >= 0) options.rank = env.rank;
  if (env.ranks >= 0) options.ranks = env.ranks;
  if (options.rank >= options.ranks)
    throw Error(ErrorCode::invalid_argument,
                text("environment: wanted a rank from 0 to ", options.ranks - 1, ", found ",
                     options.rank, "; set PLAIT_RANK and PLAIT_RANKS"));
  const bool place = env.rendezvous.rfind("unix:", 0) == 0 || env.rendezvous.rfind("fd:", 0) == 0;
  options.rendezvous = place ? env.rendezvous : "";
  options.topology = env.topology;
  options.masks = split(env.without, ',');
  options.arrive_s = env.arrive_s;
  options.deadline_s = env.deadline_s;
  options.device = env.device;
  options.sm_budget = env.sm_budget;
  return options;
}

}  // namespace plait
