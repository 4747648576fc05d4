"""Let the engine work for a long time and see whether anything grows or fails.

    python docs/soak.py MODEL.gguf [--minutes 8] [--device cuda] [--vram-budget 24G] [--seed 0]

Round after round: a prompt, sometimes one that goes on with the last reply, greedy or drawn; in the middle of
the reply another budget for RAM or for VRAM, another temperature, drafts, or a cancel; then the budgets as
they were. At the end of a round, with everything in its place again, it looks at the memory: resident and
locked as the system counts them, of the GPU what is not free there, of the machine what nobody could have. A
line is printed every minute. At the end the growth after the first seconds (--starting; least squares) and
every error are told; the exit status is 1 where something failed, or where the process or what is used of the
GPU grew by more than 1 MB a minute. Other processes falsify the figures of the GPU and of the machine: the
latter is told for memory that a driver locks without the kernel counting it, and decides nothing.

A budget that holds the whole model makes no moves: choose one of about the file's size.
"""

from __future__ import annotations

import argparse
import random
import re
import string
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from app import locations  # noqa: E402
from engine import (  # noqa: E402
    Budget,
    DecodingOptions,
    DraftKind,
    Engine,
    EngineState,
    LoadOptions,
    Reply,
    Request,
    SamplingParams,
    find_gpus,
    parse_budget,
)
from engine.machine import available_memory, total_memory  # noqa: E402

CONTEXT = 2048
MOST_MB_A_MINUTE = 1.0
STUCK_S = 180.0
"""What takes longer than this does not come any more."""
LOOK_S = 5.0
"""Between two looks at the memory, at least."""


class Look(NamedTuple):
    """Memory at the end of a round; bytes, and seconds since the beginning."""

    at: float
    resident: int
    locked: int
    """As the kernel counts it; drivers do not report all that they lock."""
    device: int
    """Of the GPU, all processes together; 0 without one."""
    machine: int = 0
    """What is not available to anyone, all processes and the driver together."""


class Stuck(Exception):
    """Something that did not end."""


