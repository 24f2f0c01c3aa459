"""The functions; `stages.pyi`, which `python -m hydractl.api.stub` writes, says the same to type checkers and editors."""

from __future__ import annotations

from hydractl.api.stage import StageFunction
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.push.config import PushConfig
from hydractl.stages.report.config import ReportConfig
from hydractl.stages.score.config import ScoreConfig

STAGES = (
    StageFunction(
        "score", "Score how much each attention head matters, and write a scores file.",
        ScoreConfig, "hydractl.stages.score.run:run_score", "hydractl.stages.score.config:ScoreReport",
    ),
    StageFunction(
        "prune", "Make members, each of which keeps other heads, and write them.",
        PruneConfig, "hydractl.stages.prune.run:run_prune", "hydractl.stages.prune.run:PruneReport",
    ),
    StageFunction(
        "finetune", "Train a backbone, a base, a member or a hydra, and write it.",
        FinetuneConfig, "hydractl.stages.finetune.run:run_finetune", "hydractl.stages.finetune.run:FinetuneReport",
    ),
    StageFunction(
        "fuse", "Fuse members into one model that runs them all in a single forward pass, and write it.",
        FuseConfig, "hydractl.stages.fuse.run:run_fuse", "hydractl.stages.fuse.run:FuseReport",
    ),
    StageFunction(
        "evaluate", "Measure accuracy, calibration, OOD detection, diversity and cost, of one model or of several.",
        EvalConfig, "hydractl.stages.evaluate.run:run_eval", "hydractl.stages.evaluate.report:EvalReport",
    ),
    StageFunction(
        "report", "Make a page of what was measured, of one report or of several seeds, and write it.",
        ReportConfig, "hydractl.stages.report.run:run_report", "hydractl.stages.report.run:ReportReport",
    ),
    StageFunction(
        "predict", "Write what a model says of every input, and how sure it is: a line an input.",
        PredictConfig, "hydractl.stages.predict.run:run_predict", "hydractl.stages.predict.run:PredictReport", ("out",),
    ),
    StageFunction(
        "export", "Export a base, a member or a hydra for runtimes that know neither hydractl nor its libraries.",
        ExportConfig, "hydractl.stages.export.run:run_export", "hydractl.stages.export.run:ExportReport",
    ),
    StageFunction(
        "push", "Push a base, a member or a hydra to the Hub, with its card, in one commit or none.",
        PushConfig, "hydractl.stages.push.run:run_push", "hydractl.stages.push.run:PushReport",
    ),
)  # fmt: skip
score, prune, finetune, fuse, evaluate, report, predict, export, push = (stage.function() for stage in STAGES)
