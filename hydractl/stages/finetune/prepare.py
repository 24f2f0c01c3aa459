"""What `finetune` knows before it computes anything: every check that headers and labels allow."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from hydractl import progress
from hydractl.checkpoint import Checkpoint
from hydractl.data.datasets import Items, TextSet
from hydractl.data.encode import Reading, check_augment, check_reads, limited, open_items, shortened
from hydractl.data.labels import (
    check_labels,
    check_training_labels,
    filled_names,
    first_names,
    match_classes,
    model_labels,
    nameless,
    names_agree,
    names_all,
    new_names,
)
from hydractl.data.reference import folded
from hydractl.data.words import by_word, check_answerable
from hydractl.errors import DataError, UsageError
from hydractl.families.base import DEFAULT_POOLING, Described, Family, answering, place_of
from hydractl.families.finite import warn_temperature
from hydractl.families.load import (
    CLASSES,
    OpenModel,
    asked_number,
    check_tensors,
    open_model,
    with_classifier,
)
from hydractl.fusion.hydra import member_headers, stored_specs
from hydractl.fusion.plan import join_members
from hydractl.manifest.document import pack
from hydractl.manifest.header import Fate, Header, InputFile, SampledFile, Tokenization
from hydractl.manifest.tokenizers import with_leading_blank
from hydractl.messages import counted
from hydractl.plugins import load
from hydractl.prediction.class_names import POOLED
from hydractl.prediction.open_inputs import (
    check_takes,
    identified,
    overlap,
    override_preprocessing,
    warn_assumed,
)
from hydractl.provenance.output import Output
from hydractl.runtime import pick_device
from hydractl.settings import long_option
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.teachers import check_teachers, open_teachers
from hydractl.stages.finetune.trainable import TrainableModel, Training
from hydractl.tasks import SINGLE_LABEL, Task
from hydractl.training.dropout import HAS_LAYERS_FOR
from hydractl.training.feeding import Mixing
from hydractl.training.optimizers import reset_head, trainable
from hydractl.training.recipe import FOR_IMAGES, PARTS, RECIPES, Recipe
from hydractl.training.trainer import keeps_statistics

MAX_SHOWN = 5


def fitted(config: FinetuneConfig, opened: OpenModel, items: Items) -> OpenModel:
    """Return a model whose classifier tells apart the classes of the data.

    Its own stays where it counts as many classes, knows their names or has none itself, and reads what is asked for.

    Raises:
        UsageError: If options contradict the model or one another.
        DataError: If the data have more classes than were asked for, or do not fit a classifier that is to be kept.
    """
    before, pooling = opened.header.architecture, _pooling(config, opened, items)
    reads_as_asked = not opened.lacks and pooling == (before.pooling or DEFAULT_POOLING)
    if config.recipe.reset_head is False:
        _check_kept(config, opened, items, reads_as_asked=reads_as_asked)
        _check_fits(config, opened, items)
        return opened
    number = _number(config, opened, items)
    fits = (
        reads_as_asked
        and number == before.num_classes
        and items.task is before.task
        and names_agree(items, opened.header.labels, number)
    )
    draws_anew = config.head_seed is not None and (config.recipe.reset_head or opened.is_random)
    if config.recipe.trains_own_parts and (config.recipe.reset_head or not fits) and _shares_head(opened):
        raise UsageError(
            f"`--train own`: members of {config.model} share their classifier, so a new one would not be trained",
            hint="leave out `own`, or fuse with `--own-from`",
        )
    if fits and not draws_anew:
        if config.head_seed is not None:
            raise UsageError(
                f"`--head-seed {config.head_seed}` has no effect: {config.model} already has a classifier",
                hint="leave `--head-seed` out, or add `--reset-head` for a new classifier",
            )
        if config.recipe.reset_head and not opened.is_random:
            progress.step("A classifier of zeros in place of the model's own")
        return opened
    if "head" not in config.recipe.parts and not opened.is_random:
        raise UsageError(
            f"{config.model} gets a new classifier, which `--train {','.join(config.recipe.train)}` does not train",
            hint="add `head` to `--train`",
        )
    if not (fits and opened.is_random):
        progress.step(_classifier_text(opened, number, items, fits=fits))
    labels = opened.header.labels if fits else new_names(items.class_names, number)
    header = _answering(opened.header, items.task)
    return _with_classifiers(
        replace(opened, header=header), config, number=number, labels=labels, pooling=pooling
    )


def _with_classifiers(
    opened: OpenModel,
    config: FinetuneConfig,
    *,
    number: int,
    labels: tuple[str, ...],
    pooling: str,
) -> OpenModel:
    """Return a model with a new classifier; members of a hydra that have one each get one each, of seeds one after another."""
    plan = opened.header.plan
    members = [
        with_classifier(
            replace(opened, header=member_header),
            number,
            labels=labels,
            seed=config.seed + i,
            head_seed=None if config.head_seed is None else config.head_seed + i,
            pooling=pooling,
        )
        for i, member_header in enumerate(member_headers(opened.header))
    ]
    if plan is None:
        return members[0]
    first, specs = members[0], opened.checkpoint.specs
    fates = {name: plan.fates.get(name, Fate.GROUPED) for name in first.checkpoint.specs}
    drawn_fates = {
        n: f for n, f in fates.items() if n not in specs or place_of(opened.family, n).part == "head"
    }
    states = [{name: member.checkpoint.tensor(name) for name in drawn_fates} for member in members]
    fresh = Checkpoint.of(join_members(opened.family, drawn_fates, states))
    kept_checkpoint = replace(
        opened.checkpoint, specs={n: s for n, s in specs.items() if n in fates and n not in drawn_fates}
    )
    changes = {
        "architecture": first.header.architecture,
        "labels": labels,
        "plan": plan.model_copy(update={"fates": fates}),
    }
    return replace(
        opened, checkpoint=kept_checkpoint.joined(fresh), header=opened.header.model_copy(update=changes)
    )


def _answering(header: Header, task: Task) -> Header:
    """Return a header whose model answers a task."""
    described = answering(Described(architecture=header.architecture, preprocess=header.preprocess), task)
    how = described.preprocess
    if task.by_word and not header.architecture.task.by_word and isinstance(how, Tokenization):
        how = how.model_copy(update={"tokenizer": how.tokenizer and with_leading_blank(how.tokenizer)})
    return header.model_copy(update={"architecture": described.architecture, "preprocess": how})


def _shares_head(opened: OpenModel) -> bool:
    """Return whether it is a hydra with one classifier for all members."""
    plan, family = opened.header.plan, opened.family
    return plan is not None and not any(
        fate == Fate.GROUPED and place_of(family, name).part == "head" for name, fate in plan.fates.items()
    )


def _pooling(config: FinetuneConfig, opened: OpenModel, items: Items) -> str:
    """Return what the classifier is to read: what was asked for, or the folder says, or the model has."""
    header = opened.header
    if items.task.by_word:
        if config.pooling not in {None, DEFAULT_POOLING}:
            raise UsageError(
                f"`--pooling {config.pooling}`: each word has a label, so its classifier pools nothing",
                hint="leave `--pooling` out",
            )
        return DEFAULT_POOLING
    if config.pooling is not None:
        if config.pooling != DEFAULT_POOLING and not isinstance(header.preprocess, Tokenization):
            raise UsageError(
                f"`--pooling {config.pooling}` is for texts, but {config.model} reads images",
                hint="leave it out; an image model uses the pooling of its family",
            )
        return config.pooling
    if opened.pools is not None and config.recipe.reset_head is not False:
        progress.step(POOLED.format(pooling=opened.pools))
        return opened.pools
    return header.architecture.pooling or DEFAULT_POOLING


def _check_kept(config: FinetuneConfig, opened: OpenModel, items: Items, *, reads_as_asked: bool) -> None:
    """Refuse to keep a classifier that is not there, or is not the one that was asked for or the data need."""
    task, number = opened.header.architecture.task, opened.header.architecture.num_classes
    if task is not items.task:
        raise UsageError(
            f"`--keep-head`: `--data {items.name}` has {items.task.labels}, but {config.model} answers {task.labels}",
            hint="leave `--keep-head` out for a new classifier",
        )
    if opened.lacks:
        raise UsageError(f"`--keep-head`: {config.model} {opened.lacks}", hint="leave `--keep-head` out")
    if not reads_as_asked:
        raise UsageError(
            f"`--keep-head`: the classifier of {config.model} does not fit `--pooling {config.pooling}`",
            hint="leave one of them out",
        )
    if config.num_classes not in {None, number}:
        raise UsageError(
            f"`--keep-head`: the classifier of {config.model} has {number} classes, not {config.num_classes}",
            hint="leave `--keep-head` or `--num-classes` out",
        )


def _check_fits(config: FinetuneConfig, opened: OpenModel, items: Items) -> None:
    """Refuse data whose classes are not those of the classifier that is to be kept.

    Where those have names, classes are taken in order only if the user insists: others would be trained under them.
    """
    number, labels = opened.header.num_classes, opened.header.labels
    try:
        match_classes(items, labels, num_classes=number, by_text=not nameless(labels))
    except DataError as error:
        raise DataError(
            f"`--keep-head`: `--data {items.name}` has {_classes(len(items.class_names), items.class_names)}, but "
            f"{config.model} has {_classes(number, labels)}",
            hint="leave `--keep-head` out for a new classifier, rename the data's classes to the "
            "model's with `::map=OLD:NEW,...`, or select some of them with `::classes=`",
        ) from error


def _number(config: FinetuneConfig, opened: OpenModel, items: Items) -> int:
    """Return how many classes the model is to tell apart: as many as were asked for, or the data have."""
    model_number, data_number, option_number = (
        asked_number(opened),
        len(items.class_names),
        config.num_classes,
    )
    key = CLASSES[opened.family.library]
    if option_number is not None and model_number not in {None, option_number}:
        raise UsageError(
            f"`--num-classes {option_number}` and `{config.model}` differ",
            hint=f"leave `--num-classes` or `{key}={model_number}` out",
        )
    if option_number is not None and option_number < data_number:
        raise DataError(
            f"{items.name}: has {data_number} classes, but `--num-classes {option_number}` is smaller",
            hint=f"add `--num-classes {data_number}`, or select some of the classes with `::classes=`",
        )
    if model_number is not None and model_number < data_number:
        raise DataError(
            f"{items.name}: has {data_number} classes, but `{config.model}` has {model_number}",
            hint=(
                f"leave `{key}={model_number}` out, write `{key}={data_number}`, or select some of the "
                "classes with `::classes=`"
            ),
        )
    stored_number = opened.header.num_classes if names_all(items, opened.header.labels) else None
    return option_number or model_number or stored_number or data_number


def _classifier_text(opened: OpenModel, number: int, items: Items, *, fits: bool) -> str:
    """Say what classifier is made, and why."""
    new = f"A new classifier for {_classes(number, items.class_names)}"
    if items.task is not SINGLE_LABEL:
        new += f", {items.task.answer}"
    if opened.lacks:
        return f"{new}; {opened.reference}: {opened.lacks}"
    had = opened.header.architecture.num_classes
    reason = (
        ""
        if opened.is_random
        else "in place of the model's own"
        if fits
        else f"the model had {had} classes"
        if had != number
        else "the model's has other inputs or other classes"
    )
    return f"{new}, {reason}" if reason else new


def _classes(number: int, names: tuple[str, ...]) -> str:
    """Return how many classes there are, and what some are called."""
    unnamed = (f"{number - len(names)} unnamed",) if number > len(names) else ()
    first_names = ", ".join((*names[:MAX_SHOWN], *(("...",) if len(names) > MAX_SHOWN else ()), *unnamed))
    return counted(number, "class", "classes") + (f" ({first_names})" if names else "")


EVAL_BATCH = 256
_TAKEN_BY_NONE = {
    "dropout": "the model has no dropout, except for attention weights",
    "drop_path": "the model has one block, and stochastic depth never skips the first",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledItems:
    """A data set whose labels are the model's: (N,), or (N, Q) of Q labels or words, as `model_labels` has them."""

    items: Items
    labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Everything that is known before anything is computed.

    Attributes:
        config: What was asked.
        opened: The model.
        header: Its, with the classes of the data.
        how: How it reads items in this run.
        names: The tensors that are others afterwards.
        training: How these tensors train.
        train: What it learns from.
        val: What it is measured on.
        teachers: Opened.
        mixing: How samples of a batch are mixed.
        inputs: All that is read, for the lineage.
    """

    config: FinetuneConfig
    opened: OpenModel
    header: Header
    how: Reading
    names: tuple[str, ...]
    training: Training
    train: LabelledItems
    val: LabelledItems
    teachers: tuple[OpenModel, ...]
    mixing: Mixing | None
    inputs: tuple[InputFile, ...]

    def initial_tensors(self) -> dict[str, Tensor]:
        """Return the tensors at the start of training."""
        state = self.opened.checkpoint.tensors()
        resets = self.config.recipe.reset_head and self.config.head_seed is None
        return reset_head(self.opened.family, state) if resets else state

    def load(self) -> TrainableModel:
        """Return the model in fp32; the tensors that may train require gradients."""
        subject = self.training.load(
            self.opened.family, self.header, self.initial_tensors(), where=self.config.model
        )
        for state in subject.states:
            for name, tensor in state.items():
                tensor.requires_grad_(name in self.names)
        return subject

    def build(self) -> TrainableModel:
        """Return the model at the start of training."""
        return self.training.build(self.load(), self.names)

    @property
    def trains_head(self) -> bool:
        """Whether nothing but classifiers trains."""
        return self.config.recipe.parts == ("head",)


def prepare(config: FinetuneConfig, output: Output) -> TrainingPlan:
    """Check everything that headers and labels can tell, and whether the output may be where it is to go.

    Raises:
        InputError: If the model, a teacher or the data cannot be used, or the output cannot be written.
        UsageError: If an option does not fit them.
        OutputExists: If the output is one of them, or is there already.
        HubError: If the Hub cannot be reached.
    """
    pick_device(config.device)
    opened = open_trained(config)
    header = override_preprocessing(opened.header, config.images.options(), where=opened.reference)
    opened = replace(opened, header=header)
    check_takes(opened.header, where=opened.reference)
    teachers = open_teachers(config)
    data = [config.data, config.val]
    output.check(*config.outputs(), models=[opened, *teachers], data=data, folders=True)
    check_reads(opened.header.preprocess, model=config.model)
    warn_assumed(opened)
    items = open_items(
        config.data, opened.header.preprocess, workers=config.num_workers, skip_bad=config.skip_bad
    )
    check_training_labels(items, "--data")
    how = limited(opened.header.preprocess, config.max_length, model=config.model)
    if config.max_length is None:
        how = shortened(how, config.recipe.max_length)
    _check_recipe(config, how)
    check_augment(how, config.recipe.augment)
    opened = fitted(config, opened, items)
    header = opened.header
    if isinstance(how, Tokenization) and items.task.by_word:
        how = how.model_copy(update=dict(header.preprocess) | {"max_length": how.max_length})
        items = check_answerable(by_word(items, how))
    check_tensors(config.model, opened.checkpoint.specs, stored_specs(opened))
    _check_members(config, header, how)
    training = open_training(config, opened.header)
    training.check(items.task, items.name)
    names = trained_names(opened, training)
    _check_layers(config, header, opened.family)
    labelled, header = _training(items, header)
    if isinstance(how, Tokenization) and isinstance(items, TextSet) and items.task.has_one_question:
        pairs = {"pairs": not isinstance(items.texts[0], str)}
        how = how.model_copy(update=pairs)
        header = header.model_copy(update={"preprocess": header.preprocess.model_copy(update=pairs)})
    validation = _validation(
        open_items(config.val, how, workers=config.num_workers, skip_bad=config.skip_bad), items, header
    )
    check_teachers(teachers, header, how)
    if len(teachers) == 1 and teachers[0].checkpoint.digest == opened.checkpoint.digest:
        progress.warn(
            f"{config.model} is its own teacher: its predictions match the teacher from the start, "
            "which weakens the effect of the labels"
        )
    warn_temperature(opened)
    mixing = Mixing.of(
        config.recipe, how, classes=2 if header.architecture.task.by_label else header.num_classes
    )
    steps = config.recipe.total_steps(-(-len(labelled.items) // config.recipe.batch_size))
    progress.step(
        f"Training `{opened.name}` on {len(labelled.items)} {labelled.items.content} for {counted(steps, 'step')}, "
        f"validating on {len(validation.items)}"
        + (f", taught by {', '.join(t.name for t in teachers)}" if teachers else "")
    )
    return TrainingPlan(
        config=config,
        opened=opened,
        header=header,
        how=how,
        names=names,
        training=training,
        train=labelled,
        val=validation,
        mixing=mixing,
        teachers=teachers,
        inputs=(
            opened.as_input(),
            *_data_inputs(labelled.items, validation.items),
            *(t.as_input() for t in teachers),
        ),
    )


def open_trained(config: FinetuneConfig) -> OpenModel:
    """Open what trains.

    Raises:
        InputError: If it cannot be read.
        UsageError: If it has no classifier and can have none, or a packed member cannot be made of it.
    """
    opened = open_model(
        config.extension.reference(config.model), arch=config.arch, seed=config.seed, backbone=True
    )
    check_classes(opened)
    return opened


def check_classes(opened: OpenModel) -> None:
    """Refuse a model that is told what to compare images with.

    Raises:
        UsageError: If it is one.
    """
    if opened.header.prompting is not None:
        raise UsageError(
            f"{opened.reference}: is a zero-shot model without classes to train on",
            hint="prune and fuse zero-shot models without training",
        )


def _check_recipe(config: FinetuneConfig, how: Reading) -> None:
    """Refuse a recipe that would change texts as images are changed, where nothing but it says so."""
    if config.recipe_name is None or not isinstance(how, Tokenization):
        return
    named = RECIPES[config.recipe_name]
    if any(getattr(named, n) and getattr(named, n) == getattr(config.recipe, n) for n in FOR_IMAGES):
        others = [name for name, recipe in RECIPES.items() if not any(getattr(recipe, n) for n in FOR_IMAGES)]
        raise UsageError(
            f"`--recipe {config.recipe_name}` is for images, but {config.model} reads texts",
            hint=f"recipes for texts: {', '.join(others)}",
        )


def _check_layers(config: FinetuneConfig, header: Header, family: Family) -> None:
    """Refuse shares to drop that no layer would; a recipe's own are for many models. Say where a norm is none."""
    model = family.build(header.architecture, header.masks[0], None)
    named = Recipe() if config.recipe_name is None else RECIPES[config.recipe_name]
    for name, has_layers in HAS_LAYERS_FOR.items():
        share = getattr(config.recipe, name)
        if share and share != getattr(named, name) and not has_layers(model):
            raise UsageError(
                f"`{long_option(name)} {share:g}` has no effect on {config.model}: {_TAKEN_BY_NONE[name]}",
                hint=f"leave `{long_option(name)}` out",
            )
    if config.model.startswith("arch:") and keeps_statistics(model):
        progress.warn(
            f"{config.model} keeps the initial means of 0 and variances of 1 in its batch norms, so it "
            "learns slowly; use pretrained weights if available"
        )


