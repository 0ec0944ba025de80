"""What machine this is, and whether anything else runs on it while something is timed.

Two threads that share a core with a third lose far more than a third of their speed, so a timing counts as quiet only
where all other work, time stolen by a hypervisor included, took less than MAX_OTHER of one core.
"""
import os
import platform
import time

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MAX_OTHER = 0.15


def busy_s():
    """Seconds that all cores together have worked since boot: user, nice, system, irq, softirq, steal."""
    with open("/proc/stat") as stat:
        ticks = [int(field) for field in stat.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS_PER_S


def children_s():
    """Seconds that this process and its finished children have worked."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class OtherWork:
    """How much of one core other work took since this object was made; meaningful once our child has ended."""

    def __init__(self):
        self.start = (time.monotonic(), busy_s(), children_s())

    def cores(self):
        wall, busy, ours = (now - then for now, then in
                            zip((time.monotonic(), busy_s(), children_s()), self.start))
        # The kernel counts in ticks: two are the error of the subtraction.
        return max(0.0, busy - ours - 2 / TICKS_PER_S) / wall


def wait_until_quiet(limit_s):
    """Returns once other work stops, or after limit_s."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        other = OtherWork()
        time.sleep(0.25)
        if other.cores() < MAX_OTHER:
            return


def describe():
    with open("/proc/cpuinfo") as info:
        fields = dict(line.split(":", 1) for line in info.read().split("\n\n")[0].splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = fields.get("flags", "").split()
    named = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
    return {"cpu": fields.get("model name", platform.machine()), "cores": len(os.sched_getaffinity(0)),
            "isa": [flag for flag in named if flag in flags],
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "kernel": platform.release()}
