// Teams of threads that move 16-byte units between buffers of any alignment and slots.
#pragma once
#include "gpu/device/memory.cuh"

namespace plait::cuda {

/// Threads that work together, synchronized by a named barrier.
struct Team {
  unsigned id, threads, lane;
  __device__ void barrier() const { sync_threads(id, threads); }
  __device__ bool any(bool mine) const { return any_of_threads(id, threads, mine); }
};

/// Moves up to 16 bytes element by element. Not inlined, so that loops stay small.
__device__ PLAIT_NOINLINE Unit load_elements(const char* at, unsigned long long bytes,
                                             unsigned element) {
  unsigned long long words[2] = {0, 0};
#pragma unroll 1
  for (unsigned offset = 0; offset < bytes; offset += element) {
    unsigned long long part = 0;
    switch (element) {
      case 1: part = load_plain(reinterpret_cast<const std::uint8_t*>(at + offset)); break;
      case 2: part = load_plain(reinterpret_cast<const std::uint16_t*>(at + offset)); break;
      case 4: part = load_plain(reinterpret_cast<const std::uint32_t*>(at + offset)); break;
      default: part = load_plain(reinterpret_cast<const std::uint64_t*>(at + offset));
    }
    (offset < 8 ? words[0] : words[1]) |= part << offset % 8 * 8;
  }
  return {words[0], words[1]};
}
__device__ PLAIT_NOINLINE void store_elements(char* at, unsigned long long bytes, unsigned element,
                                              unsigned long long lo, unsigned long long hi) {
#pragma unroll 1
  for (unsigned offset = 0; offset < bytes; offset += element) {
    const unsigned long long part = (offset < 8 ? lo : hi) >> offset % 8 * 8;
    switch (element) {
      case 1:
        store_plain(reinterpret_cast<std::uint8_t*>(at + offset), static_cast<std::uint8_t>(part));
        break;
      case 2:
        store_plain(reinterpret_cast<std::uint16_t*>(at + offset),
                    static_cast<std::uint16_t>(part));
        break;
      case 4:
        store_plain(reinterpret_cast<std::uint32_t*>(at + offset),
                    static_cast<std::uint32_t>(part));
        break;
      default:
        store_plain(reinterpret_cast<std::uint64_t*>(at + offset),
                    static_cast<std::uint64_t>(part));
    }
  }
}

/// Loads or stores a unit of a buffer of any alignment, in elements if needed.
__device__ inline Unit load_any(const char* src, unsigned long long unit, unsigned long long bytes,
                                bool whole, unsigned element) {
  const unsigned long long at = unit * 16;
  if (!whole || at + 16 > bytes)
    return load_elements(src + at, bytes > at ? min(bytes - at, 16ull) : 0, element);
  const ulonglong2 pair = load_plain(reinterpret_cast<const ulonglong2*>(src + at));
  return {pair.x, pair.y};
}
__device__ inline void store_any(char* dst, unsigned long long unit, const Unit& value,
                                 unsigned long long bytes, bool whole, unsigned element) {
  const unsigned long long at = unit * 16;
  if (!whole || at + 16 > bytes)
    return store_elements(dst + at, bytes > at ? min(bytes - at, 16ull) : 0, element, value.lo,
                          value.hi);
  store_plain(reinterpret_cast<ulonglong2*>(dst + at), make_ulonglong2(value.lo, value.hi));
}

/// Copies `limit` units of `src`, from unit `from` on, into a slot.
__device__ inline void put_units(const Team& team, char* slot, const char* src,
                                 unsigned long long bytes, unsigned long long from, unsigned limit,
                                 unsigned element) {
  auto* dst = reinterpret_cast<ulonglong2*>(slot);
  const bool whole = is_aligned(src);
  for (unsigned i = team.lane; i < limit; i += 4 * team.threads) {
    Unit held[4];
#pragma unroll
    for (int u = 0; u < 4; ++u)
      if (i + u * team.threads < limit)
        held[u] = load_any(src, from + i + u * team.threads, bytes, whole, element);
#pragma unroll
    for (int u = 0; u < 4; ++u)
      if (i + u * team.threads < limit)
        store_plain(&dst[i + u * team.threads], make_ulonglong2(held[u].lo, held[u].hi));
  }
}
/// Copies `limit` units of a slot to `to`, from unit `from` on.
__device__ inline void take_units(const Team& team, char* to, unsigned long long bytes,
                                  unsigned long long from, const char* slot, unsigned limit,
                                  unsigned element) {
  const bool whole = is_aligned(to);
  for (unsigned i = team.lane; i < limit; i += 4 * team.threads) {
    Unit held[4];
#pragma unroll
    for (int u = 0; u < 4; ++u)
      if (i + u * team.threads < limit) held[u] = load_pair(slot + (i + u * team.threads) * 16ull);
#pragma unroll
    for (int u = 0; u < 4; ++u)
      if (i + u * team.threads < limit)
        store_any(to, from + i + u * team.threads, held[u], bytes, whole, element);
  }
}

}  // namespace plait::cuda
