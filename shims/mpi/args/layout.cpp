// Reads the structure of datatypes from the native MPI. If a type's parts cannot be listed,
// unpacking marker bytes into a map of an element locates the data.
#include "shims/mpi/args/layout.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::mpi {
namespace {

constexpr std::uint64_t kPiece = 1 << 30;  ///< per MPI_Pack, whose sizes are ints
constexpr std::uint64_t kMostPacked = std::numeric_limits<int>::max();

std::string error_words(int code) {
  std::array<char, 1024> words{};  // MPI_MAX_ERROR_STRING is 512 or less
  int length = 0;
  if (native().Error_string(code, words.data(), &length) != 0) words[0] = '\0';
  return text("error {}: {}", code, words.data());
}

/// Throws the MPI's error.
void require(int code, const char* function) {
  if (code == 0) return;
  throw NativeError(
      ErrorCode::unsupported, code,
      text("{} failed on a datatype of the program: {}", function, error_words(code)));
}

constinit thread_local int noted_code = 0;  ///< the last code that note_code() got in this thread

/// An error handler.
void note_code(void*, int* code, ...) { noted_code = *code; }

/// A communicator of this rank alone, whose errors reach no handler of the program.
class PrivateSelf {
 public:
  static PrivateSelf& one() {
    static auto* const self = new PrivateSelf;
    return *self;
  }
  /// Returns the code of call(communicator). MPICH 5 returns 0 after any handler that is a
  /// function.
  template <class Call>
  int code_of(const Call& call) {
    const Handle comm = get();
    const int before = std::exchange(noted_code, 0);  // a call may run the progress hook
    const int code = call(comm);
    const int noted = std::exchange(noted_code, before);
    return code != 0 ? code : noted;
  }
  void free() {
    const std::lock_guard lock(mutex_);
    if (comm_ != 0) native().Comm_free(&comm_);
    comm_ = 0;
  }

 private:
  /// MPI_COMM_SELF stands in while this thread makes the communicator: the progress hook may pack.
  Handle get() {
    static constinit thread_local bool is_making = false;
    if (is_making) return native().abi.self;
    const std::lock_guard lock(mutex_);
    is_making = true;
    if (comm_ == 0) make();
    is_making = false;
    return comm_ != 0 ? comm_ : native().abi.self;
  }
  void make() {
    const Abi& abi = native().abi;  // no duplicate, which copies the program's attributes
    Handle made = 0, handler = 0;
    if (native().Comm_split_type(abi.self, abi.shared_kind, 0, abi.no_info, &made) != 0) return;
    comm_ = abi.at(&made, 0);
    if (native().Comm_create_errhandler(note_code, &handler) != 0) return;
    native().Comm_set_errhandler(comm_, abi.at(&handler, 0));
    native().Errhandler_free(&handler);
  }
  std::mutex mutex_;
  Handle comm_ = 0;
};

/// A type of `bytes` contiguous bytes; `bytes` may exceed an int.
class RowOfBytes {
 public:
  explicit RowOfBytes(std::uint64_t bytes) {
    std::vector<int> lengths;
    std::vector<std::intptr_t> places;
    for (std::uint64_t done = 0; done < bytes; done += kPiece) {
      lengths.push_back(static_cast<int>(std::min(kPiece, bytes - done)));
      places.push_back(static_cast<std::intptr_t>(done));
    }
    require(native().Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(),
                                          places.data(), native().abi.byte, &made_),
            "MPI_Type_create_hindexed");
    native().Type_commit(&made_);
  }
  ~RowOfBytes() { native().Type_free(&made_); }
  RowOfBytes(const RowOfBytes&) = delete;
  RowOfBytes& operator=(const RowOfBytes&) = delete;
  Handle type() const { return native().abi.at(&made_, 0); }

 private:
  Handle made_ = 0;
};

/// Copies an element whose bytes exceed the ints of MPI_Pack, by an allgather of this rank alone.
void copy_one(const void* from, Handle from_type, void* to, Handle to_type) {
  require(PrivateSelf::one().code_of([&](Handle self) {
    return native().Allgather(from, 1, from_type, to, 1, to_type, self);
  }),
          "MPI_Allgather of one rank");
}

