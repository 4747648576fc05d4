"""Build, verify and time everything that runs on a GPU, in one go: the figures of docs/PERFORMANCE.md.

    python docs/measure_gpu.py [--quick] MODEL...

Compiles the kernels, runs the tests marked `gpu`, then measures each MODEL (a path or a name from `tiercel
models`): prompts, decoding at several depths, the operations of a step, the start of a process, and decoding
beside a busy Python thread. `--quick` leaves out tests and long contexts. Needs an NVIDIA GPU and the tools
for tests; other work on the machine falsifies the figures.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from app import locations  # noqa: E402
from app.app import SWITCH_S  # noqa: E402
from app.models import resolve_model  # noqa: E402
from engine import Engine, EngineState, LoadOptions, Request, SamplingParams  # noqa: E402

DEVICE = ("--device", "cuda")
BENCH = ("-m", "app", "bench", *DEVICE)
STEPS = 400


def main() -> None:
    """Do all of it; a part that fails is told, and the rest goes on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--quick", action="store_true", help="no tests, no long contexts")
    args = parser.parse_args()
    show("what computes here", "-m", "app", "--version")
    if not args.quick:
        show("tests on the GPU", "-m", "pytest", "-q", "-m", "gpu", "tests", "-p", "no:cacheprovider")
    show("products of every quant type", *BENCH, "--kernels", "-r", "3")
    for model in args.models:
        path = str(resolve_model(model))
        depths = "0,512" if args.quick else "0,512,4096,16384,32000"
        show("speed", *BENCH, "-m", path, "-p", "512", "-n", "200", "-d", depths, "-r", "5")
        show("a long prompt", *BENCH, "-m", path, "-p", "4096", "-n", "0", "-d", "0", "-r", "5")
        show("operations of a step", *BENCH, "-m", path, "--ops", "-d", "512")
        for _ in range(2):
            run = ("run", *DEVICE, "-m", path, "--raw", "-p", "Once", "-n", "1", "--json")
            show("start of a process to its first token", "-m", "app", *run)
        beside_busy_thread(Path(path))


def show(what: str, *arguments: str) -> None:
    """Run Python with these arguments in the repository and let it print."""
    print(f"\n## {what}: python {' '.join(arguments)}", flush=True)
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], cwd=REPO, check=False)
    print(f"-> {time.perf_counter() - start:.2f} s, exit status {done.returncode}", flush=True)


def beside_busy_thread(path: Path) -> None:
    """Decode alone and beside a thread that never rests, with the application's switch interval."""
    sys.setswitchinterval(SWITCH_S)
    engine = Engine()
    engine.load(LoadOptions(path, context=1024, device="cuda", cache_dir=locations.cache_dir()))
    while engine.snapshot.state not in (EngineState.READY, EngineState.FAILED):
        time.sleep(0.05)
    if engine.snapshot.state is EngineState.FAILED:
        sys.exit(engine.snapshot.error)
    alone: list[float] = []
    beside: list[float] = []
    for speeds in (alone, beside) * 3:
        stop = threading.Event()
        if speeds is beside:
            threading.Thread(target=_count, args=(stop,), daemon=True).start()
        request = Request(prompt="Once", sampling=SamplingParams(temperature=0), max_tokens=STEPS)
        reply = engine.ask(request)
        while not reply.done:
            reply.wait(1 << 30, 0.05)
        stop.set()
        speeds.append(reply.stats.decode_tok_s)
    engine.close()
    print(f"\n## beside a busy thread, switch interval {SWITCH_S * 1e3} ms: {path.name}")
    print("tok/s alone", [round(speed) for speed in alone], "beside it", [round(speed) for speed in beside])
    print(f"-> {sorted(beside)[1] / sorted(alone)[1]:.3f}", flush=True)


def _count(stop: threading.Event) -> None:
    """Keep the interpreter as busy as a thread can."""
    n = 0
    while not stop.is_set():
        n += 1


if __name__ == "__main__":
    main()
