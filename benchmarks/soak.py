"""Hours of `longspan serve` under clients that hang up, kills and a full disk: nothing lost, wrong or growing.

    mkdir -p /tmp/soak && mount -t tmpfs -o size=64m none /tmp/soak
    nice -n 10 python benchmarks/soak.py --place /tmp/soak --out DIR --minutes 240

Clients add texts, ask, talk, hang up and delete at random. The server is killed by SIGKILL every ``--kill`` minutes and
started on the same folder, and twice a file fills its disk. A refusal for want of room is right only if the disk is
nearly full. The last ``--calm`` minutes have neither, so that what one process keeps shows. Answers are compared with
those that an undisturbed server gave one after the other; one that differs where two tokens are equally likely, up to
rounding, counts as a tie.

`DIR/samples.csv` has memory, files and threads every ten seconds, `DIR/soak.json` the figures. `--plot FILE DIR` draws
them. The exit status is 1 if something was lost or wrong.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import httpx

from soak_clients import PATIENCE, Client, Server, Tally, undisturbed

EVERY, FULL_SECONDS = 10, 45  # seconds
FIELDS = ("minute", "life", "rss_mib", "anonymous_mib", "files", "threads", "mappings", "disk_mib", "requests")


def sample(server: Server, tally: Tally, began: float, out: Path, end: float) -> None:
    with out.open("w", newline="") as file:
        rows = csv.DictWriter(file, FIELDS)
        rows.writeheader()
        while time.monotonic() < end:
            with suppress(OSError, StopIteration):
                folder = Path(f"/proc/{server.process.pid}")
                status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                rows.writerow({
                    "minute": round((time.monotonic() - began) / 60, 2), "life": server.lives,
                    "rss_mib": int(status["VmRSS"].split()[0]) // 1024,
                    "anonymous_mib": int(status["RssAnon"].split()[0]) // 1024,
                    "files": len(list((folder / "fd").iterdir())), "threads": int(status["Threads"]),
                    "mappings": (folder / "maps").read_text().count("\n"),
                    "disk_mib": shutil.disk_usage(server.place).used >> 20, "requests": tally.counts["requests"],
                })  # fmt: skip
                file.flush()
            time.sleep(EVERY)


def watch_disk(server: Server, end: float) -> None:
    while time.monotonic() < end:
        server.free.append(shutil.disk_usage(server.place).free)
        time.sleep(0.1)


def fill(place: Path, tally: Tally) -> None:
    """Leave no room on the disk for a while."""
    tally.count("full disks")
    ballast = place / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))
    time.sleep(FULL_SECONDS)
    ballast.unlink()


def check_documents(server: Server, clients: list[Client], tally: Tally) -> None:
    """Everything that was taken in and not deleted is there, and is read again where the disk was full."""
    there = {one["id"] for one in httpx.get(f"{server.url}/v1/documents", timeout=PATIENCE).json()["data"]}
    for client in clients:
        for id in set(client.documents) - there:
            tally.failed("lost", id=id, life=server.lives)
    known = set().union(*(set(client.documents) | client.deleting for client in clients))
    tally.counts["more than known"] = max(tally.counts["more than known"], len(there - known))


def soak(options: argparse.Namespace) -> int:
    out, place = options.out, options.place
    if shutil.disk_usage(place).free > 2**30:
        raise SystemExit(f"{place} has more than 1 GiB free, and the script fills it; mount a small disk there")
    out.mkdir(parents=True, exist_ok=True)
    server, tally = Server(place, out / "server.log", options.method), Tally()
    server.start()
    expected = undisturbed(server)
    print(f"{len(expected)} answers of an undisturbed server, {sum(map(len, expected.values()))} turns", flush=True)
    began = time.monotonic()
    end, calm = began + 60 * options.minutes, began + 60 * (options.minutes - options.calm)
    clients = [Client(server, tally, expected, n) for n in range(options.clients)]
    threads = [threading.Thread(target=one.run, args=(end,), daemon=True) for one in clients]
    threads.append(threading.Thread(target=sample, args=(server, tally, began, out / "samples.csv", end), daemon=True))
    threads.append(threading.Thread(target=watch_disk, args=(server, end), daemon=True))
    for thread in threads:
        thread.start()
    full = [began + (calm - began) * share for share in (0.35, 0.75)]
    killed = began
    while (now := time.monotonic()) < end:
        time.sleep(1)
        if full and now > full[0]:
            full.pop(0)
            fill(place, tally)
        elif now - killed > 60 * options.kill if now < calm else killed < calm:  # also once where the calm begins
            server.kill()
            tally.count("kills")
            server.start()
            check_documents(server, clients, tally)
            killed = time.monotonic()
        elif server.process.poll() is not None:
            tally.failed("ended", code=server.process.returncode)
            server.up.clear()
            server.start()
        (out / "soak.json").write_text(
            json.dumps({"counts": tally.counts, "wrong": tally.wrong[:200]}, indent=1) + "\n"
        )
    for thread in threads:
        thread.join(PATIENCE)
    check_documents(server, clients, tally)
    server.kill()
    bad = {kind: tally.counts[kind] for kind in ("lost", "wrong", "came back", "unexpected", "broken", "ended")}
    (out / "soak.json").write_text(json.dumps({"minutes": options.minutes, "clients": options.clients, "bad": bad,
        "counts": tally.counts, "wrong": tally.wrong[:200]}, indent=1) + "\n")  # fmt: skip
    print(json.dumps({"bad": bad, "counts": tally.counts}))
    return int(any(bad.values()))


def plot(out: Path, picture: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    with (out / "samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    minutes = [float(row["minute"]) for row in rows]
    figure, axes = plt.subplots(4, 1, sharex=True, figsize=(8, 7), layout="constrained")
    shown = ("rss_mib", "memory, MiB"), ("files", "open files"), ("threads", "threads"), ("disk_mib", "disk, MiB")
    for axis, (name, label) in zip(axes, shown, strict=True):
        axis.plot(minutes, [float(row[name]) for row in rows], linewidth=0.8)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        for before, after in pairwise(rows):
            if before["life"] != after["life"]:
                axis.axvline(float(after["minute"]), color="0.8", linewidth=0.8, zorder=0)
    axes[-1].set_xlabel("minutes (lines: the server was killed)")
    figure.savefig(picture, dpi=70)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", type=Path, help="a folder on a small disk of its own")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=240)
    parser.add_argument("--calm", type=float, default=0, help="minutes at the end without kills and full disks")
    parser.add_argument("--kill", type=float, default=10, help="minutes between kills")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--plot", type=Path, help="draw what --out has, and end")
    options = parser.parse_args()
    if options.plot is not None:
        plot(options.out, options.plot)
        return
    sys.exit(soak(options))


if __name__ == "__main__":
    main()
