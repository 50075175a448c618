// The pre- and post-step for rank counts that are no power of two (see folding.hpp).
#include "planner/folding.hpp"

#include <bit>

namespace plait {

Folding::Folding(int ranks)
    : members(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))),
      folded(ranks - members) {}

int Folding::steps() const { return std::bit_width(static_cast<unsigned>(members)) - 1; }

Region Folding::start(const Builder& builder, int member, Range range) const {
  return member < folded ? builder.output(rank(member), range) : builder.input(rank(member), range);
}

void fold(Builder& builder, const Folding& folding, Courier& courier, Range range) {
  for (int member = 0; member < folding.folded; ++member) {
    const int lower = folding.rank(member), higher = lower + 1;
    courier.send(higher, lower, {builder.input(higher, range)});
    const Message message = courier.receive(lower, higher, range.bytes);
    courier.reduce(lower, builder.output(lower, range),
                   {builder.input(lower, range), message.region}, false);
    courier.release(message);
  }
}

void unfold(Builder& builder, const Folding& folding, Courier& courier, Range range) {
  for (int member = 0; member < folding.folded; ++member) {
    const int lower = folding.rank(member), higher = lower + 1;
    courier.send(lower, higher, {builder.output(lower, range)});
    const Message message = courier.receive(higher, lower, range.bytes);
    courier.copy(higher, builder.output(higher, range), message.region);
    courier.release(message);
  }
}

}  // namespace plait
