"""Maps c10d's collectives to plait's, including layouts, types and sizes without a call of plait.

Each method hands a function to a backend (host.py, gpu.py) to run now or later. This module knows
no threads and no streams. Calls that only move data move bytes, and hence take every type.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.distributed import ReduceOp

import plait
from plait.torch.compiled import never_compiled
from plait.torch.memory import cause_of, null_error, place_of, with_memory
from plait.torch.overloads import listed, options_of
from plait.torch.sparse import sum_of_sparse
from plait.torch.types import (
    Reduction,
    adjacent_bytes,
    adjacent_whole,
    as_contiguous,
    check_no_overlap,
    copy_back,
    output_buffer,
    reduction_of,
    scaled,
    share_memory,
)

_MOST_REQUESTS = 4096
_COUNTED_BY_OUTPUT = {"broadcast", "scatter", "reduce_scatter"}  # the rest count the input


class _SizedRequest(NamedTuple):
    """A request, and the bytes that this rank reads and writes."""

    request: plait.Request
    reads: int
    writes: int


@never_compiled
class CollectiveCalls:
    """Collectives of a group; Group (group.py) implements _do() and _host().

    The result of a call (Work.result(), the value of the future) is a list of the outputs. As with
    NCCL, the result of allgather has all ranks' tensors at [0].

    A call may run after its method has returned: each method copies the caller's lists first.

    Methods take the arguments of ProcessGroup's overloads: options, or a root, an operation and a
    timeout in their place (root, op, timeout), and then a tensor in place of a list of one.
    """

    _rank: int
    _ranks: int

    def _do(self, what: str, tensor: Tensor, call: Any, result: Any, opts: Any, keep: Any) -> Any:
        """Runs call(backend) on the tensor's backend; returns its Work."""
        raise NotImplementedError

    def _host(self) -> Any:
        raise NotImplementedError

    # Shared parts: here tensors become addresses for the core.

    def _request(
        self,
        collective: str,
        count: int,
        type_name: str,
        op: str = "sum",
        root: int = 0,
        counts: tuple[int, ...] = (),
    ) -> _SizedRequest:
        """Returns a cached request; making a request takes microseconds."""
        key = (collective, count, type_name, op, root, counts)
        sized = self._requests.get(key)
        if sized is None:
            if len(self._requests) >= _MOST_REQUESTS:
                self._requests.clear()
            made = plait.Request(
                collective, count, type_name, op, self._ranks, root, counts=list(counts)
            )
            sized = _SizedRequest(made, made.input_bytes(self._rank), made.output_bytes(self._rank))
            self._requests[key] = sized
        return sized

    _requests: dict[tuple[Any, ...], _SizedRequest]

    def _move(
        self,
        backend: Any,
        name: str,
        source: Tensor | list[Tensor] | None,
        out: Tensor | list[Tensor] | None,
        root: int = 0,
    ) -> None:
        """Runs a collective that only moves bytes. source, out: None if this rank has no part in
        it; a list holds a tensor for each rank."""
        self._collective(backend, name, source, out, root, None)

    def _reduce(
        self,
        backend: Any,
        name: str,
        source: Tensor | list[Tensor] | None,
        out: Tensor | list[Tensor] | None,
        redop: Any,
        root: int = 0,
    ) -> None:
        """Runs a reduction. source, out: as in _move."""
        self._collective(backend, name, source, out, root, redop)

    def _collective(
        self,
        backend: Any,
        name: str,
        source: Tensor | list[Tensor] | None,
        out: Tensor | list[Tensor] | None,
        root: int,
        redop: Any,
    ) -> None:
        """Runs one collective. An error of this rank's arguments fails the call on all ranks."""
        try:
            if type(source) is not Tensor or type(out) is not Tensor:
                is_in_place = out is source
                source = with_memory(source)
                out = source if is_in_place else with_memory(out)
            if isinstance(out, Tensor) and not out.is_contiguous():
                check_no_overlap(out)
            given = None if source is None else self._input_tensor(name, source)
            into = (
                given if out is source else None if out is None else self._output_tensor(name, out)
            )
            # With a single buffer, the core gets that buffer twice and does not touch the other
            # role.
            given = into if given is None else given
            into = given if into is None else into
            assert given is not None and into is not None
            part = into if name in _COUNTED_BY_OUTPUT else given
            kind = _of_bytes(part) if redop is None else reduction_of(redop, part.dtype)
            factor = kind.scalar if kind.op == "premul_sum" else None
            if factor is not None and not (backend.takes_factors and self._ranks > 1):
                kind = kind._replace(op="sum", scalar=1.0)  # of products, which this rank makes
            count = kind.per_element * part.numel()
            if name == "all_to_all":
                count //= self._ranks
            request, reads, writes = self._request(name, count, kind.type, kind.op, root)
            if source is not None and (given.nbytes != reads or given.dtype != part.dtype):
                raise _size_error(name, "input", given, reads, part.dtype)
            if out is not None and (into.nbytes != writes or into.dtype != part.dtype):
                raise _size_error(name, "output", into, writes, part.dtype)
            if self._ranks > 1:
                _check_memory(backend, name, given)
                if into is not given:
                    _check_memory(backend, name, into)
            if factor is not None and kind.op == "sum":
                given = scaled(given, factor, out is not None and into is given)
            reads_at, writes_at = given.data_ptr(), into.data_ptr()
            if count != 0 and not (reads_at and writes_at):
                raise null_error()
        except Exception as error:
            self._refuse(backend, cause_of(error, source, out))
        if self._ranks == 1:
            copy_back(into, given)
        elif factor is not None and kind.op == "premul_sum":
            backend.launch(request, reads_at, writes_at, float(factor))
        else:
            backend.launch(request, reads_at, writes_at)
        if into is out:
            return
        if isinstance(out, Tensor):
            copy_back(out, into)
        elif out is not None and writes_at != out[0].data_ptr():
            for one, found in zip(out, into, strict=True):
                copy_back(one, found)

    def _input_tensor(self, name: str, given: Tensor | list[Tensor]) -> Tensor:
        """Returns a contiguous tensor to read: the given tensor, or a copy."""
        if isinstance(given, Tensor):
            return as_contiguous(given)
        whole = self._one_tensor(name, "input", given)
        return (
            torch.stack([as_contiguous(one).reshape(-1) for one in given])
            if whole is None
            else whole
        )

    def _output_tensor(self, name: str, out: Tensor | list[Tensor]) -> Tensor:
        """Returns a contiguous tensor to write: `out`, or new memory to copy back later."""
        if isinstance(out, Tensor):
            return output_buffer(out)
        whole = self._one_tensor(name, "output", out)
        for one in out:
            check_no_overlap(one)
        return out[0].new_empty((len(out), out[0].numel())) if whole is None else whole

    def _one_tensor(self, name: str, role: str, tensors: list[Tensor]) -> Tensor | None:
        """Returns a tensor over the tensors of all ranks if adjacent, else None."""
        if len(tensors) != self._ranks:
            raise plait.InvalidArgumentError(
                f"{name}: wanted {self._ranks} tensors as {role}, one a rank, found {len(tensors)}"
            )
        whole, first = adjacent_whole(tensors), tensors[0]
        if whole is None:
            for one in tensors:
                if place_of(one)[1] != first.nbytes or one.dtype != first.dtype:
                    raise _size_error(name, role, one, first.nbytes, first.dtype)
        return whole

    def _refuse(self, backend: Any, error: Exception) -> NoReturn:
        """Fails the peers' call (not made by this rank), and raises."""
        backend.refuse(error)
        raise error

    def _check_lists(self, backend: Any, name: str, wanted: int, *lists: Any) -> None:
        for one in lists:
            if len(one) != wanted:
                self._refuse(
                    backend,
                    plait.InvalidArgumentError(
                        f"{name}: wanted {wanted} tensors in a list, found {len(one)}"
                    ),
                )

    def _check_number(self, backend: Any, name: str, number: int) -> None:
        """Raises MismatchError on all ranks if the ranks' lists have other numbers of tensors. In
        host memory, by a small call whose size is the number; GPU calls compare nothing."""
        if number < 2 or self._ranks == 1 or backend is not self._host():
            return
        memory = torch.zeros(number, dtype=torch.uint8, device="cpu")
        request = self._request("all_reduce", number, "uint8").request
        try:
            backend.launch(request, memory.data_ptr(), memory.data_ptr())
        except plait.MismatchError as error:
            raise plait.MismatchError(
                f"{name} of {number} tensors, which ranks agree on by a call of {number} bytes: "
                f"{error}"
            ) from error

    # Reductions.

    def allreduce(
        self, tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> Any:
        """Reduces each of `tensors` in place."""
        tensors, opts = listed(tensors), options_of(opts, timeout, op=op)
        redop = getattr(opts, "reduceOp", ReduceOp.SUM)

        def call(backend: Any) -> None:
            self._check_number(backend, "all_reduce", len(tensors))
            for tensor in tensors:
                if tensor.layout is not torch.strided:
                    sum_of_sparse(self, backend, tensor, redop)
                elif _is_product_of_complex(redop, tensor):
                    self._product(backend, tensor, tensor)
                else:
                    self._reduce(backend, "all_reduce", tensor, tensor, redop)

        return self._do("all_reduce", _first(tensors), call, tensors, opts, tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduces several tensors; the same as allreduce."""
        return self.allreduce(tensors, opts)

    def _product(self, backend: Any, mine: Tensor, out: Tensor | None) -> None:
        """Multiplies complex numbers of all ranks, in rank order."""
        try:
            mine = with_memory(mine)
            every = mine.new_empty((self._ranks, *mine.shape))
        except Exception as error:
            self._refuse(backend, cause_of(error, mine))
        self._move(backend, "all_gather", mine, every)
        if out is not None:
            total = every[0].clone()
            for part in every[1:]:
                total.mul_(part)
            copy_back(out, total)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, *, root: int = 0
    ) -> Any:
        """Reduces in place on the root; the peers' tensors stay unchanged."""
        opts, tensor = options_of(opts, timeout, root, op), listed(tensors)[0]
        root, redop = opts.rootRank, opts.reduceOp
        out = tensor if self._rank == root else None

        def call(backend: Any) -> None:
            if _is_product_of_complex(redop, tensor):
                self._product(backend, tensor, out)
            else:
                self._reduce(backend, "reduce", tensor, out, redop, root)

        return self._do("reduce", tensor, call, [tensor], opts, tensor)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Gives rank r the r-th equal part of the reduction of `input`."""
        redop = opts.reduceOp if opts is not None else ReduceOp.SUM

        def call(backend: Any) -> None:
            self._reduce(backend, "reduce_scatter", input, output, redop)

        return self._do("reduce_scatter", input, call, [output], opts, (output, input))

    def reduce_scatter(
        self,
        outputs: Any,
        input_lists: Any,
        opts: Any = None,
        timeout: Any = None,
        *,
        op: Any = None,
    ) -> Any:
        """Reduces a list of parts, a part per rank. Parts of different sizes take a reduce each."""
        if isinstance(outputs, Tensor):
            input_lists = [input_lists]
        opts = options_of(opts, timeout, op=op)
        output, parts, redop = listed(outputs)[0], list(input_lists[0]), opts.reduceOp

        def call(backend: Any) -> None:
            if all(part.numel() == output.numel() for part in parts):
                self._reduce(backend, "reduce_scatter", parts, output, redop)
                return
            self._check_lists(backend, "reduce_scatter", self._ranks, parts)
            for root, part in enumerate(parts):
                out = output if root == self._rank else None
                self._reduce(backend, "reduce", part, out, redop, root)

        return self._do("reduce_scatter", output, call, [output], opts, (output, parts))

    # Moves.

    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: Any = None, *, root: int = 0
    ) -> Any:
        """Copies each of the root's `tensors` to all ranks."""
        tensors, opts = listed(tensors), options_of(opts, timeout, root)
        root = opts.rootRank

        def call(backend: Any) -> None:
            self._check_number(backend, "broadcast", len(tensors))
            for tensor in tensors:
                source, out = (tensor, None) if self._rank == root else (None, tensor)
                self._move(backend, "broadcast", source, out, root)

        return self._do("broadcast", _first(tensors), call, tensors, opts, tensors)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Concatenates every rank's `input` in `output`."""

        def call(backend: Any) -> None:
            self._move(backend, "all_gather", input, output)

        return self._do("all_gather", input, call, [output], opts, (output, input))

    def allgather(
        self, output_lists: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> Any:
        """Gathers a tensor per rank; different sizes are allowed."""
        opts = options_of(opts, timeout)
        if isinstance(inputs, Tensor):
            output_lists, inputs = [output_lists], [inputs]
        outputs, mine = list(output_lists[0]), inputs[0]

        def call(backend: Any) -> None:
            try:
                is_uneven = any(one.nbytes != mine.nbytes for one in outputs)
            except Exception as error:
                self._refuse(backend, cause_of(error, outputs, mine))
            if is_uneven:
                self._gather_uneven(backend, outputs, mine)
            else:
                self._move(backend, "all_gather", mine, outputs)

        return self._do("all_gather", mine, call, [outputs], opts, (outputs, mine))

    def _gather_uneven(self, backend: Any, outputs: Any, mine: Tensor) -> None:
        try:
            for one in outputs:
                check_no_overlap(one)
                if one.dtype != mine.dtype:
                    raise _size_error("all_gather", "output", one, one.nbytes, mine.dtype)
            counts = tuple(one.nbytes for one in outputs)
            sized = self._request("all_gather", 0, "uint8", counts=counts)
            if mine.nbytes != sized.reads:
                raise _size_error(
                    "all_gather", "this rank's own part", mine, sized.reads, mine.dtype
                )
            if backend is self._host():
                source = as_contiguous(mine)  # alive until the call has ended
                found = torch.empty(sized.writes, dtype=torch.uint8, device="cpu")
                reads_at = place_of(source)[0]
        except Exception as error:
            self._refuse(backend, cause_of(error, outputs, mine))
        if backend is self._host():
            backend.launch(sized.request, reads_at, found.data_ptr())
            _copy_parts_back(outputs, found)
            return
        for root, output in enumerate(outputs):
            self._move(backend, "broadcast", mine if root == self._rank else None, output, root)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Runs several all_gathers as a single call."""
        outputs, inputs = list(outputs), list(inputs)

        def call(backend: Any) -> None:
            self._check_lists(backend, "all_gather", len(inputs), outputs)
            self._check_number(backend, "all_gather", len(inputs))
            for output, mine in zip(outputs, inputs, strict=True):
                self._move(backend, "all_gather", mine, output)

        return self._do("all_gather", _first(inputs), call, outputs, opts, (outputs, inputs))

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """Gathers several tensors: output_lists[r][k] is rank r's inputs[k]."""
        output_lists, inputs = [list(outputs) for outputs in output_lists], list(inputs)

        def call(backend: Any) -> None:
            self._check_lists(backend, "all_gather", len(inputs), *output_lists)
            self._check_number(backend, "all_gather", len(inputs))
            for mine, *outputs in zip(inputs, *output_lists, strict=True):
                self._move(backend, "all_gather", mine, outputs)

        keep = (output_lists, inputs)
        return self._do("all_gather", _first(inputs), call, output_lists, opts, keep)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Runs several reduce_scatters as a single call."""
        outputs, inputs = list(outputs), list(inputs)
        redop = opts.reduceOp if opts is not None else ReduceOp.SUM

        def call(backend: Any) -> None:
            self._check_lists(backend, "reduce_scatter", len(inputs), outputs)
            self._check_number(backend, "reduce_scatter", len(inputs))
            for output, mine in zip(outputs, inputs, strict=True):
                self._reduce(backend, "reduce_scatter", mine, output, redop)

        return self._do("reduce_scatter", _first(inputs), call, outputs, opts, (outputs, inputs))

    def gather(
        self,
        output_lists: Any,
        inputs: Any,
        opts: Any = None,
        timeout: Any = None,
        *,
        root: int = 0,
    ) -> Any:
        """Gathers every rank's tensor on the root; all have the same size."""
        if isinstance(inputs, Tensor):
            output_lists, inputs = [output_lists], [inputs]
        opts = options_of(opts, timeout, root)
        mine, root = inputs[0], opts.rootRank
        outputs = list(output_lists[0]) if self._rank == root else None

        def call(backend: Any) -> None:
            self._move(backend, "gather", mine, outputs, root)

        return self._do("gather", mine, call, outputs or [], opts, (outputs, mine))

    def scatter(
        self,
        outputs: Any,
        input_lists: Any,
        opts: Any = None,
        timeout: Any = None,
        *,
        root: int = 0,
    ) -> Any:
        """Gives rank r the root's r-th tensor; all have the same size."""
        if isinstance(outputs, Tensor):
            outputs, input_lists = [outputs], [input_lists]
        opts = options_of(opts, timeout, root)
        output, root = outputs[0], opts.rootRank
        parts = list(input_lists[0]) if self._rank == root else None

        def call(backend: Any) -> None:
            self._move(backend, "scatter", parts, output, root)

        return self._do("scatter", output, call, [output], opts, (output, parts))

    # All to all.

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
        timeout: Any = None,
    ) -> Any:
        """Exchanges parts of two tensors. Split sizes count rows; without split sizes all parts are
        equal."""
        opts = options_of(opts, timeout)
        takes_rows = [] if output_split_sizes is None else list(output_split_sizes)
        gives_rows = [] if input_split_sizes is None else list(input_split_sizes)

        def even(backend: Any) -> None:
            for tensor in (output, input):
                if (tensor.shape[0] if tensor.dim() else 0) % self._ranks:
                    self._refuse(
                        backend,
                        RuntimeError(
                            "Tensor's dim 0 does not divide equally across group size: all_to_all "
                            f"of {self._ranks} ranks, found a shape of {tuple(tensor.shape)}"
                        ),
                    )
            try:
                into, source = with_memory(output), with_memory(input)
                if into.data_ptr() == source.data_ptr():
                    source = source.clone()
            except Exception as error:
                self._refuse(backend, cause_of(error, output, input))
            self._move(backend, "all_to_all", source, into)

        def uneven(backend: Any) -> None:
            try:
                gives = _parts(with_memory(input), gives_rows, self._ranks)
                takes = _parts(with_memory(output), takes_rows, self._ranks)
            except Exception as error:
                error = cause_of(error, output, input)
                self._host().refuse(error, backend)
                raise error from None
            self._exchange_uneven(backend, takes, gives)

        call = uneven if takes_rows or gives_rows else even
        return self._do("all_to_all", input, call, [output], opts, (output, input))

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Sends inputs[r] to rank r; sizes may differ."""
        outputs, inputs = list(outputs), list(inputs)

        def call(backend: Any) -> None:
            self._exchange_uneven(backend, outputs, inputs)

        return self._do("all_to_all", _first(inputs), call, outputs, opts, (outputs, inputs))

    def _exchange_uneven(self, backend: Any, takes: Any, gives: Any) -> None:
        """Exchanges parts of different sizes. On GPUs, parts are padded to the longest of all
        ranks, after an exchange of sizes on the host."""
        host = self._host()
        try:
            if len(takes) != self._ranks or len(gives) != self._ranks:
                raise plait.InvalidArgumentError(
                    f"all_to_all: wanted {self._ranks} tensors each way, one a rank, found "
                    f"{len(takes)} outputs and {len(gives)} inputs"
                )
            takes, gives = with_memory(takes), with_memory(gives)
            sends, gets = ([place_of(part)[1] for part in parts] for parts in (gives, takes))
            for role, parts in (("input", gives), ("output", takes)):
                for part in parts:
                    if part.dtype != gives[0].dtype:
                        raise _size_error("all_to_all", role, part, part.nbytes, gives[0].dtype)
                    if self._ranks > 1:
                        _check_memory(backend, "all_to_all", part)
            for part in takes:
                check_no_overlap(part)
            if backend is host and self._ranks > 1:
                sent = _bytes_in_a_row(gives)
                found = _memory_of(takes, sent)
        except Exception as error:  # sizes are exchanged on the host, for GPU tensors too
            error = cause_of(error, takes, gives)
            host.refuse(error, backend)
            raise error from None
        if backend is host and self._ranks > 1:
            request = self._request("all_to_all", 0, "uint8").request
            backend.launch_by_own_counts(request, sends, gets, sent.data_ptr(), found.data_ptr())
            _copy_parts_back(takes, found)
            return
        longest = self._longest_part(backend, gets, sends)
        if longest == 0:
            return
        device = gives[0].device
        padded = torch.empty((self._ranks, longest), dtype=torch.uint8, device=device)
        for row, part in zip(padded, gives, strict=True):
            row[: part.nbytes] = _bytes_of(as_contiguous(part))
        found = torch.empty_like(padded)
        self._move(backend, "all_to_all", padded, found)
        for row, part in zip(found, takes, strict=True):
            copy_back(part, row[: part.nbytes].clone().view(part.dtype))

    def _longest_part(self, backend: Any, takes: list[int], gives: list[int]) -> int:
        """Returns the longest part of all ranks, in bytes. Raises MismatchError on every rank if
        the sizes of two ranks disagree."""
        if self._ranks == 1:
            every = [(*takes, *gives)]
        else:
            numbers = struct.Struct(f"<{2 * self._ranks}Q")
            replies = self._host().exchange(numbers.pack(*takes, *gives), backend)
            every = [numbers.unpack(one) for one in replies]
        for source in range(self._ranks):
            for target in range(self._ranks):
                sent, taken = every[source][self._ranks + target], every[target][source]
                if sent != taken:
                    raise plait.MismatchError(
                        f"all_to_all: rank {source} sends {sent} bytes to rank {target}, which "
                        f"wants {taken}; split sizes must agree"
                    )
        return max(size for one in every for size in one[self._ranks :])

    # Names in PyTorch before 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _is_product_of_complex(redop: Any, tensor: Tensor) -> bool:
    return tensor.is_complex() and getattr(redop, "op", redop) == ReduceOp.PRODUCT


def _bytes_of(tensor: Tensor) -> Tensor:
    """Returns the bytes of a contiguous tensor. A contiguous tensor of one element may have a
    stride, which reshape() keeps and view() refuses."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _bytes_in_a_row(parts: list[Tensor]) -> Tensor:
    """Returns the parts' bytes one behind another: the parts' own memory if adjacent, else a
    copy."""
    whole = adjacent_bytes(parts)
    if whole is None:
        return torch.cat([_bytes_of(as_contiguous(part)) for part in parts])
    return whole


def _memory_of(parts: list[Tensor], sent: Tensor) -> Tensor:
    """Returns memory for the parts' bytes: the parts' own if adjacent and apart from `sent`, else
    new memory."""
    whole = adjacent_bytes(parts)
    if whole is None or share_memory(sent, whole):
        return torch.empty(sum(one.nbytes for one in parts), dtype=torch.uint8, device="cpu")
    return whole


def _copy_parts_back(tensors: list[Tensor], found: Tensor) -> None:
    """Copies adjacent bytes of `found` into the tensors, in order."""
    at = 0
    for one in tensors:
        part = found[at : at + one.nbytes]
        aligned = part if at % one.element_size() == 0 else part.clone()
        copy_back(one, aligned.view(one.dtype))
        at += one.nbytes


def _first(tensors: Any) -> Tensor:
    """Returns the tensor that selects the backend; for an empty list, a tensor in host memory."""
    return tensors[0] if tensors else torch.empty(0, device="cpu")


def _of_bytes(tensor: Tensor) -> Reduction:
    """Returns the 'reduction' by which the core moves the tensor's bytes."""
    return Reduction("sum", "uint8", tensor.element_size(), 1.0)


def _size_error(
    name: str, role: str, found: Tensor, wanted: int, dtype: torch.dtype
) -> plait.InvalidArgumentError:
    """Returns the error of a tensor of the wrong size. wanted: bytes."""
    return plait.InvalidArgumentError(
        f"{name}: wanted {wanted // dtype.itemsize} elements of {dtype} as {role}, found "
        f"{found.numel()} of {found.dtype}"
    )


def _check_memory(backend: Any, name: str, tensor: Tensor) -> None:
    if tensor.get_device() != backend.index:
        raise plait.InvalidArgumentError(
            f"{name}: wanted all tensors of a call on the first one's device, found one on "
            f"{tensor.device}"
        )


def _parts(tensor: Tensor, sizes: list[int], ranks: int) -> list[Tensor]:
    """Returns the tensor's parts. sizes: rows of each part; empty = equal parts."""
    rows = tensor.shape[0]
    sizes = sizes or [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise RuntimeError(
            f"Split sizes doesn't match total dim 0 size: found {sizes} for {ranks} ranks and "
            f"{rows} rows"
        )
    return list(tensor.detach().split(sizes))
