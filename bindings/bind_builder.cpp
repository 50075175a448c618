// Builder, Courier and add_strategy() for strategies written in Python.
#include <nanobind/operators.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "base/text.hpp"
#include "bind.hpp"
#include "plait/courier.hpp"
#include "plait/error.hpp"
#include "plait/strategy.hpp"

using namespace plait;

namespace {

template <class Kind>
Kind named(const std::string& name, const char* what, Kind last) {
  std::string list;
  for (int number = 0; number <= static_cast<int>(last); ++number) {
    const auto kind = static_cast<Kind>(number);
    if (name == name_of(kind)) return kind;
    list += text("{}{}", list.empty() ? "" : ", ", name_of(kind));
  }
  throw Error(ErrorCode::invalid_argument,
              text("wanted a {} (one of {}), found \"{}\"", what, list, name));
}

int in_range(int number, int count, const char* what) {
  if (number >= 0 && number < count) return number;
  throw Error(ErrorCode::invalid_argument,
              text("wanted a {} in 0..{}, found {}", what, count - 1, number));
}

int relay_place(Builder& builder, int device) {
  const auto devices = static_cast<int>(builder.topology().devices.size());
  return builder.relay(in_range(device, devices, "device"));
}

Range range_of(const Builder& builder, int rank, const std::optional<Range>& range, bool input) {
  in_range(rank, builder.ranks(), "rank");
  if (range) return *range;
  return {0, input ? input_bytes(builder.request(), rank) : output_bytes(builder.request(), rank)};
}

void bind_values(nb::module_& module) {
  nb::class_<Range>(module, "Range", "Bytes [offset, offset + bytes) of the message.")
      .def(nb::init<std::uint64_t, std::uint64_t>(), nb::arg("offset"), nb::arg("bytes"))
      .def_ro("offset", &Range::offset)
      .def_ro("bytes", &Range::bytes)
      .def(nb::self == nb::self)
      .def("__repr__", [](const Range& range) {
        return text("Range(offset={}, bytes={})", range.offset, range.bytes);
      });
  nb::class_<Region>(module, "Region", "Bytes of one space of one place.")
      .def_prop_ro("space", [](const Region& region) { return name_of(region.space); })
      .def_ro("rank", &Region::rank)
      .def_ro("offset", &Region::offset)
      .def_ro("bytes", &Region::bytes)
      .def(
          "slice", [](const Region& region, const Range& range) { return slice(region, range); },
          nb::arg("range"), "A part of it; the range counts from the region's own start.")
      .def(nb::self == nb::self)
      .def("__repr__", [](const Region& region) { return print(region); });
  nb::class_<Event>(module, "Event", "What signal() raises and wait() waits for.");
  module.def(
      "partition",
      [](const Range& whole, int parts, std::uint64_t granule) {
        in_range(parts - 1, 1 << 20, "number of parts, less one,");
        return partition(whole, parts, std::max<std::uint64_t>(granule, 1));
      },
      nb::arg("whole"), nb::arg("parts"), nb::arg("granule") = 128,
      "Consecutive ranges whose sizes differ by at most a granule; the last ones may be empty.");
  module.def("whole_range", &whole_range, nb::arg("request"), "The whole message, or a block.");
  module.def("in_block", &in_block, nb::arg("request"), nb::arg("block"), nb::arg("range"),
             "The same range of one of the blocks that lie one after another in a buffer.");
}

/// A path, or the name of one.
Path path_of(const Builder& builder, const nb::object& path) {
  if (Path found; nb::try_cast<Path>(path, found)) return found;
  if (std::string name; nb::try_cast<std::string>(path, name))
    return find_path(builder.topology(), name);
  throw Error(ErrorCode::invalid_argument,
              text("path: wanted a Path of topology.paths_between() or its name such as "
                   "\"nvlink:0>1\", found {}",
                   nb::cast<std::string>(nb::repr(path))));
}

void bind_moves(nb::class_<Builder>& type) {
  const auto lane_of = [](const Builder& builder, int lane) {
    return in_range(lane, builder.lanes(), "lane");
  };
  type.def(
          "copy",
          [lane_of](Builder& builder, int lane, const Region& dst, const Region& src,
                    const nb::object& path, int hop) {
            in_range(dst.rank, builder.places(), "place");
            in_range(src.rank, builder.places(), "place");
            if (path.is_none())
              builder.copy(lane_of(builder, lane), dst, src);
            else
              builder.copy(lane_of(builder, lane), dst, src, path_of(builder, path), hop);
          },
          nb::arg("lane"), nb::arg("dst"), nb::arg("src"), nb::arg("path") = nb::none(),
          nb::arg("hop") = 0,
          nb::sig("def copy(self, lane: int, dst: Region, src: Region, "
                  "path: Path | str | None = None, hop: int = 0) -> None"),
          "Inside one memory, over the direct link, or a hop of a path: a Path, or its name as in "
          "\"nvlink:0>1\".")
      .def(
          "reduce",
          [lane_of](Builder& builder, int lane, const Region& dst, std::vector<Region> srcs,
                    bool finish) {
            builder.reduce(lane_of(builder, lane), dst, std::move(srcs), finish);
          },
          nb::arg("lane"), nb::arg("dst"), nb::arg("srcs"), nb::arg("finish") = true,
          "In the order of srcs; finish: this is the elements' last reduction.")
      .def(
          "signal",
          [lane_of](Builder& builder, int lane, int owner) {
            return builder.signal(lane_of(builder, lane), in_range(owner, builder.ranks(), "rank"));
          },
          nb::arg("lane"), nb::arg("owner"),
          "Raises a flag of rank `owner` after everything before it on the lane.")
      .def(
          "wait",
          [lane_of](Builder& builder, int lane, const Event& event) {
            const int rank = builder.rank_of(lane_of(builder, lane));
            if (rank != event.flag.owner)
              throw Error(ErrorCode::invalid_argument,
                          text("wanted a wait on a lane of rank {}, whom the signal was for, found "
                               "a lane of rank {}",
                               event.flag.owner, rank));
            builder.wait(lane, event);
          },
          nb::arg("lane"), nb::arg("event"));
}

void bind_builder_type(nb::module_& module) {
  nb::class_<Builder> type(module, "Builder", "Writes a plan: lanes of ops over regions.");
  type.def(
          "__init__",
          [](Builder* self, const Topology& topology, const Request& request,
             const std::string& strategy) {
            new (self) Builder(topology, checked(request, topology), strategy);
          },
          nb::arg("topology"), nb::arg("request"), nb::arg("strategy"), nb::keep_alive<1, 2>())
      .def_prop_ro("request", [](const Builder& builder) { return builder.request(); })
      .def_prop_ro("topology", [](const Builder& builder) { return builder.topology(); })
      .def_prop_ro("ranks", &Builder::ranks)
      .def_prop_ro("granule", &Builder::granule, "Cuts are made at multiples of so many bytes.")
      .def(
          "device",
          [](const Builder& builder, int place) {
            return builder.device(in_range(place, builder.places(), "place"));
          },
          nb::arg("place"), "The topology's device of a rank or relay GPU.")
      .def(
          "lane",
          [](Builder& builder, int rank, const std::string& kind, const std::string& name) {
            return builder.lane(in_range(rank, builder.ranks(), "rank"),
                                named(kind, "kind of lane", LaneKind::cpu), name);
          },
          nb::arg("rank"), nb::arg("kind") = "kernel", nb::arg("name") = "main",
          "The lane of that rank and name, made at first use.")
      .def("relay", &relay_place, nb::arg("device"),
           "A place for scratch on a GPU outside the job.")
      .def("guest", &relay_place, nb::arg("device"), "The former name of relay.")
      .def(
          "input",
          [](const Builder& builder, int rank, const std::optional<Range>& range) {
            return builder.input(rank, range_of(builder, rank, range, true));
          },
          nb::arg("rank"), nb::arg("range") = std::nullopt, "The whole buffer without a range.")
      .def(
          "output",
          [](const Builder& builder, int rank, const std::optional<Range>& range) {
            return builder.output(rank, range_of(builder, rank, range, false));
          },
          nb::arg("rank"), nb::arg("range") = std::nullopt)
      .def(
          "alloc",
          [](Builder& builder, const std::string& space, int place, std::uint64_t bytes) {
            const Space wanted = named(space, "space", Space::ring);
            if (wanted == Space::input || wanted == Space::output)
              throw Error(
                  ErrorCode::invalid_argument,
                  text("wanted scratch, inbox or ring, found {}, which is the caller's", space));
            const int places = wanted == Space::scratch ? builder.places() : builder.ranks();
            return builder.alloc(wanted, in_range(place, places, "place"), bytes);
          },
          nb::arg("space"), nb::arg("place"), nb::arg("bytes"), "Fresh bytes, 128-byte aligned.")
      .def("param", &Builder::param, nb::arg("name"), nb::arg("value"))
      .def(
          "sum_order",
          [](Builder& builder, const std::string& order) {
            builder.sum_order(order == "stated"  // the name up to version 0.1
                                  ? SumOrder::algorithm_order
                                  : named(order, "sum order", SumOrder::tree_rounded));
          },
          nb::arg("order"), "rank_order (the default), algorithm_order, tree or tree_rounded.")
      .def("symmetric", &Builder::symmetric, nb::arg("on"))
      .def("stripe", &Builder::stripe, nb::arg("route"), nb::arg("range"))
      .def("build", &Builder::build, "The finished plan; the builder is empty afterwards.");
  bind_moves(type);
}

/// A courier that Python code may use in this scope. A later use of the object is a TypeError.
class LentCourier {
 public:
  explicit LentCourier(Courier& courier) : object_(nb::cast(&courier, nb::rv_policy::reference)) {
    nb::inst_set_state(object_, true, false);  // an object of an earlier courier at this address
  }
  ~LentCourier() { nb::inst_set_state(object_, false, false); }
  LentCourier(const LentCourier&) = delete;
  LentCourier& operator=(const LentCourier&) = delete;
  const nb::object& object() const { return object_; }

