// A launcher's environment -> rank, ranks and a meeting place that only this job's ranks derive.
// torchrun, Open MPI, PMI (MPICH, Intel MPI) and Slurm, in this order; PLAIT_* on top.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/env.hpp"
#include "base/text.hpp"
#include "comm/rendezvous.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* ranks;
  /// Words of which each alone tells the launcher's jobs apart; "A+B" = only both together do.
  std::array<const char*, 3> identities;
};

constexpr std::array<Launcher, 4> kLaunchers = {{
    {"torchrun", "RANK", "WORLD_SIZE", {"MASTER_PORT", nullptr, nullptr}},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"}},
    {"PMI", "PMI_RANK", "PMI_SIZE", {"PMI_JOBID", "PMI_PORT", "PMIX_NAMESPACE"}},
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_NTASKS",
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

/// FNV-1a, 64 bits: a name for files, not a secret; the folder's mode keeps others out.
std::uint64_t hash_of(const std::string& bytes) {
  std::uint64_t hash = 14695981039346656037ull;
  for (unsigned char byte : bytes) hash = (hash ^ byte) * 1099511628211ull;
  return hash;
}

std::string hex(std::uint64_t number) {
  std::string digits;
  for (int shift = 60; shift >= 0; shift -= 4) digits += "0123456789abcdef"[(number >> shift) & 15];
  return digits;
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
  if (env.rendezvous.empty() && !launcher_names_job()) job += text("\nparent=", getppid());
  return text("unix:", rendezvous_folder(), "/job-", hex(hash_of(job)), "-", communicator);
}

CommunicatorOptions options_from_environment() {
  const Env env = read_env();
  CommunicatorOptions options;
  for (const Launcher& launcher : kLaunchers) {
    if (!is_started_by(launcher)) continue;
    options.rank = static_cast<int>(
        parse_integer(launcher.rank, foreign_env(launcher.rank), 0, kMaxRanks - 1));
    options.ranks =
        static_cast<int>(parse_integer(launcher.ranks, foreign_env(launcher.ranks), 1, kMaxRanks));
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
