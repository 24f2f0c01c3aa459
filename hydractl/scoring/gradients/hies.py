"""Head importance and entropy together: HIES (Choi et al., arXiv 2510.13832)."""

from __future__ import annotations

from hydractl.progress import Progress
from hydractl.scoring.gradients.entropy import attention_entropy
from hydractl.scoring.gradients.per_sample_gradients import absolute_gradients
from hydractl.scoring.gradients.settings import HiesSettings
from hydractl.scoring.job import Ranking, ScoreJob
from hydractl.scoring.normalize import min_max, normalized, warn_of_unlike_towers


def score_hies(job: ScoreJob, progress: Progress) -> Ranking:
    """Score heads by HIES_h = α HIS_h + (1 − α) (1 − AE_h), both moved to [0, 1] over all heads; in [0, 1].

    HIS is Michel's importance with the absolute value of each sample (`absolute_gradients`), normalised as the settings say
    before it is moved; AE the relative entropy of attention (`attention_entropy`): a head that looks everywhere alike is
    worth less. What is equal for all heads moves none. With α = 1 heads are ordered by HIS, with 0 by AE.
    """
    settings = job.set_for(HiesSettings)
    if settings.alpha > 0:
        warn_of_unlike_towers(job, settings.normalize, progress)
    importance = min_max(normalized(absolute_gradients(job).tables, settings.normalize))
    entropy = min_max(attention_entropy(job))
    return Ranking(
        scores={
            name: [
                [
                    settings.alpha * importance_score + (1 - settings.alpha) * (1 - entropy_score)
                    for importance_score, entropy_score in zip(*rows, strict=True)
                ]
                for rows in zip(importance[name], entropy[name], strict=True)
            ]
            for name in importance
        }
    )
