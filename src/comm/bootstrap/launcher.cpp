// Derives rank, ranks and a rendezvous address of this job from a launcher's environment: torchrun
// (and plait launch, with the same variables), Open MPI, PMI (MPICH, Intel MPI) and Slurm. With
// variables of several launchers, the launcher that started this process counts. PLAIT_* variables
// override all.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

#include "base/env.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/ancestors.hpp"
#include "comm/bootstrap/rendezvous.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr int kMostLaunched = 1 << 24;  // only a bound: the communicator checks the number

struct Launcher {
  const char* name;
  const char* rank;
  const char* ranks;
  const char* local_ranks;  ///< variable: ranks on this host; null = the launcher sets none
  std::array<const char*, 2> local_rank;  ///< variable: the rank's number on this host
  /// Each variable identifies a job of this launcher; "A+B" = only both together.
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

/// Variables that identify a job of a user, whatever the launcher. All that are set are used. None
/// differs between ranks of a job.
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

/// Address of Open MPI's daemon on this node, the same for all ranks of a job on a node. Open MPI 5
/// makes PMIX_NAMESPACE of the host's name and a pid, and two containers may have equal names and
/// pids.
constexpr std::array<const char*, 4> kDaemons = {"PMIX_SERVER_URI41", "PMIX_SERVER_URI4",
                                                 "PMIX_SERVER_URI3", "PMIX_SERVER_URI2"};

bool is_set(const char* name) { return name != nullptr && !foreign_env(name).empty(); }

bool has_variables(const Launcher& launcher) {
  return is_set(launcher.rank) && is_set(launcher.ranks);
}

bool agree(const Launcher& one, const Launcher& other) {
  return foreign_env(one.rank) == foreign_env(other.rank) &&
         foreign_env(one.ranks) == foreign_env(other.ranks);
}

/// Returns how near to this process the launcher's variables were set: 0 = by the process itself.
int depth_of(const Launcher& launcher, const Ancestors& ancestors) {
  int nearest = Ancestors::kUnseen;
  for (const char* const name :
       {launcher.rank, launcher.ranks, launcher.local_ranks, launcher.local_rank[0]})
    if (is_set(name)) nearest = std::min(nearest, ancestors.depth(name));
  return nearest;
}

/// True if `launcher` cannot have started this process when `other`'s variables were set by the
/// same process. mpirun runs inside a Slurm job, never around a job. Operators and shells set RANK
/// and WORLD_SIZE alone, while torchrun and plait launch also set LOCAL_WORLD_SIZE.
bool yields_to(const Launcher& launcher, const Launcher& other) {
  const std::string name = launcher.name, torchrun = kLaunchers[0].name, slurm = kLaunchers[3].name;
  if (name == other.name) return false;
  return name == slurm || (name == torchrun && other.name != slurm && !is_set("LOCAL_WORLD_SIZE"));
}

std::string description_of(const Launcher& launcher) {
  return text("{} says rank {} of {} ({}, {})", launcher.name, foreign_env(launcher.rank),
              foreign_env(launcher.ranks), launcher.rank, launcher.ranks);
}

struct StartedBy {
  const Launcher* launcher = nullptr;  ///< null = no launcher
  std::string contradiction;  ///< error text if variables set together disagree; else empty
};

/// Returns the launcher that started this process: among contradicting launchers, the nearest
/// ancestor.
StartedBy started_by() {
  std::vector<const Launcher*> found;
  for (const Launcher& launcher : kLaunchers)
    if (has_variables(launcher)) found.push_back(&launcher);
  if (found.empty()) return {};
  const auto all_agree = [&] {
    return std::all_of(found.begin(), found.end(),
                       [&](const Launcher* one) { return agree(*one, *found.front()); });
  };
  if (all_agree()) return {found.front(), ""};
  const Ancestors ancestors;
  int nearest = Ancestors::kUnseen;
  for (const Launcher* one : found) nearest = std::min(nearest, depth_of(*one, ancestors));
  std::erase_if(found, [&](const Launcher* one) { return depth_of(*one, ancestors) > nearest; });
  const std::vector<const Launcher*> together = found;
  std::erase_if(found, [&](const Launcher* one) {
    return std::any_of(together.begin(), together.end(),
                       [&](const Launcher* other) { return yields_to(*one, *other); });
  });
  if (all_agree()) return {found.front(), ""};
  const auto other = std::find_if(found.begin(), found.end(), [&](const Launcher* one) {
    return !agree(*one, *found.front());
  });
  return {
      found.front(),
      text(
          "environment: {}, {}, which contradict each other, and either may have started this "
          "process; unset the variables of the one that did not, or set PLAIT_RANK and PLAIT_RANKS",
          description_of(*found.front()), description_of(**other))};
}

/// True if the launcher that started this rank names its job. Another launcher's name is not
/// enough: a Slurm job may hold several mpirun jobs.
bool launcher_names_job() {
  const Launcher* const launcher = started_by().launcher;
  if (launcher == nullptr) return false;
  for (const char* identity : launcher->identities) {
    if (identity == nullptr) continue;
    const std::vector<std::string> variables = split(identity, '+');
    if (std::all_of(variables.begin(), variables.end(),
                    [](const std::string& variable) { return is_set(variable.c_str()); }))
      return true;
  }
  return false;
}

std::string variables_set(const auto& names) {
  std::string variables;
  for (const char* name : names)
    if (is_set(name)) variables += text("{}={}\n", name, foreign_env(name));
  return variables;
}

/// True for an address that every network namespace has of its own: a port at the address
/// identifies no job.
bool is_loopback(const std::string& address) {
  return address.empty() || address.starts_with("127.") || address.starts_with("localhost") ||
         address == "::1" || address == "0.0.0.0";
}

/// Returns the number in a launcher's variable; none if the variable is unset or no number.
std::optional<int> number_of(const char* name) {
  const std::string value = name == nullptr ? "" : foreign_env(name);
  if (value.empty() || value.size() > 7) return std::nullopt;
  if (value.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return static_cast<int>(std::stol(value));
}

/// Returns entry `index` of Slurm's list of tasks by node, as in "4(x2),3".
std::optional<int> entry_of(const std::string& list, int index) {
  for (const std::string& variable : split(list, ',')) {
    int tasks = 0, times = 1;
    if (std::sscanf(variable.c_str(), "%d(x%d)", &tasks, &times) < 1) return std::nullopt;
    if (index < times) return tasks;
    index -= times;
  }
  return std::nullopt;
}

struct Here {
  int ranks = 0;
  std::string said_by;
};

/// Returns the number of a Slurm step's tasks on this node. A step's variables override the job's
/// variables.
std::optional<Here> slurm_tasks_here() {
  const char* const step_nodes = "SLURM_STEP_NUM_NODES";
  const char* nodes_word = number_of(step_nodes) ? step_nodes : "SLURM_NNODES";
  const std::optional<int> nodes = number_of(nodes_word), tasks = number_of("SLURM_NTASKS");
  if (!nodes || !tasks || *nodes < 2) return std::nullopt;
  for (const char* const variable : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})
    if (const auto here = entry_of(foreign_env(variable), number_of("SLURM_NODEID").value_or(0)))
      return Here{*here, text("{}={}", variable, foreign_env(variable))};
  return Here{*tasks - (*nodes - 1), text("{}={}", nodes_word, *nodes)};  // upper bound
}

/// Returns how many of the launcher's `ranks` ranks are on this host, if the launcher says so.
std::optional<Here> ranks_here(int ranks) {
  const Launcher* const launcher = started_by().launcher;
  if (launcher == nullptr) return std::nullopt;
  if (number_of(launcher->ranks) != ranks)
    return std::nullopt;  // the launcher knows another number of ranks
  if (const auto local = number_of(launcher->local_ranks))
    return Here{*local, text("{}={}", launcher->local_ranks, *local)};
  // If the numbers of ranks are equal, other launchers' variables repeat the Slurm job's.
  return number_of("SLURM_NTASKS") == ranks ? slurm_tasks_here() : std::nullopt;
}

/// Returns the pid of MPICH's per-node launcher, the nearest above this process; without a
/// launcher, the parent's pid. No variable tells that launcher's jobs apart.
int starter() {
  const int parent = getppid();
  for (int above = parent; above > 1;) {
    const ParentOf one = parent_of(above);
    if (one.name == "hydra_pmi_proxy") return above;
    above = one.parent;
  }
  return parent;
}

/// Returns the rank's number among the ranks of this host; -1 if the launcher sets none.
int local_rank_by(const Launcher& launcher) {
  for (const char* const name : launcher.local_rank)
    if (is_set(name)) return static_cast<int>(parse_integer(name, foreign_env(name), 0, 1 << 20));
  return -1;
}

}  // namespace

