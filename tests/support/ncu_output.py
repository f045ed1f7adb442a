"""The output of Nsight Compute with --csv --page raw --print-units base, composed line by line.

This is no recording: it follows Nsight Compute's documentation of these options. Where a machine
has a GPU and counters, `python -m tests.support.ncu_output tests/fixtures/ncu/NAME.csv` records
what ncu really prints, and tests/measure/test_counters.py then reads it.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

COLUMNS = (
    *("ID", "Process ID", "Process Name", "Host Name"),
    "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    *("Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC"),
)
METRICS = {
    "dram__bytes_read.sum": "byte",
    "dram__bytes_write.sum": "byte",
    "gpu__time_duration.sum": "ns",
    "lts__t_sector_hit_rate.pct": "%",
}
SOFTMAX = 'void softmax<float, 4>(float *, const char *, "x")'
BEFORE = (
    '==PROF== Connected to process 4711 (/usr/bin/python3.12)\n==PROF== Profiling "attention"\n'
)
AFTER = "==PROF== Disconnected from process 4711\n"


def launch(kernel: str, *values: str, number: int = 0) -> list[str]:
    """The cells of one launch."""
    where = '"<default domain>:tunefa:none:none:none:none:none"'
    return [
        *(str(number), "4711", "python3.12", "127.0.0.1", where, kernel),
        *("1", "7", "(128, 1, 1)", "(32, 64, 1)", "0", "9.0"),
        *values,
    ]


def table(launches: Sequence[Sequence[str]], units: Sequence[str] | None = None) -> str:
    """The names, the units and the launches as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*COLUMNS, *METRICS])
    writer.writerow([*[""] * len(COLUMNS), *(units or METRICS.values())])
    writer.writerows(launches)
    return text.getvalue()


if __name__ == "__main__":
    from tunefa.errors import TunefaError
    from tunefa.experiments import profiled
    from tunefa.measure import counters
    from tunefa.spec.workload import Workload

    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    asked = profiled.command(Workload.parse("b1_h4_q512_d64_fp16_causal"), "operators")
    try:
        target.write_text(counters.printed(asked, list(METRICS)), encoding="utf-8")
    except TunefaError as error:
        sys.exit(str(error))
