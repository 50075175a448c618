// Ranks that know only where to meet -> an allgather of bytes and descriptors, the one thing that
// setting up a communicator needs. NCCL, MPI or a Unix socket can carry it; here is the socket.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/liveness/wait_warning.hpp"

namespace plait {

/// What one rank puts into an allgather.
struct Contribution {
  std::string bytes;
  std::vector<Fd> fds;
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Every rank's contribution, in rank order. The descriptors sent stay the caller's. Fails alike
  /// on all ranks that rank 0 can still reach.
  virtual std::vector<Contribution> allgather(const std::string& bytes, const std::vector<int>& fds,
                                              const Deadline& deadline) = 0;
  /// Sockets whose end of file means that a rank is gone: (rank, descriptor).
  virtual std::vector<std::pair<int, int>> sockets() const = 0;
};

inline constexpr std::uint64_t kMaxContributionBytes = (1ull << 20) + 4096;
inline constexpr std::size_t kMaxContributionFds = 4;

/// Meets the other ranks at `where` ("fd:N[,N...]" or "unix:PATH"; anything where ranks is 1).
/// Throws on every rank alike: mismatch where ranks do not fit together, timeout where one does not
/// come. Says after `overdue_s` for whom it waits, if it is still waiting. job: what the launcher
/// calls this rank's job (job_words); ranks of two jobs are a mismatch, and an empty one fits all.
std::unique_ptr<Rendezvous> bootstrap(const std::string& where, int rank, int ranks,
                                      const Deadline& deadline, double warn_after_s = kWaitWarningS,
                                      const std::string& job = {});

/// The names that launchers give to this process's job, "NAME=value" a line.
std::string launcher_job();

/// "unix:PATH" from PLAIT_RENDEZVOUS alone, or from what the launcher set (torchrun, Open MPI, PMI,
/// Slurm); the same on all ranks of one job and no other's. `communicator` tells several of one
/// process apart.
std::string derived_rendezvous(const Env& env, int communicator);
/// What is to be done where the launcher says that fewer than `ranks` of its ranks are on this
/// host: the others could not come to a derived rendezvous. Empty where it does not; where
/// PLAIT_RANKS says how many there are, the launcher is not asked.
std::string why_not_one_host(const Env& env, int ranks);
/// True where the launcher of this rank says that all of its ranks are on this host.
bool launcher_has_one_host();
/// This rank's number among those of its host; -1 where no launcher says.
int rank_on_host();

/// The longest folder in which any socket of plait's still has a path: the path has 107 bytes at
/// most, and a pair's socket has a name of up to 48.
inline constexpr std::size_t kMostFolderBytes = 107 - 1 - 48;

/// The folder for derived rendezvous: XDG_RUNTIME_DIR/plait if that is private and short enough,
/// else /tmp/plait-UID.
struct RendezvousFolder {
  std::string path;
  std::string why_not_runtime;  ///< why XDG_RUNTIME_DIR is not used though it is set; else empty
};
RendezvousFolder choose_rendezvous_folder();
/// Its path, once it is there.
std::string rendezvous_folder();

}  // namespace plait
