// Puts the steps of a node program on streams: RS0 | RS1, X0 | AG0, RS2, X1 | AG1, ... The program
// fixes the order.
#include "comm/multinode/node_program_runner.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "comm/choose/multinode_choice.hpp"
#include "plait/error.hpp"

namespace plait {

NodeProgramRunner::NodeProgramRunner(Nodes nodes, InNode inside,
                                     std::unique_ptr<nccl::SideStream> side,
                                     std::unique_ptr<nccl::NcclTransport> nccl_transport,
                                     CallOptions forced, bool bitwise, SumOrder order)
    : nodes_(std::move(nodes)),
      inside_(std::move(inside)),
      side_(std::move(side)),
      nccl_transport_(std::move(nccl_transport)),
      forced_(std::move(forced)),
      bitwise_(bitwise),
      order_(order) {}

bool NodeProgramRunner::is_served(const NodeProgram& program) const {
  return std::all_of(program.steps.begin(), program.steps.end(), [&](const auto& step) {
    return step.kind != NodeStep::Action::inside || inside_.takes == nullptr ||
           inside_.takes(step.request);
  });
}

namespace {

/// Throws before any step of the call is enqueued.
void require_library(const NodeProgram& program) {
  for (const NodeProgram::ProgramStep& step : program.steps) {
    if (step.kind != NodeStep::Action::across) continue;
    const std::string why = nccl::why_no_call(step.request);
    if (!why.empty()) throw Error(ErrorCode::unsupported, why);
  }
}

/// Averages and premul_sum always go to NCCL, whatever PLAIT_ALGO names.
bool is_librarys(const Request& request) {
  return reduces(request.collective) &&
         (request.op == ReduceOp::avg || request.op == ReduceOp::premul_sum);
}

}  // namespace

/// If the engines in the nodes do not serve the chosen strategy, NCCL does the whole call.
std::shared_ptr<const NodeProgram> NodeProgramRunner::program(const Request& request,
                                                              const CallOptions& options) {
  if (!request.counts.empty())
    throw Error(ErrorCode::unsupported,
                text("{}: ranks on several nodes have no plan for blocks that have a count each",
                     name_of(request)));
  const CallOptions& named = !options.strategy.empty() || is_librarys(request) ? options : forced_;
  Key key{static_cast<int>(request.collective),
          request.count,
          static_cast<int>(request.type),
          static_cast<int>(request.op),
          request.root,
          request.peer,
          named.strategy,
          named.params};
  const std::lock_guard lock(guard_);
  if (const auto* const found = programs_.find(key)) return *found;
  const bool is_chosen = named.strategy.empty();
  NodeProgram made = node_program(
      nodes_, request, is_chosen ? multinode_options(nodes_, request, bitwise_, order_) : named,
      order_);
  if (is_chosen) made.why = why_library(nodes_, request, bitwise_, order_);
  if (!is_served(made)) {
    if (!options.strategy.empty())
      throw Error(ErrorCode::unsupported,
                  text("{}: no engine serves its calls inside a node", made.label));
    CallOptions library;
    library.strategy = "library";
    const std::string why =
        text("inside a node no engine serves {}, or NCCL is faster", made.label);
    made = node_program(nodes_, request, library);
    made.why = why;
  }
  require_library(made);
  return programs_.add(std::move(key), std::make_shared<const NodeProgram>(std::move(made)),
                       [](const auto&) {});
}

void NodeProgramRunner::enqueue(const NodeProgram& program, const void* input, void* output,
                                cuda::Stream stream, double scalar) {
  char* const scratch = program.scratch_bytes == 0
                            ? nullptr
                            : static_cast<char*>(side_->scratch(program.scratch_bytes));
  const auto memory = [&](const Region& region) -> char* {
    if (region.bytes == 0) return nullptr;
    const void* const base = region.space == Space::input    ? input
                             : region.space == Space::output ? output
                                                             : scratch;
    return static_cast<char*>(const_cast<void*>(base)) + region.offset;
  };
  const int rank = nodes_.peers()[static_cast<std::size_t>(nodes_.place)];
  for (const NodeProgram::ProgramStep& step : program.steps) {
    char *const src = memory(step.src), *const dst = memory(step.dst);
    switch (step.kind) {
      case NodeStep::Action::inside: inside_.enqueue(step.request, src, dst, stream); break;
      case NodeStep::Action::across:
        side_->fork(stream);
        nccl_transport_->call(step.request, step.whole, step.whole ? rank : nodes_.mine, src, dst,
                              side_->stream(), scalar);
        side_->mark(step.call);
        break;
      case NodeStep::Action::await: side_->join(stream, step.call); break;
      default:
        if (src != dst) side_->copy(dst, src, step.dst.bytes, stream);
    }
  }
}

}  // namespace plait
