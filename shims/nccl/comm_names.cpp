// Builds names of communicators from NCCL's arguments.
#include "shims/nccl/comm_names.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"

namespace plait::nccl {
namespace {

constexpr const char* kGrow = "grow";

std::string name_of(const UniqueId* ids, int count) {
  std::string name = "ids ";
  for (int at = 0; at < count; ++at) name.append(ids[at].bytes, sizeof ids[at].bytes);
  return name;
}

/// Returns make(), or no name if that throws.
template <class Make>
std::string name_or_none(const Make& make) noexcept {
  try {
    return make();
  } catch (const std::exception& error) {
    log(LogLevel::info, -1, text("set-up records go over NCCL: {}", error.what()));
    return {};
  }
}

}  // namespace

MeetingName name_by_ids(const UniqueId* ids, int count, int rank, int ranks) noexcept {
  if (ids == nullptr || count < 1 || count > ranks) return {};
  return {name_or_none([&] { return name_of(ids, count); }), rank};
}

std::string name_in_process() noexcept {
  return name_or_none([] { return text("all {}", unique_token()); });
}

MeetingName name_of_joining(const UniqueId& id, int rank) noexcept {
  return {name_or_none([&] { return MeetingAlias::find(name_of(&id, 1)); }), rank};
}

void ChildNames::set_parent(const std::string& name) {
  const std::lock_guard<std::mutex> hold(guard_);
  parent_ = name;
}

std::string ChildNames::next(const std::string& kind, const std::string& detail) {
  const std::lock_guard<std::mutex> hold(guard_);
  const unsigned count = made_[kind]++;
  last_ = kind;
  return parent_.empty() ? std::string() : text("{} {} {} {}", parent_, kind, count, detail);
}

void ChildNames::answered(bool is_refused) noexcept {
  const std::lock_guard<std::mutex> hold(guard_);
  if (const auto found = made_.find(last_); is_refused && found != made_.end()) --found->second;
  last_.clear();
}

std::string ChildNames::split(int color) noexcept {
  return name_or_none([&] {
    const std::string name = next("split", text("{}", color));
    return color == kSplitNoColor ? std::string() : name;
  });
}

std::string ChildNames::shrink(const int* excluded, int count, int ranks) noexcept {
  if (excluded == nullptr || count < 1 || count > ranks) return {};
  return name_or_none([&] {
    std::vector<int> sorted(excluded, excluded + count);
    std::sort(sorted.begin(), sorted.end());
    std::string kind = "shrink";
    for (const int rank : sorted) kind += text(" {}", rank);
    return next(kind, "");
  });
}

std::string ChildNames::grow() noexcept {
  return name_or_none([&] { return next(kGrow, ""); });
}

void ChildNames::show_grow(const UniqueId& id) noexcept {
  const std::lock_guard<std::mutex> hold(guard_);
  const auto failure = attempt([&] {
    shown_.reset();
    if (!parent_.empty())
      shown_ = std::make_unique<MeetingAlias>(name_of(&id, 1),
                                              text("{} {} {} ", parent_, kGrow, made_[kGrow]));
  });
  if (failure) log(LogLevel::info, -1, text("ncclCommGetUniqueId: {}", failure->what()));
}

void ChildNames::hide_grow() {
  const std::lock_guard<std::mutex> hold(guard_);
  shown_.reset();
}

}  // namespace plait::nccl
