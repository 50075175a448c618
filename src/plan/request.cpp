// Requests: names of types, ops and collectives, byte counts, and checks.
#include <algorithm>
#include <cctype>
#include <limits>
#include <numeric>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"
#include "plan/blocks.hpp"

namespace plait {
namespace {

struct TypeRow {
  const char* name;
  std::uint64_t bytes;
  bool is_float;
};
constexpr TypeRow kTypes[] = {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) {#name, bytes, is_float},
#include "plait/types.def"
#undef PLAIT_TYPE
};

struct ReduceRow {
  const char* name;
  bool on_floats;
  bool on_integers;
};
constexpr ReduceRow kReduceOps[] = {
#define PLAIT_REDUCE_OP(name, on_floats, on_integers) {#name, on_floats, on_integers},
#include "plait/reduce_ops.def"
#undef PLAIT_REDUCE_OP
};

// Elements that each rank passes in and gets, and the busbw factor; names of collectives.def.
enum class Extent { one, all, root, root_all, peer };
enum class Busbw { two, one, unit };
struct CollectiveRow {
  const char* name;
  Extent input;
  Extent output;
  Busbw busbw;
};
constexpr CollectiveRow kCollectives[] = {
#define PLAIT_COLLECTIVE(name, input, output, busbw) \
  {#name, Extent::input, Extent::output, Busbw::busbw},
#include "plait/collectives.def"
#undef PLAIT_COLLECTIVE
};

/// Returns the row of an enum's value. Throws Error(invalid_argument) for any other value of a
/// cast.
template <class Row, std::size_t N, class Enum>
const Row& row_in(const Row (&rows)[N], Enum value, const char* what) {
  const auto at = static_cast<std::size_t>(value);
  if (at < N) return rows[at];
  throw Error(ErrorCode::invalid_argument, text("wanted a {} in 0..{} ({}..{}), found {}", what,
                                                N - 1, rows[0].name, rows[N - 1].name, at));
}

const TypeRow& row(DataType type) { return row_in(kTypes, type, "type"); }
const ReduceRow& row(ReduceOp op) { return row_in(kReduceOps, op, "reduction"); }
const CollectiveRow& row(Collective collective) {
  return row_in(kCollectives, collective, "collective");
}

// Drops case and punctuation: "All-Reduce" and "allreduce" match all_reduce.
std::string squeezed(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)))
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

template <class Enum, class Rows>
Enum parse(std::string_view name, const Rows& rows, const char* what,
           std::initializer_list<std::pair<const char*, const char*>> aliases) {
  const std::string wanted = squeezed(name);
  for (std::size_t i = 0; i < std::size(rows); ++i)
    if (squeezed(rows[i].name) == wanted) return static_cast<Enum>(i);
  for (const auto& [alias, meant] : aliases)
    if (wanted == alias) return parse<Enum>(meant, rows, what, {});
  std::string known;
  for (const auto& candidate : rows)
    known += text("{}{}", known.empty() ? "" : ", ", candidate.name);
  throw Error(ErrorCode::invalid_argument,
              text("wanted a {} (one of {}), found \"{}\"", what, known, name));
}

/// Throws Error(invalid_argument) if the sizes of a rank's buffers may overflow.
void check_amount(const Request& request) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::uint64_t each =
      row(request.type).bytes * static_cast<std::uint64_t>(std::max(request.ranks, 1));
  std::uint64_t largest = request.count, bytes = 0;
  for (const std::uint64_t count : request.counts) largest = std::max(largest, count);
  if (!__builtin_mul_overflow(largest, each, &bytes) && bytes <= kMost) return;
  throw Error(ErrorCode::invalid_argument,
              text("wanted at most {} elements of {} on {} ranks, found {} (a negative count "
                   "reads like this too)",
                   kMost / each, name_of(request.type), request.ranks, largest));
}

/// Bytes that a rank sends, or (with `gets`) receives, if blocks have a count each.
std::uint64_t uneven_bytes(Extent extent, const Request& request, int rank, bool gets) {
  if (extent == Extent::root_all && rank != request.root) return 0;
  const auto block = [&](int peer) {
    return gets ? received_block(request, peer, rank) : sent_block(request, rank, peer);
  };
  if (extent == Extent::one) return block(rank).bytes;
  const Range last = block(request.ranks - 1);
  return last.offset + last.bytes;
}