RendezvousFolder choose_rendezvous_folder() {
  const std::string runtime = foreign_env("XDG_RUNTIME_DIR"),
                    usual = text("/tmp/plait-{}", geteuid());
  const std::string wanted = runtime + "/plait";
  if (runtime.empty()) return {usual, ""};
  if (runtime[0] != '/' || !is_private_folder(runtime))
    return {usual, text("XDG_RUNTIME_DIR={} is not a private folder of this user", runtime)};
  if (wanted.size() > kMostFolderBytes)
    return {usual, text("XDG_RUNTIME_DIR has {} bytes, too long for the path of a socket",
                        runtime.size())};
  return {wanted, ""};
}

std::string rendezvous_folder() {
  const std::string folder = choose_rendezvous_folder().path;
  private_folder(folder);
  return folder;
}

std::string launcher_job() { return variables_set(kJobNames); }

std::string derived_rendezvous(const Env& env, int communicator) {
  std::string job = env.rendezvous;  // identifies the job by itself, in any container
  if (job.empty()) {
    job = launcher_job() + variables_set(kDaemons);
    // Containers that share this folder have separate ports and pids.
    if (is_set("MASTER_PORT") && is_loopback(foreign_env("MASTER_ADDR")))
      job += text("network={}\n", namespace_name("net"));
    // Last resort if no variable names the job: ranks with a common parent process on this node.
    // Not used otherwise, since a script around each rank would be the parent of that rank alone.
    if (!launcher_names_job()) job += text("parent={} of {}\n", starter(), namespace_name("pid"));
  }
  return text("unix:{}/job-{}-{}", rendezvous_folder(), hex(hash_bytes(job.data(), job.size())),
              communicator);
}

