"""Scenarios as data: reads perf/scenarios.toml, refuses what it does not know, and names the rows of a scenario.

A row is a target in a way of asking it. Targets that run on a driver make a row for each, `narwhal/io_uring`; another build of Narwhal
makes its own, `narwhal/io_uring:NAME`.
"""
import dataclasses
import tomllib

DRIVEN = ("narwhal", "relay")
TOKENS = 64


class Wrong(Exception):
    """A scenario file that says what nobody understands."""


@dataclasses.dataclass
class Row:
    """One way of asking one target."""

    name: str  # as in the file: `narwhal streamed`
    target: str
    legs: int = 1
    whole: bool | None = None
    text: bool = False
    shards: int = 1
    driver: str | None = None
    build: str = ""

    @property
    def label(self):
        driver = f"/{self.driver}" if self.driver else ""
        return self.name.replace(self.target, self.target + driver, 1) + (f":{self.build}" if self.build else "")

    @property
    def process(self):
        """Rows with the same one are asked through the same process."""
        return (self.target, self.driver, self.build, self.legs, self.shards)


@dataclasses.dataclass
class Bar:
    """What is compared, and what it may be."""

    of: str
    value: str
    against: str | list[str] | None = None
    most: float | None = None
    least: float | None = None
    stretch: float | None = None

    def holds(self, value):
        return value <= self.most if self.most is not None else value >= self.least

    def reaches(self, value):
        """The stretch, where there is one."""
        if self.stretch is None:
            return None
        return value <= self.stretch if self.most is not None else value >= self.stretch


@dataclasses.dataclass
class Scenario:
    """One section of the file."""

    name: str
    what: str
    connections: int
    rows: list[Row]
    bars: list[Bar] = dataclasses.field(default_factory=list)
    unit: str = "events"
    mode: str = "closed"
    whole: bool = False
    engine: list[str] = dataclasses.field(default_factory=list)
    stagger_ms: int = 0
    tokens: int = TOKENS
    fresh: bool = False  # a process of its own for every batch


def read(path):
    """All scenarios by name, in the file's order."""
    with open(path, "rb") as file:
        data = tomllib.load(file)
    rows = {name: Row(name=name, **what) for name, what in data["rows"].items()}
    out = {}
    for name, section in data["scenario"].items():
        try:
            named = [rows[row] for row in section.pop("rows")]
            bars = [Bar(**bar) for bar in section.pop("bars", [])]
            out[name] = Scenario(name=name, rows=named, bars=bars, **section)
        except (KeyError, TypeError) as wrong:
            raise Wrong(f"{path}: scenario {name}: {wrong}") from wrong
        for bar in bars:
            against = bar.against if isinstance(bar.against, list) else [bar.against]
            missing = {row for row in (bar.of, *against) if row} - {row.name for row in named}
            if missing or (bar.most is None) == (bar.least is None):
                raise Wrong(f"{path}: scenario {name}: a bar without its rows {missing} or without one limit")
    return out


def spread(scenario, drivers, builds, present):
    """The rows that are measured: one for each driver and build, and only of targets that are there."""
    out = []
    for row in scenario.rows:
        if row.target not in present:
            continue
        if row.target not in DRIVEN:
            out.append(row)
            continue
        for build in builds if row.target == "narwhal" else [""]:
            for driver in drivers[row.target]:
                out.append(dataclasses.replace(row, driver=driver, build=build))
    return out