std::uint64_t extent_bytes(Extent extent, const Request& request, int rank) {
  const std::uint64_t one = request.count * bytes_of(request.type);
  const std::uint64_t all = one * static_cast<std::uint64_t>(request.ranks);
  switch (extent) {
    case Extent::one: return one;
    case Extent::all: return all;
    case Extent::root: return rank == request.root ? one : 0;
    case Extent::root_all: return rank == request.root ? all : 0;
    case Extent::peer: return rank == request.peer ? one : 0;
  }
  return 0;
}

void check_rank(int rank, int ranks, const char* what) {
  if (rank < 0 || rank >= ranks)
    throw Error(ErrorCode::invalid_argument,
                text("wanted a {} in 0..{}, found {}", what, ranks - 1, rank));
}

void check_devices(Request& request, const Topology& topology) {
  const std::vector<int> usable = rank_devices(topology);
  if (request.devices.empty()) {
    if (usable.size() < static_cast<std::size_t>(request.ranks))
      throw Error(ErrorCode::invalid_argument,
                  text("wanted {} ranks, found {} rank devices in topology {}", request.ranks,
                       usable.size(), topology.name));
    request.devices.assign(usable.begin(), usable.begin() + request.ranks);
  }
  if (request.devices.size() != static_cast<std::size_t>(request.ranks))
    throw Error(ErrorCode::invalid_argument, text("wanted one device a rank ({}), found {}",
                                                  request.ranks, request.devices.size()));
  for (std::size_t i = 0; i < request.devices.size(); ++i) {
    const int device = request.devices[i];
    if (std::find(usable.begin(), usable.end(), device) == usable.end())
      throw Error(
          ErrorCode::invalid_argument,
          text("device {} of rank {} is no rank device of topology {}", device, i, topology.name));
    for (std::size_t j = 0; j < i; ++j)
      if (request.devices[j] == device)
        throw Error(ErrorCode::invalid_argument,
                    text("ranks {} and {} share device {}", j, i, device));
  }
}

/// Checks a rank and a request that may not be checked() yet before a buffer's size is computed.
void check_buffer_of(const Request& request, int rank) {
  check_rank(rank, std::max(request.ranks, 1), "rank");
  check_amount(request);
  const auto ranks = static_cast<std::size_t>(std::max(request.ranks, 1));
  const std::size_t wanted = request.collective == Collective::all_to_all ? ranks * ranks : ranks;
  if (!request.counts.empty() && request.counts.size() != wanted)
    throw Error(ErrorCode::invalid_argument,
                text("wanted {} counts for {} on {} ranks, found {}", wanted,
                     name_of(request.collective), ranks, request.counts.size()));
}

std::uint64_t sum_of(const std::vector<std::uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

}  // namespace

const char* name_of(DataType type) { return row(type).name; }
const char* name_of(ReduceOp op) { return row(op).name; }
const char* name_of(Collective collective) { return row(collective).name; }
std::uint64_t bytes_of(DataType type) { return row(type).bytes; }
bool is_float(DataType type) { return row(type).is_float; }
bool is_widened(DataType type) { return is_float(type) && bytes_of(type) < 4; }
bool has_no_order(DataType type, ReduceOp op) {
  return !is_float(type) || op == ReduceOp::min || op == ReduceOp::max;
}

DataType parse_type(std::string_view name) {
  return parse<DataType>(name, kTypes, "type",
                         {{"float32", "fp32"},
                          {"float", "fp32"},
                          {"float64", "fp64"},
                          {"double", "fp64"},
                          {"float16", "fp16"},
                          {"half", "fp16"},
                          {"bfloat16", "bf16"},
                          {"float8e4m3", "fp8e4m3"},
                          {"f8e4m3", "fp8e4m3"},
                          {"float8e4m3fn", "fp8e4m3"},
                          {"float8e5m2", "fp8e5m2"},
                          {"f8e5m2", "fp8e5m2"},
                          {"int", "int32"},
                          {"char", "int8"}});
}

ReduceOp parse_reduce_op(std::string_view name) {
  return parse<ReduceOp>(name, kReduceOps, "reduction",
                         {{"mulsum", "premul_sum"},
                          {"band", "bit_and"},
                          {"bor", "bit_or"},
                          {"bxor", "bit_xor"},
                          {"mean", "avg"},
                          {"product", "prod"}});
}

Collective parse_collective(std::string_view name) {
  return parse<Collective>(name, kCollectives, "collective", {{"bcast", "broadcast"}});
}

