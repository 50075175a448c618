// Finds NCCL in this order: a libnccl in the process (also if loaded privately, as by PyTorch and
// ctypes); the next definition in the program's scope; PLAIT_NCCL_LIB; libnccl.so.2 by name.
// plait's forwarding libnccl.so.2 is recognised by a mark and skipped.
#include "comm/transport/nccl/native.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::nccl {
namespace {

constexpr const char* kForwarderMark = "plait_nccl_forwarder";

struct Search {
  void* handle = nullptr;
  std::string path;
};

/// Callback of dl_iterate_phdr for each object; non-zero stops.
int look_at(dl_phdr_info* info, std::size_t, void* context) {
  const char* slash = std::strrchr(info->dlpi_name, '/');
  const char* base = slash == nullptr ? info->dlpi_name : slash + 1;
  if (std::strncmp(base, "libnccl.so", 10) != 0) return 0;
  static_cast<Search*>(context)->path += info->dlpi_name;
  static_cast<Search*>(context)->path += '\n';
  return 0;
}

bool forwards(void* handle) { return ::dlsym(handle, kForwarderMark) != nullptr; }

/// Libraries are opened after the walk: dl_iterate_phdr holds the loader's lock.
Search already_loaded() {
  Search names;
  ::dl_iterate_phdr(look_at, &names);
  for (const std::string& path : split(names.path, '\n')) {
    void* handle = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (handle != nullptr && !forwards(handle)) return {handle, path};
    if (handle != nullptr) ::dlclose(handle);
  }
  return {};
}

Search next_in_scope() {
  void* symbol = ::dlsym(RTLD_NEXT, "ncclAllReduce");
  Dl_info where{};
  if (symbol == nullptr || ::dladdr(symbol, &where) == 0) return {};
  void* handle = ::dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr || forwards(handle)) return {};
  return {handle, where.dli_fname};
}

Search opened(const char* name) {
  void* handle = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr || forwards(handle)) return {};
  void* symbol = ::dlsym(handle, "ncclAllReduce");
  Dl_info where{};
  if (symbol == nullptr || ::dladdr(symbol, &where) == 0) return {};
  return {handle, where.dli_fname};
}

std::string configured_path() {
  std::string path;
  try {
    path = read_env().nccl_lib;
  } catch (const Error&) {  // the reader of the settings reports the error
    path = foreign_env("PLAIT_NCCL_LIB");
  }
  return path.empty() || path[0] != '/' ? std::string() : path;
}

Search find() {
  Search found = already_loaded();
  if (found.handle == nullptr) found = next_in_scope();
  const std::string query = found.handle == nullptr ? configured_path() : std::string();
  if (!query.empty()) found = opened(query.c_str());
  if (found.handle == nullptr) found = opened("libnccl.so.2");
  return found;
}

/// Stores the range of executable segments of the library that holds `symbol`.
void find_code(NativeNccl& table, const void* symbol) {
  Dl_info where{};
  if (symbol == nullptr || ::dladdr(symbol, &where) == 0) return;
  struct SymbolQuery {
    NativeNccl& table;
    std::uintptr_t symbol;
  } wanted{table, reinterpret_cast<std::uintptr_t>(symbol)};
  ::dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* data) {
        auto& query = *static_cast<SymbolQuery*>(data);
        std::uintptr_t first = ~std::uintptr_t{0}, last = 0;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = object->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
          const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
          first = std::min(first, begin);
          last = std::max(last, begin + segment.p_memsz);
        }
        if (query.symbol < first || query.symbol >= last) return 0;
        query.table.first_code = first;
        query.table.last_code = last;
        return 1;
      },
      &wanted);
}

NativeNccl* load() {
  auto* table = new NativeNccl;  // never freed: calls may come during exit
  const Search found = find();
  if (found.handle == nullptr) {
    table->why_absent = "no libnccl found in the process, in PLAIT_NCCL_LIB or by name";
    return table;
  }
  table->handle = found.handle;
  table->path = found.path;
  std::string missing;
#define PLAIT_NCCL_NATIVE(field, symbol, needed, arguments)                             \
  table->field = reinterpret_cast<Result(*) arguments>(::dlsym(found.handle, #symbol)); \
  if (table->field == nullptr && needed != 0) missing += " " #symbol;
#include "comm/transport/nccl/functions.def"
#undef PLAIT_NCCL_NATIVE
  if (!missing.empty()) {
    table->why_absent = text("{} lacks{}", found.path, missing);
    return table;
  }
  find_code(*table, reinterpret_cast<const void*>(table->async_error));
  table->get_version(&table->version);
  return table;
}

}  // namespace

const NativeNccl& native() {
  static const NativeNccl* const table = load();
  return *table;
}

}  // namespace plait::nccl
