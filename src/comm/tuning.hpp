// The table that `plait tune` measured -> which kernel, with which parameters, a request on GPUs is
// done by. Rank 0 reads it and all ranks get its text, so they decide alike.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.hpp"
#include "exec/cuda/cuda_rank.hpp"
#include "plait/plan.hpp"

namespace plait {

/// Messages of at most max_bytes (and more than the next smaller row's) are done by `kernel`.
struct TunedRow {
  Collective collective = Collective::all_reduce;
  DataType type = DataType::fp32;
  int ranks = 2;
  std::uint64_t max_bytes = 0;
  std::string kernel;
  cuda::FusedTuning tuning;
};

class TuningTable {
 public:
  TuningTable() = default;
  /// Error(parse_error) naming the place; an empty text is an empty table.
  explicit TuningTable(std::string_view json);
  /// The smallest row that holds the request; a type that was not measured takes the rows of the
  /// measured type of its size. Null where nothing was measured.
  const TunedRow* find(const Request& request) const;
  bool empty() const { return rows_.empty(); }

 private:
  const TunedRow* smallest(const Request& request, bool same_type) const;
  std::vector<TunedRow> rows_;
};

/// The user's tuning file: PLAIT_TUNING, else tuning-FINGERPRINT-RANKS.json in XDG_CACHE_HOME/plait
/// or ~/.cache/plait; empty where it is switched off ("none") or there is no home.
std::string tuning_file(const Env& env, const std::string& fingerprint, int ranks);
/// Its text; empty where the file does not exist and nobody named it. Error(permission) where it is
/// not this user's alone to write, io_error where it cannot be read.
std::string read_tuning(const Env& env, const std::string& file);

}  // namespace plait
