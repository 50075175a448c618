// plaitAllReduceRmsNorm over Communicator. A rank with wrong values reports them to the peers of a
// call on host memory.
#include <cstddef>
#include <optional>

#include "base/error_reason.hpp"
#include "base/text.hpp"
#include "comm/api/c_api.hpp"
#include "comm/bootstrap/vote.hpp"
#include "plait/rms_norm.hpp"

using namespace plait;

namespace {

/// The type of a C value. Throws Error(invalid_argument) for a value of no type.
DataType type_of(const char* name, const char* wanted, int given) {
  if (given < 0 || given >= plaitDataType_count)
    throw Error(ErrorCode::invalid_argument, text("{}: wanted {}, found {}", name, wanted, given));
  return static_cast<DataType>(given);
}

}  // namespace

extern "C" {

plaitResult_t plaitAllReduceRmsNorm(const void* sendbuff, void* residual, const void* weight,
                                    void* recvbuff, size_t rows, size_t hidden,
                                    plaitDataType_t type, plaitDataType_t outtype, float epsilon,
                                    const float* scale, plaitComm_t comm, void* stream) {
  // As integers, since a C program may pass any value.
  const int input_type = type, output_type = outtype;
  return guarded(comm, [&] {
    Communicator& communicator = *wanted(comm, "comm")->communicator;
    const bool device = on_device(communicator, sendbuff, recvbuff, stream);
    RmsNorm norm;
    norm.rows = rows;
    norm.hidden = hidden;
    norm.epsilon = epsilon;
    const std::optional<Error> bad = attempt([&] {
      norm.type = type_of("type", "plait_bf16 or plait_fp16", input_type);
      norm.output = type_of("outtype", "the type of the input or plait_fp8e4m3", output_type);
    });
    if (bad) {
      if (!device) communicator.refuse(bad->code(), reason_of(*bad));
      throw Error(*bad);
    }
    const RmsNormBuffers buffers{sendbuff, residual, weight, recvbuff, scale};
    if (device)
      return communicator.enqueue_all_reduce_rms_norm(norm, buffers, stream, comm->options);
    communicator.all_reduce_rms_norm(norm, buffers, comm->options);
  });
}

}  // extern "C"
