// Tuning tables: the engine and parameters of requests, measured on a kind of GPU (tuning/*.json)
// or on one machine (`plait tune`). Both have one format (docs/tune.md) and one loader. Rank 0
// reads a machine's file and sends the text to all ranks, so all choose alike.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/select/engines.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

inline constexpr const char* kTuningSchema = "plait.tuning/4";

/// Calls that a row is for: all, calls that may use the whole GPU, calls with `overlap_compute` and
/// no budget, calls that leave SMs to other work for either reason, captured calls that may use the
/// whole GPU.
enum class RowUse { any, alone, overlap_compute, leaving_sms, captured };
inline constexpr int kRowUses = 5;
std::string name_of(RowUse use);

/// True if faster by at least 1 %, so that noise decides nothing; none if NCCL was not measured
/// (nccl_us is 0).
std::optional<bool> beats_nccl(double us, double nccl_us);

/// Engine of the requests that the row covers. Of several rows the first counts.
struct TuningRow {
  Collective collective = Collective::all_reduce;
  int from_ranks = 2;
  int upto_ranks = 2;
  RowUse when = RowUse::any;
  unsigned upto_blocks = ~0u;  ///< Largest budget of a row of RowUse::leaving_sms.
  std::uint64_t from_bytes = 0;
  std::uint64_t upto_bytes = ~std::uint64_t{0};
  std::optional<DataType> type;  ///< none = any type
  const Engine* engine = nullptr;
  Tuning tuning;
  /// True if NCCL was slower or equal all over the row; none = not compared.
  std::optional<bool> ahead_of_nccl;

  bool covers(const Request& request) const;
};

/// Names rows of sends and receives under NCCL in the place of an engine.
inline constexpr const char* kMessagesRow = "messages";

/// GPUs that a table was measured on.
struct MeasuredGpus {
  std::string model;  ///< Pattern of the name, as in a shell: "NVIDIA H200".
  int multiprocessors = 0;
  std::vector<std::string> links;  ///< As gpu_kind() words links: "18 NVLinks to switches".
  int upto_ranks = 0;              ///< Most ranks measured.

  /// True for GPUs of this kind (gpu_kind.hpp), of any number.
  bool are(const std::string& kind) const;
  /// True for this model, with any links.
  bool are_model(const std::string& name) const;
  /// The kind with the first of the links.
  std::string kind() const;
};

class TuningTable {
 public:
  using Applies = std::function<bool(const TuningRow&)>;

  TuningTable() = default;
  /// Error(parse_error) names `file`, the row, what was wanted and what was found. An empty text is
  /// an empty table.
  explicit TuningTable(std::string_view json, const std::string& file = "");
  explicit TuningTable(std::vector<TuningRow> rows) : rows_(std::move(rows)) {}

  /// Returns the first row that covers the request and applies; null if none does. Rows of the
  /// request's type precede others. Calls that only move data use rows of any type. A reduction of
  /// a type not measured uses rows of a measured type of the same size.
  const TuningRow* find(const Request& request, const Applies& applies) const;
  /// The same for rows of a use, and rows of any use.
  const TuningRow* find(const Request& request, RowUse use) const;
  /// True if any row is for this use and number of ranks.
  bool has(RowUse use, int ranks) const;
  const std::vector<TuningRow>& rows() const { return rows_; }
  /// True if sends and receives were faster than NCCL's wherever they were measured, to one rank
  /// and to all. none = not measured at all of the usual sizes.
  std::optional<bool> messages_are_ahead(int ranks) const;
  const std::string& name() const { return name_; }
  const MeasuredGpus& gpus() const { return gpus_; }
  /// NCCL version of the comparison; empty = none.
  const std::string& nccl() const { return nccl_; }

 private:
  std::vector<TuningRow> rows_;
  std::vector<TuningRow> messages_;  ///< rows of messages; without an engine
  std::string name_;
  MeasuredGpus gpus_;
  std::string nccl_;
};

/// Rank 0's text on every rank, sent in exchanges of at most 2 KiB per rank.
std::string of_rank_0(const Exchange& exchange, const std::string& mine);

}  // namespace plait::cuda
