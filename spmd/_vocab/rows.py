"""Take rows of each piece of a table, and add rows to them, as single operations.

torch's indexing makes a dim of pieces an index like any other, in which not every
compiler recognises that a piece only looks into itself.
"""

from __future__ import annotations

import functools

import torch

from spmd._ops.tensor_type import tensor_type
from spmd._torch_xla import seam


def take_rows(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Look up rows of each piece of a table.

    Args:
        table: [pieces, rows, columns].
        rows: Row numbers [pieces, ...], of int32 or int64.

    Returns:
        [pieces, ..., columns], without a gradient.
    """
    return torch.ops.spmd.take_rows(table, rows)


def add_rows(rows: torch.Tensor, values: torch.Tensor, num_rows: int) -> torch.Tensor:
    """The sum of values for each row of each piece: what turns `take_rows` around.

    Args:
        rows: Row numbers [pieces, ...].
        values: [pieces, ..., columns].
        num_rows: Rows of a piece.

    Returns:
        [pieces, rows, columns], without a gradient.
    """
    return torch.ops.spmd.add_rows(rows, values, num_rows)


def _take(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    module = _take_module(
        tuple(table.shape), tuple(rows.shape), table.dtype, rows.dtype
    )
    return seam.call_hlo("take_rows", [table, rows], module)[0]


def _add(rows: torch.Tensor, values: torch.Tensor, num_rows: int) -> torch.Tensor:
    table = values.new_zeros(values.shape[0], num_rows, values.shape[-1])
    shapes = tuple(table.shape), tuple(rows.shape)
    module = _add_module(*shapes, table.dtype, rows.dtype)
    return seam.call_hlo("add_rows", [table, rows, values], module)[0]


def _take_shape(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return table.new_empty(*rows.shape, table.shape[-1])


def _add_shape(rows: torch.Tensor, values: torch.Tensor, num_rows: int) -> torch.Tensor:
    return values.new_empty(values.shape[0], num_rows, values.shape[-1])


@functools.lru_cache(maxsize=64)
def _take_module(
    table: tuple[int, ...], rows: tuple[int, ...], dtype: torch.dtype, ids: torch.dtype
) -> bytes:
    from spmd._pjrt import client as pjrt

    last = len(rows)
    values = tensor_type((*rows, table[-1]), dtype)
    given, at = tensor_type(table, dtype), tensor_type(rows, ids)
    return pjrt.hlo_from_stablehlo(f"""
        module @take_rows {{
          func.func public @main(%t: {given}, %i: {at}) -> {values} {{
            %x = "stablehlo.gather"(%t, %i) {{
              dimension_numbers = #stablehlo.gather<
                offset_dims = [{last}], collapsed_slice_dims = [1],
                operand_batching_dims = [0], start_indices_batching_dims = [0],
                start_index_map = [1], index_vector_dim = {last}>,
              slice_sizes = array<i64: 1, 1, {table[-1]}>,
              indices_are_sorted = false
            }} : ({given}, {at}) -> {values}
            return %x : {values}
          }}
        }}""")


@functools.lru_cache(maxsize=64)
def _add_module(
    table: tuple[int, ...], rows: tuple[int, ...], dtype: torch.dtype, ids: torch.dtype
) -> bytes:
    from spmd._pjrt import client as pjrt

    last = len(rows)
    values = tensor_type((*rows, table[-1]), dtype)
    given, at, one = (
        tensor_type(table, dtype),
        tensor_type(rows, ids),
        tensor_type((), dtype),
    )
    return pjrt.hlo_from_stablehlo(f"""
        module @add_rows {{
          func.func public @main(%t: {given}, %i: {at}, %v: {values}) -> {given} {{
            %x = "stablehlo.scatter"(%t, %i, %v) <{{
              scatter_dimension_numbers = #stablehlo.scatter<
                update_window_dims = [{last}], inserted_window_dims = [1],
                input_batching_dims = [0], scatter_indices_batching_dims = [0],
                scatter_dims_to_operand_dims = [1], index_vector_dim = {last}>,
              indices_are_sorted = false, unique_indices = false
            }}> ({{
              ^bb0(%a: {one}, %b: {one}):
                %s = stablehlo.add %a, %b : {one}
                stablehlo.return %s : {one}
            }}) : ({given}, {at}, {values}) -> {given}
            return %x : {given}
          }}
        }}""")


_library = torch.library.Library("spmd", "FRAGMENT")
_library.define("take_rows(Tensor table, Tensor rows) -> Tensor")
_library.define("add_rows(Tensor rows, Tensor values, int num_rows) -> Tensor")
_library.impl("take_rows", _take, "XLA")
_library.impl("take_rows", _take_shape, "Meta")
_library.impl("add_rows", _add, "XLA")
_library.impl("add_rows", _add_shape, "Meta")
