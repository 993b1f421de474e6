from relevo.settings import Bounds, Normalization

def check_bounds(bounds: Bounds) -> None:
    """Refuses bounds that no policy could use.

    Raises:
        ConfigError: there are not as many lower as upper ones, or one is NaN, or not below its upper one, or infinite
            where actions are rescaled to it.
    """

def check_normalization(normalization: Normalization) -> None:
    """Refuses statistics that no policy could use.

    Raises:
        ConfigError: there are not as many means as variances, or a mean is not finite, a variance negative or NaN, or
            the clip not above 0.
    """
