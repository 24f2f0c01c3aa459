"""What each command does, in one line; `python -m hydractl.cli.completion` writes this."""

SUMMARIES = {
    "make": "Make a hydra from trained checkpoints and compare it with them.",
    "import": "Make a base from weights that a training script saved.",
    "score": "Score how much each attention head matters.",
    "prune": "Remove attention heads from a base to make one or more members.",
    "finetune": "Train a backbone, a base, a member or a hydra on labelled data.",
    "fuse": "Fuse members into one model that runs all in one forward pass.",
    "eval": "Measure accuracy, calibration, OOD detection, diversity, cost.",
    "bench": "Train rival methods and compare them with a model in one table.",
    "report": "Make a page with tables and figures from reports of `eval`.",
    "predict": "Predict labels, confidence and OOD scores, one line per input.",
    "export": "Export a model to ONNX or torch.export, to run without hydractl.",
    "push": "Push a base, a member or a hydra to the Hub with a model card.",
    "inspect": "Show what a file holds: sizes, heads, scores, predictions.",
    "lineage": "Show or verify the files and stages that made a model.",
    "data": "List the named data sets, or show the references of some.",
    "doctor": "Check libraries, devices, cache, Hub and token.",
    "run": "Run the stages of a pipeline file that are not up to date.",
    "demo": "Make a hydra of handwritten digits in two minutes.",
    "schema": "Print the JSON Schema of scores, head masks or reports.",
    "completion": "Print a script that completes command lines in your shell.",
}