/// Calls all(bytes) if the data are contiguous, else each(first element, elements, bytes of earlier
/// data, bytes) for portions that the MPI can pack at once.
template <class All, class Each>
void in_portions(Count count, const Layout& layout, const All& all, const Each& each) {
  if (layout.contiguous) {
    const auto whole = static_cast<std::uint64_t>(count) * layout.bytes;
    if (whole > 0) all(whole);
    return;
  }
  const std::uint64_t bytes = std::max<std::uint64_t>(1, layout.bytes);
  const auto most = static_cast<Count>(std::max<std::uint64_t>(1, kPiece / bytes));
  for (Count done = 0; done < count; done += most) {
    const Count now = std::min(most, count - done);
    each(done, static_cast<int>(now), static_cast<std::uint64_t>(done) * layout.bytes,
         static_cast<std::uint64_t>(now) * layout.bytes);
  }
}

std::byte* bytes_at(const void* base, std::intptr_t offset) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(base) +
                                      static_cast<std::uintptr_t>(offset));
}

/// The constructor arguments of a type. A type made by a function for large counts is readable by
/// the _c functions alone.
class TypeContents {
 public:
  explicit TypeContents(Handle type) {
    if (!read_envelope(type) || is_predefined()) return;
    types_.resize(static_cast<std::size_t>(sizes_.types));
    std::vector<int> integers(static_cast<std::size_t>(sizes_.integers));
    std::vector<std::intptr_t> addresses(static_cast<std::size_t>(sizes_.addresses));
    std::vector<Count> large(static_cast<std::size_t>(sizes_.large));
    const bool is_exported = read_contents(type, integers, addresses, large);
    if (!is_exported) types_.clear();
    for (std::size_t at = types_.size(); at-- > 0;)  // the array may hold narrower handles
      types_[at] = native().abi.at(types_.data(), static_cast<int>(at));
    if (is_exported) set_parts(integers, addresses, large);
  }
  /// Frees the copies of inner derived types that the query returned.
  ~TypeContents() {
    for (Handle& one : types_)
      if (!is_named(one)) native().Type_free(&one);
  }
  TypeContents(const TypeContents&) = delete;
  TypeContents& operator=(const TypeContents&) = delete;

  /// MPI_COMBINER_...; -1 if the MPI does not say.
  int combiner() const { return combiner_; }
  bool is_predefined() const { return combiner_ < 0 || sizes_.types == 0; }
  const std::vector<Handle>& types() const { return types_; }
  /// The parts that hold data, of a type with a list of displacements or with a single part.
  struct TypePart {
    std::intptr_t at;
    Count count;
    Handle type;
  };
  const std::vector<TypePart>& parts() const { return parts_; }

 private:
  struct EnvelopeSizes {
    Count integers = 0, addresses = 0, large = 0, types = 0;
  };
  bool read_envelope(Handle type) {
    EnvelopeSizes& of = sizes_;
    int code = 0, combiner = 0;
    if (native().Type_get_envelope_c != nullptr) {
      code = native().Type_get_envelope_c(type, &of.integers, &of.addresses, &of.large, &of.types,
                                          &combiner);
    } else {
      int integers = 0, addresses = 0, types = 0;
      code = native().Type_get_envelope(type, &integers, &addresses, &types, &combiner);
      of = {integers, addresses, 0, types};
    }
    if (code == 0) combiner_ = combiner;
    return code == 0;
  }
  bool read_contents(Handle type, std::vector<int>& integers, std::vector<std::intptr_t>& addresses,
                     std::vector<Count>& large) {
    const EnvelopeSizes& of = sizes_;
    if (native().Type_get_contents_c != nullptr)
      return native().Type_get_contents_c(type, of.integers, of.addresses, of.large, of.types,
                                          integers.data(), addresses.data(), large.data(),
                                          types_.data()) == 0;
    return native().Type_get_contents(type, static_cast<int>(of.integers),
                                      static_cast<int>(of.addresses), static_cast<int>(of.types),
                                      integers.data(), addresses.data(), types_.data()) == 0;
  }
  /// Reads a count, lengths and displacements. A type made by a function for large counts has a
  /// single list of all.
  void set_parts(const std::vector<int>& integers, const std::vector<std::intptr_t>& addresses,
                 const std::vector<Count>& large) {
    const Abi& abi = native().abi;
    const bool is_row = combiner_ == abi.combiner_contiguous;
    if (is_row || combiner_ == abi.combiner_dup || combiner_ == abi.combiner_resized) {
      const Count row = large.empty() ? integers.empty() ? 1 : integers[0] : large[0];
      return parts_.push_back({0, is_row ? row : 1, types_[0]});
    }
    const bool alike = combiner_ == abi.combiner_hindexed_block;
    if (!alike && combiner_ != abi.combiner_hindexed && combiner_ != abi.combiner_struct) return;
    const std::size_t parts =
        large.empty() ? addresses.size() : static_cast<std::size_t>(large.front());
    for (std::size_t part = 0; part < parts; ++part) {
      const std::size_t length = alike ? 1 : 1 + part;
      const Count count = large.empty() ? integers[length] : large[length];
      if (count <= 0) continue;
      parts_.push_back({large.empty() ? addresses[part] : large[large.size() - parts + part], count,
                        types_[types_.size() > 1 ? part : 0]});
    }
  }
  static bool is_named(Handle type) {
    return native().abi.type(type) != nullptr || TypeContents(type, false).is_predefined();
  }
  TypeContents(Handle type, bool) { read_envelope(type); }

