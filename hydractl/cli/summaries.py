"""What each command does, in one line; `python -m hydractl.cli.completion` writes this."""

SUMMARIES = {
    "score": "Score how much each attention head matters.",
    "prune": "Cut attention heads out of a base: one member, or several that differ.",
    "finetune": "Train a backbone, a base, a member or a hydra on labelled data; `arch:NAME` trains from random weights.",
    "fuse": "Fuse members into one model that runs them all in a single forward pass.",
    "eval": "Measure accuracy, calibration, OOD detection, diversity and cost, of one model or of several side by side.",
    "bench": "Make every rival of a trained model, measure all in one table, and make a page of it.",
    "make": "Make a hydra of trained checkpoints, compare it with them, and make a page of the verdict.",
    "report": "Make a page of what `eval` measured: is the first model better than the others, by how much, and where is it not?",
    "predict": "Tell of every input what a model says, and how sure it is: a line an input, in their order.",
    "export": "Write a model as one file that runs without hydractl: ONNX, or a program of torch.export.",
    "inspect": "Show what a file is: sizes, heads, fuse plan, scores, predictions, lineage; or compare choices of heads.",
    "lineage": "Draw the chain of stages and files that led to a model, back to its base; or verify those files.",
    "import": "Make a base of weights that a training script saved; of several files, a base each.",
    "push": "Push a base, a member or a hydra to the Hub: weights, configuration, head masks, report and a card, in one commit.",
    "data": "List the data sets that have names, `preset:NAME`, or show all that is known of some: references, licence, OOD sets.",
    "schema": "Print the JSON Schema of scores, head masks or reports.",
    "doctor": "Look whether everything that hydractl needs is there: libraries, devices, cache, Hub, token.",
    "completion": "Print the script that completes commands, options, their values and files when Tab is pressed.",
    "run": "Run the stages of a pipeline file in order, each with `--if-changed`: what is up to date is not made again.",
    "demo": "Run the whole method in a quarter of an hour, by default without a download.",
}
