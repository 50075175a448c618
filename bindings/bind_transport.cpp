// Transports between nodes written in Python: an object with Transport's functions.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "comm/transport/transport.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

/// Returns an exception's text without its traceback.
std::string text_of(const nb::python_error& error) {
  const std::string said = nb::cast<std::string>(nb::str(error.value()));
  return said.empty() ? nb::cast<std::string>(nb::str(error.type().attr("__name__"))) : said;
}

/// Returns the error of a set-up that failed.
ErrorCode set_up_code(const nb::python_error& error) {
  if (error.matches(PyExc_TimeoutError)) return ErrorCode::timeout;
  return error.matches(PyExc_ConnectionError) ? ErrorCode::peer_lost : ErrorCode::mismatch;
}

/// Runs a Python call; exceptions become peer_lost; the caller adds the rank.
template <class Call>
auto in_python(const Call& call) {
  const nb::gil_scoped_acquire locked;
  try {
    return call();
  } catch (const nb::python_error& error) {
    throw_if_interrupt(error);
    throw Error(ErrorCode::peer_lost, text_of(error));
  }
}

class PythonTransport : public Transport {
 public:
  explicit PythonTransport(nb::object object) : object_(std::move(object)) {}
  ~PythonTransport() override {
    if (Py_IsInitialized() == 0) {
      static_cast<void>(object_.release());
      return;
    }
    const nb::gil_scoped_acquire locked;
    object_.reset();
  }
  int ranks() const override {
    return in_python([&] { return nb::cast<int>(object_.attr("ranks")); });
  }
  std::string name() const override {
    return in_python([&] { return nb::cast<std::string>(object_.attr("name")); });
  }
  std::uint64_t send(int peer, int tag, const void* src, std::size_t bytes) override {
    return begin("send", peer, tag, reinterpret_cast<std::uintptr_t>(src), bytes);
  }
  std::uint64_t receive(int peer, int tag, void* dst, std::size_t bytes) override {
    return begin("receive", peer, tag, reinterpret_cast<std::uintptr_t>(dst), bytes);
  }
  bool is_done(std::uint64_t& message) override {
    return in_python([&] { return nb::cast<bool>(object_.attr("is_done")(message)); });
  }
  bool drop(std::uint64_t& message) noexcept override {
    try {
      return in_python([&] { return nb::cast<bool>(object_.attr("drop")(message)); });
    } catch (...) {
      return false;
    }
  }
  void publish_failure(const std::vector<int>& ranks, const std::string& failure) override {
    in_python([&] { object_.attr("publish_failure")(ranks, failure); });
  }
  std::optional<std::pair<int, std::string>> first_failure() override {
    return in_python([&]() -> std::optional<std::pair<int, std::string>> {
      const nb::object found = object_.attr("first_failure")();
      if (found.is_none()) return std::nullopt;
      return nb::cast<std::pair<int, std::string>>(found);
    });
  }

 private:
  std::uint64_t begin(const char* what, int peer, int tag, std::uintptr_t at, std::size_t bytes) {
    return in_python(
        [&] { return nb::cast<std::uint64_t>(object_.attr(what)(peer, tag, at, bytes)); });
  }
  nb::object object_;
};

}  // namespace

void bind_transport(nb::module_& module) {
  module.def(
      "set_transport_factory",
      [](const nb::object& maker) {
        // Never freed: communicators may be made until the process ends.
        auto* const factory = new nb::object(maker);
        set_transport_factory(
            [factory](int rank, int ranks, double arrive_s,
                      const std::string& unique_id) -> std::shared_ptr<Transport> {
              const nb::gil_scoped_acquire locked;
              nb::object made;
              try {
                made = (*factory)(rank, ranks, arrive_s, unique_id);
              } catch (const nb::python_error& error) {
                throw_if_interrupt(error);
                throw Error(set_up_code(error), text_of(error));
              }
              if (made.is_none()) return nullptr;
              return std::make_shared<PythonTransport>(std::move(made));
            });
      },
      nb::arg("maker"),
      "maker(rank, ranks, arrive_s, unique_id) returns a transport, or None; called without MPI.");
}
