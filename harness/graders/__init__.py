"""Parts that benchmarks are made of: read an answer, ask a judge, and say how far graders agree.

    from harness.graders import Rubric, choice_letter, prefer

None of them is needed: `play` and `measure` may do anything.
"""

from harness.graders.agreement import (
    HumanAgreement,
    human_agreement,
    krippendorff_alpha,
    ratings_in,
)
from harness.graders.answers import choice_letter, exact_match, number_in, numeric_match
from harness.graders.judges import Preference, Rubric, prefer
from harness.graders.reliability import PassHatK, pass_hat_k

__all__ = [
    "HumanAgreement",
    "PassHatK",
    "Preference",
    "Rubric",
    "choice_letter",
    "exact_match",
    "human_agreement",
    "krippendorff_alpha",
    "number_in",
    "numeric_match",
    "pass_hat_k",
    "prefer",
    "ratings_in",
]