bool has_reduction(DataType type, ReduceOp op) {
  return is_float(type) ? row(op).on_floats : row(op).on_integers;
}

bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::reduce;
}

Request checked(Request request, const Topology& topology) {
  if (request.ranks < 1 || request.ranks > kMaxRanks)
    throw Error(ErrorCode::invalid_argument,
                text("wanted 1..{} ranks, found {}", kMaxRanks, request.ranks));
  check_rank(request.root, request.ranks, "root");
  check_rank(request.peer, request.ranks, "peer");
  request = normal(std::move(request));
  if (const std::string fault = counts_fault(request); !fault.empty())
    throw Error(ErrorCode::invalid_argument, fault);
  check_amount(request);
  if (reduces(request.collective) && !has_reduction(request.type, request.op))
    throw Error(ErrorCode::unsupported, text("reduction {} is not defined on {}",
                                             name_of(request.op), name_of(request.type)));
  check_devices(request, topology);
  return request;
}

Request normal(Request request) {
  if (request.counts.empty()) return request;
  const auto [least, most] = std::minmax_element(request.counts.begin(), request.counts.end());
  request.count = *most;
  const auto ranks = static_cast<std::size_t>(request.ranks);
  const bool is_whole = request.counts.size() ==
                        (request.collective == Collective::all_to_all ? ranks * ranks : ranks);
  if (is_whole && *least == *most) request.counts.clear();
  return request;
}

std::string name_of(const Request& request) {
  return text("{}{}", name_of(request.collective), request.counts.empty() ? "" : "_v");
}

std::string amount_of(const Request& request) {
  constexpr std::size_t kMostListed = 16;
  if (request.counts.empty()) return std::to_string(request.count);
  if (request.counts.size() > kMostListed)
    return text("{} in {} blocks of up to {}", sum_of(request.counts), request.counts.size(),
                request.count);
  std::string listed;
  for (const std::uint64_t count : request.counts)
    listed += text("{}{}", listed.empty() ? "" : "+", count);
  return listed;
}

namespace {

/// Sizes of a rank's buffers after check_buffer_of().
std::uint64_t input_size(const Request& request, int rank) {
  if (!request.counts.empty())
    return uneven_bytes(row(request.collective).input, request, rank, false);
  return extent_bytes(row(request.collective).input, request, rank);
}
std::uint64_t output_size(const Request& request, int rank) {
  if (!request.counts.empty())
    return uneven_bytes(row(request.collective).output, request, rank, true);
  return extent_bytes(row(request.collective).output, request, rank);
}

}  // namespace

std::uint64_t input_bytes(const Request& request, int rank) {
  check_buffer_of(request, rank);
  return input_size(request, rank);
}

std::uint64_t output_bytes(const Request& request, int rank) {
  check_buffer_of(request, rank);
  return output_size(request, rank);
}

std::uint64_t message_bytes(const Request& request) {
  check_amount(request);
  if (!request.counts.empty()) {
    if (request.collective != Collective::all_to_all)
      return sum_of(request.counts) * bytes_of(request.type);
    check_buffer_of(request, 0);  // once for all ranks: the check reads all counts
    std::uint64_t most = 0;
    for (int rank = 0; rank < request.ranks; ++rank)
      most = std::max({most, input_size(request, rank), output_size(request, rank)});
    return most;
  }
  const CollectiveRow& collective = row(request.collective);
  const auto gathers = [](Extent extent) {
    return extent == Extent::all || extent == Extent::root_all;
  };
  const std::uint64_t one = request.count * bytes_of(request.type);
  return gathers(collective.input) || gathers(collective.output)
             ? one * static_cast<std::uint64_t>(request.ranks)
             : one;
}

double busbw_factor(const Request& request) {
  if (!request.counts.empty()) {
    std::uint64_t most = 0;
    for (int rank = 0; rank < request.ranks; ++rank)
      most =
          std::max({most, outside_bytes(request, rank, false), outside_bytes(request, rank, true)});
    return static_cast<double>(most) / static_cast<double>(message_bytes(request));
  }
  const double n = request.ranks;
  switch (row(request.collective).busbw) {
    case Busbw::two: return 2.0 * (n - 1.0) / n;
    case Busbw::one: return (n - 1.0) / n;
    case Busbw::unit: return 1.0;
  }
  return 1.0;
}

}  // namespace plait