 private:
  nb::object object_;
};

void bind_courier(nb::module_& module) {
  nb::class_<Message>(module, "Message", "A message on its way.")
      .def_ro("region", &Message::region, "Where it lies at the receiver.");
  nb::class_<Courier>(module, "Courier",
                      "Builds plans from sends and receives, as in textbook algorithms.")
      .def(nb::init<Builder&, std::string, int, int>(), nb::arg("builder"), nb::arg("name"),
           nb::arg("slots") = 1, nb::arg("sharers") = 1, nb::keep_alive<1, 2>())
      .def(
          "send",
          [](Courier& courier, int from, int to, const std::vector<Region>& srcs) {
            courier.send(from, to, srcs);
          },
          nb::arg("src"), nb::arg("dst"), nb::arg("srcs"))
      .def(
          "receive",
          [](Courier& courier, int to, int from, std::uint64_t bytes) {
            return courier.receive(to, from, bytes);
          },
          nb::arg("dst"), nb::arg("src"), nb::arg("bytes"))
      .def("release", &Courier::release, nb::arg("message"))
      .def("reduce", &Courier::reduce, nb::arg("rank"), nb::arg("dst"), nb::arg("srcs"),
           nb::arg("finish") = true)
      .def("copy", &Courier::copy, nb::arg("rank"), nb::arg("dst"), nb::arg("src"))
      .def("write", &Courier::write, "Writes all that was recorded into the builder.");
  module.def(
      "in_chunks",
      [](Builder& builder, const std::string& name, const nb::callable& body, int chunks, int lanes,
         int slots, double scratch_per_byte) {
        const CourierCut cut{name, in_range(chunks - 1, 1 << 16, "number of chunks, less one,") + 1,
                             in_range(lanes - 1, 64, "number of lanes, less one,") + 1,
                             in_range(slots - 1, 64, "number of slots, less one,") + 1,
                             scratch_per_byte};
        in_chunks(builder, cut, [&](Courier& courier, Range chunk) {
          const LentCourier lent(courier);
          body(lent.object(), chunk);
        });
      },
      nb::arg("builder"), nb::arg("name"), nb::arg("body"), nb::arg("chunks") = 1,
      nb::arg("lanes") = 1, nb::arg("slots") = 1, nb::arg("scratch_per_byte") = 1.0,
      "Calls body(courier, chunk) for every chunk of the message, each lane's chunks in order.");
}

/// Converts a Python exception to plait's Error, with code and message.
Error as_error(nb::python_error& raised) {
  const nb::object value = nb::borrow(raised.value());
  int number = 0;  // foreign exceptions may have a `code` as well
  const bool is_plaits = nb::hasattr(value, "code") &&
                         nb::try_cast<int>(value.attr("code"), number) && number > 0 &&
                         number <= static_cast<int>(ErrorCode::internal);
  const ErrorCode code = is_plaits ? ErrorCode{number} : ErrorCode::invalid_argument;
  std::string said = nb::cast<std::string>(nb::str(value));
  const std::string before = text("{}: ", error_text(code));
  if (said.starts_with(before)) said.erase(0, before.size());
  return {code, said};
}

/// Wraps a Python function for C++: any thread may call the function; it is never destroyed.
template <class Result>
auto from_python(const nb::callable& function) {
  PyObject* const callable = nb::object(function).release().ptr();
  return [callable](const auto&... given) -> Result {
    const nb::gil_scoped_acquire locked;
    std::optional<Error> failure;
    try {
      return nb::cast<Result>(nb::borrow<nb::callable>(callable)(given...));
    } catch (nb::python_error& raised) {
      if (!raised.matches(PyExc_Exception)) throw;  // KeyboardInterrupt, SystemExit
      failure = as_error(raised);
    } catch (const nb::cast_error&) {
      failure = Error(ErrorCode::invalid_argument,
                      "a Python function returned a wrong type: wanted a list of "
                      "dicts of whole numbers by name for candidates");
    }
    throw Error(*failure);
  };
}

}  // namespace

