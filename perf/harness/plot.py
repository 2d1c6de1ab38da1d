"""Bars as SVG, without a library: one small plot a case, one bar a target."""
import html

from . import report

WIDTH, ROW, LABEL, GAP = 330, 17, 150, 40
COLOURS = {"narwhal": "#0b6e4f", "relay": "#999999", "nginx": "#3d5a98", "haproxy": "#6f86b9", "vllm-router": "#c8553d", "smg": "#b8860b"}


def cpu(result):
    """What a unit costs."""
    titles = {"events": "CPU s per 1 M events", "requests": "CPU s per 1000 requests"}
    return page(result, "cost", lambda section: titles[section["unit"]], lambda section: section["mode"] in ("closed", "refused"))


def latency(result):
    """From the engine's write to the client's read, where the engine keeps a pace; one at a time, what a router adds."""
    plots = []
    for case, section in result["scenarios"].items():
        if case.startswith(("p", "k")):
            plots.append((f"{case}: relay p50, us", values(section, "relay_p50")))
        elif section["mode"] == "single":
            plots.append((f"{case}: added to first token, p50, us", values(section, "added_ttft_p50")))
    return drawn(plots)


def page(result, value, title, wanted):
    return drawn([(f"{case}: {title(section)}", values(section, value)) for case, section in result["scenarios"].items() if wanted(section)])


def values(section, value):
    """Median, least and greatest of each target that has it."""
    got = ((label, report.middle(batches, value)) for label, batches in section["rounds"].items())
    return [(label, spread) for label, spread in got if spread]


def drawn(plots):
    plots = [(title, rows) for title, rows in plots if rows]
    columns = 2
    heights = [GAP + ROW * max(len(rows) for _, rows in plots[at:at + columns]) for at in range(0, len(plots), columns)]
    cell, tall = LABEL + WIDTH + 70, sum(heights) + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * cell} {tall}" font-family="sans-serif" font-size="11">',
           f'<rect width="{columns * cell}" height="{tall}" fill="white"/>']
    for index, (title, rows) in enumerate(plots):
        x, y = cell * (index % columns), sum(heights[:index // columns])
        out.append(f'<g transform="translate({x} {y})"><text x="{LABEL}" y="26" font-weight="bold">{html.escape(title)}</text>')
        top = max(spread[2] for _, spread in rows) or 1
        for number, (label, (median, least, most)) in enumerate(rows):
            at = GAP - 6 + ROW * number
            long = lambda value: WIDTH * max(value, 0) / top
            colour = next((colour for name, colour in COLOURS.items() if label.startswith(name)), "#444444")
            out.append(f'<text x="{LABEL - 6}" y="{at + 11}" text-anchor="end">{html.escape(label)}</text>'
                       f'<rect x="{LABEL}" y="{at + 2}" width="{long(median):.1f}" height="{ROW - 5}" fill="{colour}"/>'
                       f'<path d="M{LABEL + long(least):.1f} {at + 8}H{LABEL + long(most):.1f}" stroke="black"/>'
                       f'<text x="{LABEL + long(most) + 5:.1f}" y="{at + 11}">{report.number(median)}</text>')
        out.append("</g>")
    out.append("</svg>\n")
    return "\n".join(out)
