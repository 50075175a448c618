// plaitAllReduceRmsNorm over Communicator. A rank with wrong values reports them to the peers of a
// call on host memory.
#include <cstddef>

#include "base/text.hpp"
#include "comm/api/c_api.hpp"
#include "plait/rms_norm.hpp"

using namespace plait;

namespace {

/// The type of a C value. A wrong value becomes a type that no call takes, so that the check of the
/// call reports it.
DataType type_of(int given) {
  return given < 0 || given >= plaitDataType_count ? DataType::int8 : static_cast<DataType>(given);
}

}  // namespace

extern "C" {

plaitResult_t plaitAllReduceRmsNorm(const void* sendbuff, void* residual, const void* weight,
                                    void* recvbuff, size_t rows, size_t hidden,
                                    plaitDataType_t type, plaitDataType_t outtype, float epsilon,
                                    const float* scale, plaitComm_t comm, void* stream) {
  return guarded(comm, [&] {
    Communicator& communicator = *wanted(comm, "comm")->communicator;
    RmsNorm norm;
    norm.rows = rows;
    norm.hidden = hidden;
    norm.type = type_of(type);
    norm.output = type_of(outtype);
    norm.epsilon = epsilon;
    const RmsNormBuffers buffers{sendbuff, residual, weight, recvbuff, scale};
    if (on_device(communicator, sendbuff, recvbuff, stream))
      return communicator.enqueue_all_reduce_rms_norm(norm, buffers, stream, comm->options);
    communicator.all_reduce_rms_norm(norm, buffers, comm->options);
  });
}

}  // extern "C"
