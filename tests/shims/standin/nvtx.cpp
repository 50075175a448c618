// Stand-in tool of NVTX, for NVTX_INJECTION64_PATH: writes name and bytes of each range to the file
// NVTX_RECORD.
#include <nvtx3/nvToolsExt.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

void write(const char* what, const char* name, std::uint64_t bytes) {
  const char* path = std::getenv("NVTX_RECORD");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return;
  std::fprintf(file, "%s %s %llu\n", what, name, static_cast<unsigned long long>(bytes));
  std::fclose(file);
}

int the_domain = 0;

nvtxDomainHandle_t create(const char* name) {
  write("domain", name, 0);
  return reinterpret_cast<nvtxDomainHandle_t>(&the_domain);
}

int push(nvtxDomainHandle_t, const nvtxEventAttributes_t* attributes) {
  const bool is_whole = attributes->version == NVTX_VERSION &&
                        attributes->size == NVTX_EVENT_ATTRIB_STRUCT_SIZE &&
                        attributes->messageType == NVTX_MESSAGE_TYPE_ASCII &&
                        attributes->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  write(is_whole ? "push" : "wrong", attributes->message.ascii, attributes->payload.ullValue);
  return 0;
}

int pop(nvtxDomainHandle_t) {
  write("pop", "-", 0);
  return 0;
}

}  // namespace

/// Puts this tool's functions into NVTX's table. Returns 1, as NVTX wants, or 0 if there is none.
extern "C" [[gnu::visibility("default")]] int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t table_of) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0 ||
      size < NVTX_CBID_CORE2_SIZE)
    return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
