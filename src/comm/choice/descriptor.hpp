// What a rank asks for, as the bytes it shows to the others -> the same verdict on every rank: go
// on, or the error that all of them throw. A rank whose own arguments are bad shows that, too.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"

namespace plait {

enum class CallKind : std::uint32_t { collective, plan, barrier, exchange, counts };

/// Lies in shared memory: fixed size, no pointers; texts are cut to fit.
struct CallDescriptor {
  CallKind kind = CallKind::barrier;
  std::int32_t error = 0;  ///< an ErrorCode: why this rank cannot take part
  std::uint32_t collective = 0;
  std::uint32_t type = 0;
  std::uint32_t op = 0;
  std::int32_t ranks = 0;
  std::int32_t root = 0;
  std::int32_t peer = 0;
  std::uint64_t count = 0;
  std::uint64_t counts_hash = 0;  ///< 0 = none
  std::uint64_t devices_hash = 0;
  std::uint64_t plan_hash = 0;
  double scalar = 1.0;
  char strategy[160] = {};
  char error_text[512] = {};  ///< of no error: blocks' counts as text
};

/// Of all that verdict() compares, and of an error: equal for ranks that ask for the same.
std::uint64_t hash_of(const CallDescriptor& descriptor);
/// The request's fields; `strategy` as the caller wrote it, "" = plait chooses.
CallDescriptor describe(CallKind kind, const Request& request, const std::string& strategy);
void set_error(CallDescriptor& descriptor, const Error& error);
/// "all_reduce of 1024 fp32, sum": for messages.
std::string print(const CallDescriptor& descriptor);
/// Nothing where all ranks ask for the same; else what every rank throws.
/// names: what the ranks are called; empty = their numbers.
std::optional<Error> call_error(const std::vector<CallDescriptor>& by_rank,
                                const std::vector<int>& names = {});
/// An error's sentence without the words that Error put before it.
std::string reason_of(const Error& error);

}  // namespace plait
