"""What compares hydras with other methods and explains them. The core never imports it; `PLUGIN` adds it to the core's tables."""

from hydractl.plugins import Plugin

PLUGIN = Plugin(
    commands={"bench": "hydractl.research.bench.command:bench"},
    baselines="hydractl.research.baselines.options:BASELINES",
    methods="hydractl.research.methods.options:METHODS",
    extensions={"eval": "hydractl.research.evaluation:ResearchEval"},
    fields={
        "Row": "hydractl.research.analyses.schema:AnalysedRow",
        "Report": "hydractl.research.analyses.schema:AnalysedReport",
    },
    sections="hydractl.research.analyses.tables:SECTIONS",
    figures="hydractl.research.analyses.figures:FIGURES",
)
