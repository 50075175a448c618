// Makes the ranges by NVIDIA's nvtx3 headers, which load the tool that NVTX_INJECTION64_PATH names.
#include "comm/trace/nvtx.hpp"

#include <nvtx3/nvToolsExt.h>

#include "base/env.hpp"

namespace plait {
namespace {

/// The domain "plait", or nullptr if no tool listens. The headers read the environment without a
/// lock, so plait calls them only if a tool has set the variable.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = foreign_env("NVTX_INJECTION64_PATH").empty()
                                             ? nullptr
                                             : nvtxDomainCreateA("plait");
  return made;
}

}  // namespace

bool NvtxRange::is_listened_to() { return domain() != nullptr; }

NvtxRange::NvtxRange(const char* name, std::uint64_t bytes) {
  if (!is_listened_to()) return;
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  attributes.payload.ullValue = bytes;
  open_ = nvtxDomainRangePushEx(domain(), &attributes) >= 0;
}

NvtxRange::~NvtxRange() {
  if (open_) nvtxDomainRangePop(domain());
}

}  // namespace plait
