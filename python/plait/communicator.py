"""Communicator: collectives on arrays, one object a rank.

Every rank makes the same calls in the same order, but for send, recv and exchange_with, which are
between two ranks. On host memory a call returns when this rank's result is complete; ranks that
disagree (count, type, op, ...) all get MismatchError. On a GPU's memory it is put on a stream and
returns at once; check() says what it met there. A rank that dies makes all others raise
PeerLostError naming it; nothing waits for ever.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from plait import _core, torch_transport
from plait._core import (
    Error,
    InvalidArgumentError,
    Plan,
    Request,
    Topology,
    UnsupportedError,
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
    reduced,
    scattered,
)

Params = Mapping[str, int]


class _How(NamedTuple):
    """What a call may be given beside its arrays and what it is; an unknown word is a TypeError."""

    strategy: str = ""
    params: Params | None = None
    scalar: float = 1.0
    scalars: Sequence[float] | None = None
    stream: Any = None


class _Kind(NamedTuple):
    """What calls alike share: the core's request, and the elements of this rank's output."""

    request: Request
    elements: int
    has_output: bool


_core.set_transport_factory(torch_transport.make)
_MOST_KINDS = 4096
_USUAL = _How()


class Communicator:
    """Ranks that run collectives together. Make one with `plait.init()`, or directly:

    rank, ranks: who this is among how many. rendezvous: where they meet ("fd:N", "unix:PATH", ""
    = from the launcher's environment). unique_id: instead, what `plait.unique_id()` gave one of
    the ranks and the program has carried to the others, as text or bytes; the ranks may then be
    any of a launcher's, or nobody's. topology: name or file ("" = the machine as found). masks:
    links left out ("nvlink:0-1"). arrive_s: how long to wait for a rank that has not yet entered a
    call; deadline_s: how long inside a call on host memory (waits on GPUs have arrive_s); Ctrl-C
    ends such a wait within a second, and the communicator with it. device: CUDA ordinal of this
    rank's GPU, -1 = none; with neither rank nor ranks given, the launcher's local rank where every
    rank has a GPU. sm_budget: most blocks of a call there, 0 = as many as are fastest.
    overlap_compute: large calls leave multiprocessors to computation, as under NCCL
    (beside_computing is its former name).
    graph_mixing: captured calls keep their order beside other graphs and eager calls (on unless
    False). bitwise: only plans that sum in rank order, as PLAIT_BITWISE=1. Raises on
    every rank alike.
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
    ) -> None:
        if rank is None and ranks is None:
            options = _core.options_from_environment()
        else:
            options = _core.CommunicatorOptions()
        if beside_computing is not None and overlap_compute is None:
            overlap_compute = beside_computing
        given = {
            "rank": rank,
            "ranks": ranks,
            "rendezvous": rendezvous,
            "unique_id": None if unique_id is None else _id(unique_id),
            "topology": topology,
            "masks": None if masks is None else list(masks),
            "arrive_s": arrive_s,
            "deadline_s": deadline_s,
            "device": device,
            "sm_budget": sm_budget,
            "overlap_compute": overlap_compute,
            "graph_mixing": graph_mixing,
            "bitwise": bitwise,
        }
        for name, value in given.items():
            if value is not None:
                setattr(options, name, value)
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
        """How many ranks there are."""
        return self._ranks

    @property
    def device(self) -> int:
        """CUDA ordinal of this rank's GPU; -1 = none."""
        return self._core.device

    @property
    def transport(self) -> str:
        """Name of the library that carries messages between nodes; empty = all on one node."""
        return self._core.transport

    @property
    def carrier(self) -> str:
        """Older name of `transport`."""
        return self.transport

    @property
    def topology(self) -> Topology:
        """The topology that plans for host memory are made for; the same on all ranks."""
        return self._core.topology

    def all_reduce(self, array: Any, op: str = "sum", out: Any = None, **how: Any) -> Any:
        """out[i] = op over all ranks of array[i]. Any shape; `out` as large as `array` (may be it).

        op: sum, prod, min, max, avg, premul_sum (with scalar=), bit_and, bit_or, bit_xor.
        how: strategy=, params=, scalar= (this rank's factor; scalars= = every rank's); for arrays
        on a GPU stream= too (a number, torch.cuda.Stream, cupy.cuda.Stream; None = the library's
        current one). Returns `out`; where none is given a new array of the same library and type in
        the same memory (torch in, torch out), or numpy's for what belongs to no library.
        """
        return self._call("all_reduce", array, out, how, op=op)

    def reduce_scatter(self, array: Any, op: str = "sum", out: Any = None, **how: Any) -> Any:
        """Rank r gets op over all ranks of the r-th of `ranks` equal parts of `array`."""
        return self._call("reduce_scatter", array, out, how, op=op)

    def all_gather(self, array: Any, out: Any = None, **how: Any) -> Any:
        """Every rank gets all ranks' arrays one after the other; a first dimension more."""
        return self._call("all_gather", array, out, how)

    def broadcast(self, array: Any, root: int = 0, out: Any = None, **how: Any) -> Any:
        """Every rank gets the root's array. Other ranks' `array` gives shape and type only."""
        return self._call("broadcast", array, out, how, root=root)

    def reduce(
        self, array: Any, op: str = "sum", root: int = 0, out: Any = None, **how: Any
    ) -> Any:
        """The root gets op over all ranks of array[i]; the others None."""
        return self._call("reduce", array, out, how, op=op, root=root)

    def all_to_all(self, array: Any, out: Any = None, **how: Any) -> Any:
        """Part p of this rank's array goes to rank p; part q of the result came from rank q."""
        return self._call("all_to_all", array, out, how)

    def gather(self, array: Any, root: int = 0, out: Any = None, **how: Any) -> Any:
        """The root gets all ranks' arrays, with a first dimension more; the others None."""
        return self._call("gather", array, out, how, root=root)

    def scatter(self, array: Any, root: int = 0, out: Any = None, **how: Any) -> Any:
        """Rank r gets the r-th of `ranks` equal parts of the root's array.

        Ranks other than the root pass an array of that size too (shape and type are read off it).
        """
        return self._call("scatter", array, out, how, root=root)

    def all_gather_v(self, array: Any, counts: Any, out: Any = None, **how: Any) -> Any:
        """Every rank gets all ranks' arrays, of counts[r] rows each, one after the other.

        counts: rows (along the first dimension) by rank, the same on all ranks; a list, tuple,
        numpy array or tensor of whole numbers. Zero is a count. The result has sum(counts) rows.
        Where counts differ between ranks: MismatchError on all, but on GPUs calls never complete.
        """
        return self._call(
            "all_gather", array, out, how, blocks=lambda s: gathered_by_all(self._who, s, counts)
        )

    def reduce_scatter_v(
        self, array: Any, counts: Any, op: str = "sum", out: Any = None, **how: Any
    ) -> Any:
        """Rank r gets op over all ranks of its counts[r] rows of `array`, which has sum(counts).

        counts: as in all_gather_v.
        """
        return self._call(
            "reduce_scatter", array, out, how, blocks=lambda s: reduced(self._who, s, counts, op)
        )

    def all_to_all_v(
        self, array: Any, send_counts: Any, recv_counts: Any, out: Any = None, **how: Any
    ) -> Any:
        """send_counts[p] rows of `array` go to rank p, recv_counts[q] rows came from rank q.

        Rows of one rank lie behind those of the rank before it, here and in the result, which has
        sum(recv_counts). Counts are this rank's own: ranks show them to each other on the host
        first, for arrays on GPUs too. MismatchError on all where rank p sends rank q what that one
        does not expect.
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
        """The root gets all ranks' arrays, of counts[r] rows each; the others None.

        counts: on the root; nobody reads others'. Ranks meet on the host as in all_to_all_v.
        """
        return self._call(
            "gather", array, out, how, blocks=lambda s: gathered(self._who, s, counts, root)
        )

    def scatter_v(
        self, array: Any = None, counts: Any = None, root: int = 0, out: Any = None, **how: Any
    ) -> Any:
        """Rank r gets its counts[r] rows of the root's array.

        array, counts: on the root. The other ranks pass `out`, which says how many rows of which
        type they expect. Ranks meet on the host as in all_to_all_v.
        """
        given = array if self._rank == root else out
        return self._call(
            "scatter", given, out, how, blocks=lambda s: scattered(self._who, s, counts, root)
        )

    def send_recv(self, array: Any, out: Any = None, **how: Any) -> Any:
        """Sends `array` to rank + 1 and receives from rank - 1 (mod ranks)."""
        return self._call("send_recv", array, out, how)

    def copy(self, array: Any, src: int, dst: int, out: Any = None, **how: Any) -> Any:
        """Rank dst gets rank src's array; the others None. All ranks call it.

        On host memory over every path of the pair; on GPUs by the link, with a share through host
        memory from 384 MiB on (`plait.copy` takes every path between two GPUs of one process).
        """
        return self._call("copy", array, out, how, root=src, peer=dst)

    def send(self, array: Any, dst: int, **how: Any) -> None:
        """Sends `array` to rank `dst`, whose recv() takes it; other ranks have no part in it.

        Two ranks' sends, receives and exchanges with each other come in the same order on both;
        the first waits on the host until the other rank comes to its first (arrive_s). On host
        memory it returns, and on a GPU the stream goes on, once the peer has come to its recv(): so
        two ranks that each send first wait for each other, which exchange_with() does not.
        how: strategy=, params=, stream= as for collectives.
        """
        pair = self._pair(dst)
        pair._call("copy", array, None, how, root=pair.rank, peer=1 - pair.rank)

    def recv(self, out: Any, src: int, **how: Any) -> Any:
        """Fills `out` with what rank `src` sends by send(): as many elements of the same type."""
        pair = self._pair(src)
        return pair._call("copy", out, out, how, root=1 - pair.rank, peer=pair.rank)

    def exchange_with(self, array: Any, peer: int, out: Any = None, **how: Any) -> Any:
        """Sends `array` to rank `peer` and receives as much from it, both at once."""
        return self._pair(peer)._call("send_recv", array, out, how)

    def run(self, plan: Plan, array: Any, out: Any, scalar: float = 1.0) -> Any:
        """Runs a plan as it is, after proving it. All ranks must pass equal plans."""
        try:
            source = buffer_of(array, "input")
            result = buffer_of(out, "output", writable=True)
            _check_size(plan, "input", self.rank, source)
            _check_size(plan, "output", self.rank, result)
            factor = _scalar(scalar)
        except Exception as error:
            self._tell(error)
            raise
        self._core.run_plan(plan, source.address, result.address, factor)
        return out

    def barrier(self) -> None:
        """Returns once every rank has called it."""
        self._core.barrier()

    def check(self) -> None:
        """Raises what calls on this rank's GPU met: DeadlineError, PeerLostError, AbortedError.

        Waits for nothing; synchronize the stream first to hear of all calls on it.
        """
        self._core.check()

    def exchange(self, mine: bytes) -> list[bytes]:
        """Every rank's bytes, in rank order; for small things (at most 1 MiB)."""
        if not isinstance(mine, bytes):
            error = InvalidArgumentError(f"wanted bytes to exchange, found {type(mine).__name__}")
            self._tell(error)
            raise error
        return self._core.exchange(mine)

    def plan_for(self, request: Request, strategy: str = "", params: Params | None = None) -> Plan:
        """The plan that a call of this request on host memory runs; explain() tells of GPUs."""
        return self._core.plan_for(request, strategy, dict(params or {}))

    def explain(self, request: Request) -> str:
        """Which plan and shares a request gets, what else there was and why it was refused."""
        return self._core.explain(request)

    def counters(self) -> Any:
        """Calls so far by collective and strategy, and bytes by path."""
        return self._core.counters()

    def abort(self) -> None:
        """Ends every pending and later call of this rank; from any thread, contacting nobody.

        On GPUs such calls end without a result and without an error of their stream. Other ranks'
        calls that wait for them fail `deadline_s` later, unless their programs abort too.
        """
        self._core.abort()

    def _pair(self, peer: int) -> Communicator:
        """This rank and `peer` alone: there the lower of them is rank 0."""
        try:
            index = operator.index(peer)
        except TypeError:
            raise InvalidArgumentError(f"wanted a rank, found {peer!r:.60}") from None
        core = self._core.pair(index)  # the same one each time, where this communicator stands
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
        """One collective: arguments and buffers checked, then the core's call.

        What is wrong with this rank's arguments is told to all ranks, so that none waits; but not
        for arrays on a GPU, where ranks meet on the host in few calls.
        """
        if is_on_gpu(array) or is_on_gpu(out):

            def kind_of(source: Buffer) -> _Kind | BlocksKind:
                return blocks(source) if blocks else self._kind(collective, source, op, root, peer)

            exchanges = blocks is not None and collective in ("all_to_all", "gather", "scatter")
            return self._enqueue(array, out, _How(**given), kind_of, exchanges)
        try:
            how = _How(**given) if given else _USUAL
            source = buffer_of(array, "input")
            kind = blocks(source) if blocks else self._kind(collective, source, op, root, peer)
            made, result = self._output(kind, source, out)
            if how.stream is not None:
                raise InvalidArgumentError("wanted arrays on a GPU with stream=, found host memory")
            params, factor = _params(how.params), _scalars(how, self._ranks)[self._rank]
            strategy = _word(how.strategy, "strategy")
        except Exception as error:
            self._tell(error)
            raise
        address = result.address if result else 0
        call = (kind.request, source.address, address, strategy, params, factor)
        if blocks is not None and isinstance(kind, BlocksKind) and kind.sends:
            self._core.run_by_own_counts(kind.sends, kind.gets, *call)
        else:
            self._core.run_request(*call)
        return made if out is not None else of_kind(array, made)

    def _enqueue(
        self,
        array: Any,
        out: Any,
        how: _How,
        kind_of: Callable[[Buffer], _Kind | BlocksKind],
        exchanges: bool,
    ) -> Any:
        """The same on this rank's GPU, in stream order.

        Errors are this rank's own, but where the others wait on the host: all of them do where the
        communicator has no GPU, or no rank knows the counts of all blocks (`meets`).
        """
        try:
            kind, made, call = self._gpu_call(array, out, how, kind_of)
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
        how: _How,
        kind_of: Callable[[Buffer], _Kind | BlocksKind],
    ) -> tuple[_Kind | BlocksKind, Any, tuple[Any, ...]]:
        """What the core is asked, and the caller's output; all arguments checked."""
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
            _word(how.strategy, "strategy"),
            _params(how.params),
            _scalars(how, self._ranks),
        )
        return kind, out, call

    def _tell(self, error: Exception) -> None:
        """Tells all ranks why this one cannot take part in the call, so that none waits for it."""
        code = error.code if isinstance(error, Error) else InvalidArgumentError.code
        self._core.refuse(code, str(error) or type(error).__name__)

    def _kind(self, collective: str, source: Buffer, op: str, root: int, peer: int) -> _Kind:
        """Made once for calls alike: a request takes microseconds to make."""
        key = (collective, source.count, source.type, op, root, peer)
        try:
            known = self._kinds.get(key)
        except TypeError:  # of a word that cannot be one: the request says so
            known = None
        return known if known is not None else self._make_kind(key)

    def _make_kind(self, key: tuple[Any, ...]) -> _Kind:
        collective, whole, type_name, op, root, peer = key
        if not isinstance(op, str):
            raise InvalidArgumentError(
                f"wanted the name of an op, such as sum or max, found {op!r}"
            )
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
        """(what to return, its memory); made here where the caller gave none."""
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


