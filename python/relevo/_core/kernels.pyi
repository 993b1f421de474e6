from collections.abc import Sequence
from typing import Any, SupportsFloat, SupportsIndex, final, overload

import numpy as np
import numpy.typing as npt

from relevo.kernels import Advantages, NStepReturns, PrioritySample, ProportionalSample, VTrace

def attention_bandwidth_cost(seq_len: npt.ArrayLike, scale: SupportsFloat = 1.0) -> Any:
    """Attention cost of a sequence, `scale * t(t+1)/2` for t = `seq_len` tokens (EchoRL).

    The product is exact before it becomes a float; a length may be anything below 2^64.

    Args:
        seq_len: a whole number, or an array of them.
        scale: what each pair of tokens costs.

    Returns:
        A float, or a float64 array of the shape of `seq_len`.

    Raises:
        ContractError: a length is negative or no whole number.
        ConfigError: the scale is not finite.
    """

def effective_bandwidth_cost(seq_len: npt.ArrayLike, reuse_len: npt.ArrayLike, scale: SupportsFloat = 1.0) -> Any:
    """Attention cost that is left when a prefix is reused: `b(seq_len) - b(reuse_len)` (EchoRL).

    It is worked out among integers, `(t - t')(t + t' + 1)/2`, so that no digits are lost.

    Args:
        seq_len: a whole number, or an array of them.
        reuse_len: of the same shape.
        scale: what each pair of tokens costs.

    Returns:
        A float, or a float64 array of that shape.

    Raises:
        ContractError: a length is negative or no whole number, or more is reused than there is.
        ConfigError: the scale is not finite.
    """

def bandwidth_aware_priorities(
    rewards: npt.ArrayLike,
    b_eff: npt.ArrayLike,
    queue_times: npt.ArrayLike,
    bandwidth_weight: SupportsFloat = 1.0,
    eps: SupportsFloat = 1e-6,
    *,
    out: npt.NDArray[Any] | None = None,
) -> Any:
    """Priority of each request: `rewards / (bandwidth_weight * b_eff + queue_times + eps)` (EchoRL).

    Args:
        rewards: what each is expected to earn; may be negative.
        b_eff: attention cost of each that is left.
        queue_times: how long each has waited.
        bandwidth_weight: how much the cost counts beside the time.
        eps: what is added to each denominator.
        out: an array for the result, of its type and shape.

    Returns:
        An array of the shape of `rewards`, or a float where all are single numbers.

    Raises:
        ContractError: NaN, shapes that differ, a negative cost or time, a denominator of zero. `out` is as it was.
        ConfigError: a negative weight or eps.
    """

def bandwidth_efficiency(
    episode_rewards: npt.ArrayLike, episode_b_eff: npt.ArrayLike, weights: npt.ArrayLike, pg_losses: npt.ArrayLike
) -> float:
    """Reward for each unit of bandwidth, that of rollouts and the learner's together (EchoRL).

    `mean(episode_rewards) / (mean(episode_b_eff) + mean(weights * abs(pg_losses)))`. Averages are plain, and summed up
    in float64; that of an empty batch is 0.

    Args:
        episode_rewards: sum of the rewards of each episode.
        episode_b_eff: sum of the attention costs of each episode.
        weights: importance weights of a learner's batch; may be empty.
        pg_losses: its policy-gradient losses.

    Raises:
        ContractError: no episode, NaN, paired arrays of different shapes, a negative cost, a denominator of zero.
    """