  int combiner_ = -1;
  EnvelopeSizes sizes_;
  std::vector<Handle> types_;
  std::vector<TypePart> parts_;
};

std::intptr_t true_low_of(Handle type) {
  std::intptr_t low = 0, extent = 0;
  native().Type_get_true_extent(type, &low, &extent);
  return low;
}

/// Returns the offsets in an element at which parts begin that may be allocations of their own.
std::vector<std::intptr_t> places_in(Handle type) {
  if (native().abi.type(type) != nullptr) return {0};
  const TypeContents made(type);
  if (made.types().empty()) return {0};
  std::vector<std::intptr_t> all, inner;
  if (made.parts().empty()) {  // an index or a subarray may begin behind the buffer's address
    inner = places_in(made.types()[0]);
    const std::intptr_t shift = true_low_of(type) - true_low_of(made.types()[0]);
    for (std::intptr_t& at : inner) at += shift;
    return inner;
  }
  Handle last = 0;
  for (const TypeContents::TypePart& part : made.parts()) {
    if (last != part.type) inner = places_in(part.type);
    last = part.type;
    for (const std::intptr_t at : inner) all.push_back(part.at + at);
  }
  return all;
}

/// A derived type may reach from any buffer to any address, by absolute displacements.
DataLocation find_data_location(const void* buffer, Handle type, Count count) {
  if (!uses_gpus()) return {};
  if (native().abi.type(type) != nullptr) return {gpu_of(buffer)};
  // CUDA reserves device address ranges in multiples of this: no GPU memory lies between two host
  // addresses that are closer.
  constexpr std::uint64_t kUnit = 2 << 20;
  const ByteRange span = span_of(type, count);
  if (span.bytes == 0) return {};
  const auto holding = [&](std::intptr_t at) { return gpu_holding(bytes_at(buffer, at)); };
  DataLocation found{holding(span.at)};
  found.is_split = holding(span.at + static_cast<std::intptr_t>(span.bytes) - 1) != found.gpu;
  if (found.is_split || (found.gpu < 0 && span.bytes < kUnit)) return found;
  const std::vector<std::intptr_t> places = places_in(type);
  found.in_parts = places.size() > 1;
  std::uintptr_t last_unit = 0;
  for (const std::intptr_t place : places) {
    const std::uintptr_t unit = reinterpret_cast<std::uintptr_t>(bytes_at(buffer, place)) / kUnit;
    found.is_split = found.is_split || (unit != last_unit && holding(place) != found.gpu);
    last_unit = unit;
  }
  return found;
}

void append(std::vector<ByteRange>& pieces, ByteRange piece) {
  if (!pieces.empty()) {
    ByteRange& last = pieces.back();
    if (last.at + static_cast<std::intptr_t>(last.bytes) == piece.at) {
      last.bytes += piece.bytes;
      return;
    }
  }
  pieces.push_back(piece);
}