def _check_members(config: FinetuneConfig, header: Header, how: Reading) -> None:
    """Refuse own batches and repulsion of a model without members, own batches after a common trunk, and repulsion of texts."""
    if config.has_own_batches and header.plan is None:
        raise UsageError(
            f"`--batches own`: {config.model} is a {header.kind}, but only members of a hydra can have their own batches",
            hint="leave it out",
        )
    if config.has_own_batches and header.plan is not None and header.plan.trunk > 0:
        raise UsageError(
            f"`--batches own`: members of {config.model} share {counted(header.plan.trunk, 'block')}, "
            "which run once on one common batch",
            hint="leave it out, or fuse with `--own-from 0`",
        )

    if config.repulsion is not None and header.plan is None:
        raise UsageError(
            f"`--repulsion`: {config.model} is a {header.kind}, but only members of a hydra can be pushed apart",
            hint="leave it out, or `hydractl fuse` members first",
        )
    if config.repulsion is not None and isinstance(how, Tokenization):
        raise UsageError(
            f"`--repulsion`: {config.model} reads texts, but only patches of images can be permuted",
            hint="leave it out",
        )


def open_training(config: FinetuneConfig, header: Header) -> Training:
    """Return the way of training that the options select."""
    training: Training = load(config.extension.training)(config, header)
    return training