void bind_builder(nb::module_& module) {
  bind_values(module);
  bind_builder_type(module);
  bind_courier(module);
  module.def(
      "add_strategy",
      [](const std::string& name, const std::string& idea, const std::string& source,
         const std::vector<std::string>& collectives, const Params& defaults,
         const nb::callable& candidates, const nb::callable& plan) {
        Strategy made{{name, idea, source, {}}, {}, {}};
        for (const std::string& one : collectives)
          made.info.collectives.push_back(parse_collective(one));
        for (const auto& [parameter, value] : defaults) made.parameters.push_back(parameter);
        made.candidates = from_python<std::vector<Params>>(candidates);
        made.write = [defaults, plan = from_python<Plan>(plan)](Builder& builder,
                                                                const Params& params) {
          Params all = params;
          all.insert(defaults.begin(), defaults.end());
          Plan whole = plan(builder.topology(), builder.request(), all);
          whole.params.insert(all.begin(), all.end());  // the plan's own parameters take precedence
          builder.adopt(std::move(whole));
        };
        add_strategy(std::move(made));
      },
      nb::arg("name"), nb::arg("idea"), nb::arg("source"), nb::arg("collectives"),
      nb::arg("defaults"), nb::arg("candidates"), nb::arg("plan"),
      "candidates(topology, request) -> parameter sets; plan(topology, request, params) -> Plan.");
}
