// Differences between MPI ABIs: the width of handles and the predefined handles. Every ABI passes a
// handle in a register. Therefore the same functions serve all MPIs: they forward handles and
// recognise some.
#pragma once
#include <array>
#include <cstdint>

#include "plait/plan.hpp"

namespace plait::mpi {

/// MPI_Comm, MPI_Datatype, ... as passed in a register. The upper half of a 4-byte handle is
/// undefined.
using Handle = std::uintptr_t;
using Count = std::int64_t;  ///< MPI_Count

enum class MpiFamily { open_mpi, mpich, standard };

/// Reductions that MPI allows on a type.
enum class TypeClass : std::uint8_t {
  integer,
  floating,
  byte,
  moved,
  queried_integer,
  queried_floating
};

struct MpiType {
  Handle handle = 0;
  TypeClass kind = TypeClass::moved;
  DataType type = DataType::uint8;
  const char* name = nullptr;  ///< "MPI_INT"
};

struct MpiOp {
  Handle handle = 0;
  ReduceOp op = ReduceOp::sum;
  bool on_floats = false;
};

struct Abi {
  MpiFamily family = MpiFamily::open_mpi;
  int handle_bytes = 8;
#define PLAIT_MPI_ADDRESS(name, ...) void* name = nullptr;
#define PLAIT_MPI_NUMBER(name, ...) int name = 0;
#define PLAIT_MPI_HANDLE(name, ...) Handle name = 0;
#include "comm/transport/mpi/constants.def"
#undef PLAIT_MPI_ADDRESS
#undef PLAIT_MPI_NUMBER
#undef PLAIT_MPI_HANDLE

  /// Key for comparing handles.
  Handle key(Handle handle) const {
    return handle_bytes == 4 ? static_cast<std::uint32_t>(handle) : handle;
  }
  /// Element `index` of an array of handles in the program.
  Handle at(const void* handles, int index) const {
    return handle_bytes == 4 ? static_cast<const std::uint32_t*>(handles)[index]
                             : static_cast<const Handle*>(handles)[index];
  }
  const MpiType* type(Handle handle) const;
  const MpiOp* op(Handle handle) const;

  static constexpr std::size_t kTypeSlots = 128;  ///< a power of 2, well above the number of types
  std::array<MpiType, kTypeSlots> types{};        ///< by slot(); handle 0 = free
  std::array<MpiOp, 8> ops{};
  static std::size_t slot(Handle key) { return (key * 0x9e3779b97f4a7c15ull) >> 57; }
};

/// Reads the constants of the MPI behind `library`, a dlopen handle. standard: the library is
/// libmpi_abi.
Abi read_abi(void* library, bool standard);

}  // namespace plait::mpi
