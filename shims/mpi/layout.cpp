// What a derived datatype is made of only its MPI knows: where its data lie, the MPI shows by
// unpacking marks into a map of one element.
#include "shims/mpi/layout.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::mpi {
namespace {

constexpr std::uint64_t kPiece = 1 << 30;  ///< of one MPI_Pack, whose sizes are ints

/// Calls all(bytes) where data lie in a row, else each(first element, elements, bytes of data
/// before them, their bytes), as the MPI can pack them at once.
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
         static_cast<int>(static_cast<std::uint64_t>(now) * layout.bytes));
  }
}

std::byte* bytes_at(const void* base, std::intptr_t offset) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(base) +
                                      static_cast<std::uintptr_t>(offset));
}

/// MPI_COMBINER_NAMED; _DUP and _CONTIGUOUS follow.
int named_combiner() {
  switch (real().abi.family) {
    case Family::open_mpi: return 0;
    case Family::mpich: return 1;
    default: return 101;
  }
}

/// A type made of others: whether it is one of these, or several in a row, and has no holes either.
bool is_contiguous_row(Handle type, int integers, int combiner) {
  const int named = named_combiner();
  if (combiner != named + 1 && combiner != named + 2) return false;
  int counts[2] = {};
  Handle inner = 0;
  if (real().Type_get_contents(type, integers, 0, 1, counts, nullptr, &inner) != 0) return false;
  inner = real().abi.at(&inner, 0);
  const bool contiguous = layout_of(inner).contiguous;
  int of_integers = 0, of_addresses = 0, of_types = 0, of_combiner = named;
  real().Type_get_envelope(inner, &of_integers, &of_addresses, &of_types, &of_combiner);
  if (of_combiner != named) real().Type_free(&inner);  // the question made a copy
  return contiguous;
}

/// Of one element, the first `bytes` of its data.
std::vector<Piece> pieces_of_one(const Layout& layout, std::uint64_t bytes) {
  if (layout.contiguous) return {{0, bytes}};
  const Piece span = span_of(layout.type, 1);
  if (layout.bytes > static_cast<std::uint64_t>(std::numeric_limits<int>::max()))
    throw Error(ErrorCode::unsupported,
                text("wanted elements of a datatype of at most 2 GiB in device memory, found ",
                     layout.bytes, " bytes: use more and smaller elements"));
  std::vector<char> marks(layout.bytes, 2);
  std::fill_n(marks.begin(), bytes, 1);
  std::vector<char> map(span.bytes, 0);
  int at = 0;
  real().Unpack(marks.data(), static_cast<int>(layout.bytes), &at, map.data() - span.at, 1,
                layout.type, real().abi.self);
  std::vector<Piece> pieces;
  for (auto begin = map.begin(); begin != map.end();) {
    begin = std::find(begin, map.end(), 1);
    const auto end = std::find_if(begin, map.end(), [](char mark) { return mark != 1; });
    if (begin != end)
      pieces.push_back({begin - map.begin() + span.at, static_cast<std::uint64_t>(end - begin)});
    begin = end;
  }
  return pieces;
}

void append(std::vector<Piece>& pieces, Piece piece) {
  if (!pieces.empty()) {
    Piece& last = pieces.back();
    if (last.at + static_cast<std::intptr_t>(last.bytes) == piece.at) {
      last.bytes += piece.bytes;
      return;
    }
  }
  pieces.push_back(piece);
}

}  // namespace

std::optional<std::uint64_t> size_of(Handle type) {
  if (const KnownType* known = real().abi.type(type);
      known != nullptr && known->kind < TypeClass::asked_integer)
    return bytes_of(known->type);
  const Abi& abi = real().abi;
  if (abi.key(type) == abi.no_type || abi.key(type) == 0) return std::nullopt;
  int bytes = 0;
  if (real().Type_size(type, &bytes) != 0) return std::nullopt;
  if (bytes >= 0) return static_cast<std::uint64_t>(bytes);
  Count many = 0;
  const auto large = real().Type_size_x != nullptr ? real().Type_size_x : real().Type_size_c;
  if (large == nullptr || large(type, &many) != 0 || many < 0) return std::nullopt;
  return static_cast<std::uint64_t>(many);
}

