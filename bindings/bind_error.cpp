// Python exception classes of errors.def: plait.Error and a subclass for each code, with .code and
// .exit_code.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>

#include "bind.hpp"
#include "comm/bootstrap/launch_page.hpp"
#include "plait/error.hpp"

namespace {

PyObject* base_class = nullptr;
std::map<int, PyObject*>& classes() {
  static std::map<int, PyObject*> of_code;
  return of_code;
}

/// The exception of a signal handler in this thread while a call waited.
thread_local std::unique_ptr<nb::python_error> raised;

plait::Error interrupted() {
  return plait::Error(plait::ErrorCode::aborted,
                      "a signal's handler raised an exception while this rank waited for others");
}

void add_class(nb::module_& module, plait::ErrorCode code, const char* class_name) {
  nb::dict members;
  members["code"] = static_cast<int>(code);
  members["name"] = plait::error_name(code);
  members["exit_code"] = plait::error_exit_code(code);
  members["__doc__"] = plait::error_text(code);
  const std::string full_name = std::string("plait.") + class_name;
  PyObject* made = PyErr_NewException(full_name.c_str(), base_class, members.ptr());
  classes()[static_cast<int>(code)] = made;
  module.attr(class_name) = nb::borrow(made);
}

}  // namespace

void check_signals() {
  if (syscall(SYS_gettid) != getpid() || Py_IsInitialized() == 0) return;
  const nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() == 0) return;
  raised = std::make_unique<nb::python_error>();
  throw interrupted();
}

void throw_if_interrupt(const nb::python_error& error) {
  if (error.matches(PyExc_Exception)) return;
  raised = std::make_unique<nb::python_error>(error);
  throw interrupted();
}

void throw_pending_interrupt() {
  if (raised != nullptr) throw interrupted();
}

void bind_error(nb::module_& module) {
  base_class = PyErr_NewExceptionWithDoc(
      "plait.Error", "What plait raises; .code, .name and .exit_code are those of errors.def.",
      PyExc_RuntimeError, nullptr);
  module.attr("Error") = nb::borrow(base_class);
#define PLAIT_ERROR(name, number, kind, exit_code, python_class, nccl_result, mpi_class, text) \
  if (number != 0) add_class(module, plait::ErrorCode::name, #python_class);
#include "plait/errors.def"
#undef PLAIT_ERROR
  module.def(
      "note_lost_peer", [] { plait::note_lost_peer(plait::ErrorCode::peer_lost); },
      "Tells `plait launch` that this rank has lost a peer; PeerLostError does so by itself.");
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const plait::Error& error) {
      if (raised != nullptr) {
        raised->restore();
        raised.reset();
        return;
      }
      plait::note_lost_peer(error.code());
      // Ctrl-C reaches all ranks: a wait may see the end of a peer before the signal of this rank.
      if (Py_IsInitialized() != 0 && PyErr_CheckSignals() != 0) return;
      // A message may quote a file name that is not UTF-8: shown with replacement characters.
      const auto length = static_cast<Py_ssize_t>(std::strlen(error.what()));
      const nb::object message = nb::steal(PyUnicode_DecodeUTF8(error.what(), length, "replace"));
      PyErr_SetObject(classes().at(static_cast<int>(error.code())), message.ptr());
    }
  });
}
