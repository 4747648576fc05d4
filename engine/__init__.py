"""The engine's only door: load GGUF models, ask them, watch them. Imports nothing of `app`.

Everything a front end needs is named here; other modules of `engine` are private to it. Importing this
package stays cheap: what the interface does not need for its first frame is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from engine.cancel import CancelToken
from engine.config import (
    MOST_DRAFTS,
    DecodingOptions,
    DraftKind,
    ExecutorChoice,
    KVType,
    LoadOptions,
    Message,
    Overflow,
    Precision,
    Request,
    SamplingParams,
)
from engine.engine import Engine
from engine.errors import (
    BudgetError,
    CancelledError,
    ContextError,
    DeviceError,
    EngineError,
    GGUFError,
    InputFileError,
    KernelError,
    ModelNotFoundError,
    ReferenceFileError,
    StreamError,
    TemplateError,
    TokenizerError,
    UnsupportedModelError,
)
from engine.events import (
    BlockPlace,
    EngineSnapshot,
    EngineState,
    Executor,
    FinishReason,
    GenerationStats,
    GpuFacts,
    ModelInfo,
    Reply,
    ReplyStatus,
    Tier,
    TierEvent,
    TierEventKind,
    TierSnapshot,
)
from engine.machine import available_memory
from engine.measuring.matrix_case import Case, CaseResult, MatrixTask, pareto_front
from engine.measuring.setting import Setting, parse_setting
from engine.overflow import prompt_room
from engine.skipping.calibrated import Calibration, SkipEffect
from engine.skipping.skip_choice import (
    DEFAULT_COSINE,
    DEFAULT_KL,
    MOST_KL,
    SkipChoice,
    SkipRule,
    SkipSet,
    parse_skip,
)
from engine.tiers.budget import Budget, parse_budget
from engine.tiers.wishes import PlaceRule, parse_place

if TYPE_CHECKING:
    from engine.backends.gpus import GpuSearch, find_gpus
    from engine.chat_template import ChatTemplate, open_template
    from engine.gguf import GGUFFile, LazyArray, TensorInfo, open_gguf
    from engine.inventory import computing_devices
    from engine.measuring.bench_matrix import measure_matrix
    from engine.measuring.benchmark import Cell, Report, measure_speed, training_context
    from engine.measuring.benchmark_gpu import GpuRates, measure_gpu
    from engine.measuring.benchmark_kernels import KernelCell, measure_gpu_kernel, measure_kernel
    from engine.measuring.benchmark_ops import OpCell, measure_ops
    from engine.measuring.evaluate import Comparison, Perplexity
    from engine.measuring.quality import Change
    from engine.measuring.scoring import (
        ScoredText,
        Scorer,
        Scores,
        SettingScore,
        score_against_reference,
        score_texts,
    )
    from engine.preview import ModelPreview, memory_for_model, preview_model
    from engine.reporting import plan_report
    from engine.skipping.calibration_report import CalibrationReport, report_calibration
    from engine.tiers.advice import PlanReport
    from engine.tiers.probe import MachineRates, measure_machine
    from engine.tokenizer import Tokenizer, load_tokenizer
    from kernels.quant_types import QuantType

_ON_FIRST_USE = {
    "CalibrationReport": "engine.skipping.calibration_report",
    "report_calibration": "engine.skipping.calibration_report",
    "ChatTemplate": "engine.chat_template",
    "GGUFFile": "engine.gguf",
    "GpuRates": "engine.measuring.benchmark_gpu",
    "GpuSearch": "engine.backends.gpus",
    "OpCell": "engine.measuring.benchmark_ops",
    "computing_devices": "engine.inventory",
    "find_gpus": "engine.backends.gpus",
    "measure_gpu": "engine.measuring.benchmark_gpu",
    "measure_gpu_kernel": "engine.measuring.benchmark_kernels",
    "measure_ops": "engine.measuring.benchmark_ops",
    "LazyArray": "engine.gguf",
    "TensorInfo": "engine.gguf",
    "Tokenizer": "engine.tokenizer",
    "load_tokenizer": "engine.tokenizer",
    "open_gguf": "engine.gguf",
    "open_template": "engine.chat_template",
    "MachineRates": "engine.tiers.probe",
    "ModelPreview": "engine.preview",
    "memory_for_model": "engine.preview",
    "PlanReport": "engine.tiers.advice",
    "plan_report": "engine.reporting",
    "preview_model": "engine.preview",
    "Cell": "engine.measuring.benchmark",
    "KernelCell": "engine.measuring.benchmark_kernels",
    "QuantType": "kernels.quant_types",
    "Report": "engine.measuring.benchmark",
    "Comparison": "engine.measuring.evaluate",
    "Perplexity": "engine.measuring.evaluate",
    "measure_machine": "engine.tiers.probe",
    "measure_kernel": "engine.measuring.benchmark_kernels",
    "measure_speed": "engine.measuring.benchmark",
    "score_against_reference": "engine.measuring.scoring",
    "score_texts": "engine.measuring.scoring",
    "Change": "engine.measuring.quality",
    "measure_matrix": "engine.measuring.bench_matrix",
    "ScoredText": "engine.measuring.scoring",
    "Scorer": "engine.measuring.scoring",
    "Scores": "engine.measuring.scoring",
    "SettingScore": "engine.measuring.scoring",
    "training_context": "engine.measuring.benchmark",
}


def __getattr__(name: str) -> object:
    """Import a name's module when it is first used."""
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DEFAULT_COSINE",
    "DEFAULT_KL",
    "MOST_DRAFTS",
    "MOST_KL",
    "BlockPlace",
    "Budget",
    "BudgetError",
    "Calibration",
    "CalibrationReport",
    "CancelToken",
    "CancelledError",
    "Case",
    "CaseResult",
    "Cell",
    "Change",
    "ChatTemplate",
    "Comparison",
    "ContextError",
    "DecodingOptions",
    "DeviceError",
    "DraftKind",
    "Engine",
    "EngineError",
    "EngineSnapshot",
    "EngineState",
    "Executor",
    "ExecutorChoice",
    "FinishReason",
    "GGUFError",
    "GGUFFile",
    "GenerationStats",
    "GpuFacts",
    "GpuRates",
    "GpuSearch",
    "InputFileError",
    "KVType",
    "KernelCell",
    "KernelError",
    "LazyArray",
    "LoadOptions",
    "MachineRates",
    "MatrixTask",
    "Message",
    "ModelInfo",
    "ModelNotFoundError",
    "ModelPreview",
    "OpCell",
    "Overflow",
    "Perplexity",
    "PlaceRule",
    "PlanReport",
    "Precision",
    "QuantType",
    "ReferenceFileError",
    "Reply",
    "ReplyStatus",
    "Report",
    "Request",
    "SamplingParams",
    "ScoredText",
    "Scorer",
    "Scores",
    "Setting",
    "SettingScore",
    "SkipChoice",
    "SkipEffect",
    "SkipRule",
    "SkipSet",
    "StreamError",
    "TemplateError",
    "TensorInfo",
    "Tier",
    "TierEvent",
    "TierEventKind",
    "TierSnapshot",
    "Tokenizer",
    "TokenizerError",
    "UnsupportedModelError",
    "available_memory",
    "computing_devices",
    "find_gpus",
    "load_tokenizer",
    "measure_gpu",
    "measure_gpu_kernel",
    "measure_kernel",
    "measure_machine",
    "measure_matrix",
    "measure_ops",
    "measure_speed",
    "memory_for_model",
    "open_gguf",
    "open_template",
    "pareto_front",
    "parse_budget",
    "parse_place",
    "parse_setting",
    "parse_skip",
    "plan_report",
    "preview_model",
    "prompt_room",
    "report_calibration",
    "score_against_reference",
    "score_texts",
    "training_context",
]
