// Makes a tuning table of measured calls: each row reaches to the middle between two sizes. First
// start and `plait tune` make tables by this function alone.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gpu/select/tuning_table.hpp"

namespace plait::cuda {

/// From this size on a larger message has at most this times the bandwidth: on two H200 1 GiB of
/// NCCL's had 1.05 times that of 256 MiB at most, with and without direct access (E-0482). A lead
/// as large holds for all larger messages.
inline constexpr std::uint64_t kFullFrom = 256ull << 20;
inline constexpr double kFullBandwidth = 1.15;

/// The fastest way to make a call, as measured at one size.
struct MeasuredCall {
  RowUse when = RowUse::alone;
  Collective collective = Collective::all_reduce;
  DataType type = DataType::fp32;
  int ranks = 2;
  std::uint64_t bytes = 0;  ///< of the message
  std::string engine;       ///< empty = no engine: neighbours reach no further than this size
  std::map<std::string, std::int64_t> params;
  double us = 0;
  double nccl_us = 0;             ///< 0 = NCCL was not measured
  bool is_nccl_inferred = false;  ///< nccl_us is the least that NCCL's other sizes leave possible
};

/// Facts of a measurement.
struct MeasuredFacts {
  std::string name;  ///< of the machine's topology
  std::string fingerprint;
  std::string kind;  ///< of the GPUs (gpu_kind.hpp); empty = several kinds
  int cuda_driver = 0;
  std::string nccl;  ///< version; empty = NCCL was not measured
  std::string plait, date;
  std::string source;  ///< what measured: "plait tune" or "first start"
};

/// Text of the table. calls: in any order; those of equal collective and type are neighbours.
std::string table_of_calls(const MeasuredFacts& facts, const std::vector<MeasuredCall>& calls);
/// The same from JSON: an object of the facts, and a list of objects with the names above.
std::string table_of_calls(std::string_view facts_json, std::string_view calls_json);

}  // namespace plait::cuda
