"""tunefa/compile/wgmma_descriptors.py: descriptors that one path leaves unset are found."""

from __future__ import annotations

from tunefa.compile import wgmma_descriptors

HEAD = "\t\tFunction : two_loops\n"
A, B = "UIADD3.X UR5, UR9, 0x40000040, URZ, UP1, !UPT", "UMOV UR7, 0x40000040"
WGMMA = "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24"


def sass(*instructions: str) -> str:
    """Instructions as cuobjdump prints them, 16 bytes each."""
    lines = (
        f"        /*{16 * place:04x}*/                   {each} ;      /* 0x0000000000007918 */\n"
        for place, each in enumerate(instructions)
    )
    return HEAD + "".join(lines)


def test_a_descriptor_that_is_set_on_all_paths_is_right() -> None:
    assert wgmma_descriptors.unset(sass(A, B, WGMMA, "@P0 BRA 0x20", "EXIT")) is None


def test_a_descriptor_that_a_jump_leaves_out_is_found() -> None:
    made = sass("@!P0 BRA 0x30", A, "NOP", B, WGMMA, "EXIT")
    assert wgmma_descriptors.unset(made) == "UR5 of the wgmma at 0x40 of two_loops"
    assert wgmma_descriptors.unset(sass("@!P0 BRA 0x10", A, "NOP", B, WGMMA, "EXIT")) is None


def test_a_register_that_held_something_else_counts_as_unset() -> None:
    other = "USHF.L.U32 UR5, UR20, 0xb, URZ"
    made = sass(other, "@!P0 BRA 0x30", A, B, WGMMA, "EXIT")
    assert wgmma_descriptors.unset(made) == "UR5 of the wgmma at 0x40 of two_loops"


def test_what_copies_and_sums_pass_on_is_followed() -> None:
    copied = "UMOV UR5, UR31"
    assert wgmma_descriptors.unset(sass("UMOV UR31, 0x40000040", copied, B, WGMMA, "EXIT")) is None
    found = wgmma_descriptors.unset(sass(copied, B, WGMMA, "EXIT"))
    assert found == "UR5 of the wgmma at 0x20 of two_loops"
    pair = "UIADD3.64 UR6, UR6, 0x200007e, URZ"
    assert wgmma_descriptors.unset(sass(A, B, pair, WGMMA, "EXIT")) is None
    found = wgmma_descriptors.unset(sass(A, pair, WGMMA, "EXIT"))
    assert found == "UR7 of the wgmma at 0x20 of two_loops"


def test_only_the_second_descriptor_counts_if_the_first_operand_is_in_registers() -> None:
    made = "HGMMA.64x128x16.F32.BF16 R88, R228, gdesc[UR4].tnspB, R88"
    assert wgmma_descriptors.unset(sass(B, made, "EXIT")) is None
    found = wgmma_descriptors.unset(sass(A, made, "EXIT"))
    assert found == "UR7 of the wgmma at 0x10 of two_loops"


def test_code_that_indirect_jumps_lead_to_is_followed() -> None:
    made = sass("BRX R2 -0x250", A, B, WGMMA, "EXIT", B, WGMMA, "EXIT")
    assert wgmma_descriptors.unset(made) == "UR5 of the wgmma at 0x60 of two_loops"


def test_what_no_jump_leads_to_is_not_followed() -> None:
    assert wgmma_descriptors.unset(sass("EXIT", WGMMA, "BRA 0x20")) is None


def test_a_kernel_without_wgmma_has_no_descriptor() -> None:
    assert wgmma_descriptors.unset(sass("UMOV UR4, 0x10", "BRA 0x10")) is None
