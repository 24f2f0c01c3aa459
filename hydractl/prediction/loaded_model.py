"""Checkpoints as Python objects: models with their header, classes and preprocessing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hydractl.checkpoint import Checkpoint, ScratchFolder, write_tensors
from hydractl.data.batches import Batch, eval_batches
from hydractl.data.datasets import ImageSet, Item, TextSet, given_items, is_text, kinds, listed, of_kind
from hydractl.data.preprocess import eval_transform
from hydractl.data.tokenize import encode_texts
from hydractl.data.words import by_word, whole_words
from hydractl.errors import UsageError
from hydractl.families.open_model import OpenModel, load_model, open_model
from hydractl.families.registry import family_of
from hydractl.families.tower import Model, Towers
from hydractl.fusion.build import members_from_state
from hydractl.fusion.hydra import Hydra
from hydractl.fusion.plan import join_members
from hydractl.hub.repository import Pushed, Target, push, require_token
from hydractl.hub.upload import Publication, usual_message
from hydractl.manifest.header import Header, Kind, Preprocess, Tokenization
from hydractl.metrics.per_sample import Responses, in_memory
from hydractl.model_inputs import Inputs, batch_of, checked_inputs, cut_batch
from hydractl.output.publish import check_output, claimed, publish
from hydractl.output.publish import output as folder_output
from hydractl.prediction.class_names import DEFAULT_TEMPLATE, Classes, set_classes, with_class_names
from hydractl.prediction.feature_ood import FeatureExtractor, Predictor, Scores, check_tests
from hydractl.prediction.inference import collected
from hydractl.prediction.predictions import (
    Bounds,
    LabelPredictions,
    Predictions,
    WordPredictions,
    predictions_of,
)
from hydractl.progress import SILENT, Progress
from hydractl.provenance.output import Output
from hydractl.runtime import pick_device, torch_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Preprocessing of a model's inputs.

    Attributes:
        images: Preprocessing of images; None for a text model.
        texts: Tokenization of texts; None for an image model.
    """

    images: Preprocess | None
    texts: Tokenization | None

    @classmethod
    def of(cls, header: Header) -> Encoder:
        """Return the encoder of a checkpoint. The encoder of a zero-shot model accepts images and texts."""
        preprocess = header.preprocess
        if isinstance(preprocess, Tokenization):
            return cls(images=None, texts=preprocess)
        return cls(
            images=preprocess, texts=None if header.prompting is None else header.prompting.tokenization
        )

    def __call__(self, items: Iterable[Item]) -> Inputs:
        """Convert images or texts to a batch; see `Towers.encode`.

        Raises:
            TypeError: If the model does not read such items, or images and texts are mixed.
            DataError: If an image cannot be read.
        """
        item_list = listed(items)
        texts = [item for item in item_list if is_text(item)]
        if len(texts) == len(item_list) and self.texts is not None:
            return encode_texts(texts, self.texts)
        if (texts and self.texts is not None) or self.images is None:
            expected = "texts" if self.images is None else "images, or texts"
            raise TypeError(f"the model reads {expected}, found {kinds(item_list)}")
        transform = eval_transform(self.images)
        images = of_kind(given_items(item_list, self.images), ImageSet)
        return torch.stack([transform(images.image(i)) for i in range(len(images))])


