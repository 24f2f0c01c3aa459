"""What compares hydras with other methods and explains them. The core never imports it; `PLUGIN` adds it to the core's tables."""

from hydractl.plugins import Plugin

PLUGIN = Plugin(
    commands={"bench": "hydractl.research.bench.command:bench"},
    baselines="hydractl.research.baselines.options:BASELINES",
    extensions={
        "finetune": "hydractl.research.methods.options:TrainingOptions",
        "score": "hydractl.research.scores.options:TrainedWeights",
    },
    scores="hydractl.research.scores.options:METHODS",
    one_network_methods=("mimo",),
    analyses="hydractl.research.analyses.registry:ANALYSES",
)