def plan_surprise(
    plans: npt.ArrayLike,
    mean_plan: npt.ArrayLike,
    rewards: npt.ArrayLike,
    alpha: SupportsFloat,
    *,
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[np.floating[Any]]:
    """Replay score of each plan: `||plan - mean_plan||^2 + alpha * abs(reward)`, the squared distance (EchoRL).

    Args:
        plans: `[N, d]`.
        mean_plan: `[d]`.
        rewards: `[N]`.
        alpha: how much a reward counts beside a distance.
        out: an array for the result, of its type and shape.

    Returns:
        `[N]`.

    Raises:
        ContractError: NaN, or shapes that do not fit. `out` is as it was.
        ConfigError: alpha is not finite.
    """

@final
class EMAPlanTracker:
    """Running mean of plans: the first becomes the mean, each later one moves it (EchoRL).

    `mean = decay * mean + (1 - decay) * plan`, in float64. It may be used by many threads at once.
    """

    def __new__(cls, dim: SupportsIndex, decay: SupportsFloat) -> EMAPlanTracker:
        """A tracker that has seen no plan.

        Args:
            dim: how many numbers a plan has.
            decay: how much of the mean stays with each plan, from 0 to 1.

        Raises:
            ConfigError: dim is less than 1, or decay outside 0 to 1.
        """

    def update(self, plans: npt.ArrayLike) -> None:
        """Takes in one plan `[dim]`, or a batch `[n, dim]`, which is its rows in order.

        Raises:
            ContractError: a number is NaN or infinite, or the shape does not fit. Nothing is taken in.
        """

    @property
    def mean(self) -> npt.NDArray[np.float64] | None:
        """`[dim]`, a copy; None before the first plan."""

    @property
    def count(self) -> int:
        """How many plans were taken in."""

    @property
    def dim(self) -> int:
        """How many numbers a plan has."""

    @property
    def decay(self) -> float:
        """How much of the mean stays with each plan."""

@overload
def prefix_match(
    a: Sequence[int] | npt.NDArray[np.integer[Any]], b: Sequence[int] | npt.NDArray[np.integer[Any]]
) -> int:
    """Length of the longest common prefix of two sequences of token ids (EchoRL).

    Where `a` and `b` are several sequences each, such as lists of lists, it is that of each of `a` with each of `b`:
    an int64 array `[len(a), len(b)]`. What such a call costs for each pair does not grow with the length of the prefix.

    Raises:
        ContractError: tokens that are no integers, or one sequence on one side and several on the other.
    """

@overload
def prefix_match(
    a: Sequence[Sequence[int] | npt.NDArray[np.integer[Any]]], b: Sequence[Sequence[int] | npt.NDArray[np.integer[Any]]]
) -> npt.NDArray[np.int64]: ...
def priority_sample(
    scores: npt.ArrayLike,
    *,
    temperature: SupportsFloat,
    beta: SupportsFloat,
    indices: npt.ArrayLike | None = None,
    batch_size: SupportsIndex | None = None,
    seed: SupportsIndex | None = None,
) -> PrioritySample:
    """Softmax sampling from a replay buffer, with importance weights (EchoRL; arXiv 1511.05952).

    Probabilities are `softmax(scores / temperature)`; weights are `(N p)^(-beta)` of the items drawn, divided by the
    largest of them.

    Args:
        scores: `[N]`, one for each item.
        temperature: how much the distribution is flattened, above 0.
        beta: how much the weights correct for the probabilities, 0 or more.
        indices: the items that were drawn, `[B]`; nothing is drawn then.
        batch_size: or else B, how many to draw, with repeats.
        seed: of the draw, 0 to 2^64 - 1; a new one each time where it is not given.

    Raises:
        ContractError: no scores, one that is NaN or infinite, an index out of range.
        ConfigError: a temperature that is not positive and finite, a beta that is negative or not finite, or not one of
            `indices` and `batch_size`.
    """

def prioritized_proportional(
    priorities: npt.ArrayLike, *, alpha: SupportsFloat, beta: SupportsFloat, indices: npt.ArrayLike
) -> ProportionalSample:
    """Proportional prioritized replay (arXiv 1511.05952, section 3).

    Probabilities are `priority^alpha / sum(priority^alpha)`, and 0 for a priority of 0, also at alpha 0; weights are
    `(N P)^(-beta)` of the items drawn.

    Args:
        priorities: `[N]`, 0 or more.
        alpha: how much priorities count, 0 or more.
        beta: how much the weights correct for the probabilities, 0 or more.
        indices: the items that were drawn, `[B]`.

    Raises:
        ContractError: a priority that is negative, NaN or infinite, none above 0, an index out of range or of an item
            of priority 0.
        ConfigError: alpha or beta is negative or not finite.
    """

def gae(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    next_values: npt.ArrayLike,
    terminated: npt.ArrayLike,
    truncated: npt.ArrayLike,
    *,
    gamma: SupportsFloat,
    lam: SupportsFloat,
    out: Sequence[npt.NDArray[Any]] | None = None,
) -> Advantages:
    """Generalised advantage estimation (arXiv 1506.02438), `[T, N]`.

    `A_t = delta_t + gamma * lam * (1 - done_t) * A_(t+1)`, where done is terminated or truncated, and
    `delta = r + gamma * next_values * (1 - terminated) - values`; `returns = A + values`.

    Args:
        rewards: what each step earned.
        values: value of the observation that each step began with.
        next_values: value of the observation that truly followed it: the final one at a truncation, never that of the
            next episode's first.
        terminated: where a step ended its episode.
        truncated: where an episode was cut off after a step.
        gamma: discount.
        lam: how far advantages look ahead.
        out: two arrays for the results, of their type and shape.

    Raises:
        ContractError: NaN anywhere, shapes that differ, flags that are not 0 and 1. `out` is as it was.
        ConfigError: gamma or lam is not finite.
    """

def discounted_returns(
    rewards: npt.ArrayLike,
    terminated: npt.ArrayLike,
    truncated: npt.ArrayLike,
    next_values: npt.ArrayLike | None = None,
    *,
    gamma: SupportsFloat,
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[np.floating[Any]]:
    """Discounted returns (Sutton & Barto, chapter 3), `[T, N]`.

    `G_t = r_t + gamma * future`, where the future is 0 if step t terminated, `next_values_t` if it was truncated or is
    the last row, and else `G_(t+1)`.

    Args:
        rewards: what each step earned.
        terminated: where a step ended its episode.
        truncated: where an episode was cut off after a step.
        next_values: value of the observation that truly followed each step; 0 where it is not given.
        gamma: discount.
        out: an array for the result, of its type and shape.

    Raises:
        ContractError: NaN anywhere, shapes that differ, flags that are not 0 and 1. `out` is as it was.
        ConfigError: gamma is not finite.
    """

def n_step(
    rewards: npt.ArrayLike,
    terminated: npt.ArrayLike,
    truncated: npt.ArrayLike,
    *,
    gamma: SupportsFloat,
    n: SupportsIndex,
    out: Sequence[npt.NDArray[Any]] | None = None,
) -> NStepReturns:
    """n-step returns that never cross an episode's end (Sutton & Barto, chapter 7), `[T, N]`.

    From t on, steps are taken until there are n of them, or one is terminated or truncated, or it is the last row.
    Their discounted rewards are summed up. The target is `returns + discounts * next_values[bootstrap_index]`.

    Args:
        rewards: what each step earned.
        terminated: where a step ended its episode.
        truncated: where an episode was cut off after a step.
        gamma: discount.
        n: how many steps are taken together at most.
        out: four arrays for the results, of their types (the last two int64) and shape.

    Raises:
        ContractError: NaN, shapes that differ, flags that are not 0 and 1. `out` is as it was.
        ConfigError: gamma is not finite, or n is less than 1.
    """

def vtrace(
    behaviour_log_probs: npt.ArrayLike,
    target_log_probs: npt.ArrayLike,
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    next_values: npt.ArrayLike,
    terminated: npt.ArrayLike,
    truncated: npt.ArrayLike,
    *,
    gamma: SupportsFloat,
    rho_bar: SupportsFloat = 1.0,
    c_bar: SupportsFloat = 1.0,
    lam: SupportsFloat = 1.0,
    out: Sequence[npt.NDArray[Any]] | None = None,
) -> VTrace:
    """V-trace targets and advantages (IMPALA, arXiv 1802.01561, section 4.1 and remark 2), `[T, N]`.

    With `ratio = exp(target - behaviour)`, `rho = min(rho_bar, ratio)`, `c = lam * min(c_bar, ratio)` and
    `g = gamma * (1 - terminated)`: `x_t = rho_t * (r_t + g_t * next_values_t - values_t) + gamma * c_t * (1 - done_t) *
    x_(t+1)`, `vs = values + x`, `pg_advantages_t = rho_t * (r_t + g_t * u_t - values_t)`, where `u_t` is `vs_(t+1)`, or
    `next_values_t` where the step is done or the last row. On policy, `vs` are the returns of `gae`.

    Args:
        behaviour_log_probs: log-probability of each action under the policy that acted.
        target_log_probs: the same under the policy that learns.
        rewards: what each step earned.
        values: value of the observation that each step began with.
        next_values: value of the observation that truly followed it.
        terminated: where a step ended its episode.
        truncated: where an episode was cut off after a step.
        gamma: discount.
        rho_bar: where the weights of one-step errors are clipped; may be infinite.
        c_bar: where the weights of traces are clipped; may be infinite.
        lam: how far traces look ahead.
        out: two arrays for the results, of their type and shape.

    Raises:
        ContractError: NaN anywhere, two infinite log-probabilities of one action, shapes that differ, flags that are
            not 0 and 1. `out` is as it was.
        ConfigError: gamma or lam is not finite, a bar is negative.
    """
