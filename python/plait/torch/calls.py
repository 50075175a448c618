"""c10d's collectives over plait's: layouts, types and sizes that plait has no call for among them.

Each method makes a call of one side, the host's or a GPU's, which runs it now or later. Nothing
here waits or knows of threads and streams. Moves are of bytes, so they are of every type.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

import plait
from plait.torch.sparse import sum_of_sparse
from plait.torch.types import flat, in_a_row, put, reduction_of

_MOST_REQUESTS = 4096


class Calls:
    """Made of one group; Group has what it asks for."""

    _rank: int
    _ranks: int

    def _side(self, tensor: Tensor) -> Any:
        """The host's or the GPU's."""
        raise NotImplementedError

    def _do(self, what: str, tensor: Tensor, call: Any, result: Any, opts: Any, keep: Any) -> Any:
        """The Work of call(side)."""
        raise NotImplementedError

    def _host(self) -> Any:
        raise NotImplementedError

    # What calls are made of. Tensors are contiguous here.

    def _request(
        self, collective: str, count: int, type_name: str, op: str = "sum", root: int = 0
    ) -> plait.Request:
        """Made once for calls alike: it takes microseconds."""
        key = (collective, count, type_name, op, root)
        known = self._requests.get(key)
        if known is None:
            if len(self._requests) >= _MOST_REQUESTS:
                self._requests.clear()
            known = plait.Request(collective, count, type_name, op, self._ranks, root)
            self._requests[key] = known
        return known

    _requests: dict[tuple[Any, ...], plait.Request]

    def _move(
        self, side: Any, name: str, count: int, source: Tensor, out: Tensor, root: int = 0
    ) -> None:
        """count: bytes as the collective counts them."""
        if count == 0:
            return
        if self._ranks == 1:
            put(out, source)
            return
        request = self._request(name, count, "uint8", root=root)
        side.launch(request, source.data_ptr(), out.data_ptr())

    def _reduce(
        self, side: Any, name: str, source: Tensor, out: Tensor, redop: Any, root: int = 0
    ) -> None:
        """out: as large as source, or a rank's part of it."""
        if source.numel() == 0:
            return
        kind = reduction_of(redop, source.dtype)
        if self._ranks == 1:
            put(out, source)
            if kind.op == "premul_sum":
                out.mul_(kind.scalar)
            return
        count = kind.per_element * source.numel()
        if name == "reduce_scatter":
            count //= self._ranks
        request = self._request(name, count, kind.type, kind.op, root)
        side.launch(request, source.data_ptr(), out.data_ptr(), kind.scalar)

    # Reductions.

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Each of `tensors` in place. opts: options, or a ReduceOp as older callers have it."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        redop = opts.reduceOp if hasattr(opts, "reduceOp") else opts
        redop = ReduceOp.SUM if redop is None else redop

        def call(side: Any) -> None:
            for tensor in tensors:
                if tensor.layout is not torch.strided:
                    sum_of_sparse(self, side, tensor, redop)
                elif _is_product_of_complex(redop, tensor):
                    self._product(side, tensor)
                else:
                    whole = tensor if tensor.is_contiguous() else flat(tensor)
                    self._reduce(side, "all_reduce", whole, whole, redop)
                    if whole is not tensor:
                        put(tensor, whole)

        return self._do("all_reduce", tensors[0], call, tensors, opts, tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """As allreduce."""
        return self.allreduce(tensors, opts)

    def _product(self, side: Any, tensor: Tensor) -> None:
        """Of complex numbers, in rank order."""
        mine = flat(tensor)
        every = mine.new_empty((self._ranks, *mine.shape))
        self._move(side, "all_gather", mine.nbytes, mine, every)
        total = every[0].clone()
        for part in every[1:]:
            total.mul_(part)
        put(tensor, total)

    def reduce(self, tensors: Any, opts: Any) -> Any:
        """In place on the root; other ranks' stay as they are."""
        root, redop, tensor = opts.rootRank, opts.reduceOp, tensors[0]

        def call(side: Any) -> None:
            whole = flat(tensor)
            if _is_product_of_complex(redop, tensor):
                product = whole.clone()
                self._product(side, product)
                if self._rank == root:
                    put(tensor, product)
                return
            self._reduce(side, "reduce", whole, whole, redop, root)
            if self._rank == root:
                put(tensor, whole)

        return self._do("reduce", tensor, call, tensors, opts, tensors)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Rank r gets the r-th of equal parts of the reduction of `input`."""
        redop = opts.reduceOp if opts is not None else ReduceOp.SUM
        _check_parts("reduce_scatter", output, input, self._ranks)

        def call(side: Any) -> None:
            part = flat(output)
            self._reduce(side, "reduce_scatter", flat(input), part, redop)
            put(output, part)

        return self._do("reduce_scatter", input, call, output, opts, (output, input))

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any) -> Any:
        """Parts may be of different sizes: then each is one reduction."""
        output, parts, redop = outputs[0], input_lists[0], opts.reduceOp

        def call(side: Any) -> None:
            if all(part.numel() == output.numel() for part in parts):
                whole = in_a_row(parts)
                if whole is None:
                    whole = torch.stack([part.detach().reshape(-1) for part in parts])
                mine = flat(output)
                self._reduce(side, "reduce_scatter", whole, mine, redop)
                put(output, mine)
                return
            for root, part in enumerate(parts):
                mine = flat(part).clone()
                self._reduce(side, "reduce", mine, mine, redop, root)
                if root == self._rank:
                    put(output, mine)

        return self._do("reduce_scatter", output, call, outputs, opts, (outputs, parts))

    # Moves.

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        """Each of `tensors`, from the root's."""
        tensors, root = [tensors] if isinstance(tensors, Tensor) else tensors, opts.rootRank

        def call(side: Any) -> None:
            for tensor in tensors:
                whole = flat(tensor)
                self._move(side, "broadcast", whole.nbytes, whole, whole, root)
                if self._rank != root:
                    put(tensor, whole)

        return self._do("broadcast", tensors[0], call, tensors, opts, tensors)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Every rank's `input`, one after the other."""
        _check_parts("all_gather", input, output, self._ranks)

        def call(side: Any) -> None:
            whole = flat(output)
            self._move(side, "all_gather", input.nbytes, flat(input), whole)
            put(output, whole)

        return self._do("all_gather", input, call, output, opts, (output, input))

    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """One tensor a rank; of different sizes they come rank by rank."""
        if isinstance(inputs, Tensor):
            output_lists, inputs = [output_lists], [inputs]
        outputs, mine = output_lists[0], inputs[0]
        if len(outputs) != self._ranks:
            raise ValueError(
                f"all_gather wanted {self._ranks} output tensors, one a rank, found {len(outputs)}"
            )

        def call(side: Any) -> None:
            if any(one.nbytes != mine.nbytes for one in outputs):
                self._gather_uneven(side, outputs, mine)
                return
            whole = in_a_row(outputs)
            into = mine.new_empty((self._ranks, mine.numel())) if whole is None else whole
            self._move(side, "all_gather", mine.nbytes, flat(mine), into)
            if whole is None:
                for one, found in zip(outputs, into, strict=True):
                    put(one, found)

        return self._do("all_gather", mine, call, output_lists, opts, (outputs, mine))

    def _gather_uneven(self, side: Any, outputs: Any, mine: Tensor) -> None:
        if side is self._host():
            counts = [one.nbytes for one in outputs]
            if counts[self._rank] != mine.nbytes:
                raise plait.InvalidArgumentError(
                    f"all_gather: wanted an output of {mine.nbytes} bytes for this rank's own "
                    f"tensor, found {counts[self._rank]}"
                )
            request = plait.Request("all_gather", 0, "uint8", ranks=self._ranks, counts=counts)
            found = torch.empty(sum(counts), dtype=torch.uint8)
            source = flat(mine)  # lives until the call has ended
            side.launch(request, source.data_ptr(), found.data_ptr())
            _put_parts(outputs, found)
            return
        for root, output in enumerate(outputs):
            whole = flat(mine) if root == self._rank else flat(output)
            if output.nbytes != whole.nbytes:
                raise plait.InvalidArgumentError(
                    f"all_gather: wanted an output of {mine.nbytes} bytes for this rank's own "
                    f"tensor, found {output.nbytes}"
                )
            self._move(side, "broadcast", whole.nbytes, whole, whole, root)
            put(output, whole)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Several all_gathers as one call."""

        def call(side: Any) -> None:
            for output, mine in zip(outputs, inputs, strict=True):
                whole = flat(output)
                self._move(side, "all_gather", mine.nbytes, flat(mine), whole)
                put(output, whole)

        return self._do("all_gather", inputs[0], call, outputs, opts, (outputs, inputs))

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """output_lists[r][k]: what rank r gave as inputs[k]."""

        def call(side: Any) -> None:
            for number, mine in enumerate(inputs):
                into = mine.new_empty((self._ranks, mine.numel()))
                self._move(side, "all_gather", mine.nbytes, flat(mine), into)
                for outputs, found in zip(output_lists, into, strict=True):
                    put(outputs[number], found)

        return self._do("all_gather", inputs[0], call, output_lists, opts, (output_lists, inputs))

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Several reduce_scatters as one call."""
        redop = opts.reduceOp if opts is not None else ReduceOp.SUM

        def call(side: Any) -> None:
            for output, mine in zip(outputs, inputs, strict=True):
                part = flat(output)
                self._reduce(side, "reduce_scatter", flat(mine), part, redop)
                put(output, part)

        return self._do("reduce_scatter", inputs[0], call, outputs, opts, (outputs, inputs))

    def gather(self, output_lists: Any, inputs: Any, opts: Any) -> Any:
        """The root gets every rank's tensor; all are of one size."""
        mine, root = inputs[0], opts.rootRank
        outputs = output_lists[0] if self._rank == root else []

        def call(side: Any) -> None:
            whole = in_a_row(outputs) if outputs else mine.new_empty(0)
            into = mine.new_empty((self._ranks, mine.numel())) if whole is None else whole
            self._move(side, "gather", mine.nbytes, flat(mine), into, root)
            if whole is None:
                for one, found in zip(outputs, into, strict=True):
                    put(one, found)

        return self._do("gather", mine, call, output_lists, opts, (outputs, mine))

    def scatter(self, outputs: Any, input_lists: Any, opts: Any) -> Any:
        """Rank r gets the root's r-th tensor; all are of one size."""
        output, root = outputs[0], opts.rootRank
        parts = input_lists[0] if self._rank == root else []

        def call(side: Any) -> None:
            mine = flat(output)
            if parts:
                whole = in_a_row(parts)
                if whole is None:
                    whole = torch.stack([part.detach().reshape(-1) for part in parts])
            else:
                whole = mine  # not read
            self._move(side, "scatter", mine.nbytes, whole, mine, root)
            put(output, mine)

        return self._do("scatter", output, call, outputs, opts, (outputs, parts))

    # Everyone to everyone.

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
    ) -> Any:
        """Split sizes count along the first dimension; without any the parts are equal."""
        if not output_split_sizes and not input_split_sizes:
            for tensor in (output, input):
                if (tensor.shape[0] if tensor.dim() else 0) % self._ranks:
                    raise RuntimeError(
                        "Tensor's dim 0 does not divide equally across group size: all_to_all of "
                        f"{self._ranks} ranks, found a shape of {tuple(tensor.shape)}"
                    )

            def call(side: Any) -> None:
                whole, mine = flat(output), flat(input)
                if whole.data_ptr() == mine.data_ptr():
                    mine = mine.clone()
                self._move(side, "all_to_all", mine.nbytes // self._ranks, mine, whole)
                put(output, whole)

        else:
            gives = _parts(input, input_split_sizes, self._ranks)
            takes = _parts(output, output_split_sizes, self._ranks)

            def call(side: Any) -> None:
                self._exchange_uneven(side, takes, gives)

        return self._do("all_to_all", input, call, output, opts, (output, input))

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """inputs[r] goes to rank r; sizes may differ."""

        def call(side: Any) -> None:
            self._exchange_uneven(side, outputs, inputs)

        return self._do("all_to_all", inputs[0], call, outputs, opts, (outputs, inputs))

    def _exchange_uneven(self, side: Any, takes: Any, gives: Any) -> None:
        """On GPUs parts padded to the longest of any rank, once all know all sizes."""
        if side is self._host() and self._ranks > 1:
            sends, gets = ([part.nbytes for part in parts] for parts in (gives, takes))
            sent = torch.cat([_bytes_of(flat(part)) for part in gives])
            found = torch.empty(sum(gets), dtype=torch.uint8)
            request = self._request("all_to_all", 0, "uint8")
            side.launch_own(request, sends, gets, sent.data_ptr(), found.data_ptr())
            _put_parts(takes, found)
            return
        longest = self._longest_part(side, [one.nbytes for one in takes], [t.nbytes for t in gives])
        if longest == 0:
            return
        device = gives[0].device
        padded = torch.empty((self._ranks, longest), dtype=torch.uint8, device=device)
        for row, part in zip(padded, gives, strict=True):
            row[: part.nbytes] = _bytes_of(flat(part))
        found = torch.empty_like(padded)
        self._move(side, "all_to_all", longest, padded, found)
        for row, part in zip(found, takes, strict=True):
            put(part, row[: part.nbytes].clone().view(part.dtype))

    def _longest_part(self, side: Any, takes: list[int], gives: list[int]) -> int:
        """Bytes; every rank raises where two ranks disagree."""
        if self._ranks == 1:
            every = [(*takes, *gives)]
        else:
            numbers = struct.Struct(f"<{2 * self._ranks}Q")
            told = self._host().exchange(numbers.pack(*takes, *gives), side)
            every = [numbers.unpack(one) for one in told]
        for source in range(self._ranks):
            for target in range(self._ranks):
                sent, taken = every[source][self._ranks + target], every[target][source]
                if sent != taken:
                    raise plait.MismatchError(
                        f"all_to_all: rank {source} sends rank {target} {sent} bytes, which wants "
                        f"{taken}; split sizes must agree"
                    )
        return max(size for one in every for size in one[self._ranks :])

    # What PyTorch before 2.13 calls them.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _is_product_of_complex(redop: Any, tensor: Tensor) -> bool:
    return tensor.is_complex() and getattr(redop, "op", redop) == ReduceOp.PRODUCT


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _put_parts(tensors: list[Tensor], found: Tensor) -> None:
    """Bytes one behind another, each tensor's into it."""
    at = 0
    for one in tensors:
        part = found[at : at + one.nbytes]
        aligned = part if at % one.element_size() == 0 else part.clone()
        put(one, aligned.view(one.dtype))
        at += one.nbytes


def _check_parts(name: str, part: Tensor, whole: Tensor, ranks: int) -> None:
    if whole.numel() != part.numel() * ranks or whole.dtype != part.dtype:
        raise ValueError(
            f"{name}: wanted {ranks} parts of {part.numel()} elements of {part.dtype} in the large "
            f"tensor, found {whole.numel()} of {whole.dtype}"
        )


def _parts(tensor: Tensor, sizes: Any, ranks: int) -> list[Tensor]:
    rows = tensor.shape[0]
    sizes = list(sizes) if sizes else [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise RuntimeError(
            f"Split sizes doesn't match total dim 0 size: found {sizes} for {ranks} ranks and "
            f"{rows} rows"
        )
    return list(tensor.detach().split(sizes))
