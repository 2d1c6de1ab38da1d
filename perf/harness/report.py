"""What the rounds say: medians with their spread, ratios within a round, bars; and the tables of a page."""
import statistics

COLUMNS = {
    "events": ["cost", "user", "core", "per_s", "joined", "ttft_p50", "gap_mean", "relay_p50", "relay_p99"],
    "requests": ["cost", "user", "core", "per_s", "total_p50", "total_p99"],
    "single": ["total_p50", "ttft_p50", "added_ttft_p50", "added_ttft_p99", "added_total_p50", "added_total_p99"],
    "instructions": ["instructions", "requests"],
    "hold": ["bytes_per_stream", "rss_mib", "grown_mib"],
}
TITLES = {
    "cost": {"events": "CPU s per 1 M events", "requests": "CPU s per 1000 requests"}, "user": "user share", "core": "core used",
    "joined": "events a read", "per_s": {"events": "events/s", "requests": "requests/s"}, "ttft_p50": "TTFT p50 us", "gap_mean": "gap mean us",
    "relay_p50": "relay p50 us", "relay_p99": "relay p99 us", "total_p50": "answer p50 us", "total_p99": "answer p99 us",
    "added_ttft_p50": "added TTFT p50 us", "added_ttft_p99": "p99 us", "added_total_p50": "added answer p50 us", "added_total_p99": "p99 us",
    "instructions": "instructions an event", "requests": "requests", "bytes_per_stream": "bytes a stream", "rss_mib": "RSS MiB", "grown_mib": "grown while silent MiB", "others": "others",
}


def columns(scenario):
    return COLUMNS[scenario.mode if scenario.mode in COLUMNS else scenario.unit]


def middle(batches, value):
    """Median, least and greatest; None where a batch lacks it."""
    all_of = [batch[value] for batch in batches if value in batch]
    return (statistics.median(all_of), min(all_of), max(all_of)) if all_of else None


def held(scenario, rows, rounds):
    """Each bar for each row it is about, with the value of every round."""
    out = []
    for bar in scenario.bars:
        for row in rows:
            if row.name != bar.of:
                continue
            ratios = list(filter(None, (ratio(bar, row, rows, rounds, number) for number in range(len(rounds[row.label])))))
            if not ratios:
                continue
            value = statistics.median(ratios)
            out.append({"scenario": scenario.name, "row": row.label, "value": bar.value, "against": bar.against, "median": value,
                        "least": min(ratios), "greatest": max(ratios), "bar": bar.most if bar.most is not None else bar.least,
                        "most": bar.most is not None, "holds": bar.holds(value), "stretch": bar.stretch, "reaches": bar.reaches(value)})
    return out


def ratio(bar, row, rows, rounds, number):
    """A row's value of one round, over the other's; of several others the best one's."""
    mine = rounds[row.label][number].get(bar.value)
    if bar.against is None or mine is None:
        return mine
    names = bar.against if isinstance(bar.against, list) else [bar.against]
    others = [other for other in rows if other.name in names and other.build in ("", row.build)]
    others = [other for other in others if other.driver in (None, row.driver)]
    if row.build and any(other.build == row.build for other in others):
        others = [other for other in others if other.build == row.build]
    theirs = [rounds[other.label][number].get(bar.value) for other in others if number < len(rounds[other.label])]
    theirs = [value for value in theirs if value]
    if not theirs:
        return None
    return mine / (min(theirs) if bar.most is not None else max(theirs))


def number(value):
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(scenario, rounds):
    """Medians of all rows."""
    shown = [name for name in columns(scenario) if any(middle(batches, name) for batches in rounds.values())]
    titles = [TITLES[name][scenario.unit] if isinstance(TITLES[name], dict) else TITLES[name] for name in shown]
    lines = ["| target | " + " | ".join(titles) + " | others |", "|---" * (len(shown) + 2) + "|"]
    for label, batches in rounds.items():
        cells = []
        for at, name in enumerate(shown):
            got = middle(batches, name)
            spread = f" ({number(got[1])} to {number(got[2])})" if got and at == 0 and len(batches) > 1 else ""
            cells.append(number(got[0]) + spread if got else "")
        wrong = " WRONG" if any(batch["fault"] for batch in batches) else ""
        others = middle(batches, "others")
        lines.append(f"| {label}{wrong} | " + " | ".join(cells) + f" | {others[0] if others else 0:.2f} |")
    return "\n".join(lines)


def bars_table(bars):
    lines = ["| case | target | what | against | median | spread | bar | stretch |", "|---|---|---|---|---|---|---|---|"]
    for b in bars:
        against = " or ".join(b["against"]) if isinstance(b["against"], list) else b["against"] or ""
        sign = "≤" if b["most"] else "≥"
        verdict = "" if b["holds"] else " **missed**"
        stretch = "" if b["stretch"] is None else f"{sign} {number(b['stretch'])}" + (" reached" if b["reaches"] else "")
        lines.append(f"| {b['scenario']} | {b['row']} | {b['value']} | {against} | {number(b['median'])} | "
                     f"{number(b['least'])} to {number(b['greatest'])} | {sign} {number(b['bar'])}{verdict} | {stretch} |")
    return "\n".join(lines)
