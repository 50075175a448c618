// Checks the caller's buffers. The kernel tests that the output is writable by copying a byte onto
// itself: a read-only array is an error on every rank instead of a signal on a single rank.
#include "comm/shm/buffers.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plan/blocks.hpp"

namespace plait {
namespace {

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

constexpr std::uintptr_t kPageBytes = 4096;  // the smallest page size of any machine

void check_one(const char* name, const void* pointer, std::uint64_t bytes) {
  if (bytes == 0) return;
  if (pointer == nullptr)
    throw Error(ErrorCode::invalid_argument,
                text("{}: wanted {} bytes, found a null pointer", name, bytes));
  if (address(pointer) + bytes < address(pointer))
    throw Error(ErrorCode::invalid_argument,
                text("{}: {} bytes do not fit behind its address", name, bytes));
}

/// NCCL's in-place layouts, as proved by verify().
bool in_place_layout(const Request& request, int rank, std::uintptr_t input,
                     std::uintptr_t output) {
  switch (request.collective) {
    case Collective::all_gather:
    case Collective::gather: return input == output + received_block(request, rank, rank).offset;
    case Collective::reduce_scatter:
    case Collective::scatter: return output == input + sent_block(request, rank, rank).offset;
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::reduce: return input == output;
    default: return false;
  }
}

}  // namespace

bool is_writable(std::uintptr_t at) {
  iovec byte{reinterpret_cast<void*>(at), 1};  // the kernel copies the byte onto itself
  return process_vm_readv(getpid(), &byte, 1, &byte, 1, 0) == 1 || errno != EFAULT;
}

/// The test takes some microseconds on a slow machine, a call of that size hundreds.
bool WritablePages::hold(std::uintptr_t at, std::uint64_t bytes) {
  constexpr std::uint64_t kLong = 4 << 20;
  const std::uintptr_t last = at + bytes - 1;
  if (bytes >= kLong) return is_writable(at) && is_writable(last);
  return holds(at) && holds(last);
}

bool WritablePages::holds(std::uintptr_t at) {
  const std::uintptr_t page = at / kPageBytes + 1;
  std::atomic<std::uintptr_t>& cached = pages_[page % pages_.size()];
  if (cached.load(std::memory_order_relaxed) == page) return true;
  if (!is_writable(at)) return false;
  cached.store(page, std::memory_order_relaxed);
  return true;
}

void check_buffers(const Request& request, int rank, const void* input, const void* output,
                   WritablePages& writable) {
  const std::uint64_t out_bytes = output_bytes(request, rank);
  check_one("input", input, input_bytes(request, rank));
  check_one("output", output, out_bytes);
  if (out_bytes > 0 && !writable.hold(address(output), out_bytes))
    throw Error(ErrorCode::invalid_argument,
                text("output: wanted {} writable bytes, found memory that is read-only or unmapped",
                     out_bytes));
}

bool usable_as_is(const Request& request, int rank, const void* input, const void* output) {
  const std::uint64_t in_bytes = input_bytes(request, rank);
  const std::uint64_t out_bytes = output_bytes(request, rank);
  const std::uintptr_t in = address(input);
  const std::uintptr_t out = address(output);
  const bool overlap = in_bytes > 0 && out_bytes > 0 && in < out + out_bytes && out < in + in_bytes;
  return !overlap || in_place_layout(request, rank, in, out);
}

const void* usable_input(const Request& request, int rank, const void* input, const void* output,
                         std::vector<std::byte>& stage) {
  if (usable_as_is(request, rank, input, output)) return input;
  const std::uint64_t in_bytes = input_bytes(request, rank);
  stage.resize(in_bytes);
  std::memcpy(stage.data(), input, in_bytes);
  return stage.data();
}

void check_size(const Request& request) {
  const auto pages = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES));
  const std::uint64_t machine_bytes = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (message_bytes(request) > machine_bytes)
    throw Error(ErrorCode::out_of_memory,
                text("wanted a message of at most {} bytes, the machine's memory, found {}",
                     machine_bytes, message_bytes(request)));
}

}  // namespace plait
