// Tuning table measured by `plait tune`: engine and parameters of a request, alone or alongside
// compute, and NCCL's time. Rank 0 reads the file and sends the text to all ranks, so all choose
// alike.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.hpp"
#include "gpu/engine/engine.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// Resources of a call: all that is fastest, or few SMs as under NCCL.
enum class TuningSetting { alone, overlap_compute };
inline constexpr int kSettings = 2;
std::string name_of(TuningSetting setting);

/// True if faster by at least 1 %, so that noise decides nothing; none if NCCL was not measured
/// (nccl_us is 0).
std::optional<bool> beats_nccl(double us, double nccl_us);

/// Row for messages of at most max_bytes, and larger than the next smaller row's.
struct TunedRow {
  DataType type = DataType::fp32;
  int ranks = 2;
  std::uint64_t max_bytes = 0;
  const Engine* engine = nullptr;
  Tuning tuning;
  double us = 0;       ///< Time of the largest message measured in the row.
  double nccl_us = 0;  ///< NCCL's time; 0 = not measured.

  std::optional<bool> beats_nccl() const { return cuda::beats_nccl(us, nccl_us); }
};

class TuningTable {
 public:
  TuningTable() = default;
  /// Error(parse_error) names the position; an empty text is an empty table.
  explicit TuningTable(std::string_view json);
  /// Returns the smallest row that covers the request; null if no row does. Calls that only move
  /// data use rows of any type. A reduction of a type not measured uses rows of the measured type
  /// of the same size.
  const TunedRow* find(const Request& request, TuningSetting setting) const;
  /// True if any row is for this setting and number of ranks.
  bool has(TuningSetting setting, int ranks) const;
  /// NCCL version of the comparison; empty = none.
  const std::string& nccl() const { return nccl_; }

 private:
  static constexpr int kCollectives = static_cast<int>(Collective::copy) + 1;
  using Rows = std::vector<TunedRow>;
  static const TunedRow* smallest(const Rows& rows, const Request& request, bool same_type);
  std::array<std::array<Rows, kCollectives>, kSettings> rows_;
  std::string nccl_;
};

/// Path of the user's tuning file: PLAIT_TUNING, or tuning-FINGERPRINT-RANKS.json in
/// XDG_CACHE_HOME/plait or ~/.cache/plait. Empty if tuning is off ("none") or no home is set.
std::string tuning_file(const Env& env, const std::string& fingerprint, int ranks);
/// Reads the file; empty if a file at the default path does not exist. Error(permission) if other
/// users may write the file, io_error if the file cannot be read.
std::string read_tuning(const Env& env, const std::string& file);
/// Text that a rank offers its peers, checked to be a table. An invalid file throws if PLAIT_TUNING
/// names the file, and is ignored with a warning otherwise.
std::string offered_tuning(const Env& env, const std::string& file, int rank);
/// Rank 0's text on every rank, sent in exchanges of at most 2 KiB per rank.
std::string of_rank_0(const Exchange& exchange, const std::string& mine);

}  // namespace plait::cuda
