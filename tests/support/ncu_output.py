"""The output of Nsight Compute with --csv --page raw --print-units base, composed line by line.

It has the columns and units of tests/fixtures/ncu/h200.csv, which ncu printed on an H200, without
the hundreds of columns that describe the device and the launch. `python -m
tests.support.ncu_output tests/fixtures/ncu/NAME.csv` records another chip;
tests/measure/test_counters.py reads all recordings.
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
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
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
    "==WARNING== Note: Running with unmodified GPU clocks. If not controlled otherwise, profiling "
    "results may be inconsistent.\n"
    '==PROF== Connected to process 4711 (/usr/bin/python3.12)\n==PROF== Profiling "attention"\n'
)
AFTER = "==PROF== Disconnected from process 4711\n"


def launch(kernel: str, *values: str, number: int = 0) -> list[str]:
    """The cells of one launch."""
    where = '4711  "<default domain>:tunefa:operators:none:none:none:none:none:none" '
    return [
        *(str(number), "4711", "python3.12", "127.0.0.1", where, "", kernel),
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
