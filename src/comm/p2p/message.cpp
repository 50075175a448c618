// Names messages for errors.
#include "comm/p2p/message.hpp"

#include "base/text.hpp"

namespace plait::p2p {

std::string send_text(std::uint64_t bytes, int peer, std::int64_t tag) {
  return text("send of {} bytes to rank {} (tag {})", bytes, peer, tag);
}

std::string Message::what() const {
  if (kind_ == Kind::send) return send_text(bytes_, peer_, key_.tag);
  const std::string from = peer_ == kAnySource ? "any rank" : text("rank {}", peer_);
  return key_.tag == kAnyTag ? text("recv from {} (any tag)", from)
                             : text("recv from {} (tag {})", from, key_.tag);
}

}  // namespace plait::p2p
