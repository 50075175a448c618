// Fills types.def, ops.def and constants.def with an MPI's handles. Open MPI's handles are
// addresses of data in the library; handles of all other MPIs are numbers.
#include "comm/transport/mpi/abi.hpp"

#include <dlfcn.h>

namespace plait::mpi {
namespace {

void add_type(Abi& abi, Handle handle, TypeClass kind, DataType type, const char* name) {
  if (handle == 0) return;  // an MPI without Fortran
  std::size_t at = Abi::slot(handle);
  while (abi.types[at].handle != 0 && abi.types[at].handle != handle)
    at = (at + 1) % Abi::kTypeSlots;
  if (abi.types[at].handle == 0) abi.types[at] = {handle, kind, type, name};
}

/// by: maps (symbol, MPICH's number, the standard ABI's number) to a handle.
template <class By>
void fill(Abi& abi, const By& by) {
#define PLAIT_MPI_TYPE(kind, type, name, symbol, mpich, standard) \
  add_type(abi, by(#symbol, mpich, standard), TypeClass::kind, DataType::type, #name);
#include "comm/transport/mpi/types.def"
#undef PLAIT_MPI_TYPE
  std::size_t at = 0;
#define PLAIT_MPI_OP(op, name, symbol, mpich, standard, on_floats) \
  abi.ops[at++] = {by(#symbol, mpich, standard), ReduceOp::op, on_floats};
#include "comm/transport/mpi/ops.def"
#undef PLAIT_MPI_OP
  const auto of_family = [&](int open_mpi, int mpich, int standard) {
    return abi.family == MpiFamily::open_mpi ? open_mpi
           : abi.family == MpiFamily::mpich  ? mpich
                                             : standard;
  };
#define PLAIT_MPI_ADDRESS(field, name, open_mpi, mpich, standard) \
  abi.field = reinterpret_cast<void*>(std::intptr_t{of_family(open_mpi, mpich, standard)});
#define PLAIT_MPI_NUMBER(field, name, open_mpi, mpich, standard) \
  abi.field = of_family(open_mpi, mpich, standard);
#define PLAIT_MPI_HANDLE(field, name, symbol, mpich, standard) \
  abi.field = by(#symbol, mpich, standard);
#include "comm/transport/mpi/constants.def"
#undef PLAIT_MPI_ADDRESS
#undef PLAIT_MPI_NUMBER
#undef PLAIT_MPI_HANDLE
}

}  // namespace

const MpiType* Abi::type(Handle handle) const {
  const Handle wanted = key(handle);
  for (std::size_t at = slot(wanted);; at = (at + 1) % kTypeSlots) {
    if (types[at].handle == 0) return nullptr;
    if (types[at].handle == wanted) return &types[at];
  }
}

const MpiOp* Abi::op(Handle handle) const {
  const Handle wanted = key(handle);
  for (const MpiOp& one : ops)
    if (one.handle == wanted && wanted != 0) return &one;
  return nullptr;
}

Abi read_abi(void* library, bool standard) {
  Abi abi;
  if (!standard && ::dlsym(library, "ompi_mpi_comm_world") != nullptr) {
    abi.family = MpiFamily::open_mpi;
    fill(abi, [&](const char* symbol, Handle, Handle) {
      // A non-PIC program holds the data itself (copy relocation), and libmpi uses that copy.
      void* const shown = ::dlsym(RTLD_DEFAULT, symbol);
      return reinterpret_cast<Handle>(shown != nullptr ? shown : ::dlsym(library, symbol));
    });
    return abi;
  }
  abi.family = standard ? MpiFamily::standard : MpiFamily::mpich;
  if (!standard) abi.handle_bytes = 4;
  fill(abi,
       [&](const char*, Handle mpich, Handle abi_value) { return standard ? abi_value : mpich; });
  return abi;
}

}  // namespace plait::mpi
