"""Counter-based noise: a function of (seed, position, column), so no draw depends on another row."""

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(
    0x9E3779B97F4A7C15
)  # SplitMix64 (Steele, Lea, Flood 2014): increment and mixing constants
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The output function of SplitMix64, element by element."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def gumbel(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64], columns: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for arrays of one shape."""
    bits = mixed(mixed(mixed(seeds) ^ positions) ^ columns)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    result: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return result