/// Uses the launcher that started this rank: a launcher inside another launcher's job sets its own
/// variables.
int rank_on_host() {
  const Launcher* const launcher = started_by().launcher;
  if (launcher != nullptr)
    if (const int rank = local_rank_by(*launcher); rank >= 0) return rank;
  for (const Launcher& other : kLaunchers)
    if (launcher == nullptr || !has_variables(other) || agree(other, *launcher))
      if (const int rank = local_rank_by(other); rank >= 0) return rank;
  return -1;
}

bool launcher_has_one_host() {
  const Launcher* const launcher = started_by().launcher;
  return launcher != nullptr &&
         number_of(launcher->local_ranks).value_or(-1) == number_of(launcher->ranks);
}

std::string why_not_one_host(const Env& env, int ranks) {
  // PLAIT_RANKS is set by the starter of the ranks. A launcher's variables may then describe
  // something else with equally many ranks: the batch step of a Slurm job runs on the first node
  // alone, with the whole job's variables.
  if (env.ranks >= 0) return {};
  const std::optional<Here> here = ranks_here(ranks);
  if (!here || here->ranks >= ranks) return {};
  return text(
      "wanted all ranks on one host, at most {} of them; found {} of {} on this one ({}): "
      "initialise MPI first (MPI_Init, or from mpi4py import MPI), to carry messages between "
      "hosts; or give each host a communicator of its own (PLAIT_RANK, PLAIT_RANKS); or run a "
      "program of NCCL as it is (plait run, docs/nccl.md); if all ranks are on this host after "
      "all, set PLAIT_RENDEZVOUS=unix:PATH",
      kMostRanks, here->ranks, ranks, here->said_by);
}

CommunicatorOptions options_from_environment() {
  const Env env = read_env();
  CommunicatorOptions options;
  const StartedBy started = started_by();
  if (!started.contradiction.empty() && (env.rank < 0 || env.ranks < 0))
    throw Error(ErrorCode::invalid_argument, started.contradiction);
  if (const Launcher* const launcher = started.launcher) {
    options.rank = static_cast<int>(
        parse_integer(launcher->rank, foreign_env(launcher->rank), 0, kMostLaunched - 1));
    options.ranks = static_cast<int>(
        parse_integer(launcher->ranks, foreign_env(launcher->ranks), 1, kMostLaunched));
  }
  if (env.rank >= 0) options.rank = env.rank;
  if (env.ranks >= 0) options.ranks = env.ranks;
  if (options.rank >= options.ranks)
    throw Error(
        ErrorCode::invalid_argument,
        text("environment: wanted a rank from 0 to {}, found {}; set PLAIT_RANK and PLAIT_RANKS",
             options.ranks - 1, options.rank));
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
