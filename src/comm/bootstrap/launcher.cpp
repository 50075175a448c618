// A launcher's environment -> rank, ranks and a meeting place that only this job's ranks derive.
// torchrun (and plait launch, which sets the same variables), Open MPI, PMI (MPICH, Intel MPI) and
// Slurm. Where several have left their variables, the launcher that started this process counts;
// PLAIT_* on top.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

#include "base/env.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/ancestors.hpp"
#include "comm/bootstrap/rendezvous.hpp"
#include "comm/choice/descriptor.hpp"
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
/// differs between ranks of one job.
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

/// Where Open MPI's daemon of this node listens: one for all ranks of a job on one node. Open MPI 5
/// makes PMIX_NAMESPACE of the host's name and a pid, which two containers may have alike.
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

/// How near to this process the launcher's words were set: 0 = by the process itself.
int depth_of(const Launcher& launcher, const Ancestors& ancestors) {
  int nearest = Ancestors::kUnseen;
  for (const char* const name :
       {launcher.rank, launcher.ranks, launcher.local_ranks, launcher.local_rank[0]})
    if (is_set(name)) nearest = std::min(nearest, ancestors.depth(name));
  return nearest;
}

/// True where a launcher's words cannot be its own beside `other`'s, although they came in together
/// with these. mpirun runs inside a Slurm job and never around it; RANK and WORLD_SIZE alone are
/// set by operators and shells too, where torchrun and plait launch set LOCAL_WORLD_SIZE.
bool yields_to(const Launcher& launcher, const Launcher& other) {
  const std::string name = launcher.name, torchrun = kLaunchers[0].name, slurm = kLaunchers[3].name;
  if (name == other.name) return false;
  return name == slurm || (name == torchrun && other.name != slurm && !is_set("LOCAL_WORLD_SIZE"));
}

std::string description_of(const Launcher& launcher) {
  return text(launcher.name, " says rank ", foreign_env(launcher.rank), " of ",
              foreign_env(launcher.ranks), " (", launcher.rank, ", ", launcher.ranks, ")");
}

struct StartedBy {
  const Launcher* launcher = nullptr;  ///< null = no launcher
  std::string contradiction;  ///< of words that came in together: then nothing tells whose count
};

/// The launcher that started this process: of those whose words contradict each other the one that
/// is nearest above it.
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
  return {found.front(),
          text("environment: ", description_of(*found.front()), ", ", description_of(**other),
               ", and nothing tells which of them started this process; unset the variables of the "
               "one that did not, or set PLAIT_RANK and PLAIT_RANKS")};
}

/// True where the launcher that started this rank names its job. Others' names do not do: an
/// mpirun inside a Slurm job is one of several there.
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
    if (is_set(name)) variables += text(name, '=', foreign_env(name), '\n');
  return variables;
}

/// An address that each network namespace has for itself: then a port of it names no job.
bool is_loopback(const std::string& address) {
  return address.empty() || address.starts_with("127.") || address.starts_with("localhost") ||
         address == "::1" || address == "0.0.0.0";
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

/// How many tasks of a Slurm step run on this node; a step's words come before those of its job.
std::optional<Here> slurm_tasks_here() {
  const char* const step_nodes = "SLURM_STEP_NUM_NODES";
  const char* nodes_word = number_of(step_nodes) ? step_nodes : "SLURM_NNODES";
  const std::optional<int> nodes = number_of(nodes_word), tasks = number_of("SLURM_NTASKS");
  if (!nodes || !tasks || *nodes < 2) return std::nullopt;
  for (const char* const variable : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})
    if (const auto here = entry_of(foreign_env(variable), number_of("SLURM_NODEID").value_or(0)))
      return Here{*here, text(variable, '=', foreign_env(variable))};
  return Here{*tasks - (*nodes - 1), text(nodes_word, '=', *nodes)};  // as many as can be
}

/// How many of a launcher's ranks, `ranks` in all, are on this host, where it says so.
std::optional<Here> ranks_here(int ranks) {
  const Launcher* const launcher = started_by().launcher;
  if (launcher == nullptr) return std::nullopt;
  if (number_of(launcher->ranks) != ranks) return std::nullopt;  // others, that it knows not of
  if (const auto local = number_of(launcher->local_ranks))
    return Here{*local, text(launcher->local_ranks, '=', *local)};
  // Others' words are Slurm's job told again where the numbers of ranks are equal.
  return number_of("SLURM_NTASKS") == ranks ? slurm_tasks_here() : std::nullopt;
}

/// The pid of the nearest process above this one that MPICH's launcher runs on each node; this
/// one's parent where there is none. Nothing in the environment tells that launcher's jobs apart.
int starter() {
  const int parent = getppid();
  for (int above = parent; above > 1;) {
    const ParentOf one = parent_of(above);
    if (one.name == "hydra_pmi_proxy") return above;
    above = one.parent;
  }
  return parent;
}

/// Its number among the ranks of this host by this launcher; -1 where it does not say.
int local_rank_by(const Launcher& launcher) {
  for (const char* const name : launcher.local_rank)
    if (is_set(name)) return static_cast<int>(parse_integer(name, foreign_env(name), 0, 1 << 20));
  return -1;
}

}  // namespace

RendezvousFolder choose_rendezvous_folder() {
  const std::string runtime = foreign_env("XDG_RUNTIME_DIR"),
                    usual = text("/tmp/plait-", geteuid());
  const std::string wanted = runtime + "/plait";
  if (runtime.empty()) return {usual, ""};
  if (runtime[0] != '/' || !is_private_folder(runtime))
    return {usual, text("XDG_RUNTIME_DIR=", runtime, " is no folder of this user alone")};
  if (wanted.size() > kMostFolderBytes)
    return {usual, text("XDG_RUNTIME_DIR has ", runtime.size(),
                        " bytes, too long for the path of a socket")};
  return {wanted, ""};
}

std::string rendezvous_folder() {
  const std::string folder = choose_rendezvous_folder().path;
  private_folder(folder);
  return folder;
}

std::string launcher_job() { return variables_set(kJobNames); }

std::string derived_rendezvous(const Env& env, int communicator) {
  std::string job = env.rendezvous;  // which names the job by itself, in whatever container
  if (job.empty()) {
    job = launcher_job() + variables_set(kDaemons);
    // Containers that share this folder have ports and pids of their own.
    if (is_set("MASTER_PORT") && is_loopback(foreign_env("MASTER_ADDR")))
      job += text("network=", namespace_name("net"), '\n');
    // The last resort, where nothing names the job: ranks that one process started on this node.
    // Not otherwise, since a script around each rank would be a parent of that rank alone.
    if (!launcher_names_job())
      job += text("parent=", starter(), " of ", namespace_name("pid"), '\n');
  }
  return text("unix:", rendezvous_folder(), "/job-", hex(hash_bytes(job.data(), job.size())), "-",
              communicator);
}

/// Whoever has started this rank: a launcher inside another's job says it for its own.
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
