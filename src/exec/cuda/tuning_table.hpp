// The table that `plait tune` measured -> which engine, with which parameters, does a request on
// GPUs, alone or beside computing, and what NCCL takes. Rank 0 reads it and all ranks get its text,
// so they decide alike.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.hpp"
#include "exec/cuda/engine.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// What a call may take: all that is fastest, or few SMs, as under NCCL.
enum class TuningSetting { alone, overlap_compute };
inline constexpr int kSettings = 2;
std::string name_of(TuningSetting setting);

/// By 1 % at least, so that noise decides nothing; none where NCCL was not measured: nccl_us is 0.
std::optional<bool> beats_nccl(double us, double nccl_us);

/// Messages of at most max_bytes (and more than the next smaller row's) are done by `engine`.
struct TunedRow {
  DataType type = DataType::fp32;
  int ranks = 2;
  std::uint64_t max_bytes = 0;
  const Engine* engine = nullptr;
  Tuning tuning;
  double us = 0;       ///< of the largest message of the row that was measured
  double nccl_us = 0;  ///< NCCL's for it; 0 = not measured

  std::optional<bool> beats_nccl() const { return cuda::beats_nccl(us, nccl_us); }
};

class TuningTable {
 public:
  TuningTable() = default;
  /// Error(parse_error) naming the place; an empty text is an empty table.
  explicit TuningTable(std::string_view json);
  /// The smallest row that holds the request. What only moves takes rows of any type; a reduction
  /// whose type was not measured those of the measured type of its size. Null where there is none.
  const TunedRow* find(const Request& request, TuningSetting setting) const;
  /// Whether any row is of this setting and so many ranks.
  bool has(TuningSetting setting, int ranks) const;
  /// The version of NCCL that it was measured beside; empty = none.
  const std::string& nccl() const { return nccl_; }

 private:
  static constexpr int kCollectives = static_cast<int>(Collective::copy) + 1;
  using Rows = std::vector<TunedRow>;
  static const TunedRow* smallest(const Rows& rows, const Request& request, bool same_type);
  std::array<std::array<Rows, kCollectives>, kSettings> rows_;
  std::string nccl_;
};

/// The user's tuning file: PLAIT_TUNING, else tuning-FINGERPRINT-RANKS.json in XDG_CACHE_HOME/plait
/// or ~/.cache/plait; empty where it is switched off ("none") or there is no home.
std::string tuning_file(const Env& env, const std::string& fingerprint, int ranks);
/// Its text; empty where the file does not exist and nobody named it. Error(permission) where it is
/// not this user's alone to write, io_error where it cannot be read.
std::string read_tuning(const Env& env, const std::string& file);
/// The text that a rank offers the others: read, and seen to be a table. Throws where it is none,
/// unless nobody named the file: then there is a warning, and no table.
std::string offered_tuning(const Env& env, const std::string& file, int rank);
/// Rank 0's text on every rank, by exchanges of 2 KiB a rank at most.
std::string of_rank_0(const Exchange& exchange, const std::string& mine);

}  // namespace plait::cuda
