"""Communicator: collectives on arrays, an object per rank.

All ranks make the same calls in the same order, except send, recv and exchange_with (between two
ranks). In host memory a call returns when this rank's result is complete. If ranks disagree (count,
type, op, ...), all get MismatchError. In GPU memory a call is enqueued on a stream and returns at
once; check() raises later errors. If a rank dies, all peers raise PeerLostError with the rank's
name. Every wait has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from plait import _core, settings, torch_transport
from plait._core import (
    Error,
    InvalidArgumentError,
    MemoryExhaustedError,
    Plan,
    Request,
    Topology,
    UnsupportedError,
)
from plait.arguments import (
    How,
    Params,
    check_launched,
    how_of,
    id_of,
    masks_of,
    scalar_of,
    scalars_of,
    way_of,
)
from plait.arrays import (
    DTYPE_OF_TYPE,
    HOST,
    ON_SOME_GPU,
    Buffer,
    buffer_of,
    empty_like,
    is_on_gpu,
    of_kind,
    stream_handle,
)
from plait.blocks import (
    BlocksKind,
    Ranks,
    exchanged,
    gathered,
    gathered_by_all,
    rank_number,
    reduced,
    scattered,
)
from plait.gpu_memory import GpuMemoryCalls
from plait.options import set_options
from plait.rms_norm import RmsNormCalls


class _Kind(NamedTuple):
    """Cached facts of equal calls: the core's request and the elements of this rank's output."""

    request: Request
    elements: int
    has_output: bool


_core.set_transport_factory(torch_transport.make)
_MOST_KINDS = 4096
_USUAL = How()


class Communicator(GpuMemoryCalls, RmsNormCalls):
    """Ranks that run collectives together. Make one with `plait.init()`, or directly:

    rank, ranks: this rank's number and the number of ranks; without both, the launcher's. One
    of them alone must be the launcher's, or rank 0 of 1 without a launcher.
    rendezvous: address for bootstrap ("fd:N", "unix:PATH", "" = from the launcher's environment).
    unique_id: the value of `plait.unique_id()` on one rank, as text or bytes, sent by the program
    to all ranks; replaces rendezvous and needs no launcher. topology: name or file ("" = the
    machine as found). masks: excluded links ("nvlink:0-1"). arrive_s: deadline in s for all ranks
    to enter a call, and for waits on GPUs; deadline_s: inside a call in host memory; without them,
    PLAIT_ARRIVE_S and PLAIT_DEADLINE_S. Ctrl-C ends the wait within 1 s and aborts the
    communicator. device: CUDA ordinal of this rank's GPU, -1 =
    none; without rank and ranks, the launcher's local rank if every rank has a GPU.
    sm_budget: most thread blocks of a call on a GPU, 0 = the fastest number.
    overlap_compute: large calls leave multiprocessors to computation, as under NCCL
    (beside_computing is its former name).
    graph_mixing: captured calls stay in order beside other graphs and eager calls (on unless
    False). bitwise: only plans that sum in rank order, as with PLAIT_BITWISE=1.
    sum_order: only plans that sum in this order, "rank_order", "tree" or "tree_rounded", as with
    PLAIT_SUM_ORDER (docs/same_bits.md). Making a communicator is collective; an error is raised
    on every rank.
    """

    def __init__(
        self,
        rank: int | None = None,
        ranks: int | None = None,
        *,
        rendezvous: str | None = None,
        unique_id: str | bytes | None = None,
        topology: str | None = None,
        masks: Sequence[str] | None = None,
        arrive_s: float | None = None,
        deadline_s: float | None = None,
        device: int | None = None,
        sm_budget: int | None = None,
        overlap_compute: bool | None = None,
        beside_computing: bool | None = None,
        graph_mixing: bool | None = None,
        bitwise: bool | None = None,
        sum_order: str | None = None,
    ) -> None:
        if rank is None or ranks is None:
            options = _core.options_from_environment()
        else:
            options = _core.default_options()
        launched = (options.rank, options.ranks)
        if beside_computing is not None and overlap_compute is None:
            overlap_compute = beside_computing
        given = {
            "rank": rank,
            "ranks": ranks,
            "rendezvous": rendezvous,
            "unique_id": None if unique_id is None else id_of(unique_id),
            "topology": topology,
            "masks": None if masks is None else masks_of(masks, "masks"),
            "arrive_s": arrive_s,
            "deadline_s": deadline_s,
            "device": device,
            "sm_budget": sm_budget,
            "overlap_compute": overlap_compute,
            "graph_mixing": graph_mixing,
            "bitwise": bitwise,
            "sum_order": sum_order,
        }
        set_options(options, given)
        if rank is None or ranks is None:
            check_launched(
                (options.rank, options.ranks), launched, "rank" if ranks is None else "ranks"
            )
        self._take(_core.Communicator.create(options))

    @classmethod
    def _of(cls, core: Any) -> Communicator:
        made = cls.__new__(cls)
        made._take(core)
        return made

    def _take(self, core: Any) -> None:
        self._core = core
        self._rank, self._ranks = core.rank, core.ranks
        self._who = Ranks(self._rank, self._ranks)
        self._kinds: dict[tuple[Any, ...], _Kind] = {}
        self._pairs: dict[int, Communicator] = {}

    @property
    def rank(self) -> int:
        """This process's rank, 0..ranks-1."""
        return self._rank

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self._ranks

    @property
    def device(self) -> int:
        """CUDA ordinal of this rank's GPU; -1 = none."""
        return self._core.device

    def adopt_device(self, device: int) -> None:
        """Gives this communicator a GPU, so that it takes arrays of that GPU from now on.

        device: CUDA ordinal of this rank's GPU, or -2 for the launcher's choice. All ranks call
        this together, each with its own device; it waits for the peers up to arrive_s s. Pairs of
        ranks that have sent or received before stay in host memory. If one rank cannot, all ranks
        raise that rank's error (NoDeviceError, MemoryExhaustedError) and the communicator still
        serves host memory. Raises InvalidArgumentError on all ranks if there is a GPU already.
        """
        self._core.adopt_device(device)

    @property
    def transport(self) -> str:
        """Name of the library that carries messages between nodes; empty = a single node."""
        return self._core.transport

    @property
    def carrier(self) -> str:
        """Older name of `transport`."""
        return self.transport

    @property
    def topology(self) -> Topology:
        """The topology for plans in host memory; the same on all ranks."""
        return self._core.topology

    def all_reduce(self, array: Any, op: str = "sum", out: Any = None, **how: Any) -> Any:
        """Reduces `array` over all ranks: out[i] = op over all ranks of array[i].

        array: any shape, the same count and type on all ranks. out: as many elements of the same
        type; may be `array`. op: sum, prod, min, max, avg, premul_sum (with scalar=), bit_and,
        bit_or, bit_xor. how: strategy=, params=, scalar= (this rank's factor) or scalars= (every
        rank's); for GPU arrays also stream= (a number, torch.cuda.Stream or cupy.cuda.Stream; None
        = the library's current stream). Returns `out`, or a new array of the same library, type and
        memory (torch in, torch out); buffers of no library give a numpy array.
        Raises MismatchError on all ranks if ranks disagree, InvalidArgumentError for bad arrays,
        UnsupportedError for a type or device that plait does not have.
        """
        return self._call("all_reduce", array, out, how, op=op)

    def reduce_scatter(self, array: Any, op: str = "sum", out: Any = None, **how: Any) -> Any:
        """Reduces and scatters: rank r gets op over all ranks of the r-th equal part of `array`.

        The number of elements must divide by `ranks`. how, errors: as in all_reduce.
        """
        return self._call("reduce_scatter", array, out, how, op=op)

    def all_gather(self, array: Any, out: Any = None, **how: Any) -> Any:
        """Gathers all ranks' arrays on every rank, in rank order: shape (ranks,) + array.shape."""
        return self._call("all_gather", array, out, how)

    def broadcast(self, array: Any, root: int = 0, out: Any = None, **how: Any) -> Any:
        """Copies the root's array to every rank. Other ranks' `array` gives shape and type only."""
        return self._call("broadcast", array, out, how, root=root)

    def reduce(
        self, array: Any, op: str = "sum", root: int = 0, out: Any = None, **how: Any
    ) -> Any:
        """Reduces on the root: the root gets op over all ranks of array[i]. Other ranks get
        None."""
        return self._call("reduce", array, out, how, op=op, root=root)

    def all_to_all(self, array: Any, out: Any = None, **how: Any) -> Any:
        """Sends the p-th equal part of `array` to rank p. Part q of the result is from rank q."""
        return self._call("all_to_all", array, out, how)

    def gather(self, array: Any, root: int = 0, out: Any = None, **how: Any) -> Any:
        """Gathers all ranks' arrays on the root: shape (ranks,) + array.shape. Other ranks get
        None."""
        return self._call("gather", array, out, how, root=root)

    def scatter(self, array: Any, root: int = 0, out: Any = None, **how: Any) -> Any:
        """Scatters the root's array: rank r gets the r-th of `ranks` equal parts.

        Other ranks pass an array of the root's size and type; the contents are not read.
        """
        return self._call("scatter", array, out, how, root=root)

    def all_gather_v(self, array: Any, counts: Any, out: Any = None, **how: Any) -> Any:
        """Gathers all ranks' arrays, of counts[r] rows each, on every rank, in rank order.

        counts: rows (first dimension) by rank, the same on all ranks; a list, tuple, numpy array or
        tensor of integers >= 0. The result has sum(counts) rows. If counts differ between ranks,
        all get MismatchError in host memory; on GPUs the calls never complete.
        """
        return self._call(
            "all_gather", array, out, how, blocks=lambda s: gathered_by_all(self._who, s, counts)
        )

    def reduce_scatter_v(
        self, array: Any, counts: Any, op: str = "sum", out: Any = None, **how: Any
    ) -> Any:
        """Reduces and scatters blocks: rank r gets counts[r] rows of the reduction.

        array: sum(counts) rows.         counts: as in all_gather_v.
        """
        return self._call(
            "reduce_scatter", array, out, how, blocks=lambda s: reduced(self._who, s, counts, op)
        )

    def all_to_all_v(
        self, array: Any, send_counts: Any, recv_counts: Any, out: Any = None, **how: Any
    ) -> Any:
        """Sends send_counts[p] rows of `array` to rank p; gets recv_counts[q] rows from rank q.

        Blocks lie in rank order, in `array` and in the result of sum(recv_counts) rows. Each rank
        passes its own counts. Ranks exchange counts on the host first, for GPU arrays too, and all
        raise MismatchError if two ranks disagree.
        """
        return self._call(
            "all_to_all",
            array,
            out,
            how,
            blocks=lambda s: exchanged(self._who, s, send_counts, recv_counts),
        )

    def gather_v(
        self, array: Any, counts: Any = None, root: int = 0, out: Any = None, **how: Any
    ) -> Any:
        """Gathers all ranks' arrays, of counts[r] rows each, on the root. Other ranks get None.

        counts: read on the root only. Ranks exchange counts on the host, as in all_to_all_v.
        """
        return self._call(
            "gather", array, out, how, blocks=lambda s: gathered(self._who, s, counts, root)
        )

    def scatter_v(
        self, array: Any = None, counts: Any = None, root: int = 0, out: Any = None, **how: Any
    ) -> Any:
        """Scatters blocks of the root's array: rank r gets counts[r] rows.

        array, counts: on the root. Other ranks pass `out`, giving rows and type. Ranks exchange
        counts on the host, as in all_to_all_v.
        """
        given = array if self._rank == root else out
        if given is None:
            wanted = "an array on the root" if self._rank == root else "out= on ranks but the root"
            error = InvalidArgumentError(f"scatter_v: wanted {wanted}, found None")
            self._tell(error)
            raise error
        return self._call(
            "scatter", given, out, how, blocks=lambda s: scattered(self._who, s, counts, root)
        )

    def send_recv(self, array: Any, out: Any = None, **how: Any) -> Any:
        """Sends `array` to rank + 1 and receives from rank - 1 (mod ranks)."""
        return self._call("send_recv", array, out, how)

    def copy(self, array: Any, src: int, dst: int, out: Any = None, **how: Any) -> Any:
        """Copies rank src's array to rank dst. All ranks call copy(); ranks except dst get None.

        Uses every path of the pair in host memory. On GPUs uses the direct link, and from 384 MiB
        on also host memory. (`plait.copy` uses every path between two GPUs of a process.)
        """
        return self._call("copy", array, out, how, root=src, peer=dst)

    def send(self, array: Any, dst: int, **how: Any) -> None:
        """Sends `array` to rank `dst`, which calls recv().

        Both ranks make sends, receives and exchanges with each other in the same order. The first
        call waits on the host for the peer's first (arrive_s). send() returns (on a GPU: its stream
        continues) once the peer has called recv(). Two ranks that both send first deadlock until
        the deadline; use exchange_with() then. how: strategy=, params=, stream=.
        """
        pair = self._pair(dst)
        pair._call("copy", array, None, how, root=pair.rank, peer=1 - pair.rank)

    def recv(self, out: Any, src: int, **how: Any) -> Any:
        """Receives rank `src`'s send() in `out`, of the same count and type. Returns `out`."""
        pair = self._pair(src)
        return pair._call("copy", out, out, how, root=1 - pair.rank, peer=pair.rank)

    def exchange_with(self, array: Any, peer: int, out: Any = None, **how: Any) -> Any:
        """Sends `array` to rank `peer` and receives an array of the same count and type from
        `peer`."""
        return self._pair(peer)._call("send_recv", array, out, how)

    def run(self, plan: Plan, array: Any, out: Any, scalar: float = 1.0) -> Any:
        """Verifies and runs a plan on arrays in host memory; returns `out`. All ranks pass equal
        plans.

        scalar: this rank's factor for premul_sum. Raises InvalidArgumentError if a buffer is too
        small or of another type.
        """
        try:
            source = buffer_of(array, "input")
            result = buffer_of(out, "output", writable=True)
            _check_size(plan, "input", self.rank, source)
            _check_size(plan, "output", self.rank, result)
            factor = scalar_of(scalar)
        except Exception as error:
            self._tell(error)
            raise
        self._core.run_plan(plan, source.address, result.address, factor)
        return out

    def barrier(self) -> None:
        """Waits on the host until every rank has called barrier()."""
        self._core.barrier()

    def check(self) -> None:
        """Raises the error of a call on this rank's GPU: DeadlineError, PeerLostError,
        AbortedError.

        Does not wait: synchronize the stream first to see the errors of all calls.
        """
        self._core.check()

    def exchange(self, mine: bytes) -> list[bytes]:
        """Returns every rank's bytes (at most 1 MiB each), in rank order. Collective, on the
        host."""
        if not isinstance(mine, bytes):
            error = InvalidArgumentError(f"wanted bytes to exchange, found {type(mine).__name__}")
            self._tell(error)
            raise error
        return self._core.exchange(mine)

    def plan_for(self, request: Request, strategy: str = "", params: Params | None = None) -> Plan:
        """Returns the plan that a call of this request runs in host memory."""
        return self._core.plan_for(request, *way_of(strategy, params))

    def explain(self, request: Request) -> str:
        """Returns text: the plan or engine of a request, the alternatives, and why each lost."""
        return self._core.explain(request)

    def counters(self) -> Any:
        """Returns counts of calls by collective and strategy, and bytes by path."""
        return self._core.counters()

    def abort(self) -> None:
        """Ends all pending and later calls of this rank with AbortedError. Thread-safe, local.

        On GPUs, calls end without a result and without failing the stream. Peers' calls on host
        memory that wait for this rank fail at once with AbortedError; on GPUs they fail after
        `deadline_s` at the latest.
        """
        self._core.abort()

    def _pair(self, peer: int) -> Communicator:
        """Returns the communicator of this rank and `peer`; the lower rank is rank 0."""
        index = rank_number(peer, "peer")
        core = self._core.pair(index)  # cached in the core
        if index not in self._pairs:
            self._pairs[index] = Communicator._of(core)
        return self._pairs[index]

    def _call(
        self,
        collective: str,
        array: Any,
        out: Any,
        given: Mapping[str, Any],
        op: str = "sum",
        root: int = 0,
        peer: int = 0,
        blocks: Callable[[Buffer], BlocksKind] | None = None,
    ) -> Any:
        """Checks arguments and buffers of a collective and runs it.

        An error of this rank's arguments fails the call on all ranks. On GPUs that holds only for
        calls that exchange counts on the host.
        """
        if is_on_gpu(array) or is_on_gpu(out):

            def kind_of(source: Buffer) -> _Kind | BlocksKind:
                return blocks(source) if blocks else self._kind(collective, source, op, root, peer)

            exchanges = blocks is not None and collective in ("all_to_all", "gather", "scatter")
            return self._enqueue(array, out, given, kind_of, exchanges)
        try:
            how = how_of(given) if given else _USUAL
            source = buffer_of(array, "input")
            kind = blocks(source) if blocks else self._kind(collective, source, op, root, peer)
            made, result = self._output(kind, source, out)
            if how.stream is not None:
                raise InvalidArgumentError("wanted arrays on a GPU with stream=, found host memory")
            factor = scalars_of(how, self._ranks)[self._rank]
            strategy, params = way_of(how.strategy, how.params)
            if params and not strategy and not settings.algo():
                raise InvalidArgumentError(
                    f"wanted strategy= beside params= in host memory, found {params} alone"
                )
        except Exception as error:
            self._tell(error)
            raise
        address = result.address if result else 0
        call = (kind.request, source.address, address, strategy, params, factor)
        try:
            if blocks is not None and isinstance(kind, BlocksKind) and kind.sends:
                self._core.run_by_own_counts(kind.sends, kind.gets, *call)
            else:
                self._core.run_request(*call)
        except InvalidArgumentError as error:
            raise settings.named(error, strategy) from None
        return made if out is not None else of_kind(array, made)

    def _enqueue(
        self,
        array: Any,
        out: Any,
        given: Mapping[str, Any],
        kind_of: Callable[[Buffer], _Kind | BlocksKind],
        exchanges: bool,
    ) -> Any:
        """Enqueues a collective on this rank's GPU.

        Errors stay local unless peers wait on the host: if the communicator has no GPU, or if the
        call exchanges counts on the host (`exchanges`).
        """
        try:
            kind, made, call = self._gpu_call(array, out, how_of(given), kind_of)
        except Exception as error:
            if exchanges or self.device == HOST:
                self._tell(error)
            raise
        if isinstance(kind, BlocksKind) and kind.sends:
            self._core.enqueue_by_own_counts(kind.sends, kind.gets, *call)
        else:
            self._core.enqueue(*call)
        return made

    def _gpu_call(
        self,
        array: Any,
        out: Any,
        how: How,
        kind_of: Callable[[Buffer], _Kind | BlocksKind],
    ) -> tuple[_Kind | BlocksKind, Any, tuple[Any, ...]]:
        """Checks all arguments; returns (kind, output, arguments of the core)."""
        if self.device == HOST:
            raise UnsupportedError(
                "wanted arrays in host memory, found one on a GPU, and this communicator has none: "
                "make it with device= (PLAIT_DEVICE)"
            )
        source = buffer_of(array, "input")
        kind = kind_of(source)
        out, result = self._output(kind, source, out)
        buffers = [source] if result is None else [source, result]
        for role, buffer in zip(("input", "output"), buffers, strict=False):
            if buffer.device not in (self.device, ON_SOME_GPU):
                where = "host memory" if buffer.device == HOST else f"memory of GPU {buffer.device}"
                raise InvalidArgumentError(
                    f"wanted {role} on GPU {self.device}, this communicator's, found {where}"
                )
        call = (
            kind.request,
            source.address,
            result.address if result else 0,
            stream_handle(how.stream, buffers),
            *way_of(how.strategy, how.params),
            scalars_of(how, self._ranks),
        )
        return kind, out, call

    def _tell(self, error: Exception) -> None:
        """Fails the call on all ranks with this rank's error."""
        kind = MemoryExhaustedError if isinstance(error, MemoryError) else InvalidArgumentError
        code = error.code if isinstance(error, Error) else kind.code
        self._core.refuse(code, str(error) or type(error).__name__)

    def _kind(self, collective: str, source: Buffer, op: str, root: int, peer: int) -> _Kind:
        """Returns the cached facts of equal calls; a request takes microseconds to make."""
        if type(root) is not int or type(peer) is not int:  # the value of a tensor may change
            root, peer = _ranks_of(collective, root, peer)
        key = (collective, source.count, source.type, op, root, peer)
        try:
            known = self._kinds.get(key)
        except TypeError:  # an unhashable op, reported by _make_kind
            known = None
        return known if known is not None else self._make_kind(key)

    def _make_kind(self, key: tuple[Any, ...]) -> _Kind:
        collective, whole, type_name, op, root, peer = key
        if not isinstance(op, str):
            raise InvalidArgumentError(
                f"wanted the name of an op, such as sum or max, found {op!r}"
            )
        root, peer = _ranks_of(collective, root, peer)
        divides = collective in ("reduce_scatter", "all_to_all", "scatter")
        if divides and whole % self._ranks != 0:
            raise InvalidArgumentError(
                f"wanted an input divisible into {self._ranks} equal parts for {collective}, "
                f"found {whole} elements"
            )
        count = whole // self._ranks if divides else whole
        request = Request(collective, count, type_name, op, self._ranks, root, peer)
        has_output = (
            self._rank == root
            if collective in ("reduce", "gather")
            else (self._rank == peer if collective == "copy" else True)
        )
        elements = request.output_bytes(self._rank) // DTYPE_OF_TYPE[type_name].itemsize
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        return self._kinds.setdefault(key, _Kind(request, elements, has_output))

    def _output(
        self, kind: _Kind | BlocksKind, source: Buffer, out: Any
    ) -> tuple[Any, Buffer | None]:
        """Returns (output array, buffer); makes the array if the caller gave none."""
        if not kind.has_output:
            return None, None
        if out is None:
            if isinstance(kind, BlocksKind):
                shape: tuple[int, ...] = (kind.rows, *source.shape[1:])
            else:
                shape = _result_shape(kind.request, source)
            out = empty_like(source, shape)
        result = buffer_of(out, "output", writable=True)
        if result.type != source.type or result.count != kind.elements:
            raise InvalidArgumentError(
                f"wanted an output of {kind.elements} {source.type} elements for "
                f"{kind.request.collective}, found {result.count} {result.type}"
            )
        return out, result


def _ranks_of(collective: str, root: Any, peer: Any) -> tuple[int, int]:
    names = ("src", "dst") if collective == "copy" else ("root", "peer")
    return rank_number(root, names[0]), rank_number(peer, names[1])


def _result_shape(request: Request, source: Buffer) -> tuple[int, ...]:
    if request.collective in ("all_gather", "gather"):
        return (request.ranks, *source.shape)
    if request.collective in ("reduce_scatter", "scatter"):
        if source.shape and source.shape[0] % request.ranks == 0:
            return (source.shape[0] // request.ranks, *source.shape[1:])
        return (request.count,)
    return source.shape


def init(**options: Any) -> Communicator:
    """Makes a communicator of all ranks of a launcher (plait launch, torchrun, mpirun, Slurm).

    Without a launcher the communicator has this process alone, or, with unique_id=, rank= and
    ranks=, all processes with the same id. options: the keywords of Communicator. Collective.
    """
    return Communicator(**options)


def unique_id() -> str:
    """Returns a text that identifies a new communicator.

    One rank calls this, the program sends the text to all ranks, and each passes the text to
    `plait.init(unique_id=, rank=, ranks=)`.
    """
    return _core.unique_id()


def run_reference(
    plan: Plan,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    scalars: Sequence[float] | None = None,
) -> None:
    """Runs a plan for all ranks in this thread with the reference executor; fills `outputs`.

    inputs, outputs: an array in host memory per rank; scalars: a factor per rank, for premul_sum.
    """
    _check_sizes(plan, inputs, outputs)
    sources = [buffer_of(array, "input").address for array in inputs]
    results = [buffer_of(array, "output", writable=True).address for array in outputs]
    _core.run_reference(plan, sources, results, list(scalars or []))


def _check_sizes(plan: Plan, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    ranks = plan.request.ranks
    if len(inputs) != ranks or len(outputs) != ranks:
        raise InvalidArgumentError(
            f"wanted {ranks} inputs and outputs, found {len(inputs)} and {len(outputs)}"
        )
    for rank in range(ranks):
        _check_size(plan, "input", rank, buffer_of(inputs[rank], "input"))
        _check_size(plan, "output", rank, buffer_of(outputs[rank], "output"))


def _check_size(plan: Plan, role: str, rank: int, found: Buffer) -> None:
    """Checks the size of a buffer, since the core gets only the address."""
    request = plan.request
    wanted = request.input_bytes(rank) if role == "input" else request.output_bytes(rank)
    size = DTYPE_OF_TYPE[request.type].itemsize
    if found.device != HOST:
        raise UnsupportedError(
            f"wanted {role} of rank {rank} in host memory, found it on a GPU: run() takes host "
            "memory only; on GPUs pass strategy= to the collective's own method"
        )
    if wanted > 0 and (found.type != request.type or found.count * size < wanted):
        raise InvalidArgumentError(
            f"wanted {wanted} bytes of {request.type} as {role} of rank {rank}, "
            f"found {found.count} elements of {found.type}"
        )