/// Returns the ranges of the first `bytes` of data of an element.
std::vector<ByteRange> pieces_of_one(const Layout& layout, std::uint64_t bytes) {
  if (layout.contiguous) return {{0, bytes}};
  std::vector<ByteRange> pieces;
  const TypeContents made(layout.type);
  for (const TypeContents::TypePart& part : made.parts()) {  // parts may lie far apart
    const Layout inner = layout_of(part.type);
    const std::uint64_t of_part =
        std::min(bytes, inner.bytes * static_cast<std::uint64_t>(part.count));
    for (const ByteRange& piece : first_pieces(inner, part.count, of_part))
      append(pieces, {part.at + piece.at, piece.bytes});
    bytes -= of_part;
  }
  if (!made.parts().empty()) return pieces;
  const ByteRange span = span_of(layout.type, 1);
  std::vector<std::byte> marks, map;
  try {
    marks.resize(layout.bytes, std::byte{2});
    map.resize(span.bytes);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory,
                text("no host memory to locate the data of a datatype in device memory: wanted {} "
                     "bytes for one element; use more and smaller elements",
                     layout.bytes + span.bytes));
  }
  std::fill_n(marks.begin(), bytes, std::byte{1});
  RetainedType committed(layout.type);
  committed.commit();
  unpack(marks.data(), 1, {committed.type(), layout.bytes, layout.extent, false},
         map.data() - span.at);
  const auto is_data = [](std::byte mark) { return mark == std::byte{1}; };
  for (auto begin = map.begin(); begin != map.end();) {
    begin = std::find_if(begin, map.end(), is_data);
    const auto end = std::find_if_not(begin, map.end(), is_data);
    if (begin != end)
      pieces.push_back({begin - map.begin() + span.at, static_cast<std::uint64_t>(end - begin)});
    begin = end;
  }
  return pieces;
}

}  // namespace

std::optional<std::uint64_t> size_of(Handle type) {
  if (const MpiType* known = native().abi.type(type);
      known != nullptr && known->kind < TypeClass::queried_integer)
    return bytes_of(known->type);
  const Abi& abi = native().abi;
  if (abi.key(type) == abi.no_type || abi.key(type) == 0) return std::nullopt;
  int bytes = 0;
  if (native().Type_size(type, &bytes) != 0) return std::nullopt;
  if (bytes >= 0) return static_cast<std::uint64_t>(bytes);
  Count many = 0;
  const auto large = native().Type_size_x != nullptr ? native().Type_size_x : native().Type_size_c;
  if (large == nullptr || large(type, &many) != 0 || many < 0) return std::nullopt;
  return static_cast<std::uint64_t>(many);
}

/// Predefined pair types may have holes.
Layout layout_of(Handle type) {
  Layout layout{type, size_of(type).value_or(0), 0, false};
  if (native().abi.type(type) != nullptr) {
    layout.extent = static_cast<std::intptr_t>(layout.bytes);
    layout.contiguous = true;
    return layout;
  }
  std::intptr_t low = 0;
  native().Type_get_extent(type, &low, &layout.extent);
  if (low != 0 || layout.extent != static_cast<std::intptr_t>(layout.bytes)) return layout;
  const TypeContents made(type);
  const Abi& abi = native().abi;
  const bool is_row =
      made.combiner() == abi.combiner_dup || made.combiner() == abi.combiner_contiguous;
  layout.contiguous = made.combiner() >= 0 &&
                      (made.is_predefined() ||
                       (is_row && !made.types().empty() && layout_of(made.types()[0]).contiguous));
  return layout;
}

Error split_data() {
  return Error(ErrorCode::unsupported,
               "a buffer's data must be all in host memory or all on one GPU, found a derived "
               "datatype that reaches both: pass the data on a GPU in a call of their own");
}

DataLocation data_location(const void* buffer, Handle type, Count count) {
  const DataLocation found = find_data_location(buffer, type, count);
  if (found.is_split) throw split_data();
  return found;
}

bool is_on_gpu(const void* buffer, Handle type, Count count) {
  const DataLocation found = find_data_location(buffer, type, count);
  return found.gpu >= 0 || found.is_split;
}

ByteRange span_of(Handle type, Count count) {
  if (count <= 0) return {};
  const std::optional<std::uint64_t> bytes = size_of(type);
  if (!bytes || *bytes == 0) return {};
  std::intptr_t low = 0, extent = 0, true_low = 0, true_extent = 0;
  if (native().Type_get_extent(type, &low, &extent) != 0) return {};
  if (native().Type_get_true_extent(type, &true_low, &true_extent) != 0) return {};
  const std::intptr_t reach = extent * (count - 1);
  const std::intptr_t first = std::min<std::intptr_t>(0, reach) + true_low;
  const std::intptr_t end = std::max<std::intptr_t>(0, reach) + true_low + true_extent;
  return {first, static_cast<std::uint64_t>(end - first)};
}

