// libplait_audit.so for LD_AUDIT, used with LD_PRELOAD=libplait_nccl.so: programs that open libnccl
// by name or path and look functions up by handle get plait's functions. Opens, moves and renames
// nothing. Runs inside the loader, in a namespace with a C library of its own: no C++ library, no
// allocation. Interface: rtld-audit(7).
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstring>

namespace {

// Kind of an object, stored in the loader's cookie.
constexpr std::uintptr_t kOther = 0;
constexpr std::uintptr_t kDropIn = 1;
constexpr std::uintptr_t kNccl = 2;

const link_map* drop_in = nullptr;

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

/// Returns the address in an entry of the dynamic section. The loader has added the base to some
/// addresses.
const void* address_of(const link_map* map, ElfW(Sxword) tag) {
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag != tag) continue;
    const ElfW(Addr) address = entry->d_un.d_ptr;
    return reinterpret_cast<const void*>(address < map->l_addr ? address + map->l_addr : address);
  }
  return nullptr;
}

std::uint32_t gnu_hash(const char* name) {
  std::uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

/// Returns the address of the name in `map`, by the GNU hash table; 0 = not defined in `map`.
std::uintptr_t defined_in(const link_map* map, const char* name) {
  const auto* symbols = static_cast<const ElfW(Sym)*>(address_of(map, DT_SYMTAB));
  const auto* names = static_cast<const char*>(address_of(map, DT_STRTAB));
  const auto* table = static_cast<const std::uint32_t*>(address_of(map, DT_GNU_HASH));
  if (symbols == nullptr || names == nullptr || table == nullptr) return 0;
  const std::uint32_t bucket_count = table[0], first = table[1], bloom_words = table[2];
  const std::uint32_t* buckets =
      table + 4 + static_cast<std::size_t>(bloom_words) * (sizeof(ElfW(Addr)) / 4);
  const std::uint32_t* chains = buckets + bucket_count;
  const std::uint32_t hash = gnu_hash(name);
  std::uint32_t index = bucket_count == 0 ? 0 : buckets[hash % bucket_count];
  if (index < first) return 0;
  for (;; ++index) {
    const std::uint32_t there = chains[index - first];
    const ElfW(Sym)& symbol = symbols[index];
    if ((there | 1u) == (hash | 1u) && std::strcmp(names + symbol.st_name, name) == 0)
      return symbol.st_shndx == SHN_UNDEF ? 0 : map->l_addr + symbol.st_value;
    if ((there & 1u) != 0) return 0;  // end of this chain
  }
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] unsigned la_version(unsigned offered) {
  return offered < LAV_CURRENT ? offered : LAV_CURRENT;
}

[[gnu::visibility("default")]] unsigned la_objopen(link_map* map, Lmid_t space,
                                                   std::uintptr_t* cookie) {
  const char* name = base_name(map->l_name);
  *cookie = kOther;
  if (space == LM_ID_BASE && std::strncmp(name, "libplait_nccl.so", 16) == 0) {
    *cookie = kDropIn;
    drop_in = map;
    return 0;
  }
  if (std::strncmp(name, "libnccl.so", 10) != 0) return LA_FLG_BINDFROM;
  *cookie = kNccl;
  return LA_FLG_BINDTO;
}

[[gnu::visibility("default")]] std::uintptr_t la_symbind64(ElfW(Sym) * symbol, unsigned,
                                                           std::uintptr_t* user,
                                                           std::uintptr_t* definer, unsigned*,
                                                           const char* name) {
  if (*definer != kNccl || *user != kOther || drop_in == nullptr ||
      std::strncmp(name, "nccl", 4) != 0)
    return symbol->st_value;
  const std::uintptr_t ours = defined_in(drop_in, name);
  return ours != 0 ? ours : symbol->st_value;
}

}  // extern "C"
