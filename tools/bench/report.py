"""From the lines that bench.py writes to medians, spreads, ratios and tables.

A line is one process of one round: {"kind": "bench" or "first", "round", "runner", "group", "quiet", "result"}.
"""
import dataclasses
import itertools
import statistics
import typing

ENOUGH_QUIET = 3  # rounds; with fewer the noisy ones count too, and the figure is marked


@dataclasses.dataclass(frozen=True)
class Column:
    title: str
    kind: str  # of the line that holds it
    read: typing.Callable  # the line's result to the figure, or None
    more_is_better: bool
    share: typing.Callable = lambda result: None  # of the machine's limit, where the result tells

    def better(self, ours, theirs):
        """How many times better our figure is: above 1, ours is ahead."""
        return ours / theirs if self.more_is_better else theirs / ours


def _entry(result, part, key, value):
    return next((entry for entry in result[part] if entry[key] == value), {})


def columns(setup):
    """The measures of a runners.Setup."""
    def rate(title, part, key, value, cost, limit):
        def share(result):
            entry = _entry(result, part, key, value)
            if "limits" not in result or cost not in entry:
                return None
            # A limit of this very entry goes before that of the whole process.
            return entry["tokens_per_s"] * entry[cost] / entry.get(limit, result["limits"].get(limit))
        return Column(title, "bench", lambda result: _entry(result, part, key, value).get("tokens_per_s"), True, share)

    prefill = [rate(f"prefill {n}", "prefill", "tokens", n, "ops_per_token", "int8_ops_per_s")
               for n in map(int, setup.prefill.split(","))]
    decode = [rate(f"decode at {n}", "decode", "depth", n, "bytes_per_token", "read_bytes_per_s")
              for n in map(int, setup.depth.split(","))]
    return [*prefill, *decode,
            Column("first token, ms", "first", lambda result: 1e3 * result["first_token_s"], False),
            Column("load, ms", "bench", lambda result: 1e3 * result["load_s"], False),
            Column("peak, MiB", "bench", lambda result: result["peak_rss_bytes"] / 2**20, False)]


@dataclasses.dataclass(frozen=True)
class Figure:
    median: float
    low: float
    high: float
    noisy: bool
    rounds: int


def _summarize(samples):
    """samples: (value, quiet) of each round. None if there are none."""
    if not samples:
        return None
    quiet = [value for value, is_quiet in samples if is_quiet]
    enough = len(quiet) >= min(ENOUGH_QUIET, len(samples))
    values = quiet if enough else [value for value, _ in samples]
    return Figure(statistics.median(values), min(values), max(values), not enough, len(values))


def _samples(lines, runner, column, read):
    """Round to (value, quiet)."""
    samples = {}
    for line in lines:
        if line["kind"] == column.kind and line["runner"] == runner:
            value = read(line["result"])
            if value is not None:
                samples[line["round"]] = (value, line["quiet"])
    return samples


@dataclasses.dataclass
class Group:
    """The runners of one size of weights, compared."""
    name: str
    columns: list
    rows: dict  # runner to [Figure or None for each column]
    ratios: dict  # offgraph's runner to [(Figure, the peer's name) or None]
    shares: dict  # offgraph's runner to [Figure or None]


def summarize(lines, setup):
    """One Group for each that the lines hold, in their order."""
    return [_group(name, [line for line in lines if line["group"] == name], columns(setup))
            for name in dict.fromkeys(line["group"] for line in lines)]


def _group(name, lines, all_columns):
    runners = list(dict.fromkeys(line["runner"] for line in lines))
    ours = [runner for runner in runners if runner.startswith("offgraph")]
    rows = {runner: [_summarize(_samples(lines, runner, column, column.read).values()) for column in all_columns]
            for runner in runners}
    ratios = {runner: [_ratio(lines, runner, index, column, rows) for index, column in enumerate(all_columns)]
              for runner in ours}
    shares = {runner: [_summarize(_samples(lines, runner, column, column.share).values()) for column in all_columns]
              for runner in ours}
    return Group(name, all_columns, rows, ratios, shares)


