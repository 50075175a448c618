// FNV-1a hash, for comparing values between ranks and builds. Not cryptographic.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace plait {

inline constexpr std::uint64_t kHashOfNothing = 14695981039346656037ull;

/// seed: the hash of the preceding bytes.
inline std::uint64_t hash_bytes(const void* data, std::size_t bytes,
                                std::uint64_t seed = kHashOfNothing) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint64_t hash = seed;
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * 1099511628211ull;
  return hash;
}

/// Returns 16 hexadecimal digits.
inline std::string hex(std::uint64_t number) {
  std::string digits;
  for (int shift = 60; shift >= 0; shift -= 4) digits += "0123456789abcdef"[(number >> shift) & 15];
  return digits;
}

}  // namespace plait
