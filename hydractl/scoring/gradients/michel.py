"""Head importance by gates (Michel, Levy, Neubig 2019: "Are sixteen heads really better than one?")."""

from __future__ import annotations

from hydractl.progress import Progress
from hydractl.scoring.attention_hooks import heads_left
from hydractl.scoring.gradients.gate_gradients import gate_gradients
from hydractl.scoring.gradients.iterative import HeadImportance, remove_lowest
from hydractl.scoring.gradients.per_sample_gradients import absolute_gradients
from hydractl.scoring.gradients.settings import MichelSettings
from hydractl.scoring.gradients.weight_gradients import mean_loss
from hydractl.scoring.job import Ranking, ScoreJob
from hydractl.scoring.normalize import Tables, min_max, normalized, warn_of_unlike_towers


def score_michel(job: ScoreJob, progress: Progress) -> Ranking:
    """Score heads by I_h = E|∂L/∂ξ_h|, ξ_h = 1 a gate on the head's output before the output projection.

    With `form` `sample` the absolute value is each sample's (equation 2 of the paper); with `batch` it is that of the
    gradient of a batch's mean loss, averaged over batches, as in the code that others use (DSP, CAHP): signs of samples
    cancel, so it is no larger where batches are of one size, and it depends on their size. The source's division by the
    number of tokens is the same for all heads and falls out.

    Then scores are normalised as the settings say (by layer, as in the source), and moved to [0, 1] over all heads; with
    `normalize` `none` they stay I_h itself.

    With `recompute` N > 0 the N lowest heads go and scores are computed anew without them, until `budget` heads are gone
    (the paper's pruning in steps, DSP's `exact_pruning`); see `remove_lowest`.
    """
    settings = job.set_for(MichelSettings)
    warn_of_unlike_towers(job, settings.normalize, progress)

    def measure() -> HeadImportance:
        tables, loss = gate_importance(job, settings.form)
        if settings.normalize == "none":
            return HeadImportance(tables, loss)
        return HeadImportance(min_max(normalized(tables, settings.normalize)), loss)

    if settings.recompute:
        return remove_lowest(job, progress, measure, at_once=settings.recompute)
    return Ranking(scores=measure().tables)


def gate_importance(job: ScoreJob, form: str) -> HeadImportance:
    """Return I_h of every head that is left, and the mean cross-entropy.

    Args:
        job: Its model may have lost heads.
        form: `sample` or `batch`.

    Raises:
        DataError: If a gradient is not finite, or there are no labels.
    """
    if form == "sample":
        return absolute_gradients(job)
    means = {name: gradients.abs().mean(dim=0) for name, gradients in gate_gradients(job).items()}
    tables: Tables = {
        name: [
            mean[layer, list(heads_left(job.model.tower(name), layer))].tolist() for layer in range(len(mean))
        ]
        for name, mean in means.items()
    }
    return HeadImportance(tables, mean_loss(job))
