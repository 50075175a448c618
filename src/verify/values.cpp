// Runs a plan on symbols (see values.hpp). Without hazards every order gives the same result.
#include "verify/values.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "plait/builder.hpp"
#include "plan/library_call.hpp"

namespace plait {
Values::Values(const Plan& plan, Placement placement, Findings& findings)
    : plan_(plan),
      findings_(findings),
      memories_(plan, placement),
      suffix_(placement == Placement::in_place ? " (in place)" : ""),
      scales_(plan.request.op == ReduceOp::premul_sum && reduces(plan.request.collective)),
      expressions_(plan.request.ranks, scales_ && is_widened(plan.request.type)),
      bytes_(memories_.count()) {
  for (int rank = 0; rank < plan.request.ranks; ++rank) {
    const std::uint64_t bytes = input_bytes(plan.request, rank);
    if (bytes > 0) put({Space::input, rank, 0, bytes}, {{0, bytes, {rank, 0}}});
  }
}

void Values::run(const OpOrder& order) {
  order_ = &order;
  for (const Site& here : order.sequence()) {
    const Op& op = order.op(here);
    if (op.kind == OpKind::copy) copy(here, op);
    if (op.kind == OpKind::reduce) reduce(here, op);
    if (op.kind == OpKind::join) join(here, op);
  }
}

std::vector<ContentPiece> Values::contents_of(const Region& region) const {
  std::vector<ContentPiece> pieces;
  const MemoryAddress at = memories_.of(region);
  bytes_[at.index].read(
      at.offset, at.offset + region.bytes,
      [&](std::uint64_t lo, std::uint64_t hi, const Content& content) {
        lo -= at.offset;
        hi -= at.offset;
        if (!pieces.empty() && pieces.back().content.later(lo - pieces.back().lo) == content)
          pieces.back().hi = hi;
        else
          pieces.push_back({lo, hi, content});
      });
  return pieces;
}

void Values::put(const Region& dst, const std::vector<ContentPiece>& pieces) {
  const MemoryAddress at = memories_.of(dst);
  for (const ContentPiece& piece : pieces)
    bytes_[at.index].write(at.offset + piece.lo, at.offset + piece.hi, piece.content);
}

// Returns the contents of a source. Reports unwritten bytes, and marks them as spoilt.
std::vector<ContentPiece> Values::source(Site here, const Region& src) {
  std::vector<ContentPiece> pieces = contents_of(src);
  for (ContentPiece& piece : pieces) {
    const Region part{src.space, src.rank, src.offset + piece.lo, piece.hi - piece.lo};
    // Executors scale what an op reads from an input. In place, an earlier op may have scaled it.
    if (scales_ && src.space == Space::input && piece.content.expression >= 0 &&
        piece.content.expression != src.rank) {
      findings_.of_op(
          Rule::contract, here.lane, here.op,
          text("wanted an input that is scaled once, found that {} reads {} after an op "
               "has written {} there{}",
               site(plan_, here.lane, here.op), print(part),
               expressions_.print(piece.content.expression), suffix_));
      piece.content.expression = kSpoilt;
    }
    if (piece.content.expression != kUnwritten) continue;
    piece.content.expression = kSpoilt;
    findings_.of_op(Rule::contract, here.lane, here.op,
                    text("wanted bytes that were written before, found that {} reads {}, which no "
                         "op has written{}",
                         site(plan_, here.lane, here.op), print(part), suffix_));
  }
  return pieces;
}

void Values::copy(Site here, const Op& op) { put(op.dst, source(here, op.srcs.front())); }

void Values::reduce(Site here, const Op& op) {
  has_misaligned_finding_ = false;
  if (!reduces(plan_.request.collective))
    findings_.of_op(
        Rule::contract, here.lane, here.op,
        text("wanted no reduction in {}, found one{}", name_of(plan_.request.collective), suffix_));
  std::vector<std::vector<ContentPiece>> sources;
  for (const Region& src : op.srcs) sources.push_back(source(here, src));
  put(op.dst, sum_pieces(here, op, sources, op.dst.bytes));
}

// Sums piece by piece; in a piece each source holds a single expression.
std::vector<ContentPiece> Values::sum_pieces(Site here, const Op& op,
                                             const std::vector<std::vector<ContentPiece>>& sources,
                                             std::uint64_t bytes) {
  std::vector<std::size_t> at(sources.size(), 0);
  std::vector<ContentPiece> made;
  for (std::uint64_t lo = 0; lo < bytes;) {
    std::uint64_t hi = bytes;
    std::vector<Content> operands;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      while (sources[i][at[i]].hi <= lo) ++at[i];
      const ContentPiece& piece = sources[i][at[i]];
      hi = std::min(hi, piece.hi);
      operands.push_back(piece.content.later(lo - piece.lo));
    }
    made.push_back({lo, hi, sum_contents(here, op, operands)});
    lo = hi;
  }
  return made;
}

// A call's joins are consecutive in the run: at the first all have joined and none has continued.
void Values::join(Site here, const Op& op) {
  const LibraryCall& call = plan_.calls[static_cast<std::size_t>(op.call)];
  const Request request = request_of(plan_, call);
  has_misaligned_finding_ = false;
  std::vector<std::vector<ContentPiece>>& given = given_[op.call];
  if (given.empty())
    for (const Site& member : order_->members(op.call)) {
      const Op& part = order_->op(member);
      given.push_back(part.srcs.empty() ? std::vector<ContentPiece>{}
                                        : source(member, part.srcs.front()));
    }
  for (const Given& one : given_by(request, member_of(call, order_->rank(here)))) {
    const std::uint64_t bytes = one.hi - one.lo;
    std::vector<std::vector<ContentPiece>> sources;
    for (int member = 0; member < request.ranks; ++member)
      if (one.from < 0 || one.from == member)
        sources.push_back(part_of(given[static_cast<std::size_t>(member)], one.origin, bytes));
    put(slice(op.dst, {one.lo, bytes}),
        one.from < 0 ? sum_pieces(here, op, sources, bytes) : sources[0]);
  }
}

Content Values::spoil(Site here, const std::string& sentence) {
  if (!has_misaligned_finding_)
    findings_.of_op(Rule::contract, here.lane, here.op, sentence + suffix_);
  has_misaligned_finding_ = true;
  return {kSpoilt, 0};
}

Content Values::sum_contents(Site here, const Op& op, const std::vector<Content>& operands) {
  std::vector<int> children;
  for (const Content& operand : operands) {
    if (operand.expression < 0) return {kSpoilt, 0};
    children.push_back(operand.expression);
    if (operand.origin == operands.front().origin) continue;
    return spoil(
        here,
        text("wanted operands that are the same bytes of the message, found bytes {} and {} summed",
             operands.front().origin, operand.origin));
  }
  const bool by_library = op.kind == OpKind::join;
  if (by_library && scales_ && std::any_of(children.begin(), children.end(), [&](int child) {
        return expressions_.node(child).leaf >= 0;
      }))
    return spoil(here, "wanted inputs scaled before a library sums them, found some as they are");
  if (by_library && op.finish && plan_.request.op == ReduceOp::avg)
    return spoil(here, "wanted an average divided after a library has summed it, found none");
  return {expressions_.sum(children, op.finish, by_library ? op.call : -1),
          operands.front().origin};
}

}  // namespace plait
