"""A checkpoint as an object: the model with what its header says of classes, inputs and itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from hydractl.checkpoint import Checkpoint, ScratchFolder, write_tensors
from hydractl.data.batches import Batch
from hydractl.data.encode import encoded
from hydractl.data.in_memory import Item, given_items, listed
from hydractl.errors import UsageError
from hydractl.families.load import OpenModel, load_model, open_model
from hydractl.families.registry import family_of
from hydractl.families.tower import Model, Towers
from hydractl.fusion.build import members_from_state
from hydractl.fusion.feature_ood import Scores, check_threshold
from hydractl.fusion.features import FeatureExtractor
from hydractl.fusion.hydra import Hydra
from hydractl.fusion.inference import collected, respond_to_all
from hydractl.fusion.plan import join_members
from hydractl.fusion.predictions import Bound, Predictions
from hydractl.fusion.preprocess import Encoder
from hydractl.fusion.prompts import DEFAULT_TEMPLATE, Classes, settle, with_class_names
from hydractl.hub.model_outputs import check_replaces, publish_models
from hydractl.hub.repository import Pushed, Target, push, require_token
from hydractl.hub.upload import Publication, usual_message
from hydractl.manifest.header import Header, Kind
from hydractl.metrics.per_sample import Responses, Scored
from hydractl.model_inputs import Inputs, batch_of, checked_inputs, cut_batch
from hydractl.output.atomic_write import publish
from hydractl.output.locks import claimed
from hydractl.output.paths import check_folder, check_output, output
from hydractl.progress import SILENT, Progress
from hydractl.runtime import pick_device, torch_dtype


class Loaded(Towers):
    """What a model that `load` made can do beside answering tensors.

    Attributes:
        header: What its checkpoint says of it, with the classes that a zero-shot model was told.
        reference: Where it was loaded from.
        parts: The models whose tensors it holds: a hydra's members, else itself is one.
        scores: The OOD scores of features that its checkpoint holds, if it holds any.
    """

    header: Header
    reference: str
    parts: tuple[Model, ...] = ()
    scores: Scores | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes in the order of the logits; their numbers where the checkpoint has no names."""
        return self.header.class_names

    def predict(
        self, items: Iterable[Item] | Inputs, *, batch_size: int = 64, progress: Progress = SILENT
    ) -> Predictions:
        """Return what the model says of items, in evaluation mode and without gradients, as `eval` reads and measures them.

        Args:
            items: Images of Pillow, paths of image files, uint8 arrays (height, width, channels) or one array (N, height,
                width, channels); texts or pairs of texts; or a ready batch, as `encode` makes it. At least one, all of
                one kind.
            batch_size: Samples in one forward pass.
            progress: Sees the batches pass.

        Raises:
            TypeError: If they are not what the model reads.
            DataError: If an image cannot be read.
            InputError: If a logit is not finite, or the device's memory does not suffice.
            CheckpointError: If a zero-shot model has no classes yet, or a text model no tokenizer.
            ValueError: If `batch_size` is less than 1.
        """
        batches: Iterable[Batch[Inputs]]
        if isinstance(items, torch.Tensor | Mapping):
            inputs = checked_inputs(items, {}, self.towers.keys())
            count, batches = batch_of(inputs), _cut(inputs, batch_size)
        else:
            item_set = given_items(listed(items), self.header.preprocess)
            count = len(item_set)
            batches = encoded(item_set, self.header.preprocess, batch_size=batch_size, limit_bytes=0)
        if not count:
            raise TypeError("the model takes a batch of items, found nothing")
        tracked = progress.track(batches, label=self.reference, total=-(-count // batch_size))
        with self._evaluating():
            responses = self._respond(tracked, count)
        stored = self.header.threshold
        bound = Bound(stored.score, stored.below) if stored and stored.below is not None else None
        return Predictions.of(responses, self.labels, bound)

    def _respond(self, batches: Iterable[Batch[Inputs]], count: int) -> Responses | Scored:
        """Return what members say of all, and the scores of features that the checkpoint holds."""
        names = {"name": self.reference, "data": "the items"}
        if self.scores is None:
            return respond_to_all(self, batches, count=count, **names)
        extractor = FeatureExtractor.of(self, family_of(self.header.architecture), name=self.reference)
        beside = self.scores.of(extractor, name=self.reference)
        *response_tensors, scores = collected(
            beside.responses(batches, **names), count=count, data=names["data"]
        )
        return beside.scored(Responses(*response_tensors), scores)

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write a checkpoint of the weights as they are now and return its path; the file is whole or not there at all.

        Its lineage is that of the checkpoint that was loaded: weights that were changed since say nothing of it.

        Args:
            path: The file.
            force: Whether an existing file is replaced.

        Raises:
            OutputExists: If it is there and `force` is off.
            OutputError: If it cannot be written.
        """
        path = Path(path)
        check_output(path, force=force)
        with publish(path) as file:
            write_tensors(file, self.tensors(), header=self.header)
        return path

    def save_pretrained(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the folder that libraries and the Hub share, as `-o folder/` does, and return its path; see `save`.

        Args:
            folder: Made if it is not there; other files in it stay.
            force: Whether a model in it is replaced.

        Raises:
            OutputExists: If there is one, and `force` is off.
            OutputError: If it cannot be written.
        """
        path = output(f"{folder}/")
        with claimed(path, force=force) as claim:
            check_folder(path)
            check_replaces(path, claim)
            with publish_models(claim) as begin:
                write_tensors(begin(path, self.header), self.tensors(), header=self.header)
        return Path(folder)

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = False,
        create_pr: bool = False,
        message: str | None = None,
        publication: Publication | None = None,
    ) -> Pushed:
        """Push the model with its card to the Hub, as `hydractl push` does, in one commit or none; see `save`.

        Args:
            name: `org/name`.
            private: Whether the repository must be private.
            create_pr: Whether to open a pull request.
            message: Of the commit.
            publication: The branch, and what the card is told; its report must be of these very weights.

        Raises:
            HubError: With what to do; the branch is then as it was.
            InputError: If the report is of other models.
        """
        settings = replace(publication or Publication(name=name), name=name)
        require_token()
        checkpoint, scratch = Checkpoint.of(self.tensors(), header=self.header), ScratchFolder()
        files = settings.files(checkpoint, self.header, scratch=scratch, where=self.reference)
        target = Target(
            name=name,
            revision=settings.revision,
            private=private,
            create_pr=create_pr,
            message=message or usual_message(self.header),
        )
        return push(files, target)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors as a checkpoint names them, detached and on the CPU; with those of OOD scores."""
        states = [part.library_state() for part in self.parts]
        plan = self.header.plan
        state = (
            states[0]
            if plan is None
            else join_members(family_of(self.header.architecture), plan.fates, states)
        )
        scores = {} if self.scores is None else self.scores.tensors()
        return {name: tensor.detach().cpu() for name, tensor in state.items()} | scores

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Put all parts into evaluation mode, and back into the mode that each was in."""
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True


class LoadedModel(Loaded, Model):
    """A base or a member; called with tensors it answers as `Model`."""


class LoadedHydra(Loaded, Hydra):
    """A hydra; called with tensors it answers as `Hydra`."""


def load(
    reference: str | Path,
    *,
    arch: str | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    classes: Sequence[str] | None = None,
    templates: Sequence[str] | None = None,
) -> LoadedModel | LoadedHydra:
    """Load a checkpoint as a `torch.nn.Module` in evaluation mode that knows its classes and how its inputs are made.

    `model.predict(items)` answers for images or texts. Called with tensors, which `model.encode(items)` makes, a hydra answers
    with a `HydraOutput`, a base or a member with its logits, a tensor (B, C): what the library's own model has in `.logits`,
    divided by the temperature that the checkpoint stores. A zero-shot model without classes answers images and texts given
    together, (B, B).

    Args:
        reference: A MODEL reference: a file, a folder, a Hub id.
        arch: Architecture of a bare safetensors file.
        device: `cpu`, `cuda`, `cuda:N`, `mps`, or `auto` for the fastest there is.
        dtype: Convert floating-point weights: `bf16`, `fp16`, `fp32` or a dtype of torch; None keeps
            the one that they are stored in, of several the least that holds all.
        classes: Of a zero-shot model: the names of what it tells apart, in the order of the logits; None for those that it
            stores.
        templates: Texts with `{label}` that a class is asked with; None for the stored ones, or the usual one.

    Raises:
        InputError: If it cannot be read.
        HubError: If it cannot be fetched.
        UsageError: If classes are named that the model has itself, or are no list of names; or there is no such device.
    """
    place = pick_device(str(device))
    kind = torch_dtype(dtype) if isinstance(dtype, str) else dtype
    opened = open_model(str(reference), arch=arch)
    prompt_classes = _classes_asked_for(opened, classes, templates)
    model = _built(opened, kind)
    settle(model, opened, prompt_classes)
    model.header = with_class_names(opened.header, prompt_classes)
    model.reference = str(reference)
    model.encoder = Encoder.of(model.header)
    model.temperature = model.header.temperature
    if model.header.threshold is not None:
        check_threshold(model.header.threshold, where=str(reference))
    if model.header.fitted is not None:
        model.scores = Scores.stored(
            opened.checkpoint, model.header, scores=model.header.fitted.scores, name=str(reference)
        )
        FeatureExtractor.of(model, opened.family, name=str(reference))
    return model.to(place).eval()


def _built(opened: OpenModel, dtype: torch.dtype | None) -> LoadedModel | LoadedHydra:
    if opened.header.kind == Kind.HYDRA:
        state = opened.checkpoint.tensors()
        members = members_from_state(opened.header, state, where=opened.reference, dtype=dtype)
        hydra = LoadedHydra(members)
        hydra.parts = tuple(members)
        return hydra
    part = load_model(opened, dtype=dtype)
    model = LoadedModel({name: part.tower(name) for name in part.towers}, part.answer)
    model.parts = (part,)
    return model


def _cut(inputs: Inputs, size: int) -> Iterator[Batch[Inputs]]:
    """Return a ready batch in pieces."""
    if size < 1:
        raise ValueError(f"batch_size is {size}, must be at least 1")
    places = torch.arange(batch_of(inputs)).split(size)
    return (Batch(part, None, indices) for part, indices in zip(cut_batch(inputs, size), places, strict=True))


def _classes_asked_for(
    opened: OpenModel, classes: Sequence[str] | None, templates: Sequence[str] | None
) -> Classes | None:
    """Return the classes that a caller names, or None."""
    if classes is None and templates is None:
        return None
    stored = opened.header.prompting
    if stored is None:
        raise UsageError(
            f"{opened.reference}: has classes of its own; `classes` and `templates` are for zero-shot models"
        )
    for name, class_names in (("classes", classes), ("templates", templates)):
        if isinstance(class_names, str):
            raise UsageError(
                f'`{name}="{class_names}"`: is one text, a list is wanted', hint=f'`{name}=["{class_names}"]`'
            )
    names = opened.header.labels if classes is None else tuple(classes)
    if not names:
        raise UsageError(
            f"{opened.reference}: has no classes yet", hint='name them: `classes=["cat", "dog"]`'
        )
    return Classes(names=names, templates=tuple(templates or stored.templates or (DEFAULT_TEMPLATE,)))
