// Two requests -> one of the MPI's generalized ones, which ends with the later of them.
#include "shims/mpi/exchange.hpp"

#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "base/text.hpp"
#include "shims/mpi/layout.hpp"
#include "shims/mpi/requests.hpp"
#include "shims/mpi/status.hpp"

namespace plait::mpi {
namespace {

/// Both halves; its status is that of what was received.
struct Exchange : Begun {
  bool has_ended() override {
    int sent = 0;
    if (!received_) end(received_, real().Test(&receive, &received_, status_.data()));
    end(sent, real().Test(&send, &sent, real().abi.status_ignore));
    return received_ != 0 && sent != 0;
  }
  void fill(void* wanted) const override {
    std::memcpy(wanted, status_.data(), static_cast<std::size_t>(status_bytes()));
  }
  void cancel() override {
    if (received_ == 0) real().Cancel(&receive);
  }

  Handle send = 0, receive = 0;
  std::vector<std::byte> kept;  ///< what is sent, where the receive writes over it

 private:
  /// An error ends that half.
  void end(int& flag, int error) {
    if (error == 0) return;
    flag = 1;
    if (code == 0) code = error;
  }
  int received_ = 0;
  alignas(8) std::array<std::byte, 32> status_{};
};

const Passed<Small>& functions(Small) { return real().small_passed; }
const Passed<Large>& functions(Large) { return real().large_passed; }

template <class Width>
struct Exchanges {
  using N = typename Width::N;

  /// The receive first, so that a message to oneself finds it.
  static int begin(std::unique_ptr<Exchange> made, const void* in, N in_count, Handle in_type,
                   int to, int out_tag, void* out, N out_count, Handle out_type, int from,
                   int in_tag, Handle comm, void* request) {
    const Passed<Width>& mpi = functions(Width{});
    int code = mpi.Irecv(out, out_count, out_type, from, in_tag, comm, &made->receive);
    if (code != 0) return code;
    code = mpi.Isend(in, in_count, in_type, to, out_tag, comm, &made->send);
    if (code == 0) return start(std::move(made), request);
    real().Cancel(&made->receive);
    real().Wait(&made->receive, real().abi.status_ignore);
    return code;
  }

  static int both(const void* in, N in_count, Handle in_type, int to, int out_tag, void* out,
                  N out_count, Handle out_type, int from, int in_tag, Handle comm,
                  void* request) {
    return begin(std::make_unique<Exchange>(), in, in_count, in_type, to, out_tag, out, out_count,
                 out_type, from, in_tag, comm, request);
  }

  static int in_place(void* buffer, N count, Handle type, int to, int out_tag, int from, int in_tag,
                      Handle comm, void* request) {
    auto made = std::make_unique<Exchange>();
    const Layout layout = layout_of(type);
    const std::uint64_t bytes = layout.bytes * static_cast<std::uint64_t>(count < 0 ? 0 : count);
    if (bytes > static_cast<std::uint64_t>(std::numeric_limits<N>::max()))
      return report(comm, Error(ErrorCode::unsupported,
                                text("wanted at most 2 GiB in MPI_Isendrecv_replace, found ", bytes,
                                     " bytes: use MPI_Isendrecv_replace_c, or smaller parts")));
    made->kept.resize(bytes);
    pack(buffer, static_cast<Count>(bytes > 0 ? count : 0), layout, made->kept.data());
    const void* const in = made->kept.data();
    return begin(std::move(made), in, static_cast<N>(bytes), real().abi.byte, to, out_tag, buffer,
                 count, type, from, in_tag, comm, request);
  }
};

}  // namespace

void add_exchanges(Real& table) {
  const bool tells = table.abi.family == Family::open_mpi;
  if (tells && table.small_passed.Isendrecv != nullptr) return;
  table.small_passed.Isendrecv = Exchanges<Small>::both;
  table.small_passed.Isendrecv_replace = Exchanges<Small>::in_place;
  if (table.large_passed.Isendrecv == nullptr) return;  // of wide counts are made narrow ones
  table.large_passed.Isendrecv = Exchanges<Large>::both;
  table.large_passed.Isendrecv_replace = Exchanges<Large>::in_place;
}

}  // namespace plait::mpi
