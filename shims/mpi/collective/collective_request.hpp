// Non-blocking and persistent collectives of plait's, as requests.
#pragma once
#include <memory>
#include <optional>

#include "shims/mpi/collective/serve.hpp"
#include "shims/mpi/requests/requests.hpp"

namespace plait::mpi {

struct CollectiveRequest : PendingRequest {
  CollectiveRequest(std::shared_ptr<ServedComm> in, bool ranks_agree)
      : state(std::move(in)), abortable(state), agrees(ranks_agree) {
    comm = state->retained_comm();
  }
  bool has_ended() override;
  void fill(void* status) const override;
  bool must_end() const override { return true; }
  std::shared_ptr<ServedComm> state;    ///< until the call has run
  std::weak_ptr<ServedComm> abortable;  ///< for has_ended()
  bool agrees;                          ///< ranks exchange buffer locations first
  Participation participation;
  CollectiveRequest* next = nullptr;  ///< in the state's queue
  std::optional<Error> error;         ///< written before `ended`
  std::atomic<bool> ended{false};

 private:
  RateLimit rate_limit_;
  std::int64_t failed_ns_ = 0;
};

/// Makes the request of a served call, for the state's queue. If this rank cannot stage the call,
/// the request refuses when at the head of the queue. Throws if there is no memory for the request
/// itself; this rank has then aborted the state.
std::unique_ptr<CollectiveRequest> make_collective_request(const ServedCall& call,
                                                           const CollectiveArgs& args);
int start_served(const ServedCall& call, const CollectiveArgs& args, void* request);
/// Called by plait's thread after a call has ended.
void on_collective_ended(CollectiveRequest& operation);

}  // namespace plait::mpi