void pack(const void* from, Count count, const Layout& layout, std::byte* to) {
  in_portions(
      count, layout, [&](std::uint64_t bytes) { std::memcpy(to, from, bytes); },
      [&](Count first, int now, std::uint64_t before, std::uint64_t bytes) {
        std::byte* const begin = bytes_at(from, first * layout.extent);
        if (bytes > kMostPacked)
          return copy_one(begin, layout.type, to + before, RowOfBytes(bytes).type());
        int at = 0;
        const int size = static_cast<int>(bytes);
        require(PrivateSelf::one().code_of([&](Handle self) {
          return native().Pack(begin, now, layout.type, to + before, size, &at, self);
        }),
                "MPI_Pack");
      });
}

void unpack(const std::byte* from, Count count, const Layout& layout, void* to) {
  in_portions(
      count, layout, [&](std::uint64_t bytes) { std::memcpy(to, from, bytes); },
      [&](Count first, int now, std::uint64_t before, std::uint64_t bytes) {
        std::byte* const begin = bytes_at(to, first * layout.extent);
        if (bytes > kMostPacked)
          return copy_one(from + before, RowOfBytes(bytes).type(), begin, layout.type);
        int at = 0;
        const int size = static_cast<int>(bytes);
        require(PrivateSelf::one().code_of([&](Handle self) {
          return native().Unpack(from + before, size, &at, begin, now, layout.type, self);
        }),
                "MPI_Unpack");
      });
}

void require_committed(const Layout& layout) {
  if (layout.contiguous) return;
  char nothing = 0;
  int at = 0;
  const int code = PrivateSelf::one().code_of(
      [&](Handle self) { return native().Pack(&nothing, 0, layout.type, &nothing, 1, &at, self); });
  if (code == 0) return;
  throw NativeError(ErrorCode::invalid_argument, code,
                    text("a collective wants committed datatypes, and the MPI refuses one ({}): "
                         "call MPI_Type_commit first",
                         error_words(code)));
}

void free_private_self() { PrivateSelf::one().free(); }

void add_pieces(std::vector<ByteRange>& pieces, const Layout& layout, std::intptr_t at,
                Count count) {
  if (count <= 0 || layout.bytes == 0) return;
  if (layout.contiguous)
    return append(pieces, {at, layout.bytes * static_cast<std::uint64_t>(count)});
  const std::vector<ByteRange> one = pieces_of_one(layout, layout.bytes);
  for (Count element = 0; element < count; ++element)
    for (const ByteRange& piece : one)
      append(pieces, {at + element * layout.extent + piece.at, piece.bytes});
}

std::vector<ByteRange> first_pieces(const Layout& layout, Count count, std::uint64_t bytes) {
  if (layout.bytes == 0 || count <= 0) return {};
  const Count whole = std::min(count, static_cast<Count>(bytes / layout.bytes));
  std::vector<ByteRange> pieces;
  add_pieces(pieces, layout, 0, whole);
  const std::uint64_t rest = bytes % layout.bytes;
  if (whole == count || rest == 0) return pieces;
  for (const ByteRange& piece : pieces_of_one(layout, rest))
    append(pieces, {whole * layout.extent + piece.at, piece.bytes});
  return pieces;
}

RetainedType::RetainedType(Handle type) : type_(type) {
  if (native().abi.type(type) != nullptr || !size_of(type)) return;
  if (native().Type_dup(type, &made_) != 0) return;
  type_ = made_ = native().abi.at(&made_, 0);
}

RetainedType::RetainedType(RetainedType&& other) noexcept
    : type_(other.type_), made_(std::exchange(other.made_, 0)) {}

void RetainedType::commit() {
  if (made_ == 0) return;
  require(native().Type_commit(&made_), "MPI_Type_commit");
  type_ = made_ = native().abi.at(&made_, 0);
}

RetainedType::~RetainedType() {
  if (made_ != 0) native().Type_free(&made_);
}

RetainedLayout::RetainedLayout(const Layout& layout)
    : layout_(layout), retained_(layout.contiguous || layout.bytes == 0 ? 0 : layout.type) {
  if (retained_.type() != 0) layout_.type = retained_.type();
}

}  // namespace plait::mpi
