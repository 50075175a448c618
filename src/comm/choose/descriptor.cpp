// Call descriptors: each rank fills in a descriptor, all ranks compare. Peers' values are checked
// before use: enums by range, texts by length.
#include "comm/choose/descriptor.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error_reason.hpp"
#include "base/text.hpp"
#include "plan/blocks.hpp"

namespace plait {
namespace {

template <std::size_t N>
void put(char (&field)[N], const std::string& value) {
  const std::size_t bytes = std::min(value.size(), N - 1);
  std::memcpy(field, value.data(), bytes);
  field[bytes] = '\0';
}

template <std::size_t N>
std::string get(const char (&field)[N]) {
  return std::string(field, strnlen(field, N));
}

template <class Enum>
std::string name_in(std::uint32_t value, Enum last) {
  if (value > static_cast<std::uint32_t>(last)) return text("?{}", value);
  return name_of(static_cast<Enum>(value));
}

std::string kind_name(CallKind kind) {
  switch (kind) {
    case CallKind::collective: return "a collective";
    case CallKind::plan: return "a plan";
    case CallKind::barrier: return "barrier";
    case CallKind::exchange: return "exchange";
    case CallKind::counts: return "a collective by own counts";
    case CallKind::adopt_device: return "adopt_device";
    case CallKind::suspend: return "suspend";
    case CallKind::resume: return "resume";
  }
  return "?";
}

std::string quoted_or_auto(const std::string& strategy) {
  return strategy.empty() ? "plait's choice" : strategy;
}

std::string amount(const CallDescriptor& d) {
  return d.counts_hash == 0 || d.error != 0 ? std::to_string(d.count) : get(d.error_text);
}

std::string norm_or_none(const CallDescriptor& d) {
  return d.norm_hash == 0 ? "none" : get(d.error_text);
}

/// Returns the first differing field, with name and both values.
std::optional<std::string> difference(const CallDescriptor& a, const CallDescriptor& b, int rank_a,
                                      int rank_b) {
  const auto differ = [&](const char* field, const std::string& in_a, const std::string& in_b) {
    return text("{}: rank {} asks for {}, rank {} for {} (rank {}: {}; rank {}: {})", field, rank_a,
                in_a, rank_b, in_b, rank_a, print(a), rank_b, print(b));
  };
  if (a.kind != b.kind) return differ("call", kind_name(a.kind), kind_name(b.kind));
  if (a.collective != b.collective)
    return differ("collective", name_in(a.collective, Collective::copy),
                  name_in(b.collective, Collective::copy));
  if (a.norm_hash != b.norm_hash) return differ("rms_norm", norm_or_none(a), norm_or_none(b));
  if (a.counts_hash == 0 && b.counts_hash == 0 && a.count != b.count)
    return differ("count", std::to_string(a.count), std::to_string(b.count));
  if (a.counts_hash != b.counts_hash) return differ("counts", amount(a), amount(b));
  if (a.type != b.type)
    return differ("type", name_in(a.type, DataType::fp8e5m2), name_in(b.type, DataType::fp8e5m2));
  if (a.op != b.op)
    return differ("op", name_in(a.op, ReduceOp::bit_xor), name_in(b.op, ReduceOp::bit_xor));
  if (a.ranks != b.ranks) return differ("ranks", std::to_string(a.ranks), std::to_string(b.ranks));
  if (a.root != b.root) return differ("root", std::to_string(a.root), std::to_string(b.root));
  if (a.peer != b.peer) return differ("peer", std::to_string(a.peer), std::to_string(b.peer));
  if (get(a.strategy) != get(b.strategy))
    return differ("strategy", quoted_or_auto(get(a.strategy)), quoted_or_auto(get(b.strategy)));
  if (a.devices_hash != b.devices_hash) return differ("devices", "one list", "another");
  if (a.plan_hash != b.plan_hash) return differ("plan", "one", "another of the same request");
  return std::nullopt;
}

}  // namespace

std::uint64_t hash_of(const CallDescriptor& d) {
  const auto two = [](auto high, auto low) {
    return static_cast<std::uint64_t>(high) << 32 | static_cast<std::uint32_t>(low);
  };
  const std::uint64_t numbers[] = {two(d.kind, d.error),
                                   two(d.collective, d.type),
                                   two(d.op, d.ranks),
                                   two(d.root, d.peer),
                                   d.count,
                                   d.counts_hash,
                                   d.norm_hash,
                                   d.devices_hash,
                                   d.plan_hash};
  std::uint64_t hash = kHashOfNothing;
  for (const std::uint64_t number : numbers) {
    hash = (hash ^ number) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  hash = hash_bytes(d.strategy, strnlen(d.strategy, sizeof d.strategy), hash);
  // The hash of no call is 0; | 1 keeps every call's hash different from 0.
  return hash_bytes(d.error_text, strnlen(d.error_text, sizeof d.error_text), hash) | 1;
}

CallDescriptor describe(CallKind kind, const Request& request, const std::string& strategy) {
  CallDescriptor descriptor;
  descriptor.kind = kind;
  descriptor.collective = static_cast<std::uint32_t>(request.collective);
  descriptor.type = static_cast<std::uint32_t>(request.type);
  descriptor.op = static_cast<std::uint32_t>(request.op);
  descriptor.ranks = request.ranks;
  descriptor.root = request.root;
  descriptor.peer = request.peer;
  descriptor.count = request.count;
  if (!request.counts.empty()) {
    descriptor.counts_hash =
        hash_bytes(request.counts.data(), request.counts.size() * sizeof request.counts[0]);
    put(descriptor.error_text, amount_of(request));
  }
  descriptor.devices_hash =
      hash_bytes(request.devices.data(), request.devices.size() * sizeof(int));
  put(descriptor.strategy, strategy);
  return descriptor;
}

void set_norm(CallDescriptor& descriptor, const RmsNorm& norm) {
  const std::uint64_t numbers[] = {norm.rows, norm.hidden, static_cast<std::uint64_t>(norm.type),
                                   static_cast<std::uint64_t>(norm.output),
                                   std::bit_cast<std::uint32_t>(norm.epsilon)};
  descriptor.norm_hash = hash_bytes(numbers, sizeof numbers) | 1;  // 0 = no norm
  put(descriptor.error_text, text("{} rows of {} {}, output {}, epsilon {}", norm.rows, norm.hidden,
                                  name_of(norm.type), name_of(norm.output), norm.epsilon));
}

void set_error(CallDescriptor& descriptor, const Error& error) {
  descriptor.error = static_cast<std::int32_t>(error.code());
  put(descriptor.error_text, reason_of(error));
}

std::string print(const CallDescriptor& d) {
  const bool moves_data =
      d.kind == CallKind::collective || d.kind == CallKind::plan || d.kind == CallKind::counts;
  if (!moves_data) return kind_name(d.kind);
  if (d.norm_hash != 0 && d.error == 0) return text("all_reduce_rms_norm of {}", get(d.error_text));
  std::string line = text("{}{}{} {}, {}", name_in(d.collective, Collective::copy),
                          d.counts_hash == 0 ? " of " : "_v of ", amount(d),
                          name_in(d.type, DataType::fp8e5m2), name_in(d.op, ReduceOp::bit_xor));
  if (d.root != 0 || has_root(static_cast<Collective>(d.collective)))
    line += text(", root {}", d.root);
  if (!get(d.strategy).empty()) line += text(", by {}", get(d.strategy));
  return line;
}

std::optional<Error> call_error(const std::vector<CallDescriptor>& by_rank,
                                const std::vector<int>& names) {
  const auto name = [&](std::size_t rank) {
    return names.empty() ? static_cast<int>(rank) : names[rank];
  };
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const CallDescriptor& one = by_rank[rank];
    if (one.error == 0) continue;
    const bool is_valid = one.error > 0 && one.error <= static_cast<int>(ErrorCode::internal);
    const auto code = is_valid ? static_cast<ErrorCode>(one.error) : ErrorCode::internal;
    return Error(code, text("rank {}: {}", name(rank), get(one.error_text)));
  }
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank)
    if (const auto found = difference(by_rank[0], by_rank[rank], name(0), name(rank)))
      return Error(ErrorCode::mismatch, *found);
  return std::nullopt;
}

}  // namespace plait
