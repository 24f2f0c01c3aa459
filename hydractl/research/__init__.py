"""Baselines, training methods and analyses that compare hydras with other work.

The core never imports this package. `PLUGIN` adds its commands, options and report fields to the core's
tables.
"""

from hydractl.plugins import Plugin

PLUGIN = Plugin(
    commands={"bench": "hydractl.research.bench.command:bench"},
    rows="hydractl.research.baselines.options:ROWS",
    scores="hydractl.research.scores.options:METHODS",
    one_network_methods=("mimo",),
    extensions={
        "eval": "hydractl.research.evaluation:ResearchEval",
        "finetune": "hydractl.research.methods.options:TrainingOptions",
        "score": "hydractl.research.scores.options:TrainedWeights",
    },
    fields={
        "Row": "hydractl.research.schema:RowFields",
        "Difference": "hydractl.research.schema:DifferenceFields",
        "Report": "hydractl.research.schema:ReportFields",
    },
    scopes="hydractl.research.corruptions.names:SCOPES",
    sections="hydractl.research.analyses.tables:SECTIONS",
    figures="hydractl.research.analyses.figures:FIGURES",
)
