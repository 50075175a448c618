// The collectives as the program calls them: each is served, or passed on untouched.
#include "shims/mpi/exports.hpp"

#include <climits>
#include <tuple>
#include <vector>

#include "base/text.hpp"
#include "shims/mpi/requests.hpp"

namespace plait::mpi {
namespace {

/// Counts for an MPI that has no _c functions; programs ask by such a name whether it has.
class Narrowed {
 public:
  explicit Narrowed(Handle comm) {
    int local = 0, remote = 0, inter = 0;
    real().Comm_size(comm, &local);
    real().Comm_test_inter(comm, &inter);
    if (inter != 0) real().Comm_remote_size(comm, &remote);
    numbers_ = inter != 0 ? remote : local;
  }
  template <class T>
  T operator()(T value) {
    return value;
  }
  int operator()(Count value) {
    fits_ = fits_ && value <= INT_MAX && value >= INT_MIN;
    return static_cast<int>(value);
  }
  const int* operator()(const Count* values) {
    if (values == nullptr) return nullptr;
    std::vector<int>& made = kept_.emplace_back();
    made.reserve(static_cast<std::size_t>(numbers_));
    for (int at = 0; at < numbers_; ++at) made.push_back((*this)(values[at]));
    return made.data();
  }
  bool fits() const { return fits_; }

 private:
  int numbers_ = 0;
  bool fits_ = true;
  std::vector<std::vector<int>> kept_;
};

/// The function for large counts, or where the MPI has none, the other one.
template <class Function, class Narrow, class... Arguments>
int large_or_small(Function large, Narrow small, Handle comm, Arguments... arguments) {
  if (large != nullptr) return large(arguments...);
  Narrowed narrowed(comm);
  const auto converted = std::tuple(narrowed(arguments)...);
  if (narrowed.fits()) return std::apply(small, converted);
  return report(
      comm, Error(ErrorCode::unsupported, text("wanted counts that fit into an int, since ",
                                               real().path, " has no functions for larger ones")));
}

}  // namespace

/// One collective, blocking and not. NATIVE calls the MPI's own.
#define PLAIT_MPI_SERVED(name, begin, parameters, arguments, full, full_begin)              \
  PLAIT_EXPORT full parameters {                                                            \
    if (!is_serving()) return NATIVE(name, PLAIT_MPI_UNPACKED arguments);                   \
    const Asked wanted = asked::name arguments;                                             \
    const Served call = served(wanted, true);                                               \
    if (call.state == nullptr) return NATIVE(name, PLAIT_MPI_UNPACKED arguments);           \
    return run_served(call, wanted);                                                        \
  }                                                                                         \
  PLAIT_EXPORT full_begin(PLAIT_MPI_UNPACKED parameters, void* request) {                   \
    if (!is_serving()) return NATIVE(begin, PLAIT_MPI_UNPACKED arguments, request);         \
    const Asked wanted = asked::name arguments;                                             \
    const Served call = served(wanted, false);                                              \
    if (call.state == nullptr) return NATIVE(begin, PLAIT_MPI_UNPACKED arguments, request); \
    return begin_served(call, wanted, request);                                             \
  }                                                                                         \
  PLAIT_EXPORT P##full parameters PLAIT_TWIN(full);                                         \
  PLAIT_EXPORT P##full_begin(PLAIT_MPI_UNPACKED parameters, void* request) PLAIT_TWIN(full_begin);

namespace small_counts {
using N = Small::N;
using D = Small::D;
#define NATIVE(function, ...) real().small.function(__VA_ARGS__)
#define PLAIT_MPI_COLLECTIVE(name, begin, parameters, arguments) \
  PLAIT_MPI_SERVED(name, begin, parameters, arguments, MPI_##name, MPI_##begin)
#include "shims/mpi/collectives.def"
#undef PLAIT_MPI_COLLECTIVE
#undef NATIVE
}  // namespace small_counts

namespace large_counts {
using N = Large::N;
using D = Large::D;
#define NATIVE(function, ...) \
  large_or_small(real().large.function, real().small.function, comm, __VA_ARGS__)
#define PLAIT_MPI_COLLECTIVE(name, begin, parameters, arguments) \
  PLAIT_MPI_SERVED(name, begin, parameters, arguments, MPI_##name##_c, MPI_##begin##_c)
#include "shims/mpi/collectives.def"
#undef PLAIT_MPI_COLLECTIVE
#undef NATIVE
}  // namespace large_counts

}  // namespace plait::mpi
