// Reads and writes MPI_Status; the layout depends on the MPI.
#pragma once
#include <array>
#include <vector>

#include "shims/mpi/abi/native_mpi.hpp"

namespace plait::mpi {

int status_bytes();
/// Returns 0 for a cancelled receive and for an ignored status.
std::uint64_t received_bytes(const void* status);
void set_received_bytes(void* status, std::uint64_t bytes);
/// MPI_ERROR, set by functions for several requests.
int& error_in(void* status);
int error_class(int code);

/// The statuses that a native function fills: the program's, or own ones if the program ignores
/// them and the drop-in needs them.
class Statuses {
 public:
  Statuses(void* given, int count, bool needed);
  Statuses(const Statuses&) = delete;
  Statuses& operator=(const Statuses&) = delete;
  void* all() const { return all_; }
  void* at(int index) const;
  bool are_ignored() const;

 private:
  alignas(8) std::array<std::byte, 32> own_one_{};
  std::vector<std::byte> own_;
  void* all_;
};

}  // namespace plait::mpi
