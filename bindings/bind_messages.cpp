// Mailboxes for Python: posts take addresses, and every call that may wait releases the GIL. No
// call takes the GIL under a mailbox's lock: callbacks run without the lock.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "bind.hpp"
#include "comm/p2p/mailbox.hpp"

using namespace plait;
using namespace plait::p2p;

namespace {

using release = nb::call_guard<nb::gil_scoped_release>;

/// A mailbox whose end waits for its threads, hence without the GIL.
class PythonMailbox {
 public:
  PythonMailbox(int rank, int ranks) : mailbox_(make_mailbox(rank, ranks, check_signals)) {}
  ~PythonMailbox() {
    const nb::gil_scoped_release unlocked;
    mailbox_.reset();
  }
  PythonMailbox(const PythonMailbox&) = delete;
  PythonMailbox& operator=(const PythonMailbox&) = delete;
  Mailbox& get() const { return *mailbox_; }

 private:
  std::shared_ptr<Mailbox> mailbox_;
};

void* memory_at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

/// Keeps a Python function until its last call, in any thread.
std::shared_ptr<nb::object> kept(const nb::object& call) {
  return {new nb::object(call), [](nb::object* one) {
            if (Py_IsInitialized() == 0) return;  // then nothing may be freed
            const nb::gil_scoped_acquire locked;
            delete one;
          }};
}

void call_once_done(const PythonMailbox& mailbox, const std::shared_ptr<Message>& message,
                    const nb::object& call) {
  const auto function = [held = kept(call)] {
    const nb::gil_scoped_acquire locked;
    try {
      (*held)();
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("a callback of a message");
    }
  };
  const nb::gil_scoped_release unlocked;
  mailbox.get().on_done(message, function);
}

std::optional<std::tuple<int, std::string, std::string>> shown(const MessageFailure* failure) {
  if (failure == nullptr) return std::nullopt;
  return std::tuple(static_cast<int>(failure->code), failure->what, failure->reason);
}

}  // namespace

void bind_messages(nb::module_& module) {
  nb::class_<Message>(module, "PostedMessage", "A posted send or receive.")
      .def_prop_ro("is_done", &Message::is_done)
      .def_prop_ro("what", &Message::what)
      .def_prop_ro("source", &Message::source)
      .def_prop_ro(
          "failure", [](const Message& one) { return shown(one.failure()); },
          "None, or (code, name of the message, reason). Once is_done.");
  module.attr("ANY_SOURCE") = kAnySource;
  nb::class_<PythonMailbox>(module, "Mailbox", "Tagged messages between ranks of a host.")
      .def(nb::init<int, int>(), nb::arg("rank"), nb::arg("ranks"))
      .def_prop_ro("address", [](const PythonMailbox& one) { return one.get().address(); })
      .def(
          "connect",
          [](const PythonMailbox& one, int peer, const std::string& address) {
            one.get().connect(peer, address);
          },
          nb::arg("peer"), nb::arg("address"), release())
      .def(
          "is_connected",
          [](const PythonMailbox& one, int peer) { return one.get().is_connected(peer); },
          nb::arg("peer"), release())
      .def(
          "is_connected_from",
          [](const PythonMailbox& one, int peer) { return one.get().is_connected_from(peer); },
          nb::arg("peer"), release())
      .def(
          "send",
          [](const PythonMailbox& one, int peer, int context, std::int64_t tag,
             std::uintptr_t address, std::uint64_t bytes) {
            return one.get().send(peer, {context, tag}, memory_at(address), bytes);
          },
          nb::arg("peer"), nb::arg("context"), nb::arg("tag"), nb::arg("address"),
          nb::arg("bytes"), release(), "None if the message needs its memory no more.")
      .def(
          "receive",
          [](const PythonMailbox& one, int peer, int context, std::int64_t tag,
             std::uintptr_t address, std::uint64_t bytes) {
            return one.get().receive(peer, {context, tag}, memory_at(address), bytes);
          },
          nb::arg("peer"), nb::arg("context"), nb::arg("tag"), nb::arg("address"),
          nb::arg("bytes"), release())
      .def(
          "wait",
          [](const PythonMailbox& one, const std::shared_ptr<Message>& message, double seconds) {
            one.get().wait(message, seconds);
          },
          nb::arg("message"), nb::arg("seconds"), release())
      .def("on_done", &call_once_done, nb::arg("message"), nb::arg("call"))
      .def(
          "shut_down",
          [](const PythonMailbox& one, const std::string& why, double seconds) {
            const auto failure = one.get().shut_down(why, seconds);
            return shown(failure ? &*failure : nullptr);
          },
          nb::arg("why"), nb::arg("seconds"), release())
      .def(
          "close", [](const PythonMailbox& one, const std::string& why) { one.get().close(why); },
          nb::arg("why"), release())
      .def(
          "set_may_pull",
          [](const PythonMailbox& one, bool may_pull) { one.get().set_may_pull(may_pull); },
          nb::arg("may_pull"));
}
