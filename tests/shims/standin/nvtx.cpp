// Stand-in libnvtx3interop.so.1: writes name and bytes of each range to the file NVTX_RECORD.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct NvtxAttributes {
  std::uint16_t version, size;
  std::uint32_t category;
  std::int32_t color_type, color, payload_type, reserved;
  std::uint64_t payload;
  std::int32_t message_type;
  const char* message;
};

void write(const char* what, const char* name, std::uint64_t bytes) {
  const char* path = std::getenv("NVTX_RECORD");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return;
  std::fprintf(file, "%s %s %llu\n", what, name, static_cast<unsigned long long>(bytes));
  std::fclose(file);
}

int domain = 0;

}  // namespace

extern "C" {

[[gnu::visibility("default")]] void* nvtxDomainCreateA(const char* name) {
  write("domain", name, 0);
  return &domain;
}

[[gnu::visibility("default")]] int nvtxDomainRangePushEx(void*, const NvtxAttributes* attributes) {
  write("push", attributes->message, attributes->payload);
  return 0;
}

[[gnu::visibility("default")]] int nvtxDomainRangePop(void*) {
  write("pop", "-", 0);
  return 0;
}

}  // extern "C"
