// Files of a machine's tuning tables: name, reading, merging and writing, and the mark that says
// that a measurement is under way or did not end. First start (comm/gpu/first_start.hpp) and `plait
// tune` keep tables by these functions alone.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "base/env.hpp"

namespace plait::cuda {

/// What a table holds for. All of it is in the file's name.
struct TuningKey {
  std::string machine;  ///< fingerprint of the machine, and of the ranks' part of it
  int ranks = 2;
  int cuda_driver = 0;  ///< as cuda_driver_version() (device/gpu_kind.hpp)
  std::string nccl;     ///< NCCL version that calls compete with; empty = calls of plait's own
};

/// Path of the user's tuning file: PLAIT_TUNING, or
/// tuning-MACHINE-cudaDRIVER[-ncclVERSION]-RANKS.json in XDG_CACHE_HOME/plait or ~/.cache/plait.
/// Empty if tuning is off ("none") or no home is set.
std::string tuning_file(const Env& env, const TuningKey& key);

/// Reads the file; empty if a file at the default path does not exist. Error(permission) if other
/// users may write the file, io_error if the file cannot be read.
std::string read_tuning(const Env& env, const std::string& file);
/// Text that a rank offers its peers, checked to be a table. An invalid file throws if PLAIT_TUNING
/// names the file, and is ignored with a warning otherwise.
std::string offered_tuning(const Env& env, const std::string& file, int rank);

/// Text of a table as files have it: a line for each row. json: a table.
std::string tuning_text(std::string_view json);
/// The table `newer` with rows of `older` for other calls. Rows of `older` count only if both were
/// measured on the same machine, driver, NCCL and plait. older: text of a file; may be no table.
std::string merged_tuning(const std::string& older, const std::string& newer);
/// Writes the table at once or not at all, with mode 0600, and removes the file's mark. Makes the
/// folder. Error(io_error) names the file.
void write_tuning(const std::string& file, const std::string& json);

/// A file beside a table, TABLE.measuring, locked while a process measures. A process that ends
/// meanwhile leaves the file unlocked, so that the next start does not measure again.
class MeasuringMark {
 public:
  enum class Taken { yes, by_another, no_folder };
  explicit MeasuringMark(const std::string& table) : file_(table + ".measuring") {}
  /// Unlocks; the file stays unless removed.
  ~MeasuringMark();
  MeasuringMark(const MeasuringMark&) = delete;
  MeasuringMark& operator=(const MeasuringMark&) = delete;

  /// Locks the file, and makes it if missing. Never waits.
  Taken take();
  /// What an earlier measurement that did not end left; empty = none. Known after take().
  const std::string& former() const { return former_; }
  /// Replaces the text.
  void write(const std::string& words);
  void remove();
  const std::string& file() const { return file_; }

 private:
  const std::string file_;
  std::string former_;
  int fd_ = -1;
};

}  // namespace plait::cuda
