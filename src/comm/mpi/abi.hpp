// What differs between MPIs as programs see them: how wide a handle is, and what the predefined
// ones are. A handle travels in a register of its own under all of them, so one set of functions
// serves all: it hands handles through and only recognises some.
#pragma once
#include <array>
#include <cstdint>

#include "plait/plan.hpp"

namespace plait::mpi {

/// MPI_Comm, MPI_Datatype, ... as it came in a register: of a 4-byte one the upper half is noise.
using Handle = std::uintptr_t;
using Count = std::int64_t;  ///< MPI_Count

enum class MpiFamily { open_mpi, mpich, standard };

/// What a reduction may be asked for on a type.
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
#include "comm/mpi/constants.def"
#undef PLAIT_MPI_ADDRESS
#undef PLAIT_MPI_NUMBER
#undef PLAIT_MPI_HANDLE

  /// Handles are compared by this.
  Handle key(Handle handle) const {
    return handle_bytes == 4 ? static_cast<std::uint32_t>(handle) : handle;
  }
  /// Element `index` of a program's array of handles.
  Handle at(const void* handles, int index) const {
    return handle_bytes == 4 ? static_cast<const std::uint32_t*>(handles)[index]
                             : static_cast<const Handle*>(handles)[index];
  }
  const MpiType* type(Handle handle) const;
  const MpiOp* op(Handle handle) const;

  static constexpr std::size_t kTypeSlots = 128;  ///< a power of 2, and well over all types
  std::array<MpiType, kTypeSlots> types{};        ///< by slot(); handle 0 = free
  std::array<MpiOp, 8> ops{};
  static std::size_t slot(Handle key) { return (key * 0x9e3779b97f4a7c15ull) >> 57; }
};

/// The constants of the MPI behind a handle of the loader's. standard: it is a libmpi_abi.
Abi read_abi(void* library, bool standard);

}  // namespace plait::mpi
