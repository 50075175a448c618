// Keeps the factory of the program's own transport.
#include "comm/transport/transport.hpp"

namespace plait {
namespace {

TransportFactory& current_factory() {
  static TransportFactory maker;
  return maker;
}

}  // namespace

void set_transport_factory(TransportFactory maker) { current_factory() = std::move(maker); }

const TransportFactory& transport_factory() { return current_factory(); }

}  // namespace plait
