// Records a call of all ranks as a plan.
#include "gpu/copy/copy_plans.hpp"

#include <algorithm>

#include "gpu/copy/copy_tuning.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

[[noreturn]] void refuse_kernels() {
  throw Error(ErrorCode::internal, "a call recorded as a plan must not launch a kernel of its own");
}

}  // namespace

std::string why_no_copies(const Group& group) {
  const std::string why = why_no_copy_engines(group);
  return why.empty() ? group.why_no_part(kCopyMemory) : why;
}

Kernels& WritingRank::kernels() { refuse_kernels(); }
char* WritingRank::at(const FlagsRow&, int) const { refuse_kernels(); }
char* WritingRank::at(const ArenaPart&, int) const { refuse_kernels(); }
const std::uint32_t* WritingRank::poisoned(const ArenaPart&) const { refuse_kernels(); }

void WritingRank::fill_call(CallArgs& args, const Request& request) const {
  args = book_.call(rank_);
  args.op = static_cast<std::int32_t>(request.op);
}

void write_down(PlanBook& book, const Group& group, const PrepareOn& prepare,
                const QueueOf& through) {
  if (book.request().count == 0) return;
  for (int rank = 0; rank < book.request().ranks; ++rank) {
    WritingRank writing(book, group, rank, through ? through(book, rank) : book.queue(rank));
    const CallArgs call = book.call(rank);
    prepare(writing)->enqueue({call.input, call.output, {}}, PlanBook::home());
  }
}

Plan plan_of_copies(const Engine& engine, const Topology& topology, const Request& request,
                    const Tuning& tuning, const Group& group, const QueueOf& through) {
  PlanBook book(topology, request, group);
  write_down(
      book, group, [&](EngineRank& rank) { return engine.prepare(request, tuning, rank); },
      through);
  return book.plan(engine.info().name, cut_params(tuning));
}

std::map<std::string, std::int64_t> cut_params(const Tuning& tuning) {
  std::map<std::string, std::int64_t> params;
  const auto add = [&](const char* name, std::int64_t value, std::int64_t usual) {
    if (value != usual) params[name] = value;
  };
  add("piece_bytes", static_cast<std::int64_t>(wished_piece_bytes(tuning)), 0);
  add("batch", tuning.batch, 0);
  add("cuts", tuning.cuts, -1);
  add("host_permille", std::max(0, tuning.host_permille), 0);
  add("host_cpu_permille", tuning.host_cpu_permille, 0);
  return params;
}

}  // namespace plait::cuda
