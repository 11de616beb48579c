"""What `startup.py` reads and prints."""

import os

from startup import Process, Report, Start, kib_of, lines_of, memory_of

MIB = 1 << 20


def test_memory_of_a_process_is_what_the_kernel_says():
    peak, share = memory_of(os.getpid())

    assert peak > share > 0
    assert kib_of("VmPeak:\t 9 kB\nVmHWM:\t 5120 kB\n", "VmHWM") == 5120
    assert kib_of("", "VmHWM") == 0


def test_the_report_has_medians_of_both_kinds_and_the_sum_of_all_processes():
    starts = [
        Start(kind, 1.0, answer_s, {"import": 2.0, "lock": 0.001}, "hit")
        for kind, answer_s in (("cold", 7.0), ("warm", 3.0), ("cold", 5.0), ("warm", 4.0))
    ]
    processes = [
        Process("engine", 12, 500 * MIB, 400 * MIB, 0.004),
        Process("gateway", 13, 80 * MIB, 60 * MIB, 0.002),
    ]

    text = "\n".join(lines_of(Report([*starts, starts[0]], processes)))
    assert "cold: 7.00 s to the first answer (5.00 to 7.00)" in text
    assert "warm: 3.50 s to the first answer (3.00 to 4.00)" in text
    assert "import 2.00 [weight cache: hit]" in text
    assert "lock" not in text
    assert text.splitlines()[-1].split() == ["all", "580", "460", "0.60%"]
