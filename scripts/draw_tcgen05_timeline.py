"""Draw docs/images/tcgen05_timeline.svg: what is in flight in step 1 and in step 5 of matmul_tcgen05, from their traces.

The traces are those of `ptxkit inspect matmul_tcgen05:STEP 512 512 256 --sms 2 --timeline FILE`. Needs no GPU.

    python scripts/draw_tcgen05_timeline.py [FILE.svg]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEPS = ("step1_one_stage", "step5_two_accumulators")
ROWS = (("TMA load", "TMA loads", "#4c78a8"), ("tcgen05.mma", "tcgen05.mma", "#e45756"), ("epilogue", "epilogue", "#59a14f"))
WIDTH, LEFT, ROW, GAP = 900, 110, 46, 6

Event = dict[str, Any]


def trace(step: str) -> list[Event]:
    """The spans of the trace of one step."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "trace.json"
        words = ["inspect", f"matmul_tcgen05:{step}", "512", "512", "256", "--sms", "2", "--timeline", str(file)]
        subprocess.run([sys.executable, "-m", "ptxkit", *words], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return [e for e in events if e["ph"] == "X"]


def lanes(events: list[Event]) -> dict[int, int]:
    """Track of the trace -> lane within its row of the picture."""
    return {track: lane for lane, track in enumerate(sorted({e["tid"] for e in events}))}


def chart(step: str, top: int, events: list[Event], last: int) -> list[str]:
    """One step of the kernel as SVG elements; all charts have the same scale, ``last`` steps to their right edge."""
    scale = (WIDTH - LEFT - 20) / last
    end = max(e["ts"] + e["dur"] for e in events)
    out = [f'<text x="{LEFT}" y="{top - 8}" class="title">{step}: {end:,} steps</text>']
    for number, (category, label, colour) in enumerate(ROWS):
        y = top + number * (ROW + GAP)
        mine = [e for e in events if e["cat"] == category]
        at = lanes(mine)
        height = ROW / max(len(at), 1)
        out.append(f'<text x="{LEFT - 10}" y="{y + ROW / 2 + 4}" text-anchor="end">{label}</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{end * scale:.1f}" height="{ROW}" class="row"/>')
        for e in mine:
            x, width = LEFT + e["ts"] * scale, max(e["dur"] * scale, 0.6)
            place = f'x="{x:.1f}" y="{y + at[e["tid"]] * height:.1f}" width="{width:.1f}" height="{max(height - 0.6, 0.6):.1f}"'
            out.append(f'<rect {place} fill="{colour}"/>')
    return out


def draw() -> str:
    """The picture."""
    found = {step: trace(step) for step in STEPS}
    last = max(e["ts"] + e["dur"] for events in found.values() for e in events)
    block = len(ROWS) * (ROW + GAP) + 44
    height = len(STEPS) * block + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        "<style>.title { font-weight: bold } .row { fill: #eeeeee }</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, (step, events) in enumerate(found.items()):
        out += chart(step, 34 + number * block, events, last)
    note = "One CTA. A step is an instruction of a warp, not a time; an asynchronous operation takes 500 steps or more."
    out += [f'<text x="{LEFT}" y="{height - 12}" fill="#555555">{note}</text>', "</svg>"]
    return "\n".join(out) + "\n"


def main() -> None:
    """Write the picture."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "tcgen05_timeline.svg"
    file.write_text(draw(), encoding="utf-8")
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
