// The tables of types.def and ops.def as one MPI has them. Open MPI's handles are addresses of its
// data; the others' are numbers.
#include "comm/mpi/abi.hpp"

#include <dlfcn.h>

namespace plait::mpi {
namespace {

void add_type(Abi& abi, Handle handle, TypeClass kind, DataType type) {
  if (handle == 0) return;  // an MPI without Fortran
  std::size_t at = Abi::slot(handle);
  while (abi.types[at].handle != 0 && abi.types[at].handle != handle)
    at = (at + 1) % Abi::kTypeSlots;
  if (abi.types[at].handle == 0) abi.types[at] = {handle, kind, type};
}

/// by: (symbol, MPICH's number, the standard ABI's number) -> handle.
template <class By>
void fill(Abi& abi, const By& by) {
#define PLAIT_MPI_TYPE(kind, type, symbol, mpich, standard) \
  add_type(abi, by(#symbol, mpich, standard), TypeClass::kind, DataType::type);
#include "comm/mpi/types.def"
#undef PLAIT_MPI_TYPE
  std::size_t at = 0;
#define PLAIT_MPI_OP(name, symbol, mpich, standard, on_floats) \
  abi.ops[at++] = {by(#symbol, mpich, standard), ReduceOp::name, on_floats};
#include "comm/mpi/ops.def"
#undef PLAIT_MPI_OP
  abi.world = by("ompi_mpi_comm_world", 0x44000000, 0x101);
  abi.self = by("ompi_mpi_comm_self", 0x44000001, 0x102);
  abi.no_comm = by("ompi_mpi_comm_null", 0x04000000, 0x100);
  abi.no_type = by("ompi_mpi_datatype_null", 0x0c000000, 0x200);
  abi.no_request = by("ompi_request_null", 0x2c000000, 0x180);
  abi.no_info = by("ompi_mpi_info_null", 0x1c000000, 0x130);
  abi.errors_return = by("ompi_mpi_errors_return", 0x54000001, 0x143);
  abi.int32 = by("ompi_mpi_int", 0x4c000405, 0x209);
  abi.byte = by("ompi_mpi_byte", 0x4c00010d, 0x247);
  abi.min = by("ompi_mpi_op_min", 0x58000002, 0x22);
}

}  // namespace

const KnownType* Abi::type(Handle handle) const {
  const Handle wanted = key(handle);
  for (std::size_t at = slot(wanted);; at = (at + 1) % kTypeSlots) {
    if (types[at].handle == wanted) return &types[at];
    if (types[at].handle == 0) return nullptr;
  }
}

const KnownOp* Abi::op(Handle handle) const {
  const Handle wanted = key(handle);
  for (const KnownOp& one : ops)
    if (one.handle == wanted && wanted != 0) return &one;
  return nullptr;
}

Abi read_abi(void* library, bool standard) {
  Abi abi;
  const auto number = [](std::intptr_t value) { return reinterpret_cast<void*>(value); };
  if (!standard && ::dlsym(library, "ompi_mpi_comm_world") != nullptr) {
    abi.family = Family::open_mpi;
    abi.in_place = number(1);
    fill(abi, [&](const char* symbol, Handle, Handle) {
      // A program that is not position-independent holds the data itself, and libmpi uses that.
      void* const shown = ::dlsym(RTLD_DEFAULT, symbol);
      return reinterpret_cast<Handle>(shown != nullptr ? shown : ::dlsym(library, symbol));
    });
    return abi;
  }
  abi.family = standard ? Family::standard : Family::mpich;
  fill(abi, [&](const char*, Handle mpich, Handle known) { return standard ? known : mpich; });
  if (standard) {
    abi.in_place = number(1);
    abi.any_tag = -2;
    abi.thread_multiple = 4096;
    abi.shared_kind = 221;
    abi.err_pending = 18;
    abi.err_in_status = 19;
    abi.cart = 211;
    abi.graph = 212;
    abi.dist_graph = 213;
  } else {
    abi.handle_bytes = 4;
    abi.in_place = number(-1);
    abi.status_ignore = number(1);
    abi.source_at = 8;
    abi.any_source = -2;
    abi.shared_kind = 1;
    abi.err_truncate = 14;
    abi.err_in_status = 17;
    abi.err_pending = 18;
    abi.graph = 1;
    abi.cart = 2;
  }
  return abi;
}

}  // namespace plait::mpi
