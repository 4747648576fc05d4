"""Snapshots of models that do not exist, for the tiers' tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine import (
    BlockPlace,
    EngineSnapshot,
    EngineState,
    Executor,
    GpuFacts,
    ModelInfo,
    Tier,
    TierEvent,
    TierEventKind,
    TierSnapshot,
)

WARNING = TierEventKind.WARNING
RATE = 1_400_000_000
H2D_RATE = 25_000_000_000
GPU = GpuFacts(
    number=0,
    name="NVIDIA RTX 0000",
    compute_capability="8.6",
    total_bytes=24_000_000_000,
    free_bytes=23_000_000_000,
    driver="580.65.06",
)


REASON = "NVIDIA RTX 0000, 24 GB, driver 580.65.06, compute capability 8.6: the model fits its memory"
MIXED_REASON = "NVIDIA RTX 0000, 24 GB, driver 580.65.06, compute capability 8.6: with the processor"


def model(layers: int = 32, name: str = "Fake-7B-Instruct") -> ModelInfo:
    return ModelInfo(
        path=Path(f"/models/{name}.gguf"),
        name=name,
        architecture="llama",
        n_layers=layers,
        hidden_size=4096,
        vocab_size=128_256,
        n_parameters=7_000_000_000,
        quantisation="Q4_K",
        file_bytes=4_000_000_000,
        training_context=8192,
        max_context=4096,
        kv_bytes=500_000_000,
        has_template=True,
        template_origin="the file",
    )


def blocks(layers: int = 32, heads: int = 4, *, tied: bool = False, kept: int = 3) -> tuple[BlockPlace, ...]:
    """Of every `kept` + 2 blocks `kept` stay in memory."""

    def place(name: str, kind: str, layer: int | None, n_bytes: int, number: int) -> BlockPlace:
        tier = Tier.RAM if number % (kept + 2) < kept else Tier.NVME
        return BlockPlace(name, kind, layer, n_bytes, "Q4_K" if layer is not None else "Q6_K", tier)

    found = [] if tied else [place("embedding", "embedding", None, 280_000_000, kept)]
    for layer in range(layers):
        found.append(place(f"blk.{layer} attention", "attention", layer, 24_000_000, len(found)))
        found.append(place(f"blk.{layer} feed_forward", "feed_forward", layer, 98_000_000, len(found)))
    for number in range(heads):
        found.append(place(f"head {number}", "head", None, 100_000_000, len(found)))
    return tuple(found)


def tiers(placed: tuple[BlockPlace, ...] | None = None, **changes: object) -> TierSnapshot:
    placed = blocks() if placed is None else placed
    streamed = [i for i, b in enumerate(placed) if b.tier is Tier.NVME and b.kind != "embedding"]
    kept = sum(b.n_bytes for b in placed if b.tier is Tier.RAM)
    snapshot = TierSnapshot(
        blocks=placed,
        ram_bytes=kept,
        ring_bytes=400_000_000,
        budget_bytes=int((kept + 400_000_000) * 1.2),
        pass_read_bytes=sum(placed[i].n_bytes for i in streamed),
        read_bytes=0,
        read_s=0.0,
        stall_s=0.0,
        disk_rate=float(RATE),
        predicted_decode_tok_s=1.1,
        limited_by="the disk",
        active=streamed[3] if len(streamed) > 5 else None,
        in_flight=((streamed[4], 1.0), (streamed[5], 0.62)) if len(streamed) > 5 else (),
        events=(
            TierEvent(1_790_000_000.0, "41 of 69 blocks are in memory, 2.51 GB of 4.58 GB"),
            TierEvent(
                1_790_000_060.0, "memory is short: 3 blocks, 220 MB, are read from disk from now on", WARNING
            ),
        ),
        events_dropped=0,
        passes=0,
    )
    return replace(snapshot, **changes)  # type: ignore[arg-type]


def gpu_tiers(arrived: float = 1.0, *, layers: int = 32, **changes: object) -> TierSnapshot:
    """A model that a GPU holds, or of which so much has arrived there."""
    places = blocks(layers)
    total = sum(block.n_bytes for block in places)
    there, left = [], total * arrived
    for index, block in enumerate(places):
        there.append((index, min(1.0, max(0.0, left / block.n_bytes))))
        left -= block.n_bytes
    placed = tuple(
        replace(block, tier=Tier.VRAM if share == 1 else Tier.NVME, executor=Executor.GPU)
        for block, (_, share) in zip(places, there, strict=True)
    )
    snapshot = tiers(
        placed,
        ram_bytes=0,
        ring_bytes=0,
        budget_bytes=0,
        pass_read_bytes=0,
        disk_rate=None,
        predicted_decode_tok_s=None,
        limited_by="",
        active=None,
        in_flight=tuple((index, share) for index, share in there if 0 < share < 1),
        events=(TierEvent(1_790_000_000.0, "all 69 blocks, 4.58 GB, are in the memory of the GPU"),),
        vram_bytes=int(total * arrived),
        vram_used_bytes=6_000_000_000,
        vram_budget_bytes=20_000_000_000,
        h2d_bytes=int(total * arrived),
        h2d_rate=float(H2D_RATE),
        gpu=GPU,
    )
    return replace(snapshot, **changes)  # type: ignore[arg-type]


def mixed_blocks(layers: int = 32) -> tuple[BlockPlace, ...]:
    """Of a model that is larger than the card: attention and head are on it, of the rest all ways are met."""

    def place(block: BlockPlace) -> tuple[Tier, Executor]:
        if block.kind == "embedding":
            return Tier.RAM, Executor.CPU
        if block.kind != "feed_forward":
            return Tier.VRAM, Executor.GPU
        assert block.layer is not None, "it is of a layer"
        return _WAYS[block.layer % len(_WAYS)]

    places = ((block, *place(block)) for block in blocks(layers))
    return tuple(replace(block, tier=tier, executor=executor) for block, tier, executor in places)


_WAYS = (
    (Tier.VRAM, Executor.GPU),
    (Tier.RAM, Executor.CPU),
    (Tier.RAM, Executor.CPU),
    (Tier.RAM, Executor.STREAM),
    (Tier.RAM, Executor.CPU),
    (Tier.NVME, Executor.CPU),
)


def mixed_tiers(layers: int = 32, **changes: object) -> TierSnapshot:
    """A model in all three tiers while a token is computed."""
    placed = mixed_blocks(layers)
    of = {tier: sum(block.n_bytes for block in placed if block.tier is tier) for tier in Tier}
    copied = [i for i, block in enumerate(placed) if block.executor is Executor.STREAM]
    read = [i for i, block in enumerate(placed) if block.tier is Tier.NVME]
    snapshot = tiers(
        placed,
        ram_bytes=of[Tier.RAM],
        ring_bytes=300_000_000,
        budget_bytes=4_000_000_000,
        pass_read_bytes=of[Tier.NVME],
        read_bytes=0,
        predicted_decode_tok_s=6.2,
        predicted_prefill_tok_s=1170.0,
        limited_by="memory bandwidth",
        active=copied[0],
        in_flight=((copied[1], 1.0), (copied[2], 0.4), (read[1], 0.7)),
        events=(
            TierEvent(1_790_000_000.0, "plan: 42 blocks in VRAM, 23 in memory, 5 on disk"),
            TierEvent(1_790_000_060.0, "blk.6 feed_forward goes from memory to VRAM: the budget grew"),
        ),
        vram_bytes=of[Tier.VRAM],
        vram_used_bytes=of[Tier.VRAM] + 900_000_000,
        vram_budget_bytes=4_000_000_000,
        h2d_rate=float(H2D_RATE),
        pass_copy_bytes=sum(placed[i].n_bytes for i in copied),
        pass_stalls=((copied[0], 0.0031), (read[0], 0.012)),
        vram_ring_bytes=200_000_000,
        gpu=GPU,
    )
    return replace(snapshot, **changes)  # type: ignore[arg-type]


def mixed(
    steps: int, *, passes_per_s: float = 6.0, disk: float = 0.1, copies: float = 0.2
) -> list[EngineSnapshot]:
    """Snapshots ten times a second of a reply through three tiers; waiting as shares of the time."""
    placed = mixed_tiers()
    found = []
    for step in range(steps):
        seconds = step / 10
        now = replace(
            placed,
            passes=int(seconds * passes_per_s),
            stall_s=seconds * disk,
            copy_stall_s=seconds * copies,
            read_bytes=int(seconds * passes_per_s * placed.pass_read_bytes),
            read_s=seconds * 0.5,
            h2d_bytes=int(seconds * passes_per_s * placed.pass_copy_bytes),
            copy_s=seconds * 0.75,
        )
        found.append(
            on_gpu(
                now,
                backend_reason=MIXED_REASON,
                threads=4,
                seq=step,
                at=100.0 + seconds,
                cpu_s=seconds * 3.2,
                decode_tok_s=passes_per_s,
            )
        )
    return found


def on_gpu(placed: TierSnapshot | None = None, **changes: object) -> EngineSnapshot:
    """The engine while a GPU computes a reply."""
    return snapshot(
        placed or gpu_tiers(),
        **{
            "backend": "cuda sm_86",
            "backend_reason": REASON,
            "threads": 0,
            "decode_tok_s": 100.0,
            **changes,
        },
    )


def loading_to_gpu(steps: int, *, rate: float = 2e9) -> list[EngineSnapshot]:
    """Snapshots ten times a second of weights that come to a GPU."""
    total = sum(block.n_bytes for block in blocks())
    return [
        on_gpu(
            gpu_tiers(min(1.0, step / 10 * rate / total)),
            state=EngineState.LOADING,
            load_stage="copying the weights to the GPU",
            load_progress=min(1.0, step / 10 * rate / total),
            model=None,
            decode_tok_s=0.0,
            seq=step,
            at=100.0 + step / 10,
        )
        for step in range(steps)
    ]


def snapshot(placed: TierSnapshot | None, **changes: object) -> EngineSnapshot:
    base = EngineSnapshot(
        seq=1,
        state=EngineState.GENERATING,
        model=model(),
        backend="cpu avx512",
        threads=4,
        tiers=placed,
        cores=4,
        at=100.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def running(
    steps: int, *, passes_per_s: float = 0.8, stalled: float = 0.6, layers: int = 32
) -> list[EngineSnapshot]:
    """Snapshots ten times a second of a reply that streams."""
    placed = tiers(blocks(layers))
    streamed = [i for i, b in enumerate(placed.blocks) if b.tier is Tier.NVME and b.kind != "embedding"]
    found = []
    for step in range(steps):
        seconds = step / 10
        passes = int(seconds * passes_per_s)
        place = int(seconds * passes_per_s * len(streamed))
        here = [streamed[(place + ahead) % len(streamed)] for ahead in range(3)]
        found.append(
            snapshot(
                replace(
                    placed,
                    passes=passes,
                    stall_s=seconds * stalled,
                    read_bytes=int(seconds * passes_per_s * placed.pass_read_bytes),
                    active=here[0],
                    in_flight=((here[1], 1.0), (here[2], seconds * 3.7 % 1)),
                ),
                seq=step,
                at=100.0 + seconds,
                cpu_s=seconds * 1.6,
                decode_tok_s=passes_per_s if step > 10 else 0.0,
                context_used=passes,
            )
        )
    return found
