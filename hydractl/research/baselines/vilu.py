"""ViLU: a small network estimates whether a zero-shot prediction is correct (Lafon et al. 2025).

Its input is the concatenation of the image embedding v, softmax(s v T') T, and the text embedding t_k of the
predicted class. T = (t_1 .. t_C) are the text embeddings of the classes, all embeddings have norm 1, and s is
the model's logit scale. An MLP returns the logit of P(correct). The model's predictions do not change. The
loss is a binary cross-entropy in which wrong predictions have weight log(1 + a / (1 - a)), with the share a
of correct predictions in the batch. The learning rate has a linear warm-up of 5 epochs and a cosine decay per
epoch. The results equal those of the authors' code (ykrmm/ViLU) without mixed precision.

Axes: N images, B batch, C classes, F embedding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's own name
from torch.optim import SGD
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LinearLR
from typing_extensions import override

from hydractl import progress
from hydractl.data.batches import epoch_order
from hydractl.errors import UnsupportedModelError
from hydractl.families.open_model import OpenModel
from hydractl.families.tower import Contrast, Towers
from hydractl.messages import counted
from hydractl.metrics.cost import count_macs, macs_of
from hydractl.model_inputs import Inputs, inputs_like, map_inputs
from hydractl.prediction.class_names import Classes
from hydractl.research.baselines.options import ViluOptions
from hydractl.research.baselines.rows import BaselineInputs, WithConfidence, without_weights
from hydractl.runtime import on_device
from hydractl.training.accelerator import Share
from hydractl.training.feeding import ItemFeed, Piece

WIDTHS = (512, 256, 128, 1)
"""Output widths of the MLP's layers, as in the authors' code."""
MOMENTUM, DECAY = 0.9, 5e-4
"""Momentum and weight decay of SGD, as in the authors' code."""
WARMUP, WARMUP_FACTOR = 5, 0.1
"""Epochs of warm-up, and the factor of the learning rate in the first epoch, as in the authors' code."""
VISION, TEXT = "vision", "text"
BACKWARD = 3
"""Cost of a training step in forward passes: a forward pass, and a backward pass of twice the cost."""