class Soak:
    """Rounds of work for an engine with a model, the same ones for the same seed."""

    def __init__(self, engine: Engine, vram: Budget | None, seed: int) -> None:
        """`vram` is the GPU's budget that rounds begin and end with; None where no GPU computes."""
        model = engine.snapshot.model
        assert model is not None, "it has been loaded"
        self.counts: Counter[str] = Counter()
        """Rounds, tokens, cancels, changes, by what they are."""
        self.errors: list[str] = []
        self._engine, self._vram, self._source = engine, vram, random.Random(seed)
        self._beside_weights = model.kv_bytes + (512 << 20)
        self._file_bytes = model.file_bytes
        self._room = model.max_context
        self._text = ""

    def round(self) -> None:
        """Ask, disturb, and put everything back. Raises Stuck."""
        source = self._source
        if source.random() < 0.5 or len(self._text) > self._room // 4:  # a letter may be a token
            self._text = ""
        self._text += " " + self._words(source.choice((1, self._room // 100, self._room // 20)))
        sampling = SamplingParams(temperature=source.choice((0.0, 0.7, 1.5)), seed=source.randrange(1 << 30))
        n_tokens = source.choice((1, 16, 64))
        reply = self._engine.ask(Request(prompt=self._text, sampling=sampling, max_tokens=n_tokens))
        ways = (self._cancel, self._cool, self._draft, self._other_ram, self._other_vram, None)
        disturb = source.choice(ways)
        if disturb is not None:
            after = source.randrange(n_tokens)
            self._wait(lambda: reply.done or len(reply.token_ids) >= after, "a reply")
            disturb(reply)
        self._wait(lambda: reply.done, "a reply")
        self._text += reply.text
        self.counts["rounds"] += 1
        self.counts["tokens"] += len(reply.token_ids)
        if reply.error is not None:
            self.errors.append(str(reply.error))
        self._put_back()

    def _cancel(self, reply: Reply) -> None:
        self.counts["cancels"] += 1
        reply.cancel()

    def _cool(self, reply: Reply) -> None:
        self.counts["temperatures"] += 1
        reply.change_sampling(SamplingParams(temperature=0.3))

    def _draft(self, reply: Reply) -> None:
        self.counts["drafts"] += 1
        draft = self._source.choice((DraftKind.NGRAM, DraftKind.RESIDENT, DraftKind.EXIT))
        reply.change_decoding(DecodingOptions(draft=draft, draft_k=self._source.choice((None, 3))))

    def _other_ram(self, reply: Reply) -> None:
        self.counts["RAM budgets"] += 1
        share = self._source.uniform(0.3, 1.0)
        self._engine.set_ram_budget(Budget(self._beside_weights + int(share * self._file_bytes)))

    def _other_vram(self, reply: Reply) -> None:
        if self._vram is None:
            return
        self.counts["VRAM budgets"] += 1
        self._engine.set_vram_budget(Budget(int(self._source.uniform(0.5, 1.0) * self._vram.n_bytes)))

    def _put_back(self) -> None:
        """The budgets of the beginning, and every block where the plan wants it."""
        self._engine.set_ram_budget(None)
        if self._vram is not None:
            self._engine.set_vram_budget(self._vram)

        def settled() -> bool:
            now = self._engine.snapshot
            back = now.ram_budget is None and (self._vram is None or now.vram_budget == self._vram)
            return back and now.tiers is not None and now.tiers.settled

        self._wait(settled, "the budgets of before")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STUCK_S
        while not condition():
            if time.monotonic() > deadline:
                raise Stuck(f"{what} did not come within {STUCK_S:.0f} s")
            time.sleep(0.005)

    def _words(self, n_words: int) -> str:
        letters = string.ascii_lowercase
        return " ".join(
            "".join(self._source.choices(letters, k=self._source.randint(1, 8))) for _ in range(n_words)
        )


def main() -> int:
    """Work for so many minutes, and tell how it went."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL.gguf", help="the path of a model")
    parser.add_argument("--minutes", type=float, default=8.0, help="how long (default: 8)")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (default: cuda)")
    parser.add_argument(
        "--vram-budget",
        type=parse_budget,
        default=parse_budget("24G"),
        metavar="SIZE",
        help="GPU memory that rounds begin and end with (default: 24G)",
    )
    parser.add_argument(
        "--starting", type=float, default=120.0, metavar="S", help="seconds in which growth is not counted"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="the same rounds for the same number (default: 0)"
    )
    args = parser.parse_args()
    if not args.vram_budget.n_bytes:
        parser.error("--vram-budget is a size here, not a share")
    on_gpu = args.device != "cpu"
    vram = args.vram_budget if on_gpu else None
    engine = Engine()
    try:
        load(engine, args.model, args.device, vram)
        return work(Soak(engine, vram, args.seed), 60 * args.minutes, args.starting, on_gpu)
    finally:
        engine.close()


def load(engine: Engine, model: Path, device: str, vram: Budget | None) -> None:
    """Load the model, whole, and end the program where that fails."""
    engine.load(
        LoadOptions(
            model,
            context=CONTEXT,
            device=device,
            vram_budget=vram,
            rates_file=locations.rates_file(),
            cache_dir=locations.cache_dir(),
        )
    )
    while engine.snapshot.state is not EngineState.READY:
        if engine.snapshot.state is EngineState.FAILED:
            sys.exit(engine.snapshot.error)
        time.sleep(0.05)


def work(soak: Soak, seconds: float, starting_s: float, on_gpu: bool) -> int:
    """Go through rounds for so long, and print what came of it -> the exit status."""
    started = told = time.monotonic()
    looks: list[Look] = []
    try:
        while (now := time.monotonic()) - started < seconds:
            soak.round()
            if not looks or now - started - looks[-1].at >= LOOK_S:
                looks.append(look(now - started, on_gpu))
            if now - told >= 60:
                told = now
                print(_line(looks[-1], soak), flush=True)
    except Stuck as error:
        soak.errors.append(str(error))
    counted = [each for each in looks if each.at >= starting_s]
    grown = {field: mb_a_minute(counted, field) for field in Look._fields[1:]}
    print("at the end:", ", ".join(f"{count:,} {what}" for what, count in soak.counts.items()))
    print(
        f"growth in MB a minute, from {len(counted)} looks after {starting_s:.0f} s:",
        ", ".join(f"{field} {'?' if rate is None else f'{rate:+.3f}'}" for field, rate in grown.items()),
    )
    for what, times in Counter(soak.errors).items():
        print(f"{times} times: {what}")
    del grown["machine"]
    grows = any(rate is not None and rate > MOST_MB_A_MINUTE for rate in grown.values())
    print("it grows" if grows else "it does not grow", "and", "fails" if soak.errors else "does not fail")
    return 1 if grows or soak.errors else 0


def look(at: float, on_gpu: bool) -> Look:
    """The memory of this process, and of the GPU."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    sizes = {name: int(size) << 10 for name, size in re.findall(r"(Vm\w+):\s+(\d+) kB", status)}
    gpus = find_gpus().devices if on_gpu else ()
    used = gpus[0].total_bytes - gpus[0].free_bytes if gpus else 0
    locked = sizes.get("VmLck", 0) + sizes.get("VmPin", 0)
    return Look(at, sizes["VmRSS"], locked, used, total_memory() - available_memory())


def mb_a_minute(looks: Sequence[Look], field: str) -> float | None:
    """Growth by least squares; None from fewer than three looks."""
    if len(looks) < 3:
        return None
    minutes = [each.at / 60 for each in looks]
    sizes = [getattr(each, field) / 1e6 for each in looks]
    middle, mean = sum(minutes) / len(minutes), sum(sizes) / len(sizes)
    spread = sum((at - middle) ** 2 for at in minutes)
    return float(sum((at - middle) * (size - mean) for at, size in zip(minutes, sizes, strict=True)) / spread)


def _line(latest: Look, soak: Soak) -> str:
    sizes = ", ".join(f"{name} {getattr(latest, name) / 1e6:,.1f} MB" for name in latest._fields[1:])
    counts = ", ".join(f"{count:,} {what}" for what, count in soak.counts.items())
    return f"{latest.at / 60:5.1f} min: {sizes}; {counts}; {len(soak.errors)} errors"


if __name__ == "__main__":
    sys.exit(main())