class Loaded(Towers):
    """Attributes and methods of a model from `load`, in addition to its forward pass.

    Attributes:
        header: Header of the checkpoint, with the given classes of a zero-shot model.
        reference: Reference of the checkpoint.
        parts: Members of a hydra; otherwise only the model itself.
        scores: Feature-based OOD scores of the checkpoint; None if there are none.
    """

    header: Header
    reference: str
    parts: tuple[Model, ...] = ()
    scores: Scores | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the logits. Class numbers if the checkpoint has no names."""
        return self.header.class_names

    def predict(
        self, items: Iterable[Item] | Inputs, *, batch_size: int = 64, progress: Progress = SILENT
    ) -> Predictions | LabelPredictions | WordPredictions:
        """Predict items in evaluation mode and without gradients, with the preprocessing of `eval`.

        Args:
            items: Images of Pillow, paths of image files, uint8 arrays (height, width, channels) or a single
                array (N, height, width, channels); texts or pairs of texts; or a batch from `encode`. At
                least one item, all of the same type. A model with predictions per word takes only texts.
            batch_size: Samples per forward pass.
            progress: Display of the progress; silent by default.

        Returns:
            `Predictions` for a model with a single label, `LabelPredictions` for a multi-label model,
            `WordPredictions` for predictions per word.

        Raises:
            TypeError: If there are no items, or the items do not fit the model.
            DataError: If an image cannot be read.
            InputError: If a logit is not finite, or the device has too little memory.
            CheckpointError: If class names of a zero-shot model or the tokenizer are missing.
            ValueError: If `batch_size` is less than 1.
        """
        batches: Iterable[Batch[Inputs]]
        texts, rows = None, None
        if isinstance(items, torch.Tensor | Mapping):
            if self.header.architecture.task.by_word:
                raise TypeError("the model answers the words of texts: give texts, not tensors from `encode`")
            inputs = checked_inputs(items, {}, self.towers.keys())
            count, batches = batch_of(inputs), _cut(inputs, batch_size)
        else:
            item_set, preprocess = given_items(listed(items), self.header.preprocess), self.header.preprocess
            if isinstance(item_set, TextSet) and isinstance(preprocess, Tokenization) and preprocess.by_word:
                texts, item_set = item_set, (rows := by_word(item_set, preprocess))
            count = len(item_set)
            batches = eval_batches(item_set, preprocess, batch_size=batch_size, limit_bytes=0)
        if not count:
            raise TypeError("the model takes a batch of items, found nothing")
        tracked = progress.track(batches, label=self.reference, total=-(-count // batch_size))
        with self._evaluating():
            responses = self._respond(tracked, count)
        header = self.header
        bounds = Bounds.of(header.known_test, header.threshold)
        if texts is not None and rows is not None:
            by_text = responses.mapped(rows.by_document)
            return WordPredictions.of(
                by_text,
                self.labels,
                whole_words(texts, rows),
                bounds,
                entity_temperature=header.entity_temperature,
            )
        return predictions_of(
            responses,
            self.labels,
            bounds,
            header.prediction_sets,
            label_thresholds=header.label_thresholds,
        )

    def _respond(self, batches: Iterable[Batch[Inputs]], count: int) -> Responses:
        predictor = Predictor(model=self, name=self.reference, preprocess=self.header.preprocess)
        if self.scores is not None:
            predictor = predictor.with_scores(self.scores, family_of(self.header.architecture))
        outputs = predictor.responses(batches, data="the items")
        return in_memory(collected(outputs, count=count, names=predictor.score_names))

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write a checkpoint with the present weights and return its path. The write is atomic.

        The provenance is copied from the loaded checkpoint. It does not record later changes of weights.

        Args:
            path: The file.
            force: Whether to replace an existing file.

        Raises:
            OutputExists: If the file exists and `force` is False.
            OutputError: If the file cannot be written.
        """
        path = Path(path)
        check_output(path, force=force)
        with publish(path) as file:
            write_tensors(file, self.tensors(), header=self.header)
        return path

    def save_pretrained(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write a folder in the layout of the libraries and the Hub, and return its path; see `save`.

        `-o folder/` writes the same layout.

        Args:
            folder: Created if it does not exist. Other files in the folder are kept.
            force: Whether to replace a model in the folder.

        Raises:
            OutputExists: If the folder contains a model and `force` is False.
            OutputError: If the folder cannot be written.
        """
        path = folder_output(f"{folder}/")
        with claimed(path, force=force) as claim:
            output = Output(claim)
            output.check(path, folders=True)
            with output.publish() as begin:
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
        """Push the model with its card to the Hub in a single commit, like `hydractl push`; see `save`.

        Args:
            name: `org/name`.
            private: Whether the repository must be private.
            create_pr: Whether to open a pull request.
            message: Commit message.
            publication: Branch and contents of the card. Its report must belong to these weights.

        Raises:
            HubError: If the push fails. The branch is then unchanged.
            InputError: If the report belongs to another model.
        """
        settings = replace(publication or Publication(name=name), name=name)
        require_token()
        checkpoint, scratch = Checkpoint.of(self.tensors(), header=self.header), ScratchFolder()
        files = settings.files(checkpoint, self.header, scratch=scratch, place=self.reference)
        target = Target(
            name=name,
            revision=settings.revision,
            private=private,
            create_pr=create_pr,
            message=message or usual_message(self.header),
        )
        return push(files, target)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by their names in a checkpoint, including the tensors of OOD scores.

        The tensors are detached and on the CPU.
        """
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
        """Set all modules to evaluation mode, and restore the previous modes at the end."""
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True


class LoadedModel(Loaded, Model):
    """A base or a member; its forward pass is that of `Model`."""


class LoadedHydra(Loaded, Hydra):
    """A hydra; its forward pass is that of `Hydra`."""


def load(
    reference: str | Path,
    *,
    arch: str | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    classes: Sequence[str] | None = None,
    templates: Sequence[str] | None = None,
) -> LoadedModel | LoadedHydra:
    """Load a checkpoint as a `torch.nn.Module` in evaluation mode, with its classes and preprocessing.

    `model.predict(items)` predicts images or texts. The forward pass takes tensors from
    `model.encode(items)`. A hydra returns a `HydraOutput`. A base or a member returns the logits (B, C) of
    the library's model, divided by the stored temperature. A zero-shot model without classes takes images and
    texts together and returns logits (B, B).

    Args:
        reference: A MODEL reference: a file, a folder, a Hub id.
        arch: Architecture of a bare safetensors file.
        device: `cpu`, `cuda`, `cuda:N`, `mps`, or `auto` for the fastest device.
        dtype: Dtype of floating-point weights: `bf16`, `fp16`, `fp32` or a dtype of torch. None keeps the
            stored dtype, or the smallest dtype that can represent all stored dtypes.
        classes: Class names of a zero-shot model, in the order of the logits. None uses the stored names.
        templates: Prompts with `{label}` for the class name. None uses the stored templates, or the default.

    Raises:
        InputError: If the checkpoint cannot be read.
        HubError: If the checkpoint cannot be downloaded.
        UsageError: If `classes` is given for a model with a classifier, or is not a list of names, or the
            device does not exist.
    """
    place = pick_device(str(device))
    kind = torch_dtype(dtype) if isinstance(dtype, str) else dtype
    model_file = open_model(str(reference), arch=arch)
    prompt_classes = _given_classes(model_file, classes, templates)
    model = _built(model_file, kind)
    set_classes(model, model_file, prompt_classes)
    model.header = with_class_names(model_file.header, prompt_classes)
    model.reference = str(reference)
    model.encoder = Encoder.of(model.header)
    model.set_temperature(model.header.scale)
    check_tests(model.header.known_test, model.header.threshold, place=str(reference))
    if model.header.fitted is not None:
        model.scores = Scores.stored(
            model_file.checkpoint, model.header, scores=model.header.fitted.scores, name=str(reference)
        )
        FeatureExtractor.of(model, model_file.family, name=str(reference))
    return model.to(place).eval()


def _built(model_file: OpenModel, dtype: torch.dtype | None) -> LoadedModel | LoadedHydra:
    if model_file.header.kind == Kind.HYDRA:
        state = model_file.checkpoint.tensors()
        members = members_from_state(model_file.header, state, place=model_file.reference, dtype=dtype)
        hydra = LoadedHydra(members)
        hydra.parts = tuple(members)
        return hydra
    part = load_model(model_file, dtype=dtype)
    model = LoadedModel({name: part.tower(name) for name in part.towers}, part.answer)
    model.parts = (part,)
    return model


def _cut(inputs: Inputs, size: int) -> Iterator[Batch[Inputs]]:
    if size < 1:
        raise ValueError(f"batch_size is {size}, must be at least 1")
    places = torch.arange(batch_of(inputs)).split(size)
    return (Batch(part, indices) for part, indices in zip(cut_batch(inputs, size), places, strict=True))


def _given_classes(
    model_file: OpenModel, classes: Sequence[str] | None, templates: Sequence[str] | None
) -> Classes | None:
    if classes is None and templates is None:
        return None
    stored = model_file.header.prompting
    if stored is None:
        raise UsageError(
            f"{model_file.reference}: already has classes; `classes` and `templates` apply only to zero-shot models"
        )
    for name, class_names in (("classes", classes), ("templates", templates)):
        if isinstance(class_names, str):
            raise UsageError(
                f'`{name}="{class_names}"`: expected a list, not a string', hint=f'`{name}=["{class_names}"]`'
            )
    names = model_file.header.labels if classes is None else tuple(classes)
    if not names:
        raise UsageError(
            f"{model_file.reference}: has no class names yet", hint='give them: `classes=["cat", "dog"]`'
        )
    return Classes(names=names, templates=tuple(templates or stored.templates or (DEFAULT_TEMPLATE,)))