class FailurePredictor(nn.Module):
    """Network for the logit of P(correct).

    Attributes:
        scale: Logit scale s.
        steps: Number of past training steps.
        project_images: Projection (F, F) of images for the attention, initialized as the identity; None if it
            never trains.
        project_texts: The same for texts.
    """

    def __init__(self, width: int, *, scale: float, thaw: int | None) -> None:
        """Initialize the weights from torch's global generator.

        Args:
            width: Width F of the embeddings.
            scale: Logit scale s.
            thaw: Number of steps before the projections train; None for never.
        """
        super().__init__()
        self.scale, self.thaw, self.steps = scale, thaw, 0
        layers = [nn.Linear(i, o) for i, o in itertools.pairwise((3 * width, *WIDTHS))]
        self.mlp = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
        self.project_images = None if thaw is None else _identity(width)
        self.project_texts = None if thaw is None else _identity(width)

    @override
    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return logits (B,) for embeddings of images (B, F) and classes (C, F)."""
        if self.training:
            self.steps += 1
        predicted = classes[self.probs(images, classes).argmax(-1)]
        logits: Tensor = self.mlp(torch.cat([images, self.attended(images, classes), predicted], -1))
        return logits.squeeze(-1)

    def probs(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the zero-shot probabilities (B, C)."""
        logits: Tensor = self.scale * images @ classes.T
        return logits.softmax(-1)

    def attended(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the mean of the class embeddings weighted by attention, (B, F)."""
        if self.thaw is None or self.project_images is None or self.project_texts is None:
            return self.probs(images, classes) @ classes
        queries: Tensor = self.project_images(images)
        keys: Tensor = self.project_texts(classes)
        if self.steps <= self.thaw:
            # Zero gradients instead of no gradients: weight decay then applies to frozen projections too, as
            # in the authors' code.
            queries, keys = images + 0 * queries, classes + 0 * keys
        return self.probs(queries, keys) @ keys


def _identity(width: int) -> nn.Linear:
    layer = nn.Linear(width, width, bias=False)
    nn.init.eye_(layer.weight)
    return layer


def loss_of(logits: Tensor, correct: Tensor) -> Tensor:
    """Return the weighted binary cross-entropy.

    Args:
        logits: Logits of P(correct), (B,).
        correct: Whether each prediction is correct, (B,), boolean. Without correct predictions, wrong
            predictions have weight 0.
    """
    share = correct.float().mean()
    weights = torch.where(correct, 1.0, (1 + share / (1 - share)).log())
    return F.binary_cross_entropy_with_logits(logits, correct.float(), weights)


def train(
    predictor: FailurePredictor,
    options: ViluOptions,
    batches: Iterable[tuple[Tensor, Tensor]],
    classes: Tensor,
    *,
    per_epoch: int,
) -> None:
    """Train the network in place.

    Args:
        predictor: Network to train.
        options: Options: epochs and learning rate.
        batches: Image embeddings (B, F) and class indices (B,), for all epochs.
        classes: Text embeddings of the classes, (C, F).
        per_epoch: Number of batches per epoch.
    """
    optimizer = SGD(predictor.parameters(), lr=options.lr, momentum=MOMENTUM, weight_decay=DECAY)
    rates = ChainedScheduler(
        [
            LinearLR(optimizer, start_factor=WARMUP_FACTOR, end_factor=1.0, total_iters=WARMUP),
            CosineAnnealingLR(optimizer, T_max=options.epochs),
        ]
    )
    predictor.train()
    for step, (images, labels) in enumerate(batches, start=1):
        right = predictor.probs(images, classes).argmax(-1) == labels
        optimizer.zero_grad()
        loss_of(predictor(images, classes), right).backward()
        optimizer.step()
        if step % per_epoch == 0:
            rates.step()
    predictor.eval()


def contrast_of(model: Towers, *, name: str) -> Contrast:
    """Return the output head of a zero-shot model.

    Raises:
        UnsupportedModelError: If the model is not zero-shot, or has several members.
    """
    answers = [answer for answer in model.answers if isinstance(answer, Contrast)]
    if len(answers) == 1 and {VISION, TEXT} <= {*model.towers}:
        return answers[0]
    why = "it has several models" if len(answers) > 1 else "this model is not one"
    raise UnsupportedModelError(
        f"{name}: `vilu:` needs a single model that compares images with texts, but {why}",
        hint="give a zero-shot base or member: a CLIP with both towers",
    )


class Vilu(WithConfidence):
    """A zero-shot model with a network that estimates the probability of a correct prediction.

    Attributes:
        predictor: The network.
        confidence: Estimates for the last batch, (B,), in (0, 1).
        accuracy: Share of correct predictions on the training data, over all epochs.
        classes: Text embeddings of the classes, (C, F).
    """

    classes: Tensor

    def __init__(self, model: Towers, options: ViluOptions, feed: ItemFeed, *, name: str) -> None:
        """Train the network.

        Args:
            model: In evaluation mode, on the device of the run, with class embeddings.
            options: Options of the baseline.
            feed: Images with labels.
            name: Name of the model in errors.

        Raises:
            UnsupportedModelError: If the model is not a single zero-shot model.
        """
        answer = contrast_of(model, name=name)
        if answer.class_embeddings is None:
            raise ValueError("the classes must be set before predictions are assessed")
        super().__init__(model)
        self.register_buffer("classes", answer.class_embeddings.detach().float().clone())
        self.confidence = torch.empty(0)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(options.seed)
            self.predictor = FailurePredictor(
                self.classes.shape[1], scale=float(answer.scale.detach()), thaw=options.thaw
            )
        self.predictor.to(model.device)
        self._right = self._seen = 0
        least = min(feed.batch_size, len(feed.labels))
        per_epoch = len(feed.labels) // least
        total = per_epoch * options.epochs
        every = itertools.chain.from_iterable(self._epochs(options, feed, least))
        batches = progress.track(self._counted(every), label=f"{name} is judged", total=total)
        train(self.predictor, options, batches, self.classes, per_epoch=per_epoch)
        self.accuracy = self._right / self._seen
        self.training_macs = self._macs(options, feed)

    @override
    def member_logits(self, inputs: Inputs) -> Tensor:
        """Return the model's own logits (1, B, C), and store the estimates in `confidence`."""
        images = self.run_tower(VISION, self.adapted(inputs))
        self.confidence = self.predictor(images[0].float(), self.classes).sigmoid()
        return self.answered({VISION: images}) / self.temperature

    def _epochs(
        self, options: ViluOptions, feed: ItemFeed, least: int
    ) -> Iterator[Iterable[tuple[Tensor, Tensor]]]:
        """Yield the batches of each epoch. A smaller last batch is dropped, as in the authors' code."""
        steps = feed.steps_per_epoch
        if options.augments:
            for epoch in range(options.epochs):
                pieces = feed.steps(epoch * steps, (epoch + 1) * steps, Share(0, 1, 1))
                yield (self._embedded(piece) for (piece,) in pieces if piece.total == least)
            return
        embedded = [self._embedded(piece) for (piece,) in feed.steps(0, steps, Share(0, 1, 1))]
        images, labels = (torch.cat(part) for part in zip(*embedded, strict=True))
        back = epoch_order(len(labels), seed=feed.seed, epoch=0).argsort()
        for epoch in range(options.epochs):
            order = back[epoch_order(len(labels), seed=feed.seed, epoch=epoch)].to(images.device)
            yield ((images[batch], labels[batch]) for batch in order.split(least) if len(batch) == least)

    @torch.no_grad()
    def _embedded(self, piece: Piece) -> tuple[Tensor, Tensor]:
        like = torch.empty(0, device=self.device, dtype=self.dtype)
        images = self.run_tower(VISION, inputs_like(piece.inputs, like))
        return images[0].float(), on_device(piece.labels, images.device)

    def _counted(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches unchanged, and count their samples and the correct predictions."""
        for images, labels in batches:
            with torch.no_grad():
                right = self.predictor.probs(images, self.classes).argmax(-1) == labels
            self._right += int(right.sum())
            self._seen += len(right)
            yield images, labels

    def _macs(self, options: ViluOptions, feed: ItemFeed) -> int:
        """Return the multiply-accumulates of training the network, including the image embeddings."""
        ((piece,),) = feed.steps(0, 1, Share(0, 1, 1))
        like = torch.empty(0, device="meta", dtype=self.dtype)
        macs = macs_of(self, inputs_like(map_inputs(lambda x: x[:1], piece.inputs), like))
        width = self.classes.shape[1]
        with torch.device("meta"):
            judge = FailurePredictor(width, scale=1.0, thaw=options.thaw)
        judge_macs = count_macs(judge, torch.empty(1, width, device="meta"), self.classes.to("meta"))
        return BACKWARD * judge_macs * self._seen + (macs - judge_macs) * (
            self._seen if options.augments else len(feed.labels)
        )


def check(_: ViluOptions, files: Sequence[OpenModel], __: Classes | None) -> None:
    """Check that a model is a single zero-shot model.

    Raises:
        UnsupportedModelError: If the model is another kind of model.
    """
    contrast_of(without_weights(files[0]), name=files[0].reference)


def build(options: ViluOptions, inputs: BaselineInputs) -> tuple[Towers, dict[str, float]]:
    """Train the network.

    Returns:
        The model with the trained network, and its accuracy on the training data for the record.
    """
    model, model_file = inputs.models[0], inputs.files[0]
    contrast_of(model, name=model_file.reference)
    items, _, labels = inputs.fitted_on[str(options.data_ref)]
    feed = ItemFeed.open(
        items,
        labels.tolist(),
        model_file.header.preprocess,
        augment=options.augments,
        batch_size=options.batch,
        seed=options.seed,
    )
    progress.step(
        f"Training on {counted(len(items), 'sample')} to predict whether {model_file.reference} is correct"
    )
    vilu = Vilu(model, options, feed, name=model_file.reference)
    if vilu.accuracy in {0.0, 1.0}:
        always = "right" if vilu.accuracy else "wrong"
        progress.warn(
            f"{options.data}: {model_file.reference} is always {always} on these data, so there is nothing to learn"
        )
    return vilu, {"accuracy": vilu.accuracy}
