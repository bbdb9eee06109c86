"""What the system says of mapped memory. Linux only."""

from pathlib import Path


def flags_at(address):
    """What the system says of the memory there, two letters each."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, last = line.split(" ")[0].partition("-")
        if last:
            inside = int(first, 16) <= address < int(last, 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"nothing is mapped at {address:#x}")
