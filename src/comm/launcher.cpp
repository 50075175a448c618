// A launcher's environment -> rank, ranks and a meeting place that only this job's ranks derive.
// torchrun, Open MPI, PMI (MPICH, Intel MPI) and Slurm, in this order; PLAIT_* on top.
#include <sys/stat.h>
#include <unistd.h>

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
};

constexpr std::array<Launcher, 4> kLaunchers = {{
    {"torchrun", "RANK", "WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS"},
}};

/// What tells one job of a user from another, whoever launched it.
constexpr std::array<const char*, 11> kJobNames = {"TORCHELASTIC_RUN_ID",
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
  // Ranks of one launcher on one node have one parent (mpirun, torchrun's agent, slurmstepd), which
  // tells apart jobs whose launchers name nothing.
  if (env.rendezvous.empty()) job += text("\nparent=", getppid());
  return text("unix:", rendezvous_folder(), "/job-", hex(hash_of(job)), "-", communicator);
}

CommunicatorOptions options_from_environment() {
  const Env env = read_env();
  CommunicatorOptions options;
  for (const Launcher& launcher : kLaunchers) {
    const std::string rank = foreign_env(launcher.rank);
    const std::string ranks = foreign_env(launcher.ranks);
    if (rank.empty() || ranks.empty()) continue;
    options.rank = static_cast<int>(parse_integer(launcher.rank, rank, 0, kMaxRanks - 1));
    options.ranks = static_cast<int>(parse_integer(launcher.ranks, ranks, 1, kMaxRanks));
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
  return options;
}

}  // namespace plait
