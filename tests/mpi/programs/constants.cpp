// constants: compares plait's built-in constants of an MPI (src/comm/transport/mpi/*.def) with the
// header that this program is compiled with, and prints each difference. Runs without MPI.
#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace {

#if defined(OPEN_MPI)
constexpr int kFamily = 0;
#elif defined(MPI_ABI_VERSION)
constexpr int kFamily = 2;
#else
constexpr int kFamily = 1;
#endif

int wrong = 0;

template <class T>
std::intptr_t number(T value) {
  return (std::intptr_t)value;  // a handle may be a number, an enumerator or a pointer
}

void expect(const char* name, std::intptr_t is, std::intptr_t open_mpi, std::intptr_t mpich,
            std::intptr_t standard) {
  const std::intptr_t built_in = kFamily == 0 ? open_mpi : kFamily == 1 ? mpich : standard;
  if (is == built_in) return;
  ++wrong;
  std::printf("%s: the header has %lld, plait %lld\n", name, static_cast<long long>(is),
              static_cast<long long>(built_in));
}

/// Open MPI's handles are addresses of data, which plait looks up by symbol.
template <class T>
void hold_handle(const char* name, T is, std::intptr_t mpich, std::intptr_t standard,
                 const void* symbol) {
  const std::intptr_t value = number(is);
  expect(name, kFamily == 1 ? static_cast<std::int32_t>(value) : value, number(symbol), mpich,
         standard);
}

}  // namespace

#ifdef OPEN_MPI
#include <dlfcn.h>
#define SYMBOL(name) dlsym(RTLD_DEFAULT, #name)
#else
#define SYMBOL(name) nullptr
#endif

int main() {
#define PLAIT_MPI_TYPE(kind, type, name, symbol, mpich, standard) \
  hold_handle(#name, name, mpich, standard, SYMBOL(symbol));
#include "../../../src/comm/transport/mpi/types.def"
#define PLAIT_MPI_OP(op, name, symbol, mpich, standard, on_floats) \
  hold_handle(#name, name, mpich, standard, SYMBOL(symbol));
#include "../../../src/comm/transport/mpi/ops.def"
#define PLAIT_MPI_HANDLE(field, name, symbol, mpich, standard) \
  hold_handle(#name, name, mpich, standard, SYMBOL(symbol));
#define PLAIT_MPI_NUMBER(field, name, open_mpi, mpich, standard) \
  expect(#name, number(name), open_mpi, mpich, standard);
#define PLAIT_MPI_ADDRESS PLAIT_MPI_NUMBER
#include "../../../src/comm/transport/mpi/constants.def"
  return wrong == 0 ? 0 : 1;
}
