// First rank, last rank and root of a request's chain.
#include "plan/chain_shape.hpp"

#include "plait/plan.hpp"

namespace plait {

ChainShape chain_shape(const Request& request) {
  ChainShape shape{};
  shape.root = request.root;
  shape.sums = reduces(request.collective) ? 1 : 0;
  const int first_addend = request.ranks == 2 ? 1 - request.root : 0;
  shape.first = shape.sums != 0 ? first_addend : request.root;
  shape.last = (shape.first + request.ranks - 1) % request.ranks;
  shape.bytes = request.count * bytes_of(request.type);
  return shape;
}

}  // namespace plait
