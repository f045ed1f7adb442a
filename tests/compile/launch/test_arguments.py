"""tunefa/compile/launch/arguments.py: which argument a call renews, and which never changes."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from tunefa.compile.launch.arguments import Length, Pointer, Value, length, place, pointer
from tunefa.compile.launch.tensor_map import MAP_BYTES

TENSORS = [torch.zeros(4, 8), torch.zeros(4, 8)]


def test_a_tensor_of_the_call_is_found_by_identity_and_not_by_its_values() -> None:
    assert [place(each, TENSORS) for each in TENSORS] == [0, 1]
    assert place(torch.zeros(4, 8), TENSORS) is None and place(7, TENSORS) is None


def test_an_address_of_the_call_is_renewed() -> None:
    tables: list[Tensor] = []
    assert pointer(TENSORS[1], TENSORS, tables) == [Pointer(1)] and tables == []


def test_a_table_is_an_address_that_stays_and_is_kept_alive() -> None:
    tables: list[Tensor] = []
    table = torch.ones(3)
    assert pointer(table, TENSORS, tables) == [Value(struct.pack("Q", table.data_ptr()))]
    assert tables[0] is table


def test_a_part_of_a_tensor_of_the_call_cannot_be_renewed() -> None:
    tables: list[Tensor] = []
    for part in (TENSORS[0][1:], TENSORS[0].view(32), TENSORS[0].T):
        assert pointer(part, TENSORS, tables) is None
    assert pointer(7, TENSORS, tables) is None and tables == []


def test_a_length_is_that_of_a_tensor_of_the_call() -> None:
    assert length((TENSORS[1], 1), TENSORS) == [Length(1, 1)]
    assert length((torch.zeros(4, 8), 1), TENSORS) is None


def test_sizes_are_those_of_the_c_types() -> None:
    assert (Pointer(0).size, Length(0, 0).size) == (struct.calcsize("P"), struct.calcsize("i"))
    assert Value(b"12345").size == 5 and MAP_BYTES == 128
