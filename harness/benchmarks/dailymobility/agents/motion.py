"""Status and trip modes by the names and numbers of `pycityproto`, for where that package is not installed."""

from __future__ import annotations


class Numbers:
    """Numbers by name, in the manner of protobuf's enumerations: `Status.STATUS_SLEEP`, `Status.Name(1)`."""

    def __init__(self, prefix: str, numbers: dict[str, int]) -> None:
        self._numbers = {f"{prefix}_{name}": number for name, number in numbers.items()}

    def __getattr__(self, name: str) -> int:
        try:
            return self.__dict__["_numbers"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    def Name(self, number: int) -> str:
        for name, its in self._numbers.items():
            if its == number:
                return name
        raise ValueError(f"no name for the number {number}")

    def Value(self, name: str) -> int:
        if name not in self._numbers:
            raise ValueError(f"no number for the name {name}")
        return self._numbers[name]

    def keys(self) -> list[str]:
        return list(self._numbers)

    def values(self) -> list[int]:
        return list(self._numbers.values())

    def items(self) -> list[tuple[str, int]]:
        return list(self._numbers.items())


def _counted(words: str) -> dict[str, int]:
    return {word: number for number, word in enumerate(words.split())}


Status = Numbers(
    "STATUS",
    _counted("UNSPECIFIED SLEEP DRIVING WALKING CROWD PASSENGER WAIT_ROUTE WAIT_BUS RAIL_TRANSIT WAIT_TAXI"),
)
TripMode = Numbers(
    "TRIP_MODE",
    {
        "UNSPECIFIED": 0,
        "WALK_ONLY": 1,
        "DRIVE_ONLY": 2,
        "BUS_WALK": 4,
        "BIKE_WALK": 5,
        "TAXI": 6,
        "SUBWAY_WALK": 7,
        "BUS_SUBWAY_WALK": 8,
    },
)
