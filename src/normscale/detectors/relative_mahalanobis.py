"""Relative Mahalanobis distance: to the nearest class, less the distance to all classes together."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.class_distance import ClassDistance, checked_shrinkage
from normscale.detectors.class_sums import ClassSums
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, ModelOutputs
from normscale.state import Numbers


@register
class RelativeMahalanobis(Detector):
    """Squared Mahalanobis distance to the nearest class mean, less the one under a Gaussian of all training rows.

        score = min_k (f - mu_k)' S^-1 (f - mu_k)  -  (f - mu_0)' S_0^-1 (f - mu_0)

    with the class means mu_k, the covariance S within the classes, and mean mu_0 and covariance S_0 of all rows.

    S_0 is S and the covariance between the class means. In coordinates in which S is the identity and S_0 is diagonal,
    the two distances are the same number in every direction in which the class means do not differ. So only the other
    directions, fewer than there are classes, are ever computed: there

        score = min_k |y - m_k|^2 - sum_j y_j^2 / s_j

    With one class every score is 0, as the formula says.

    References
    ----------
    Ren et al., "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection", 2021.

    Examples
    --------
    >>> train = ModelOutputs(features=[[-5.0], [-3.0], [3.0], [5.0]], labels=[0, 0, 1, 1])
    >>> RelativeMahalanobis(shrinkage=0.0).fit(train).score(np.array([[4.0], [0.0]])).round(3).tolist()
    [-0.941, 16.0]
    """

    name = "relative_mahalanobis"
    title = "Relative Mahalanobis"
    paper = "Ren et al. 2021"
    cost = "four matrix products with the features"
    reads = (FEATURES,)
    needs_labels = True
    parameters = {"shrinkage": "of the covariance within classes towards the identity, 0 to 1, or oas"}

    class Fitted(NamedTuple):
        centre: Annotated[FloatArray, Numbers(FEATURES)]
        projection: Annotated[FloatArray, Numbers(FEATURES, "directions")]
        means: Annotated[FloatArray, Numbers("means", "directions")]
        variances: Annotated[FloatArray, Numbers("directions", least=1.0)]

        def check(self) -> None:
            """Raise where there is no mean."""
            if not len(self.means):
                raise InvalidInput("there must be a mean.")

    fitted_: Fitted

    def __init__(self, shrinkage: float | str = "oas") -> None:
        self.shrinkage = checked_shrinkage(shrinkage)

    def _partial(self, rows: ModelOutputs, turn: int) -> ClassSums:
        assert rows.labels is not None  # the contract checked it
        return ClassSums().add(rows.features, rows.labels)

    def _finish(self, total: ClassSums, turn: int) -> Fitted:
        distance = ClassDistance.of(total, self.shrinkage, self.name)
        shares = total.counts / total.n
        centre = shares @ distance.means
        white = (distance.means - centre) @ distance.whitening
        _, sizes, directions = np.linalg.svd(np.sqrt(shares)[:, None] * white, full_matrices=False)
        differ = sizes > np.finfo(np.float64).eps * max(white.shape) * sizes.max(initial=0.0)
        differ[shares.size - 1 :] = False  # k means span k - 1 directions; a further one is rounding error
        axes = directions[differ].T
        return self.Fitted(centre, distance.whitening @ axes, white @ axes, 1.0 + sizes[differ] ** 2)

    @by_blocks
    def _score(self, features: FloatArray) -> FloatArray:
        centre, projection, means, variances = self.fitted_
        y = (features - centre) @ projection
        to_means = y @ (-2.0 * means.T) + np.einsum("ij,ij->i", means, means)
        scores: FloatArray = to_means.min(axis=1) + np.square(y) @ (1.0 - 1.0 / variances)
        return scores
