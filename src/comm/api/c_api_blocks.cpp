// The calls of plait.h with a count per block. Displacements end here: in host memory, blocks with
// gaps are packed before the call and unpacked afterwards.
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/error_reason.hpp"
#include "base/text.hpp"
#include "comm/api/c_api.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/shm/gaps.hpp"
#include "plait/plan.hpp"

namespace plait {
namespace {

/// A rank's buffers, and the layout of blocks in them.
struct Edges {
  const void* input = nullptr;
  void* output = nullptr;
  BlocksAt in, out;
  void* stream = nullptr;
};

struct BlockCallArgs {
  plaitComm_t comm = nullptr;
  Collective collective = Collective::all_gather;
  int type = plait_fp32;
  int op = plait_sum;
  int root = 0;
};

/// Runs `body`. If this call exchanges counts on the host, an error is reported to the peers.
template <class Body>
void refuse_on_error(Communicator& communicator, bool exchanges, const Body& body) {
  const std::optional<Error> failure = attempt(std::cref(body));
  if (!failure) return;
  if (exchanges) communicator.refuse(failure->code(), reason_of(*failure));
  throw Error(*failure);
}

void check_edge(BlocksAt& blocks, const char* what, const void* buffer, bool device, bool written) {
  if (!blocks.has_gaps()) return;
  if (device)
    throw Error(ErrorCode::unsupported,
                text("{}: on GPUs wanted blocks one behind another, found gaps or another order: "
                     "pass NULL, or copy the blocks together",
                     what));
  blocks.check(what, written);
  if (blocks.bytes() > 0) wanted(buffer, what);
}

std::vector<std::uint64_t> list_of(const std::size_t* counts, int ranks) {
  return std::vector<std::uint64_t>(counts, counts + ranks);
}

using Own = std::function<OwnCounts()>;

/// own: this rank's counts, if not every rank knows all counts; else `counts` holds all.
plaitResult_t call(const BlockCallArgs& args, Edges edges, const std::size_t* counts,
                   const Own& own) {
  return guarded(args.comm, [&] {
    Communicator& communicator = *wanted(args.comm, "comm")->communicator;
    std::optional<OwnCounts> mine;
    if (own) mine = own();
    const bool device = on_device(communicator, edges.input, edges.output, edges.stream);
    const bool exchanges = !device || mine;  // ranks exchange counts on the host
    Request request =
        request_of(communicator, !exchanges, args.collective, 0, args.type, args.op, args.root, 0);
    for (BlocksAt* blocks : {&edges.in, &edges.out}) {
      blocks->ranks = blocks->counts == nullptr ? 0 : request.ranks;
      blocks->element_bytes = bytes_of(request.type);
    }
    const bool packs = edges.in.has_gaps(), unpacks = edges.out.has_gaps();
    std::vector<std::byte> input, output;
    refuse_on_error(communicator, exchanges, [&] {
      if (!mine) request.counts = list_of(wanted(counts, "counts"), request.ranks);
      check_edge(edges.in, "sendbuff", edges.input, device, false);
      check_edge(edges.out, "recvbuff", edges.output, device, true);
      if (packs) input = edges.in.packed(edges.input);
      if (unpacks) output.resize(edges.out.bytes());
    });
    const void* const from = packs ? input.data() : edges.input;
    void* const to = unpacks ? output.data() : edges.output;
    const CallOptions& options = args.comm->options;
    if (device && mine)
      communicator.enqueue(request, *mine, from, to, edges.stream, options);
    else if (device)
      communicator.enqueue(request, from, to, edges.stream, options);
    else if (mine)
      communicator.run(request, *mine, from, to, options);
    else
      communicator.run(request, from, to, options);
    if (unpacks) edges.out.unpack(output, edges.output);
  });
}

int ranks_of(plaitComm_t comm) { return comm == nullptr ? 0 : comm->communicator->ranks(); }
int rank_of(plaitComm_t comm) { return comm == nullptr ? 0 : comm->communicator->rank(); }

/// Returns a list with `count` for `peer` and unknown counts for all else. Request checks
/// the rank.
std::vector<std::uint64_t> only(plaitComm_t comm, int peer, std::size_t count) {
  std::vector<std::uint64_t> list(static_cast<std::size_t>(ranks_of(comm)), OwnCounts::kNotKnown);
  if (peer >= 0 && peer < ranks_of(comm)) list[static_cast<std::size_t>(peer)] = count;
  return list;
}

/// For NULL, returns unknown counts; the call then throws.
std::vector<std::uint64_t> all(plaitComm_t comm, const std::size_t* counts) {
  return counts == nullptr ? only(comm, -1, 0) : list_of(counts, ranks_of(comm));
}

}  // namespace
}  // namespace plait

using namespace plait;

extern "C" {

plaitResult_t plaitAllGatherV(const void* sendbuff, void* recvbuff, const size_t* counts,
                              const size_t* displs, plaitDataType_t type, plaitComm_t comm,
                              void* stream) {
  return call({comm, Collective::all_gather, type},
              {sendbuff, recvbuff, {}, {counts, displs}, stream}, counts, {});
}

plaitResult_t plaitReduceScatterV(const void* sendbuff, void* recvbuff, const size_t* counts,
                                  plaitDataType_t type, plaitRedOp_t op, plaitComm_t comm,
                                  void* stream) {
  return call({comm, Collective::reduce_scatter, type, op}, {sendbuff, recvbuff, {}, {}, stream},
              counts, {});
}

plaitResult_t plaitAllToAllV(const void* sendbuff, const size_t* sendcounts, const size_t* sdispls,
                             void* recvbuff, const size_t* recvcounts, const size_t* rdispls,
                             plaitDataType_t type, plaitComm_t comm, void* stream) {
  return call({comm, Collective::all_to_all, type},
              {sendbuff, recvbuff, {sendcounts, sdispls}, {recvcounts, rdispls}, stream}, nullptr,
              [=] { return OwnCounts{all(comm, sendcounts), all(comm, recvcounts)}; });
}

plaitResult_t plaitGatherV(const void* sendbuff, size_t sendcount, void* recvbuff,
                           const size_t* recvcounts, const size_t* displs, plaitDataType_t type,
                           int root, plaitComm_t comm, void* stream) {
  const bool is_root = rank_of(comm) == root;
  const BlocksAt out = is_root ? BlocksAt{recvcounts, displs} : BlocksAt{};
  return call({comm, Collective::gather, type, plait_sum, root},
              {sendbuff, is_root ? recvbuff : nullptr, {}, out, stream}, nullptr, [=] {
                return OwnCounts{only(comm, root, sendcount),
                                 all(comm, is_root ? recvcounts : nullptr)};
              });
}

plaitResult_t plaitScatterV(const void* sendbuff, const size_t* sendcounts, const size_t* displs,
                            void* recvbuff, size_t recvcount, plaitDataType_t type, int root,
                            plaitComm_t comm, void* stream) {
  const bool is_root = rank_of(comm) == root;
  const BlocksAt in = is_root ? BlocksAt{sendcounts, displs} : BlocksAt{};
  return call({comm, Collective::scatter, type, plait_sum, root},
              {is_root ? sendbuff : nullptr, recvbuff, in, {}, stream}, nullptr, [=] {
                return OwnCounts{all(comm, is_root ? sendcounts : nullptr),
                                 only(comm, root, recvcount)};
              });
}

}  // extern "C"
