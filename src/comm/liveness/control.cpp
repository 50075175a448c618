// Enters a call: first the descriptor, then the call number (release), then the doorbells. A rank
// waits by futex on the doorbell of its own page, and any peer can wake it.
#include "comm/liveness/control.hpp"

#include <algorithm>
#include <cstring>

#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "cpu/wait.hpp"

namespace plait {

namespace {

FlightKind flight_kind(CallKind kind) {
  switch (kind) {
    case CallKind::collective: return FlightKind::collective;
    case CallKind::plan: return FlightKind::plan;
    case CallKind::barrier: return FlightKind::barrier;
    case CallKind::exchange: return FlightKind::exchange;
    case CallKind::counts: return FlightKind::counts;
    case CallKind::adopt_device: return FlightKind::adopt_device;
    case CallKind::suspend: return FlightKind::suspend;
    case CallKind::resume: return FlightKind::resume;
  }
  return FlightKind::none;
}

FlightCall flight_call(const CallDescriptor& descriptor) {
  FlightCall call;
  call.kind = flight_kind(descriptor.kind);
  call.collective = static_cast<std::uint8_t>(descriptor.collective);
  call.type = static_cast<std::uint8_t>(descriptor.type);
  call.op = static_cast<std::uint8_t>(descriptor.op);
  call.root = descriptor.root;
  call.count = descriptor.count;
  call.counts_hash = descriptor.counts_hash;
  return call;
}

}  // namespace

void Controls::prepare(const Mapping& page, int rank) {
  auto& control = *reinterpret_cast<Control*>(page.base());
  control.magic = kControlMagic;
  control.version = kControlVersion;
  control.rank = rank;
}

void Controls::check(const Mapping& page, int rank) {
  const auto& control = *reinterpret_cast<const Control*>(page.base());
  if (control.magic != kControlMagic || control.version != kControlVersion || control.rank != rank)
    throw Error(ErrorCode::mismatch,
                text("control page of rank {}: wanted version {}, found {} of rank {}", rank,
                     kControlVersion, control.version, control.rank));
}

void Controls::raise_for_all(std::uint32_t& word, std::uint32_t value) const noexcept {
  std::atomic_ref<std::uint32_t>(word).store(value, std::memory_order_seq_cst);
  for (int rank = 0; rank < ranks(); ++rank) ring(of(rank).bell);
}

void Controls::enter(std::uint32_t call, const CallDescriptor& descriptor,
                     const OwnCounts* counts) const {
  CallEntry& entry = mine().entries[call % 2];
  const std::uint64_t descriptor_hash = hash_of(descriptor);
  // No rank reads the entry of the call before last any more. The descriptor is often the same.
  if (entry.descriptor_hash != descriptor_hash) mine().calls[call % 2] = descriptor;
  entry.descriptor_hash = descriptor_hash;
  entry.scalar = descriptor.scalar;
  if (counts != nullptr) {
    auto& shown = mine().counts[call % 2];
    std::copy(counts->sends.begin(), counts->sends.end(), shown.begin());
    std::copy(counts->gets.begin(), counts->gets.end(), shown.begin() + kMaxRanks);
  }
  mine().host_flight.enter(flight_call(descriptor));
  raise_for_all(entry.call, call);
}

OwnCounts Controls::counts_of(int rank, std::uint32_t call) const {
  const auto& shown = of(rank).counts[call % 2];
  return {{shown.begin(), shown.begin() + ranks()},
          {shown.begin() + kMaxRanks, shown.begin() + kMaxRanks + ranks()}};
}

void Controls::finish(std::uint32_t call) const {
  mine().host_flight.end_all();
  std::atomic_ref<std::uint32_t>(mine().finished).store(call);
}

void Controls::leave() const noexcept { raise_for_all(mine().left, 1); }

bool Controls::all_same_call(std::uint32_t call) const {
  if (mine().calls[call % 2].error != 0) return false;
  const std::uint64_t descriptor_hash = mine().entries[call % 2].descriptor_hash;
  for (int rank = 0; rank < ranks(); ++rank)
    if (of(rank).entries[call % 2].descriptor_hash != descriptor_hash) return false;
  return true;
}

void Controls::await_entered(std::uint32_t call, double seconds, Watch& watch) const {
  const auto describe_wait = [&] {
    std::string missing;
    for (int rank = 0; rank < ranks(); ++rank)
      if (!has_entered(rank, call)) missing += text("{}{}", missing.empty() ? "" : ", ", rank);
    return text("rank {} waits for rank {} to enter call {} ({})", rank_, missing, call,
                print(mine().calls[call % 2]));
  };
  const auto have_all_come = [&] {
    for (int rank = 0; rank < ranks(); ++rank)
      if (!has_entered(rank, call)) return false;
    return true;
  };
  const WaitPolicy policy = wait_policy(ranks());
  if (spin(policy, have_all_come)) return;
  wait_until(policy, {&mine().bell, deadline_in(seconds), &watch, describe_wait}, have_all_come);
}

void Controls::raise_failure(ErrorCode code, const std::string& reason) const noexcept {
  Control& control = mine();
  std::uint32_t none = 0;
  if (!std::atomic_ref<std::uint32_t>(control.failed).compare_exchange_strong(none, 1)) return;
  control.failure_code = static_cast<std::int32_t>(code);
  const std::size_t bytes = std::min(reason.size(), sizeof(control.failure_text) - 1);
  std::memcpy(control.failure_text, reason.data(), bytes);
  control.failure_text[bytes] = '\0';
  raise_for_all(control.failed, 2);
}

std::optional<std::pair<ErrorCode, std::string>> Controls::failure_of(int rank) const {
  const Control& control = of(rank);
  if (load(control.failed) != 2) return std::nullopt;
  const std::int32_t code = control.failure_code;
  const bool is_valid = code > 0 && code <= static_cast<int>(ErrorCode::internal);
  const std::size_t bytes = strnlen(control.failure_text, sizeof(control.failure_text));
  return std::pair(is_valid ? static_cast<ErrorCode>(code) : ErrorCode::internal,
                   std::string(control.failure_text, bytes));
}

}  // namespace plait
