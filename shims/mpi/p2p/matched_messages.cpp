// Table of matched messages by handle: an MPI reuses the handle once the message is received.
#include "shims/mpi/p2p/matched_messages.hpp"

#include <map>
#include <mutex>

#include "shims/mpi/requests/errors.hpp"

namespace plait::mpi {
namespace {

struct MatchedMessages {
  std::mutex mutex;
  std::map<Handle, RetainedComm> all;  ///< by Abi::key
};

MatchedMessages& matched_messages() {
  static auto* const one = new MatchedMessages;
  return *one;
}

}  // namespace

void add_matched(Handle message, Handle comm) {
  const RetainedComm retained(comm);
  const std::lock_guard lock(matched_messages().mutex);
  matched_messages().all.insert_or_assign(native().abi.key(message), retained);
}

Handle take_matched(Handle message) {
  const Handle world = native().abi.world;
  const std::lock_guard lock(matched_messages().mutex);
  auto& all = matched_messages().all;
  const auto at = all.find(native().abi.key(message));
  if (at == all.end()) return world;
  const Handle found = at->second.handle().value_or(world);
  all.erase(at);
  return found;
}

}  // namespace plait::mpi
