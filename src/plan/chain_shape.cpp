// Where the chain of a request begins and ends.
#include "plan/chain_shape.hpp"

#include "plait/plan.hpp"

namespace plait {

ChainShape chain_shape(const Request& request) {
  ChainShape shape{};
  shape.root = request.root;
  shape.sums = reduces(request.collective) ? 1 : 0;
  shape.first = shape.sums != 0 ? 0 : request.root;
  shape.last = (shape.first + request.ranks - 1) % request.ranks;
  shape.bytes = request.count * bytes_of(request.type);
  return shape;
}

ChainShape chain_piece(const ChainShape& whole, std::uint64_t offset, std::uint64_t bytes) {
  ChainShape piece = whole;
  piece.bytes = bytes;
  const bool has_between = whole.last > 1;  // of two ranks a line could not tell data from greeting
  const bool two_follow = whole.bytes - offset - bytes > bytes;
  piece.deferred = returns(whole) && has_between && two_follow ? 1 : 0;
  return piece;
}

}  // namespace plait
