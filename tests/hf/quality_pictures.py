"""Line charts as SVG, in the colours of the guide's other pictures."""

import math
from html import escape

STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif;font-size:11px;fill:#1f2328}"
    ".paper{fill:#fff}.dim{fill:#59636e}.grid{stroke:#d1d9e0;fill:none}.title{font-size:15px;font-weight:600}"
    "@media (prefers-color-scheme: dark){.paper{fill:#0d1117}text{fill:#e6edf3}.dim{fill:#9198a1}.grid{stroke:#30363d}}"
)
COLOURS = ("#2f81f7", "#d29922", "#8b949e")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 350, 60, 610, 64, 274

Series = dict[str, list[tuple[float, float]]]


def chart(title: str, across: str, up: str, series: Series, top: float = 0) -> str:
    """Lines over shares, from 0 to the last of them, and up to `top` or more."""
    top = max(top, *(y for points in series.values() for _, y in points))
    power = 10 ** math.floor(math.log10(top / 5))
    step = next(power * each for each in (1, 2, 5, 10) if power * each * 5.001 >= top)
    ticks = [step * each for each in range(math.ceil(round(top / step, 6)) + 1)]
    top = ticks[-1]
    last = max(x for points in series.values() for x, _ in points)

    def place(x: float, y: float) -> tuple[str, str]:
        return f"{LEFT + (RIGHT - LEFT) * x / last:.1f}", f"{BOTTOM - (BOTTOM - TOP) * y / top:.1f}"

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        f'<text x="24" y="30" class="title">{escape(title)}</text>',
        f'<text x="24" y="48" class="dim">{escape(up)}</text>',
        f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 38}" class="dim" text-anchor="middle">{escape(across)}</text>',
    ]
    for tick in ticks:
        x, y = place(0, tick)
        out.append(f'<path d="M{x} {y}H{RIGHT}" class="grid"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y}" dy="4" class="dim" text-anchor="end">{tick:.3g}</text>')
    for at in sorted({x for points in series.values() for x, _ in points}):
        x, y = place(at, 0)
        out.append(f'<text x="{x}" y="{y}" dy="16" class="dim" text-anchor="middle">{at:.0%}</text>')
    for (name, points), colour in zip(series.items(), COLOURS):
        path = "L".join(" ".join(place(*point)) for point in points)
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for point in points:
            x, y = place(*point)
            said = f"<title>{escape(name)}: {point[1]:.3g}</title>"
            out.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}">{said}</circle>')
    for index, (name, colour) in enumerate(zip(series, COLOURS)):
        x = LEFT + 185 * index
        out.append(f'<path d="M{x} {BOTTOM + 58}h18" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{x + 24}" y="{BOTTOM + 62}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])
