"""Line charts as SVG, in the colours of the guide's other pictures."""

from html import escape

STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif;font-size:11px;fill:#1f2328}"
    ".paper{fill:#fff}.dim{fill:#59636e}.grid{stroke:#d1d9e0;fill:none}.title{font-size:15px;font-weight:600}"
    "@media (prefers-color-scheme: dark){.paper{fill:#0d1117}text{fill:#e6edf3}.dim{fill:#9198a1}.grid{stroke:#30363d}}"
)
COLOURS = ("#2f81f7", "#d29922", "#8b949e")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 340, 60, 610, 60, 280

Series = dict[str, list[tuple[float, float]]]


def chart(title: str, across: str, up: str, series: Series, top: float) -> str:
    """Lines over shares, from 0 to the last of them and up to `top`."""
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
        f'<text x="{RIGHT}" y="{BOTTOM + 36}" class="dim" text-anchor="end">{escape(across)}</text>',
    ]
    for tick in range(5):
        x, y = place(0, top * tick / 4)
        out.append(f'<path d="M{x} {y}H{RIGHT}" class="grid"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y}" dy="4" class="dim" text-anchor="end">{top * tick / 4:.3g}</text>')
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
        x = LEFT + 130 * index
        out.append(f'<path d="M{x} {BOTTOM + 32}h18" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{x + 24}" y="{BOTTOM + 36}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])