/// Predefined types alone have an envelope of nothing; those of pairs may have holes.
Layout layout_of(Handle type) {
  Layout layout{type, size_of(type).value_or(0), 0, false};
  if (real().abi.type(type) != nullptr) {
    layout.extent = static_cast<std::intptr_t>(layout.bytes);
    layout.contiguous = true;
    return layout;
  }
  std::intptr_t low = 0;
  int integers = 1, addresses = 1, types = 1, combiner = 0;
  real().Type_get_extent(type, &low, &layout.extent);
  if (low != 0 || layout.extent != static_cast<std::intptr_t>(layout.bytes)) return layout;
  real().Type_get_envelope(type, &integers, &addresses, &types, &combiner);
  const bool predefined = integers == 0 && addresses == 0 && types == 0;
  layout.contiguous = predefined || is_contiguous_row(type, integers, combiner);
  return layout;
}

Piece span_of(Handle type, Count count) {
  if (count <= 0) return {};
  const std::optional<std::uint64_t> bytes = size_of(type);
  if (!bytes || *bytes == 0) return {};
  std::intptr_t low = 0, extent = 0, true_low = 0, true_extent = 0;
  if (real().Type_get_extent(type, &low, &extent) != 0) return {};
  if (real().Type_get_true_extent(type, &true_low, &true_extent) != 0) return {};
  const std::intptr_t reach = extent * (count - 1);
  const std::intptr_t first = std::min<std::intptr_t>(0, reach) + true_low;
  const std::intptr_t end = std::max<std::intptr_t>(0, reach) + true_low + true_extent;
  return {first, static_cast<std::uint64_t>(end - first)};
}

void pack(const void* from, Count count, const Layout& layout, std::byte* to) {
  in_portions(
      count, layout, [&](std::uint64_t bytes) { std::memcpy(to, from, bytes); },
      [&](Count first, int now, std::uint64_t before, int bytes) {
        int at = 0;
        real().Pack(bytes_at(from, first * layout.extent), now, layout.type, to + before, bytes,
                    &at, real().abi.self);
      });
}

void unpack(const std::byte* from, Count count, const Layout& layout, void* to) {
  in_portions(
      count, layout, [&](std::uint64_t bytes) { std::memcpy(to, from, bytes); },
      [&](Count first, int now, std::uint64_t before, int bytes) {
        int at = 0;
        real().Unpack(from + before, bytes, &at, bytes_at(to, first * layout.extent), now,
                      layout.type, real().abi.self);
      });
}

void add_pieces(std::vector<Piece>& pieces, const Layout& layout, std::intptr_t at, Count count) {
  if (count <= 0 || layout.bytes == 0) return;
  if (layout.contiguous)
    return append(pieces, {at, layout.bytes * static_cast<std::uint64_t>(count)});
  const std::vector<Piece> one = pieces_of_one(layout, layout.bytes);
  for (Count element = 0; element < count; ++element)
    for (const Piece& piece : one)
      append(pieces, {at + element * layout.extent + piece.at, piece.bytes});
}

std::vector<Piece> first_pieces(const Layout& layout, Count count, std::uint64_t bytes) {
  if (layout.bytes == 0 || count <= 0) return {};
  const Count whole = std::min(count, static_cast<Count>(bytes / layout.bytes));
  std::vector<Piece> pieces;
  add_pieces(pieces, layout, 0, whole);
  const std::uint64_t rest = bytes % layout.bytes;
  if (whole == count || rest == 0) return pieces;
  for (const Piece& piece : pieces_of_one(layout, rest))
    append(pieces, {whole * layout.extent + piece.at, piece.bytes});
  return pieces;
}

KeptType::KeptType(Handle type) : type_(type) {
  if (real().abi.type(type) != nullptr || !size_of(type)) return;
  if (real().Type_dup(type, &made_) != 0) return;
  type_ = made_ = real().abi.at(&made_, 0);
}

KeptType::KeptType(KeptType&& other) noexcept
    : type_(other.type_), made_(std::exchange(other.made_, 0)) {}

KeptType::~KeptType() {
  if (made_ != 0) real().Type_free(&made_);
}

KeptLayout::KeptLayout(const Layout& layout)
    : layout_(layout), kept_(layout.contiguous || layout.bytes == 0 ? 0 : layout.type) {
  if (kept_.type() != 0) layout_.type = kept_.type();
}

}  // namespace plait::mpi
