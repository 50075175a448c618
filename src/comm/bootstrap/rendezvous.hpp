// Rendezvous: ranks that know only an address get an allgather of bytes and descriptors, all that a
// communicator's set-up needs. NCCL or MPI can carry an allgather too; this rendezvous uses Unix
// sockets.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/bootstrap/wait_warning.hpp"

namespace plait {

/// A rank's input to an allgather.
struct Contribution {
  std::string bytes;
  std::vector<Fd> fds;
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Returns every rank's contribution in rank order. The caller keeps the descriptors sent. Fails
  /// alike on all ranks that rank 0 can still reach. An exception, thrown by the deadline's check
  /// too, is the last step of the rendezvous: this rank's later calls throw the same error, and the
  /// peers' later calls throw an error that names this rank.
  virtual std::vector<Contribution> allgather(const std::string& bytes, const std::vector<int>& fds,
                                              const Deadline& deadline) = 0;
};

inline constexpr std::uint64_t kMaxContributionBytes = (1ull << 20) + 4096;
inline constexpr std::size_t kMaxContributionFds = 4;

/// Joins the peers at `where` ("fd:N[,N...]" or "unix:PATH"; ignored for a single rank). Throws
/// alike on every rank: mismatch if ranks do not fit together, timeout if a rank does not come.
/// Warns after warn_after_s, naming the missing ranks. job: this rank's launcher_job(). Ranks of
/// two jobs are a mismatch; an empty job matches any.
std::unique_ptr<Rendezvous> bootstrap(const std::string& where, int rank, int ranks,
                                      const Deadline& deadline,
                                      double warn_after_s = wait_warning_s(),
                                      const std::string& job = {});

/// Returns the variables by which launchers name this process's job, a "NAME=value" per line.
std::string launcher_job();

/// Returns "unix:PATH", derived from PLAIT_RENDEZVOUS alone, or from the launcher's variables
/// (torchrun, Open MPI, PMI, Slurm). All ranks of a job get the same path, and no two jobs share a
/// path. `communicator`: number of the communicator in this process.
std::string derived_rendezvous(const Env& env, int communicator);
/// Returns the remedy if the launcher says that fewer than `ranks` of the job's ranks are on this
/// host, since ranks elsewhere cannot reach a derived rendezvous. Empty otherwise, and if
/// PLAIT_RANKS is set.
std::string why_not_one_host(const Env& env, int ranks);
/// True if the launcher of this rank says that all the job's ranks are on this host.
bool launcher_has_one_host();
/// Returns this rank's number among the ranks of its host; -1 if no launcher sets a number.
int rank_on_host();

/// Longest folder path that leaves room for the name of every socket of plait: a socket path has at
/// most 107 bytes, the name of a pair's socket up to 48.
inline constexpr std::size_t kMostFolderBytes = 107 - 1 - 48;

/// The folder for derived rendezvous: XDG_RUNTIME_DIR/plait if that is private and short enough,
/// else /tmp/plait-UID.
struct RendezvousFolder {
  std::string path;
  std::string why_not_runtime;  ///< why a set XDG_RUNTIME_DIR is not used; else empty
};
RendezvousFolder choose_rendezvous_folder();
/// Makes the folder if missing, and returns the path.
std::string rendezvous_folder();

}  // namespace plait