def trained_names(opened: OpenModel, training: Training) -> tuple[str, ...]:
    """Return the names of the tensors that training changes. They follow from the header.

    Raises:
        UsageError: If there are none.
    """
    config, header = training.config, opened.header
    recipe = config.recipe
    if recipe.trains_own_parts and header.plan is None:
        raise UsageError(
            f"`--train own`: {config.model} is a {header.kind}, but only members of a hydra have weights of their own",
            hint=f"leave out `own`, or choose from {', '.join(PARTS)}",
        )
    family = opened.family
    models = [family.build(header.architecture, mask, None) for mask in header.masks]
    states = [model.library_state() for model in models]
    with_elements = {n: t for state in states for n, t in state.items() if t.numel()}
    if recipe.trains_own_parts and header.plan is not None:
        fates = header.plan.fates
        if Fate.GROUPED not in fates.values():
            raise UsageError(
                f"`--train own`: members of {config.model} share all weights",
                hint="fuse with `--own-from L` to give each member its own blocks from L on, readout and head",
            )
        with_elements = {n: t for n, t in with_elements.items() if fates[n] == Fate.GROUPED}
    names = trainable(family, header.architecture, recipe, with_elements)
    return training.select(family, models[0], states[0], names)


def _training(items: Items, header: Header) -> tuple[LabelledItems, Header]:
    """Return the training data, and the header with their names for classes that have none."""
    number = header.num_classes
    table = match_classes(items, header.labels, num_classes=number, called="`--data`")
    labels = filled_names(header.labels, items.class_names, table, number)
    training = LabelledItems(
        items=items, labels=model_labels(items, table, "--data", architecture=header.architecture)
    )
    return training, header.model_copy(update={"labels": labels})