def _ratio(lines, runner, index, column, rows):
    """Against the peer with the best median. Taken round by round, so that a machine that drifts meets both alike."""
    peers = [peer for peer in rows if not peer.startswith("offgraph") and rows[peer][index]]
    if not peers or not rows[runner][index]:
        return None
    best = (max if column.more_is_better else min)(peers, key=lambda peer: rows[peer][index].median)
    own, theirs = (_samples(lines, name, column, column.read) for name in (runner, best))
    both = [(column.better(own[r][0], theirs[r][0]), own[r][1] and theirs[r][1]) for r in own if r in theirs]
    figure = _summarize(both)
    return figure and (figure, best)


def _number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _percent(value):
    return f"{100 * value:.0f} %"


def _cell(figure, show):
    """The median, and the lowest and highest round."""
    if figure is None:
        return "–", ""
    mark = "*" if figure.noisy else ""
    return show(figure.median) + mark, f"{show(figure.low)}–{show(figure.high)}" if figure.rounds > 1 else ""


def _table_rows(group):
    """Each row: a title, then (first line, second line) of each column."""
    for runner, figures in group.rows.items():
        yield runner, [_cell(figure, _number) for figure in figures]
    for runner, ratios in group.ratios.items():
        if any(ratios):
            figures, peers = zip(*(ratio or (None, "") for ratio in ratios))
            yield f"{runner} / best peer", [_cell(figure, lambda value: f"{value:.2f}") for figure in figures]
            yield "  that peer", [peer.partition("-")[::2] for peer in peers]
    for runner, shares in group.shares.items():
        if any(shares):
            yield f"{runner} of the limit", [_cell(share, _percent) for share in shares]


CAPTION = """Medians of the rounds, with the lowest and the highest; tokens/s where no unit is given. Ratios are taken
round by round; above 1, offgraph is ahead, in every column. Limits are measured in the same run: read bandwidth for
decode, int8 multiply-adds for prefill."""
NOISY = "* Other work took more than it should in most rounds."


def draw_cells(rows):
    """A table for a terminal. Each cell is a text, or one of several lines; the first row is the header."""
    rows = [[cell.split("\n") for cell in row] for row in rows]
    widths = [max(len(line) for row in rows for line in row[column]) for column in range(len(rows[0]))]

    def rule(left, middle, right):
        return left + middle.join("─" * (width + 2) for width in widths) + right

    def line(row, number):
        texts = [cell[number] if number < len(cell) else "" for cell in row]
        padded = [texts[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(texts[1:], widths[1:]))]
        return "│ " + " │ ".join(padded) + " │"

    header, *body = [[line(row, number) for number in range(max(map(len, row)))] for row in rows]
    return "\n".join([rule("┌", "┬", "┐"), *header, rule("├", "┼", "┤"), *itertools.chain(*body),
                      rule("└", "┴", "┘")])


def draw(group):
    """The group's table for a terminal: the spread below each median."""
    header = [f"{group.name} weights", *(column.title.replace(" ", "\n", 1) for column in group.columns)]
    return draw_cells([header, *([name, *("\n".join(filter(None, cell)) for cell in cells)]
                                 for name, cells in _table_rows(group))])


def markdown(group):
    """The group's table for a document."""
    text = [f"| {group.name} weights | " + " | ".join(column.title for column in group.columns) + " |",
            "| --- |" + " ---: |" * len(group.columns)]
    for name, cells in _table_rows(group):
        text.append(f"| {name.strip()} | " + " | ".join(
            f"{median} [{spread}]" if spread and spread[0].isdigit() else f"{median} {spread}".strip()
            for median, spread in cells) + " |")
    return "\n".join(text)


def to_json(group):
    def plain(figure):
        return figure and dataclasses.asdict(figure)

    titles = [column.title for column in group.columns]
    return {"group": group.name,
            "runners": {runner: dict(zip(titles, map(plain, figures))) for runner, figures in group.rows.items()},
            "ratios": {runner: {title: ratio and {**plain(ratio[0]), "peer": ratio[1]}
                                for title, ratio in zip(titles, ratios)} for runner, ratios in group.ratios.items()},
            "shares_of_limit": {runner: dict(zip(titles, map(plain, shares)))
                                for runner, shares in group.shares.items()}}
