// Starts persistent sends, made in message_call.hpp for MPI_Send_init and MPI_Rsend_init.
#include "shims/mpi/p2p/persistent_send.hpp"

#include "shims/mpi/args/layout.hpp"

namespace plait::mpi {

/// Pages of the staging buffer are not pinned, and become resident at the first native send.
PersistentSend::PersistentSend(const P2PArgs& args, int to, int tag, Handle comm)
    : buffer_(args.buffer),
      bytes_(args.count * static_cast<Count>(size_of(args.type).value_or(0))),
      to_(to),
      tag_(tag),
      comm_(comm),
      retained_(comm),
      native_request_(native().abi.no_request) {
  const int gpu = job_uses_gpus() ? gpu_of(buffer_) : -1;
  if (gpu >= 0)
    staging_buffer_.emplace(gpu, buffer_, ByteRange{0, static_cast<std::uint64_t>(bytes_)}, false);
}

PersistentSend::~PersistentSend() {
  const Abi& abi = native().abi;
  if (abi.key(native_request_) != abi.key(abi.no_request)) native().Request_free(&native_request_);
}

const void* PersistentSend::posted() const {
  return staging_buffer_ ? staging_buffer_->host() : buffer_;
}

std::unique_ptr<PendingRequest> PersistentSend::start(Refusal& refusal) {
  if (!retained_.is_freed())
    if (auto one =
            start_rendezvous_send({buffer_, bytes_, native().abi.byte}, to_, tag_, comm_, refusal);
        one != nullptr || refusal)
      return one;
  if (staging_buffer_) staging_buffer_->fetch();
  const int code = native().Start(&native_request_);
  if (code == 0) return make_native_request(native_request_, CallStaging());
  refusal = code;
  return nullptr;
}

}  // namespace plait::mpi
