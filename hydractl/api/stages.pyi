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
    ood: str | None = ...,
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
    log_to: str | Sequence[str] | None = ...,
    log_dir: str | Path | None = ...,
    compile: bool | None = ...,
    force: bool | None = ...,
    wait: bool | None = ...,
    progress: Callable[[str], object] | Progress | None = ...,
) -> ScoreReport:
    r"""Score how much each attention head matters, and write a scores file.

    Arguments are those of `hydractl score`, and read as it reads them; None is an option that is not given.

    Args:
        model: A checkpoint, a folder of timm, transformers or OpenCLIP, a Hub id `org/name[@revision]`, `arch:NAME[::K=V,...]` (random weights), or `-` (standard input).
        out: Output file, or `-` for standard output.
        method: Scoring method. circuit: greedy removal by an objective on validation data; taylor: |weight × gradient| of q, k and v; michel: mean |∂loss/∂gate| of heads (Michel et al. 2019); gnorm: greedy removal by gradient norms of q, k and v (Greedy-Gnorm); hies: michel and entropy of attention (HIES); headmap: loss increase when a head is masked (HeadMap); cahp: one head of each group of similar heads; finds their number (CAHP); l0: gates closed by a penalty (Voita et al. 2019); dsp: gates of which K stay open (Li et al. 2021); magnitude: mean |weight|, a control; random: random scores, a control.
        data: Labelled data (validation data for circuits): digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME.
        limit: Use N random samples of `--data` (default: all; hies: 32).
        max_length: Truncate texts to N tokens (default: the model's maximum).
        objective: Objective to maximise: acc, ood (AUROC), avg of both (default), nll, ece, fpr95, or a sum such as `acc-0.1*nll`.
        ood_score: OOD score of the objective: msp, entropy, energy, max-logit, gen (default: msp).
        search: Evaluate every head at each removal (exact, default) or only promising ones (lazy).
        recheck: lazy: evaluate every head at each N-th removal (default: 24).
        max_memory: Memory for activations, for example 2GiB or 512MB (default: as the device allows); results change by rounding only.
        doubt: lazy: skip heads with an expected gain below X times the initial spread (default: 0.5; 0 skips none).
        swaps: lazy: try up to N swaps of removed and kept heads at the end (default: the number of removed heads).
        scope: Score layers one after another without heads removed before (default), or all at once.
        variant: Score by Σ|w g| (default) or (Σ w g)² per batch.
        form: michel: take absolute gradients per sample (default) or per batch.
        recompute: michel: remove N heads at a time and score again (default: 0, score once).
        normalize: Divide scores by the norm of their layer or the RMS of their tower (default: layer for michel, else none).
        alpha: hies: weight of importance against entropy (default: 0.5).
        samples: headmap: use the N samples with the lowest loss (default: 64).
        training: Train gates with frozen weights (pipelined, default) or together with them (joint).
        epochs: Passes over the data (default: 3; for dsp with frozen weights 1).
        gate_lr: Learning rate of the gates (default: 0.1 for l0, 0.5 for dsp).
        weights_lr: Learning rate of the weights, for `--training joint` (default: 2e-5).
        penalty: l0: penalty of an open gate; more closes more heads (default: 0.0015).
        estimator: dsp: soft gates that harden (default), or hard gates with a straight-through gradient (ste).
        temperature: dsp: initial temperature; falls to 1e-8 (default: 1000).
        cooldown: dsp: fraction of the steps in which the temperature falls (default: 2/3).
        trained: Write the weights trained by `--training joint` to PATH; scores are of this base.
        degree: Degree of the polynomial that smooths the silhouettes (default: 6).
        representative: Keep the most salient head of each group (default) or its medoid.
        embedding: Group heads after t-SNE (default) or by their class profiles.
        perplexity: Perplexity of t-SNE (default: 10).
        signature_size: Resize attention maps to N x N (default: 32).
        salience_share: Compute salience on this fraction of the batches (default: 0.25).
        ood: OOD validation data, for circuits with objective avg, ood or fpr95.
        keep: Keep N heads per layer, on average over the model.
        remove: Remove R heads in total.
        keep_fraction: Keep the fraction F of all heads (default: 2/3).
        towers: Score only the heads of these towers: text, vision (default: both).
        classes: Class names of a zero-shot model: `a,b,c`, a file with one name per line, or a JSON list.
        template: Prompt with `{label}` for the class name; give several to average (default: "A photo of a {label}.").
        seed: Random seed.
        arch: Architecture of a bare .safetensors file.
        batch_size: Samples per forward pass.
        num_workers: Processes that decode and augment images; 0 uses threads. Default: auto.
        device: Device: auto, cpu, cuda, cuda:N or mps.
        dtype: Data type of the weights: bf16, fp16 or fp32 (default: as stored).
        log_to: Log figures and options to experiment trackers: tensorboard, wandb, mlflow, trackio; may be repeated.
        log_dir: Folder that tensorboard and wandb write to (default: the output's name with `.logs`).
        compile: Compile the blocks, for circuit: takes minutes at first, then runs faster; results change by rounding only.
        force: Overwrite existing output and discard an unfinished run.
        wait: Wait while another command writes the same output, instead of exiting with 6.
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
        model: A checkpoint, a folder of timm, transformers or OpenCLIP, a Hub id `org/name[@revision]`, `arch:NAME[::K=V,...]` (random weights), or `-` (standard input).
        out: Output file, an existing folder, a new folder (`NAME/`), or `-` for standard output.
        scores: Scores of heads, or `-` for standard input; several make one member each.
        mask: Head mask to use instead of scores; several make one member each.
        keep: Keep N heads per layer, on average over the model; auto takes the number from the scores.
        remove: Remove R heads in total.
        keep_fraction: Keep the fraction F of all heads.
        per_layer: Keep exactly N heads in every layer, with `--keep N`.
        strategy: How to choose heads. best: the heads with the highest scores; sample: without random heads of the pool; objectives: one member per scores file; clusters: one head of each cluster, the j-th best for member j; random: random heads, a control; diverse: the samples that disagree most on data (default: as other options imply).
        members: Number of members.
        pool: Sample from the P heads with the lowest scores, for strategies sample and diverse.
        diverge_from: Give members equal heads before this layer, which then runs once in a hydra.
        data: Labelled validation data to compare members on: digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME.
        ood: OOD validation data, if the objective of the scores needs it.
        candidates: Number of masks to choose from (default: 32).
        diversity: Maximise mutual information (default), pairwise disagreement, or nothing (a control).
        batch_size: Samples per forward pass (default: 64).
        num_workers: Processes that decode and augment images; 0 uses threads. Default: auto.
        device: Device: auto (default), cpu, cuda, cuda:N or mps.
        max_length: Truncate texts to N tokens (default: the model's maximum).
        classes: Class names of a zero-shot model: `a,b,c`, a file with one name per line, or a JSON list.
        template: Prompt with `{label}` for the class name; give several to average (default: "A photo of a {label}.").
        seed: Random seed.
        arch: Architecture of a bare .safetensors file.
        dtype: Data type of the weights: bf16, fp16 or fp32 (default: as stored).
        verify: Check the output on a random batch before writing it.
        force: Overwrite existing output.
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
    log_to: str | Sequence[str] | None = ...,
    log_dir: str | Path | None = ...,
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
        model: A checkpoint, a folder of timm, transformers or OpenCLIP, a Hub id `org/name[@revision]`, `arch:NAME[::K=V,...]` (random weights), or `-` (standard input).
        data: Labelled training data: digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME.
        val: Labelled validation data.
        out: Output file, an existing folder, a new folder (`NAME/`), or `-` for standard output.
        max_length: Truncate texts to N tokens (default: the model's maximum).
        recipe: Start from a named recipe (docs/tuning.md); other options override it.
        optimizer: Optimiser (default: adamw).
        lr: Peak learning rate (default: 1e-4 for adamw, 1e-2 for sgd); several are tried and the best is kept.
        layer_decay: Multiply the learning rate of each block by F relative to the next, for example 0.75.
        weight_decay: Weight decay of matrices (default: 0.01; sgd: 0).
        momentum: Momentum of sgd (default: 0.9).
        schedule: Learning rate schedule after the warm-up (default: cosine).
        min_lr_rate: Final learning rate as a fraction of the peak (default: 0).
        warmup: Warm-up in steps, or as a fraction of all steps (default: 0.05).
        clip: Clip gradients to this norm.
        ema: Validate and save an exponential moving average of the weights, for example with decay 0.999.
        swa: Validate and save the mean of the weights at each epoch's end, from epoch N or fraction F of the steps.
        label_smoothing: Label smoothing (default: 0).
        mixup: Mixup: blend pairs of images and labels with weights from Beta(A, A), for example 0.8.
        cutmix: CutMix: paste boxes with areas from Beta(A, A); with `--mixup`, each batch uses one of both.
        dropout: Dropout rate, in [0, 1) (default: the architecture's).
        drop_path: Stochastic depth rate of the last block; falls linearly to 0 at the first.
        augment: Augmentations: flip, rrc, randaugment, shift, or none (default).
        precision: Precision under autocast (default: fp32).
        steps: Optimiser steps, instead of epochs.
        epochs: Passes over the data (default: 10).
        batch_size: Samples per optimiser step, over all processes (default: 64).
        accumulate: Split each batch into N forward passes to save memory.
        train: Parts to train: embed, norm, attention, mlp, readout, head (default: all); `own` freezes what members of a hydra share.
        last_blocks: Train only the last N blocks, readout and head.
        freeze_blocks: Freeze the embedding and the first N blocks.
        reset_head: Replace the classifier, or refuse to (default: replace one that does not fit the data).
        method: Train by another method: lora-ensemble, singular-values, oba, batch-ensemble, mimo, packed (docs/rivals.md).
        eval_every: Steps between validations (default: one epoch).
        early_stop: Stop after N validations without improvement and keep the best weights.
        patience_delta: Smallest improvement that counts for `--early-stop` (default: 0).
        keep_best: Keep the weights that validate best, or the last (default).
        batches: Give all members the same batches, or each its own order and augmentation, which needs a hydra without a trunk.
        teacher: Models to distil: member m of a hydra learns from the m-th, any other model from their mean.
        teacher_temperature: Temperature of the distillation loss (default: 2).
        teacher_weight: Weight of the distillation loss, in (0, 1]; labels have the rest (default: 0.9).
        gradient_checkpointing: Recompute activations in the backward pass: less memory, a third more time, the same result.
        compile: Compile the training step: takes minutes at first, then runs faster; rounds differently.
        log_to: Log figures and options to experiment trackers: tensorboard, wandb, mlflow, trackio; may be repeated.
        log_dir: Folder that tensorboard and wandb write to (default: the output's name with `.logs`).
        save_every: Steps between saves of the state to resume from (default: 30 s, and each epoch).
        seed: Random seed.
        order_seed: Seed of data order and augmentation (default: `--seed`).
        dropout_seed: Seed of dropout (default: `--seed`).
        head_seed: Seed of a new classifier (default: `--seed`).
        num_classes: Number of classes (default: that of the data).
        pooling: Pooling before the classifier of a text model: its family's own, or the mean over all tokens (default: as the model says).
        img_size: Image size in pixels (default: the model's).
        mean: Mean of each channel, with white as 1 (default: the model's).
        std: Standard deviation of each channel (default: the model's).
        device: Device: auto, cpu, cuda, cuda:N or mps.
        num_workers: Processes that decode and augment images; 0 uses threads. Default: auto.
        skip_bad: Skip unreadable images and report how many; decodes each image twice.
        arch: Architecture of a bare .safetensors file.
        force: Overwrite existing output and discard an unfinished run.
        wait: Wait while another command writes the same output, instead of exiting with 6.
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
        models: Members: checkpoints, folders or Hub ids of one architecture.
        out: Output file, an existing folder, a new folder (`NAME/`), or `-` for standard output.
        mlp: Average MLPs that differ, or keep those of each member (default: merge; with `--merge-trunk`: keep).
        merge_trunk: Average all that differs before block L, which then runs once; auto finds the largest L on `--data`.
        max_loss: Highest cost of `--merge-trunk auto`, in nats of NLL (default: 0).
        force_merge: Average members even if their lineage does not show a common base.
        own_from: Copy block L and all that follows for each member even if equal, to train the hydra further.
        data: Measure the effect of merging on labelled data: digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME.
        temperature: Store a temperature: a number, or fitted on labelled held-out data.
        fit: Fit the OOD score `energy+density` on labelled training data and store it, for `predict`.
        val: Held-out ID data to standardize the OOD score on, apart from `--fit`.
        max_length: Truncate texts to N tokens (default: the model's maximum).
        batch_size: Samples per forward pass (default: 64).
        num_workers: Processes that decode and augment images; 0 uses threads. Default: auto.
        device: Device: auto (default), cpu, cuda, cuda:N or mps.
        classes: Class names of a zero-shot model: `a,b,c`, a file with one name per line, or a JSON list.
        template: Prompt with `{label}` for the class name; give several to average (default: "A photo of a {label}.").
        seed: Seed of the batch for `--verify`.
        verify: Check the output on a random batch before writing it.
        force: Overwrite existing output.
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
    guarantee: Literal["errors-among-accepted", "accepted-and-wrong"] | None = ...,
    delta: float | None = ...,
    store: str | Path | None = ...,
    out: str | Path | None = ...,
    curves: bool | None = ...,
    keep_examples: int | None = ...,
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
        model: A checkpoint, a folder of timm, transformers or OpenCLIP, a Hub id `org/name[@revision]`, `arch:NAME[::K=V,...]` (random weights), or `-` (standard input).
        data: Labelled test data: digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME.
        near: Near OOD data.
        far: Far OOD data; also photos, noise, manual, letters.
        compare: Add a row: a model, an ensemble of several models, or a baseline `KIND:MODEL[::K=V,...]` of kind mc, laplace, swag, bayesvlm, vilu (docs/rivals.md).
        temperature: Fit a temperature for each row on labelled held-out data, or use the number; on top of a stored one.
        corrupt: Also measure `--data` under a corruption, at severities 1 to 5 (default: all five). `all`; for images gaussian-noise, shot-noise, impulse-noise, defocus-blur, glass-blur, motion-blur, zoom-blur, snow, frost, fog, brightness, contrast, elastic, pixelate, jpeg (`frost=DIR`: its photographs); for texts typos, drop, swap, case.
        fit: Labelled training data to fit feature-based OOD scores on, for each model.
        ood_val: Validation OOD data, to find the best OOD score on other data than `--near` and `--far`; needs `--val`.
        val: Held-out ID data for `--ood-val` and to standardize `energy+density`.
        name: Name of the first row (default: its file's).
        metrics: Measure only these: accuracy, brier, nll, ece, adaptive_ece, mutual_information, disagreement, entropy, auroc, fpr95, aupr, aupr_in, aupr_out_trapezoid, aupr_in_trapezoid, temperature, parameters, macs, macs_textbook, training_macs, latency_ms, latency_batch_ms.
        ood_score: OOD scores, with options as in `knn:k=5`: msp, entropy, mi, msp+mi, energy, max-logit, gen; with `--fit`, or if models store them: energy+density, relative-mahalanobis, mahalanobis, knn, vim. Default: msp, and energy+density if stored, or with `--fit` and `--val`.
        latency: Measure latency.
        bootstrap: Resamples for 95 % intervals; 0 for none.
        fail_if: Exit with 5 if the condition holds for MODEL, for example `acc<95%` or `auroc[near]<0.9`.
        threshold_for: Find a threshold of the OOD score with at most the fraction R of errors below, on held-out `--data`, or exit with 5.
        guarantee: What R bounds: errors among accepted inputs, with probability 1 - D; or inputs that are accepted and wrong, among all inputs, on average (default: errors-among-accepted).
        delta: Probability that the threshold breaks the promise (default: 0.05).
        store: Write a copy of MODEL with its threshold, `--temperature` and fitted OOD scores, which `predict` applies.
        out: Report in JSON, or `-` for standard output.
        curves: Keep curves, accuracy by class, head maps and lineage in the report, which the page of `hydractl report` shows.
        keep_examples: Keep the N inputs with most disagreement and the N most confident mistakes in the report; `push` omits them.
        save_predictions: Write all log-probabilities, scaled by `--temperature`, as safetensors.
        analyse: Analyse the rows: proposition, centroids, pca, members, mlps, heads, taylor, or `all` that apply (docs/analysis.md).
        scores: Scores of heads, for analyses that read them.
        max_length: Truncate texts to N tokens (default: the model's maximum).
        batch_size: Samples per forward pass.
        num_workers: Processes that decode and augment images; 0 uses threads. Default: auto.
        skip_bad: Skip unreadable images and report how many; decodes each image twice.
        classes: Class names of a zero-shot model: `a,b,c`, a file with one name per line, or a JSON list.
        template: Prompt with `{label}` for the class name; give several to average (default: "A photo of a {label}.").
        device: Device: auto, cpu, cuda, cuda:N or mps.
        dtype: Data type of the weights: bf16, fp16 or fp32 (default: as stored).
        arch: Architecture of a bare .safetensors file.
        seed: Seed of resamples and corruptions.
        force: Overwrite existing output.
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
        files: Reports of `eval`, one per seed, or `-` for standard input.
        over: Treat several reports as `seeds` of one experiment or as data `sets` to average over.
        out: Page in .html or .md, or `-` for Markdown on standard output.
        figures: Write each figure as .png and .svg to this folder; a Markdown page links them.
        force: Overwrite existing output.
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
        model: A checkpoint, a folder of timm, transformers or OpenCLIP, a Hub id `org/name[@revision]`, `arch:NAME[::K=V,...]` (random weights), or `-` (standard input).
        data: Image files, digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME; `-` reads a text or an image path per line from standard input.
        out: Output file in .jsonl, .csv, .parquet (default: JSON lines on standard output).
        top_k: Number of most probable classes to list.
        ood_score: OOD score, with options as in `knn:k=5`: msp, entropy, mi, msp+mi, energy, max-logit, gen; with `--fit`, or if MODEL stores it: energy+density, relative-mahalanobis, mahalanobis, knn, vim. Default: energy+density if stored, else msp.
        fit: Labelled training data to fit feature-based OOD scores on, for each model.
        threshold: Accept inputs with an OOD score below X, or below the threshold in the REPORT of `eval`; none ignores a stored threshold (default: the stored one).
        skip_bad: Report unreadable images in their lines and continue.
        null: Separate items of standard input by NUL bytes, as `find -print0` writes them.
        max_length: Truncate texts to N tokens (default: the model's maximum).
        classes: Class names of a zero-shot model: `a,b,c`, a file with one name per line, or a JSON list.
        template: Prompt with `{label}` for the class name; give several to average (default: "A photo of a {label}.").
        arch: Architecture of a bare .safetensors file.
        batch_size: Samples per forward pass.
        num_workers: Processes that decode and augment images; 0 uses threads. Default: auto.
        device: Device: auto, cpu, cuda, cuda:N or mps.
        dtype: Data type of the weights: bf16, fp16 or fp32 (default: as stored).
        force: Overwrite existing output and discard an unfinished run.
        wait: Wait while another command writes the same output, instead of exiting with 6.
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
        model: A checkpoint, a folder of timm, transformers or OpenCLIP, a Hub id `org/name[@revision]`, `arch:NAME[::K=V,...]` (random weights), or `-` (standard input).
        out: Output file: .onnx for ONNX, .pt2 for torch.export.
        with_preprocess: Include image preprocessing: the model takes uint8 pixels (B, height, width, channels) of any size.
        quantize: Quantize weights and activations of ONNX to 8 bits and measure the effect on `--data`.
        data: Also compare and measure the exported model on labelled data: digits, shapes, reviews, intents, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME.
        ood: OOD data to measure AUROC on; also photos, noise, manual, letters.
        tolerance: Exit with 5 if outputs differ from the model's by more than X, relative to the largest value if above 1.
        report: Write a report of the measurement on `--data`, as `eval` does.
        batch_size: Samples per forward pass.
        num_workers: Processes that decode and augment images; 0 uses threads. Default: auto.
        classes: Class names of a zero-shot model: `a,b,c`, a file with one name per line, or a JSON list.
        template: Prompt with `{label}` for the class name; give several to average (default: "A photo of a {label}.").
        arch: Architecture of a bare .safetensors file.
        seed: Seed of random inputs.
        force: Overwrite existing output.
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
        model: A checkpoint, a folder of timm, transformers or OpenCLIP, a Hub id `org/name[@revision]`, `arch:NAME[::K=V,...]` (random weights), or `-` (standard input).
        repository: Hub repository; created if it does not exist.
        report: Report of `eval` to put on the card.
        base_model: Hub id of the model that this one was made from.
        license: Licence of the base by its Hub id, for example apache-2.0, mit or cc-by-4.0.
        private: Create a private repository; refuse a public one.
        revision: Branch; created if it does not exist.
        create_pr: Open a pull request instead of committing to the branch.
        commit_message: Commit message.
        max_shard_size: Largest size of a weights file; a larger model is sharded (default: 5GB).
        dry_run: Print the files and the card without contacting the Hub.
        arch: Architecture of a bare .safetensors file.
        progress: Hears what begins: a function of one text, or a `Progress`. Without it the stage is quiet, and warnings are those of Python's `warnings`.

    Returns:
        What the command tells with `--json`, as an object.

    Raises:
        HydraError: Whatever ends the command; `exit_code` is the command's.
        TypeError: If there is no such option.
    """