def _scalar(scalar: Any) -> float:
    try:
        return float(scalar)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(f"wanted a number as scalar, found {scalar!r:.60}") from None


def _scalars(how: _How, ranks: int) -> list[float]:
    """Every rank's factor; those of others are used on GPUs only."""
    if how.scalars is None:
        return [_scalar(how.scalar)] * ranks
    found = [_scalar(scalar) for scalar in how.scalars]
    if len(found) != ranks:
        raise InvalidArgumentError(f"wanted {ranks} scalars, one a rank, found {len(found)}")
    return found


def _params(params: Any) -> dict[str, int]:
    """As the core takes them: names and whole numbers of 64 bits."""
    if params is None:
        return {}
    try:
        given = {_word(name, "params"): operator.index(value) for name, value in params.items()}
    except (TypeError, AttributeError):
        raise InvalidArgumentError(
            f"wanted params such as {{'pieces': 2}}, found {params!r:.60}"
        ) from None
    for name, value in given.items():
        if not -(1 << 63) <= value < 1 << 63:
            raise InvalidArgumentError(
                f"wanted 64 bits for params {name!r:.60}, found {value.bit_length()}"
            )
    return given


def _word(word: Any, what: str) -> str:
    if not isinstance(word, str):
        raise InvalidArgumentError(f"wanted text as {what}, found {word!r:.60}")
    return word