def _validation(items: Items, trained: Items, header: Header) -> LabelledItems:
    """Return the validation data; a class that the training data do not have is never taken for one that they have."""
    check_labels(items, "--val", task=header.architecture.task)
    known_names = {folded(name) for name in (*trained.class_names, *header.labels)}
    strange = [name for name in items.class_names if folded(name) not in known_names]
    try:
        table = match_classes(
            items, header.labels, num_classes=header.num_classes, by_text=bool(strange), called="`--val`"
        )
    except DataError as error:
        if not strange:
            raise
        raise DataError(
            f"`--val {items.name}`: has classes that `--data {trained.name}` does not have: {first_names(strange)}",
            hint="use the same names, or select the classes of `--data` with `::classes=`",
        ) from error
    return LabelledItems(
        items=items, labels=model_labels(items, table, "--val", architecture=header.architecture)
    )


def _data_inputs(trained: Items, validated: Items) -> tuple[SampledFile, SampledFile]:
    """Return the data's lineage entries. Warns about samples of both."""
    read = [identified(items, map(items.item_digest, range(len(items)))) for items in (trained, validated)]
    (_, data), (_, content) = read
    if twice := overlap("--val", content, "--data", data):
        progress.warn(
            f"{twice}: validation accuracy and NLL will be too good, and the learning rate and weights "
            "are selected on data that the model was trained on"
        )
    training, validation = (
        SampledFile(name=items.name, sha256=sha256, samples=pack(content))
        for items, (sha256, content) in zip((trained, validated), read, strict=True)
    )
    return training, validation
