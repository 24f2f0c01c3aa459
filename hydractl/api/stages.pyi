"""The stages as functions. Made by `python -m hydractl.api.stub`; not written by hand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from hydractl.api.stage import StageFunction
from hydractl.progress import Progress
from hydractl.stages.evaluate.report import EvalReport
from hydractl.stages.export.run import ExportReport
from hydractl.stages.finetune.run import FinetuneReport
from hydractl.stages.fuse.run import FuseReport
from hydractl.stages.predict.run import PredictReport
from hydractl.stages.prune.run import PruneReport
from hydractl.stages.push.run import PushReport
from hydractl.stages.report.run import ReportReport
from hydractl.stages.score.config import ScoreReport

STAGES: tuple[StageFunction, ...]

def score(
    model: str | Path,
    *,
    out: str | Path,
    method: Literal["circuit", "taylor", "michel", "gnorm", "hies", "headmap", "cahp", "l0", "dsp", "magnitude", "random"] | None = ...,
    data: str | None = ...,
    limit: int | None = ...,
    max_length: int | None = ...,
    objective: str | None = ...,
    ood: str | None = ...,
    ood_score: Literal["msp", "entropy", "mi", "msp+mi", "energy", "max-logit", "gen"] | None = ...,
    search: Literal["exact", "lazy"] | None = ...,
    recheck: int | None = ...,
    max_memory: str | int | None = ...,
    doubt: float | None = ...,
    swaps: int | None = ...,
    scope: Literal["layer", "global"] | None = ...,
    variant: Literal["l1", "molchanov"] | None = ...,
    form: Literal["sample", "batch"] | None = ...,
    recompute: int | None = ...,
    normalize: Literal["none", "layer", "tower"] | None = ...,
    alpha: float | None = ...,
    samples: int | None = ...,
    training: Literal["pipelined", "joint"] | None = ...,
    epochs: int | None = ...,
    gate_lr: float | None = ...,
    weights_lr: float | None = ...,
    penalty: float | None = ...,
    estimator: Literal["soft", "ste"] | None = ...,
    temperature: float | None = ...,
    cooldown: float | None = ...,
    trained: str | Path | None = ...,
    degree: int | None = ...,
    representative: Literal["salience", "medoid"] | None = ...,
    embedding: Literal["tsne", "none"] | None = ...,
    perplexity: float | None = ...,
    signature_size: int | None = ...,
    salience_share: float | None = ...,
    keep: int | None = ...,
    remove: int | None = ...,
    keep_fraction: float | None = ...,
    towers: str | Sequence[str] | None = ...,
    classes: str | Sequence[str] | None = ...,
    template: str | Sequence[str] | None = ...,
    seed: int | None = ...,
    arch: str | None = ...,
    batch_size: int | None = ...,
    num_workers: str | int | None = ...,
    device: str | None = ...,
    dtype: str | None = ...,
    compile: bool | None = ...,
    estimate: bool | None = ...,
    force: bool | None = ...,
    wait: bool | None = ...,
    progress: Callable[[str], object] | Progress | None = ...,
) -> ScoreReport:
    r"""Score how much each attention head matters, and write a scores file.

    Arguments are those of `hydractl score`, and read as it reads them; None is an option that is not given.

    Args:
        model: A checkpoint, a folder of timm, transformers or OpenCLIP (also `local-dir:PATH`), a Hub id `org/name[@revision]` (also `hf-hub:ID`), `arch:NAME[::K=V,...]` for random weights, or `-`.
        out: Output file; `-` is standard output.
        method: How heads are scored. circuit: greedy removal by an objective on validation data (Algorithm 1); taylor: |weight × gradient| of q, k and v (appendix D.1.1); michel: mean |∂loss/∂gate| of gates on heads' outputs (Michel et al. 2019); gnorm: greedy removal by the norms of q, k and v gradients (Greedy-Gnorm); hies: importance as michel has it, and entropy of attention (HIES); headmap: layer by layer the heads whose masking raises the loss most (HeadMap); cahp: heads grouped by how they tell classes apart, one of each group; finds their number (CAHP); l0: learned gates that a penalty closes (Voita et al. 2019); dsp: learned gates of which K stay open (Li et al. 2021); magnitude: mean |weight|: a control; random: uniform random scores: a control.
        data: Labelled data, validation for circuits, calibration or training data else: digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME.
        limit: Use N samples of it, drawn with the seed (hies: 32 by default).
        max_length: Tokens of a text at most; default: as many as the model reads.
        objective: What the kept heads should be good at: acc, ood (AUROC), avg of both (default), nll, ece, fpr95, or a sum such as `0.5*acc+0.5*auroc` or `acc-0.1*nll`. More is better: nll, ece and fpr95 are subtracted, whichever sign is written.
        ood: Out-of-distribution validation data, for ood, avg and fpr95.
        ood_score: What tells OOD samples: the maximum softmax probability (default), the entropy, the energy or the largest logit; mi is about several models, which a circuit is not.
        search: exact (default): every head on all data at each removal; lazy: those that look best by what is remembered of them.
        recheck: lazy: every head at each N-th removal (default 24).
        max_memory: circuit: bytes for what is computed with, beside the model and the data, such as 2GiB or 512MB (default: what suits the device). It changes speed, results by no more than rounding.
        doubt: lazy: let a head go unseen whose valuing is expected to raise the objective by no more than X times how much heads differ at first (default 0.5; 0 values every head).
        swaps: lazy: at the end try up to N swaps of a head that went for one that stayed (default: as many as go; 0: none); it ends sooner where half as many as go were in vain, one after another, and where none promises anything, but for a search that has cost less than a third of an exact one.
        scope: Score layer by layer, each without what went before (default); or all at once.
        variant: Σ|w g| (default), or (Σ w g)² a batch.
        form: michel: whose gradient the absolute value is of, each sample's (default) or each batch's.
        recompute: michel: remove N heads, score anew without them, until the budget is gone; 0 (default) scores once.
        normalize: Divide scores by the norm of their layer's (default of michel), by the root mean square of their tower's, or not at all (default of taylor, gnorm, hies, magnitude).
        alpha: hies: how much importance weighs beside entropy (default .5).
        samples: headmap: look at the N samples of the lowest loss (default 64).
        training: Learn gates while the weights are frozen (pipelined, default), or together with them (joint).
        epochs: Passes over the data (default: l0 3; dsp 1, with joint 3).
        gate_lr: Learning rate of the gates (default: l0 0.1, dsp 0.5).
        weights_lr: Learning rate of the weights, for joint (default: 2e-5).
        penalty: What an open head adds to the loss, for l0 (default: 0.0015): more closes more heads.
        estimator: For dsp: a soft choice that hardens (default), or a hard one, straight through (ste).
        temperature: Where the temperature of dsp starts (default: 1000); it falls to 1e-8.
        cooldown: Share of the steps in which it falls (default: 2/3).
        trained: Write the weights that joint trains to PATH, a base; the scores are then of it.
        degree: Of the polynomial that smooths the silhouettes, whose knee is the number of groups (default 6).
        representative: Who leads a group: its most salient head (default), or the one in the middle.
        embedding: Group heads in the plane of a t-SNE (default), or by their class profiles as they are.
        perplexity: Of the t-SNE (default 10).
        signature_size: Bring attention maps to N x N (default 32).
        salience_share: Compute the salience on the first F of the batches (default 0.25).
        keep: Keep N heads a layer, on average over the model.
        remove: Remove R heads in all.
        keep_fraction: Keep this share of all heads (default without a budget: 2/3).
        towers: Score the heads of these towers only (text, vision); the others keep all of theirs.
        classes: Classes of a zero-shot model: `a,b,c`, a file with one name a line, or a JSON list.
        template: What a class is asked with, holding `{label}`; give several to average. Default: "A photo of a {label}."
        seed: Seed of everything random.
        arch: Architecture of a bare .safetensors file.
        batch_size: Samples in one forward pass.
        num_workers: Processes that decode and augment images, 0 for threads of this one; the result is the same. `auto` (default) takes some where images are many and cores too.
        device: auto, cpu, cuda, cuda:N or mps.
        dtype: bf16, fp16 or fp32; default: as stored.
        compile: circuit: compile what follows a block's heads: up to minutes at first, then faster where calls cost more than what they compute. It changes results by no more than rounding.
        estimate: circuit: value a few candidates, and say how long the whole search takes, how much memory, and on how many devices; write nothing.
        force: Replace an existing output, and start anew where an unfinished run could be gone on with.
        wait: Wait while another command makes the same output, rather than exit 6.
        progress: Hears what begins: a function of one text, or a `Progress`. Without it the stage is quiet, and warnings are those of Python's `warnings`.

    Returns:
        What the command tells with `--json`, as an object.

    Raises:
        HydraError: Whatever ends the command; `exit_code` is the command's.
        TypeError: If there is no such option.
    """

def prune(
    model: str | Path,
    *,
    out: str | Path,
    scores: str | Path | Sequence[str | Path] | None = ...,
    mask: str | Path | Sequence[str | Path] | None = ...,
    keep: str | int | None = ...,
    remove: int | None = ...,
    keep_fraction: float | None = ...,
    per_layer: bool | None = ...,
    strategy: Literal["best", "sample", "objectives", "clusters", "random", "diverse"] | None = ...,
    members: int | None = ...,
    pool: int | None = ...,
    diverge_from: int | None = ...,
    data: str | None = ...,
    ood: str | None = ...,
    candidates: int | None = ...,
    diversity: Literal["mi", "disagreement", "none"] | None = ...,
    batch_size: int | None = ...,
    num_workers: str | int | None = ...,
    device: str | None = ...,
    max_length: int | None = ...,
    classes: str | Sequence[str] | None = ...,
    template: str | Sequence[str] | None = ...,
    seed: int | None = ...,
    arch: str | None = ...,
    dtype: str | None = ...,
    verify: bool | None = ...,
    force: bool | None = ...,
    progress: Callable[[str], object] | Progress | None = ...,
) -> PruneReport:
    r"""Make members, each of which keeps other heads, and write them.

    Arguments are those of `hydractl prune`, and read as it reads them; None is an option that is not given.

    Args:
        model: A checkpoint, a folder of timm, transformers or OpenCLIP (also `local-dir:PATH`), a Hub id `org/name[@revision]` (also `hf-hub:ID`), `arch:NAME[::K=V,...]` for random weights, or `-`.
        out: Output file, or a folder: one that is there, or a name with a slash at its end. `-` is standard output.
        scores: Scores; several make one member each. `-` is standard input.
        mask: A head-mask file instead of scores; several make one member each.
        keep: Keep N heads a layer, on average over the model; `auto`: as many as cahp or l0 chose, or the knee of a greedy method's objective.
        remove: Remove R heads in all.
        keep_fraction: Keep this share of all heads.
        per_layer: With `--keep N`: exactly N heads in every layer.
        strategy: best: the most important heads. sample: the pool's heads go by chance. objectives: one member a scores file. clusters: one head of each cluster, the j-th best for member j. random: no scores, a control. diverse: the draws of sample that disagree most on data. Default: what the other options imply.
        members: How many members.
        pool: The first P heads to go are what members sample from (sample, diverse).
        diverge_from: Members are alike before this layer; fused, it runs once.
        data: Labelled validation data to compare members on.
        ood: Out-of-distribution validation data, where the scores' objective ranks it.
        candidates: Masks to draw and to choose from (default 32).
        diversity: What to maximise: mutual information (default), the share of pairs that disagree, or none, a control.
        batch_size: Samples in one forward pass (default 64).
        num_workers: Processes that decode and augment images, 0 for threads of this one; the result is the same. `auto` (default) takes some where images are many and cores too.
        device: auto (default), cpu, cuda, cuda:N or mps.
        max_length: Tokens of a text at most; default: as many as the model reads.
        classes: Classes of a zero-shot model: `a,b,c`, a file with one name a line, or a JSON list.
        template: What a class is asked with, holding `{label}`; give several to average. Default: "A photo of a {label}."
        seed: Seed of everything random.
        arch: Architecture of a bare .safetensors file.
        dtype: bf16, fp16 or fp32; default: as stored.
        verify: Check the result on a seeded random batch before it is published.
        force: Replace an existing output.
        progress: Hears what begins: a function of one text, or a `Progress`. Without it the stage is quiet, and warnings are those of Python's `warnings`.

    Returns:
        What the command tells with `--json`, as an object.

    Raises:
        HydraError: Whatever ends the command; `exit_code` is the command's.
        TypeError: If there is no such option.
    """

def finetune(
    model: str | Path,
    *,
    data: str | Path,
    val: str | Path,
    out: str | Path,
    max_length: int | None = ...,
    recipe: Literal["imagenet1k", "cifar100", "sst2", "imagenet1k-base", "cifar100-base", "sst2-base", "vit-finetune", "bert-finetune", "sentence-finetune"] | None = ...,
    optimizer: Literal["sgd", "adamw"] | None = ...,
    lr: str | float | Sequence[str | float] | None = ...,
    layer_decay: float | None = ...,
    weight_decay: float | None = ...,
    momentum: float | None = ...,
    schedule: Literal["constant", "cosine", "linear"] | None = ...,
    min_lr_rate: float | None = ...,
    warmup: str | int | float | None = ...,
    clip: float | None = ...,
    ema: float | None = ...,
    swa: str | int | float | None = ...,
    label_smoothing: float | None = ...,
    mixup: float | None = ...,
    cutmix: float | None = ...,
    dropout: float | None = ...,
    drop_path: float | None = ...,
    augment: str | Sequence[str] | None = ...,
    precision: Literal["fp32", "bf16"] | None = ...,
    steps: int | None = ...,
    epochs: int | None = ...,
    batch_size: int | None = ...,
    accumulate: int | None = ...,
    train: str | Sequence[str] | None = ...,
    last_blocks: int | None = ...,
    freeze_blocks: int | None = ...,
    reset_head: bool | None = ...,
    method: str | None = ...,
    eval_every: int | None = ...,
    early_stop: int | None = ...,
    patience_delta: float | None = ...,
    keep_best: bool | None = ...,
    batches: Literal["shared", "own"] | None = ...,
    teacher: str | Sequence[str] | None = ...,
    teacher_temperature: float | None = ...,
    teacher_weight: float | None = ...,
    gradient_checkpointing: bool | None = ...,
    compile: bool | None = ...,
    save_every: int | None = ...,
    seed: int | None = ...,
    order_seed: int | None = ...,
    dropout_seed: int | None = ...,
    head_seed: int | None = ...,
    num_classes: int | None = ...,
    pooling: Literal["own", "mean"] | None = ...,
    img_size: str | int | Sequence[str | int] | None = ...,
    mean: str | float | Sequence[str | float] | None = ...,
    std: str | float | Sequence[str | float] | None = ...,
    device: str | None = ...,
    num_workers: str | int | None = ...,
    skip_bad: bool | None = ...,
    arch: str | None = ...,
    force: bool | None = ...,
    wait: bool | None = ...,
    progress: Callable[[str], object] | Progress | None = ...,
) -> FinetuneReport:
    r"""Train a backbone, a base, a member or a hydra, and write it.

    Arguments are those of `hydractl finetune`, and read as it reads them; None is an option that is not given.

    Args:
        model: A checkpoint, a folder of timm, transformers or OpenCLIP (also `local-dir:PATH`), a Hub id `org/name[@revision]` (also `hf-hub:ID`), `arch:NAME[::K=V,...]` for random weights, or `-`.
        data: Labelled training data: digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME.
        val: Labelled validation data.
        out: Output file, or a folder: one that is there, or a name with a slash at its end. `-` is standard output.
        max_length: Tokens of a text at most; default: as many as the model reads.
        recipe: As in the paper, or as pretrained encoders are usually tuned; options override it.
        optimizer: Default: adamw.
        lr: Peak learning rate (default 1e-4 for adamw, 1e-2 for sgd); of several, the one that validates best.
        layer_decay: Each block trains at F times the rate of the one after it, e.g. 0.75.
        weight_decay: Of matrices only (default 0.01 for adamw, 0 for sgd).
        momentum: Of sgd only (default 0.9).
        schedule: After the warm-up (default: cosine).
        min_lr_rate: Where the schedule ends, as a fraction of the peak (default 0).
        warmup: Warm-up in steps, or as a fraction such as 0.05 (default).
        clip: Largest norm of the gradient.
        ema: Validate and keep a running mean of the weights that forgets so slowly, e.g. 0.999.
        swa: Validate and keep the mean of the weights at each epoch's end, from epoch N or fraction F of the steps on.
        label_smoothing: Share in [0, 1).
        mixup: Blend each image and its label with another's; weights are drawn of Beta(A, A), e.g. 0.8.
        cutmix: Paste a box of another image into each, labels by area; with --mixup, each batch has one of both.
        dropout: Share in [0, 1); default: as the architecture says.
        drop_path: Share of samples that skip the last block's attention, and its MLP; falls to 0 at the first.
        augment: flip, rrc, randaugment, shift; or none (default).
        precision: Default: fp32; bf16 computes under autocast.
        steps: Optimiser steps.
        epochs: Passes over the data (default 10).
        batch_size: Samples in one optimiser step, over all processes (default 64).
        accumulate: Compute each batch in N pieces, to save memory; the result is the same, but for which attention weights a text model drops.
        train: embed, norm, attention, mlp, readout, head; default: all. `own` leaves what members of a hydra share as it is.
        last_blocks: Only the last N blocks, readout and head.
        freeze_blocks: All but the first N blocks and the embedding: --last-blocks counted from below.
        reset_head: Start from a classifier of zeros, drawn with `--head-seed`; or insist on the model's own. Default: its own where it fits the data, else one drawn anew.
        method: Train otherwise than by changing every weight: lora-ensemble, singular-values, oba, batch-ensemble, mimo, packed; see docs/rivals.md.
        eval_every: Validate so often (default: every epoch).
        early_stop: Stop after N evaluations without improvement, and keep the best weights.
        patience_delta: With `--early-stop`: how much is an improvement (default 0).
        keep_best: Keep the weights that validated best, or the last (default).
        batches: Of a hydra without a trunk: all members see the same batches, or each has an order and augmentation of its own.
        teacher: Models to learn from: of a hydra member m learns from the m-th, or from a hydra's m-th member; any other model learns their mean.
        teacher_temperature: Divides logits before their softmaxes are compared (default 2).
        teacher_weight: Share of the loss, above 0 and at most 1, that teachers make; labels make the rest (default 0.9).
        gradient_checkpointing: Hold less for the backward pass, which runs each block's forward pass again: the same result in less memory, and a third more time.
        compile: Compile the model's part of a training step, as one graph: minutes at first, then faster. It rounds otherwise.
        save_every: Save what a killed run goes on from (default: every half minute, and every epoch).
        seed: Seed of everything random.
        order_seed: Seed of the order of the data and of augmentation (default: --seed).
        dropout_seed: Seed of dropout (default: --seed).
        head_seed: Seed of a classifier that is drawn anew (default: --seed).
        num_classes: Classes to tell apart (default: as many as the data have).
        pooling: What the classifier of a text model reads: what its family's does, or the mean over all tokens. Default: as the model or its folder says.
        img_size: Images of another size than the model says.
        mean: What is subtracted of each channel, where white is 1; default: as the model says.
        std: What it is divided by then; likewise.
        device: auto, cpu, cuda, cuda:N or mps.
        num_workers: Processes that decode and augment images, 0 for threads of this one; the result is the same. `auto` (default) takes some where images are many and cores too.
        skip_bad: Leave out images that cannot be read, and say how many. Each image is decoded once more.
        arch: Architecture of a bare .safetensors file.
        force: Replace an existing output, and start anew where an unfinished run could be gone on with.
        wait: Wait while another command makes the same output, rather than exit 6.
        progress: Hears what begins: a function of one text, or a `Progress`. Without it the stage is quiet, and warnings are those of Python's `warnings`.

    Returns:
        What the command tells with `--json`, as an object.

    Raises:
        HydraError: Whatever ends the command; `exit_code` is the command's.
        TypeError: If there is no such option.
    """

def fuse(
    models: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    mlp: Literal["merge", "keep"] | None = ...,
    merge_trunk: str | int | None = ...,
    max_loss: float | None = ...,
    force_merge: bool | None = ...,
    own_from: int | None = ...,
    data: str | Path | None = ...,
    temperature: str | Path | float | None = ...,
    fit: str | Path | None = ...,
    val: str | Path | None = ...,
    max_length: int | None = ...,
    batch_size: int | None = ...,
    num_workers: str | int | None = ...,
    device: str | None = ...,
    classes: str | Sequence[str] | None = ...,
    template: str | Sequence[str] | None = ...,
    seed: int | None = ...,
    verify: bool | None = ...,
    force: bool | None = ...,
    progress: Callable[[str], object] | Progress | None = ...,
) -> FuseReport:
    r"""Fuse members into one model that runs them all in a single forward pass, and write it.

    Arguments are those of `hydractl fuse`, and read as it reads them; None is an option that is not given.

    Args:
        models: Checkpoints, folders or Hub ids.
        out: Output file, or a folder: one that is there, or a name with a slash at its end. `-` is standard output.
        mlp: Average MLPs that differ, or keep each member's own (default: merge; with `--merge-trunk`: keep).
        merge_trunk: Average whatever differs before block L, the embedding too; it then runs once. `auto`: up to the last L that `--data` allow.
        max_loss: With `--merge-trunk auto`: how many nats of NLL merging may cost (default 0).
        force_merge: Average members whose lineage does not tell that one base is theirs.
        own_from: Let members own everything from block L on, and readout and head, even while it is equal: to train the hydra.
        data: Labelled data to measure on what merging did: digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME.
        temperature: Store a temperature, by which all logits are divided: fitted on this labelled held-out data, or this number.
        fit: Store the OOD score `energy+density`, fitted on this labelled training data. `predict` then uses it.
        val: Held-out ID data, not part of `--fit`, that the score is standardized on.
        max_length: Tokens of a text at most; default: as many as the model reads.
        batch_size: Samples in one forward pass (default 64).
        num_workers: Processes that decode and augment images, 0 for threads of this one; the result is the same. `auto` (default) takes some where images are many and cores too.
        device: auto (default), cpu, cuda, cuda:N or mps.
        classes: Classes of a zero-shot model: `a,b,c`, a file with one name a line, or a JSON list.
        template: What a class is asked with, holding `{label}`; give several to average. Default: "A photo of a {label}."
        seed: Seed of everything random.
        verify: Check the result on a seeded random batch before it is published.
        force: Replace an existing output.
        progress: Hears what begins: a function of one text, or a `Progress`. Without it the stage is quiet, and warnings are those of Python's `warnings`.

    Returns:
        What the command tells with `--json`, as an object.

    Raises:
        HydraError: Whatever ends the command; `exit_code` is the command's.
        TypeError: If there is no such option.
    """

def evaluate(
    model: str | Path,
    *,
    data: str | Path,
    near: str | Sequence[str] | None = ...,
    far: str | Sequence[str] | None = ...,
    compare: str | Sequence[str] | None = ...,
    temperature: str | Path | float | None = ...,
    corrupt: str | Sequence[str] | None = ...,
    fit: str | Path | None = ...,
    ood_val: str | Sequence[str] | None = ...,
    val: str | Path | None = ...,
    name: str | None = ...,
    metrics: str | Sequence[str] | None = ...,
    ood_score: str | Sequence[str] | None = ...,
    latency: bool | None = ...,
    bootstrap: int | None = ...,
    fail_if: str | Sequence[str] | None = ...,
    threshold_for: str | float | None = ...,
    delta: float | None = ...,
    store: str | Path | None = ...,
    out: str | Path | None = ...,
    curves: bool | None = ...,
    save_predictions: str | Path | None = ...,
    analyse: str | Sequence[str] | None = ...,
    scores: str | Sequence[str] | None = ...,
    max_length: int | None = ...,
    batch_size: int | None = ...,
    num_workers: str | int | None = ...,
    skip_bad: bool | None = ...,
    classes: str | Sequence[str] | None = ...,
    template: str | Sequence[str] | None = ...,
    device: str | None = ...,
    dtype: str | None = ...,
    arch: str | None = ...,
    seed: int | None = ...,
    force: bool | None = ...,
    progress: Callable[[str], object] | Progress | None = ...,
) -> EvalReport:
    r"""Measure accuracy, calibration, OOD detection, diversity and cost, of one model or of several.

    Arguments are those of `hydractl eval`, and read as it reads them; None is an option that is not given.

    Args:
        model: A checkpoint, a folder of timm, transformers or OpenCLIP (also `local-dir:PATH`), a Hub id `org/name[@revision]` (also `hf-hub:ID`), `arch:NAME[::K=V,...]` for random weights, or `-`.
        data: In-distribution data, with labels: digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME.
        near: OOD data close to it.
        far: OOD data far from it; also photos, noise, manual, letters.
        compare: One more row: a model, or an ensemble of several. `mc:MODEL::passes=N,rate=R` keeps dropout active, `laplace:MODEL::val=DATA,data=DATA` doubts the last layer, `bayesvlm:` a CLIP's projections, `vilu:` its answers, `swag:MODEL,MODEL,...` draws weights around checkpoints.
        temperature: Labelled held-out data to fit a temperature on, by which each row's logits are divided; or the temperature. On top of what a checkpoint stores.
        corrupt: Measure `--data` under this corruption too, at these severities of 1 to 5 (default all): `all`, or of images gaussian-noise, shot-noise, impulse-noise, defocus-blur, glass-blur, motion-blur, zoom-blur, snow, frost, fog, brightness, contrast, elastic, pixelate, jpeg; of texts typos, drop, swap, case. `frost=DIR` adds these photographs.
        fit: Labelled training data, which OOD scores of features are fitted on, for each model.
        ood_val: Validation OOD data: the report says which score is best there, so that none is chosen on `--near` and `--far`. Needs `--val`.
        val: Held-out ID data: `--ood-val` is told from them, and `energy+density` is standardized on them.
        name: What the first row is called.
        metrics: Measure these only.
        ood_score: What tells OOD samples, one or several side by side: msp, entropy, mi, msp+mi, energy, max-logit, gen, energy+density, relative-mahalanobis, mahalanobis, knn, vim. Those of features (energy+density, relative-mahalanobis, mahalanobis, knn, vim) need `--fit`, or checkpoints that hold them. Options follow the name: `relative-mahalanobis:alpha=0:normalize=false`, `knn:k=5`. Default: msp, and energy+density where all models hold it or `--fit` and `--val` are given.
        latency: Measure time too.
        bootstrap: Resamples for 95 % intervals; 0 makes none.
        fail_if: Exit 5 if this is so of MODEL, for example `ece>0.02`, `acc<95%`, `auroc[near]<0.9`, `acc[fog:3]<80%`.
        threshold_for: Find which inputs a row may answer, by its OOD score, so that at most the share R of these answers is wrong. `--data` must be held out. Exit 5 if MODEL cannot keep it.
        delta: The chance that the threshold does not keep it (default 0.05).
        store: Write a copy of MODEL that stores its threshold, its `--temperature` and OOD scores of features as fitted (`knn`: all features of `--fit`), which `predict` then applies.
        out: Report; `-` is standard output.
        curves: Keep what `hydractl report` draws too: curves, which heads stay, and the lineage.
        save_predictions: Keep all log-probabilities (safetensors), scaled by `--temperature`.
        analyse: Ask rows why they are as they are: proposition, centroids, pca, members, mlps, heads, taylor, or `all` for those that can be made.
        scores: What `score` said of the heads, for analyses by importance.
        max_length: Tokens of a text at most; default: as many as the model reads.
        batch_size: Samples in one forward pass.
        num_workers: Processes that decode and augment images, 0 for threads of this one; the result is the same. `auto` (default) takes some where images are many and cores too.
        skip_bad: Leave out images that cannot be read, and say how many. Each image is decoded once more.
        classes: Classes of a zero-shot model: `a,b,c`, a file with one name a line, or a JSON list.
        template: What a class is asked with, holding `{label}`; give several to average. Default: "A photo of a {label}."
        device: auto, cpu, cuda, cuda:N or mps.
        dtype: bf16, fp16 or fp32; default: as stored.
        arch: Architecture of a bare .safetensors file.
        seed: Seed of everything random.
        force: Replace an existing output.
        progress: Hears what begins: a function of one text, or a `Progress`. Without it the stage is quiet, and warnings are those of Python's `warnings`.

    Returns:
        What the command tells with `--json`, as an object.

    Raises:
        HydraError: Whatever ends the command; `exit_code` is the command's.
        TypeError: If there is no such option.
    """

def report(
    files: str | Path | Sequence[str | Path],
    *,
    over: Literal["seeds", "sets"] | None = ...,
    out: str | Path | None = ...,
    figures: str | Path | None = ...,
    force: bool | None = ...,
    progress: Callable[[str], object] | Progress | None = ...,
) -> ReportReport:
    r"""Make a page of what was measured, of one report or of several seeds, and write it.

    Arguments are those of `hydractl report`, and read as it reads them; None is an option that is not given.

    Args:
        files: What `hydractl eval -o` wrote; of several seeds one each. `-` is standard input.
        over: What several reports differ in: `seeds`, or `sets`, ID sets that a mean is taken over.
        out: The page: .html, or .md for pull requests and model cards; `-` is Markdown on standard output.
        figures: Write each figure into this folder too, as .png and .svg; a page of Markdown shows them.
        force: Replace an existing output.
        progress: Hears what begins: a function of one text, or a `Progress`. Without it the stage is quiet, and warnings are those of Python's `warnings`.

    Returns:
        What the command tells with `--json`, as an object.

    Raises:
        HydraError: Whatever ends the command; `exit_code` is the command's.
        TypeError: If there is no such option.
    """

def predict(
    model: str | Path,
    data: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    top_k: int | None = ...,
    ood_score: str | None = ...,
    fit: str | Path | None = ...,
    threshold: str | Path | float | None = ...,
    skip_bad: bool | None = ...,
    null: bool | None = ...,
    max_length: int | None = ...,
    classes: str | Sequence[str] | None = ...,
    template: str | Sequence[str] | None = ...,
    arch: str | None = ...,
    batch_size: int | None = ...,
    num_workers: str | int | None = ...,
    device: str | None = ...,
    dtype: str | None = ...,
    force: bool | None = ...,
    wait: bool | None = ...,
    progress: Callable[[str], object] | Progress | None = ...,
) -> PredictReport:
    r"""Write what a model says of every input, and how sure it is: a line an input.

    Arguments are those of `hydractl predict`, and read as it reads them; None is an option that is not given.

    Args:
        model: A checkpoint, a folder of timm, transformers or OpenCLIP (also `local-dir:PATH`), a Hub id `org/name[@revision]` (also `hf-hub:ID`), `arch:NAME[::K=V,...]` for random weights, or `-`.
        data: digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME; image files; folders may be nested and need no classes. `-`: standard input, a text or the path of an image a line. A name that holds `::` ends with it: `a::b.png::`.
        out: A file that ends in .jsonl, .csv, .parquet, which decides its form; by default standard output, as JSON lines.
        top_k: Tell the K most probable classes.
        ood_score: What tells OOD samples: msp, entropy, mi, msp+mi, energy, max-logit, gen; or energy+density, relative-mahalanobis, mahalanobis, knn, vim, where MODEL holds it (`fuse` or `eval` with `--fit TRAIN --val VAL`) or `--fit` is given. Options follow the name: `knn:k=5`. Default: energy+density where MODEL holds it, else msp.
        fit: Labelled training data, which OOD scores of features are fitted on, for each model.
        threshold: Accept inputs whose OOD score is below X, or as the REPORT of `eval --threshold-for` says; `none` accepts or refuses nothing. Default: as the checkpoint says.
        skip_bad: Tell of an image that cannot be read in its line, and go on.
        null: Standard input is texts or paths that end with a NUL byte, as `find -print0` writes them, not with the line.
        max_length: Tokens of a text at most; default: as many as the model reads.
        classes: Classes of a zero-shot model: `a,b,c`, a file with one name a line, or a JSON list.
        template: What a class is asked with, holding `{label}`; give several to average. Default: "A photo of a {label}."
        arch: Architecture of a bare .safetensors file.
        batch_size: Samples in one forward pass.
        num_workers: Processes that decode and augment images, 0 for threads of this one; the result is the same. `auto` (default) takes some where images are many and cores too.
        device: auto, cpu, cuda, cuda:N or mps.
        dtype: bf16, fp16 or fp32; default: as stored.
        force: Replace an existing output, and start anew where an unfinished run could be gone on with.
        wait: Wait while another command makes the same output, rather than exit 6.
        progress: Hears what begins: a function of one text, or a `Progress`. Without it the stage is quiet, and warnings are those of Python's `warnings`.

    Returns:
        What the command tells with `--json`, as an object.

    Raises:
        HydraError: Whatever ends the command; `exit_code` is the command's.
        TypeError: If there is no such option.
    """

def export(
    model: str | Path,
    *,
    out: str | Path,
    with_preprocess: bool | None = ...,
    quantize: Literal["int8"] | None = ...,
    data: str | None = ...,
    ood: str | None = ...,
    tolerance: float | None = ...,
    report: str | Path | None = ...,
    batch_size: int | None = ...,
    num_workers: str | int | None = ...,
    classes: str | Sequence[str] | None = ...,
    template: str | Sequence[str] | None = ...,
    arch: str | None = ...,
    seed: int | None = ...,
    force: bool | None = ...,
    progress: Callable[[str], object] | Progress | None = ...,
) -> ExportReport:
    r"""Export a base, a member or a hydra for runtimes that know neither hydractl nor its libraries.

    Arguments are those of `hydractl export`, and read as it reads them; None is an option that is not given.

    Args:
        model: A checkpoint, a folder of timm, transformers or OpenCLIP (also `local-dir:PATH`), a Hub id `org/name[@revision]` (also `hf-hub:ID`), `arch:NAME[::K=V,...]` for random weights, or `-`.
        out: Output file: `.onnx` for ONNX, `.pt2` for a program of torch.export.
        with_preprocess: For images: take uint8 pixels (B, height, width, channels) of any size; resize, crop and normalise are in the graph.
        quantize: For ONNX: weights and what they are multiplied with as whole numbers of 8 bits. Needs `--data`, on which the effect is measured.
        data: Labelled data, on which the exported model is compared and measured too: digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME.
        ood: OOD data, to measure the AUROC with; also photos, noise, manual, letters.
        tolerance: Exit 5, and write nothing, if an output of the exported model is further from the model's own, relative to the largest value where that is above 1.
        report: Write what was measured on `--data`, as `eval` reports it.
        batch_size: Samples in one forward pass.
        num_workers: Processes that decode and augment images, 0 for threads of this one; the result is the same. `auto` (default) takes some where images are many and cores too.
        classes: Classes of a zero-shot model: `a,b,c`, a file with one name a line, or a JSON list.
        template: What a class is asked with, holding `{label}`; give several to average. Default: "A photo of a {label}."
        arch: Architecture of a bare .safetensors file.
        seed: Seed of the random inputs.
        force: Replace an existing output.
        progress: Hears what begins: a function of one text, or a `Progress`. Without it the stage is quiet, and warnings are those of Python's `warnings`.

    Returns:
        What the command tells with `--json`, as an object.

    Raises:
        HydraError: Whatever ends the command; `exit_code` is the command's.
        TypeError: If there is no such option.
    """

def push(
    model: str | Path,
    repository: str | Path,
    *,
    report: str | Path | None = ...,
    base_model: str | None = ...,
    license: str | None = ...,
    private: bool | None = ...,
    revision: str | None = ...,
    create_pr: bool | None = ...,
    commit_message: str | None = ...,
    max_shard_size: str | int | None = ...,
    dry_run: bool | None = ...,
    arch: str | None = ...,
    progress: Callable[[str], object] | Progress | None = ...,
) -> PushReport:
    r"""Push a base, a member or a hydra to the Hub, with its card, in one commit or none.

    Arguments are those of `hydractl push`, and read as it reads them; None is an option that is not given.

    Args:
        model: A checkpoint, a folder of timm, transformers or OpenCLIP (also `local-dir:PATH`), a Hub id `org/name[@revision]` (also `hf-hub:ID`), `arch:NAME[::K=V,...]` for random weights, or `-`.
        repository: The repository on the Hub; made where there is none.
        report: What `eval` measured of the model, for its card.
        base_model: Hub id of the model that it was made from.
        license: Licence of the base, as the Hub calls it: apache-2.0, mit, cc-by-4.0, ...
        private: Make the repository private; refuse one that is public.
        revision: The branch; made where there is none.
        create_pr: Open a pull request, and leave the branch as it is.
        commit_message: What the commit says.
        max_shard_size: The most bytes of a file of weights; a larger model is cut into shards (default 5GB).
        dry_run: Show the files and the card; ask the Hub nothing, and change nothing.
        arch: Architecture of a bare .safetensors file.
        progress: Hears what begins: a function of one text, or a `Progress`. Without it the stage is quiet, and warnings are those of Python's `warnings`.

    Returns:
        What the command tells with `--json`, as an object.

    Raises:
        HydraError: Whatever ends the command; `exit_code` is the command's.
        TypeError: If there is no such option.
    """
