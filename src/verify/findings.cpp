// Collects findings (see findings.hpp).
#include "verify/findings.hpp"

#include "base/text.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kMostOfOneRule = 64;

}  // namespace

const char* name_of(Rule rule) {
  constexpr const char* kNames[] = {
#define PLAIT_RULE(name, text) #name,
#include "verify/rules.def"
#undef PLAIT_RULE
  };
  return kNames[static_cast<std::size_t>(rule)];
}

void Findings::add(Rule rule, int rank, int lane, int op, const std::string& sentence) {
  ++total_;
  if (++count_[static_cast<std::size_t>(rule)] > kMostOfOneRule) return;
  std::string path;
  if (lane >= 0 && op >= 0) {
    const Op& said = plan_.lanes[static_cast<std::size_t>(lane)].ops[static_cast<std::size_t>(op)];
    if (said.kind == OpKind::copy && said.path >= 0 &&
        static_cast<std::size_t>(said.path) < plan_.paths.size())
      path = plan_.paths[static_cast<std::size_t>(said.path)].name;
  }
  findings_.push_back({name_of(rule), rank, lane, op, path, sentence});
}

std::vector<Finding> Findings::taken() {
  for (std::size_t rule = 0; rule < kRules; ++rule)
    if (count_[rule] > kMostOfOneRule)
      findings_.push_back({name_of(static_cast<Rule>(rule)), -1, -1, -1, "",
                           text("and {} more", count_[rule] - kMostOfOneRule)});
  return std::move(findings_);
}

std::string site(const Plan& plan, int lane, int op) {
  const Lane& said = plan.lanes[static_cast<std::size_t>(lane)];
  return text("r{}.{}#{}", said.rank, said.name, op);
}

}  // namespace plait
