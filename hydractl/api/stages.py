"""The functions; `stages.pyi`, which `python -m hydractl.api.stub` writes, says the same to type checkers and editors."""

from __future__ import annotations

from hydractl.api.stage import Stage
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.score.config import ScoreConfig

STAGES = (
    Stage(
        "score", "Score how much each attention head matters, and write a scores file.",
        ScoreConfig, "hydractl.stages.score.run:run_score", "hydractl.stages.score.config:ScoreReport",
    ),
    Stage(
        "prune", "Make members, each of which keeps other heads, and write them.",
        PruneConfig, "hydractl.stages.prune.run:run_prune", "hydractl.stages.prune.run:PruneReport",
    ),
    Stage(
        "finetune", "Train a backbone, a base, a member or a hydra, and write it.",
        FinetuneConfig, "hydractl.stages.finetune.run:run_finetune", "hydractl.stages.finetune.run:FinetuneReport",
    ),
    Stage(
        "fuse", "Fuse members into one model that runs them all in a single forward pass, and write it.",
        FuseConfig, "hydractl.stages.fuse.run:run_fuse", "hydractl.stages.fuse.run:FuseReport",
    ),
    Stage(
        "evaluate", "Measure accuracy, calibration, OOD detection, diversity and cost, of one model or of several.",
        EvalConfig, "hydractl.stages.evaluate.run:run_eval", "hydractl.stages.evaluate.report:EvalReport",
    ),
    Stage(
        "predict", "Write what a model says of every input, and how sure it is: a line an input.",
        PredictConfig, "hydractl.stages.predict.run:run_predict", "hydractl.stages.predict.run:PredictReport", ("out",),
    ),
)  # fmt: skip
score, prune, finetune, fuse, evaluate, predict = (stage.function() for stage in STAGES)
