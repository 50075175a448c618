// Accesses MPI_Status by the offsets of the MPI's ABI.
#include "shims/mpi/abi/status.hpp"

#include <cstddef>

namespace plait::mpi {

int status_bytes() { return native().abi.status_bytes; }

std::uint64_t received_bytes(const void* status) {
  if (status == nullptr || status == native().abi.status_ignore) return 0;
  int cancelled = 0;
  if (native().Test_cancelled(status, &cancelled) == 0 && cancelled != 0) return 0;
  Count bytes = 0;
  const auto get =
      native().Get_elements_x != nullptr ? native().Get_elements_x : native().Get_elements_c;
  if (get(status, native().abi.byte, &bytes) != 0 || bytes < 0) return 0;
  return static_cast<std::uint64_t>(bytes);
}

void set_received_bytes(void* status, std::uint64_t bytes) {
  const auto set = native().Status_set_elements_x != nullptr ? native().Status_set_elements_x
                                                             : native().Status_set_elements_c;
  set(status, native().abi.byte, static_cast<Count>(bytes));
}

int& error_in(void* status) {
  return *reinterpret_cast<int*>(static_cast<std::byte*>(status) + native().abi.error_at);
}

int error_class(int code) {
  int found = code;
  return code != 0 && native().Error_class(code, &found) == 0 ? found : code;
}

/// A function that stops at an error may leave statuses unchanged, hence all errors start as
/// pending.
Statuses::Statuses(void* given, int count, bool needed) : all_(given) {
  if (!needed || count <= 0 || (given != nullptr && given != native().abi.status_ignore)) return;
  if (count > 1)
    own_.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(status_bytes()));
  all_ = count > 1 ? own_.data() : own_one_.data();
  for (int index = 0; index < count; ++index) error_in(at(index)) = native().abi.err_pending;
}

bool Statuses::are_ignored() const { return all_ == nullptr || all_ == native().abi.status_ignore; }

void* Statuses::at(int index) const {
  if (are_ignored()) return native().abi.status_ignore;
  return static_cast<std::byte*>(all_) + static_cast<std::ptrdiff_t>(index) * status_bytes();
}

}  // namespace plait::mpi
