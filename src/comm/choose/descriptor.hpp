// Call descriptor: a rank's request in the form that peers read. From all descriptors every rank
// derives the same result: run the call, or throw the same error. A rank with bad arguments
// publishes an error instead.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"
#include "plait/rms_norm.hpp"

namespace plait {

enum class CallKind : std::uint32_t {
  collective,
  plan,
  barrier,
  exchange,
  counts,
  adopt_device,
  suspend,
  resume
};

/// Lies in shared memory: fixed size, no pointers; texts are truncated to fit.
struct CallDescriptor {
  CallKind kind = CallKind::barrier;
  std::int32_t error = 0;  ///< ErrorCode if this rank cannot take part, else 0
  std::uint32_t collective = 0;
  std::uint32_t type = 0;
  std::uint32_t op = 0;
  std::int32_t ranks = 0;
  std::int32_t root = 0;
  std::int32_t peer = 0;
  std::uint64_t count = 0;
  std::uint64_t counts_hash = 0;  ///< 0 = none
  std::uint64_t norm_hash = 0;    ///< of the RmsNorm of all_reduce_rms_norm; 0 = another call
  std::uint64_t devices_hash = 0;
  std::uint64_t plan_hash = 0;
  double scalar = 1.0;
  char strategy[160] = {};
  char error_text[512] = {};  ///< error text; without an error, counts or RmsNorm as text
};

/// Hash of all fields that call_error() compares, and of an error. Equal for ranks with the same
/// request.
std::uint64_t hash_of(const CallDescriptor& descriptor);
/// Fills in the request's fields. strategy: as written by the caller, "" = plait chooses.
CallDescriptor describe(CallKind kind, const Request& request, const std::string& strategy);
/// Makes the descriptor of an all_reduce the descriptor of all_reduce_rms_norm.
void set_norm(CallDescriptor& descriptor, const RmsNorm& norm);
void set_error(CallDescriptor& descriptor, const Error& error);
/// Returns for example "all_reduce of 1024 fp32, sum", for messages.
std::string print(const CallDescriptor& descriptor);
/// Returns nothing if all ranks make the same call, else the error that every rank throws. names:
/// rank names for messages; empty = the numbers.
std::optional<Error> call_error(const std::vector<CallDescriptor>& by_rank,
                                const std::vector<int>& names = {});

}  // namespace plait