def _id(given: Any) -> str:
    """As the core takes it; who passes an id must have one."""
    found = given.decode("ascii", "replace") if isinstance(given, bytes) else given
    if not isinstance(found, str) or not found:
        raise InvalidArgumentError(
            f"wanted what plait.unique_id() gave as unique_id, found {given!r:.60}"
        )
    return found


def _result_shape(request: Request, source: Buffer) -> tuple[int, ...]:
    if request.collective in ("all_gather", "gather"):
        return (request.ranks, *source.shape)
    if request.collective in ("reduce_scatter", "scatter"):
        first = source.shape[0] if source.shape else 0
        if first % request.ranks == 0:
            return (first // request.ranks, *source.shape[1:])
        return (request.count,)
    return source.shape


def init(**options: Any) -> Communicator:
    """A communicator of all ranks of a launcher (plait launch, torchrun, mpirun, Slurm).

    Without a launcher it is a communicator of this one process, or with unique_id=, rank= and
    ranks= one of all processes that were given the same id.
    """
    return Communicator(**options)


def unique_id() -> str:
    """Text that names one communicator, for the program to carry from this rank to the others.

    All of them give it to `plait.init(unique_id=, rank=, ranks=)`.
    """
    return _core.unique_id()


def run_reference(
    plan: Plan,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    scalars: Sequence[float] | None = None,
) -> None:
    """Runs a plan for all ranks in this thread, obviously and slowly; fills `outputs`."""
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
    """The core takes addresses: how much lies behind them is checked here."""
    request = plan.request
    wanted = request.input_bytes(rank) if role == "input" else request.output_bytes(rank)
    size = DTYPE_OF_TYPE[request.type].itemsize
    if found.device != HOST:
        raise UnsupportedError(
            f"wanted {role} of rank {rank} in host memory, where plans are run as they are; found "
            "it on a GPU: use strategy= of the collective's own method there"
        )
    if wanted > 0 and (found.type != request.type or found.count * size < wanted):
        raise InvalidArgumentError(
            f"wanted {wanted} bytes of {request.type} as {role} of rank {rank}, "
            f"found {found.count} elements of {found.type}"
        )
