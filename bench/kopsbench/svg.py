"""Drawings as SVG text: boxes, lines and words, with nothing to install."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

INK, FAINT, PAPER = "#1f2328", "#d0d7de", "#ffffff"
OURS, PEER, TARGET = "#0969da", "#9aa4af", "#cf222e"


class Drawing:
    """Origin at the upper left, y downwards, in pixels."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = []
        self.box(0, 0, width, height, PAPER)
        self.words(16, 26, title, size=16, weight="bold")

    def box(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}" fill="{fill}"/>')

    def line(self, points: Sequence[tuple[float, float]], stroke: str, width: float = 1.0) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width}"/>')

    def dot(self, x: float, y: float, fill: str, radius: float = 4.0) -> None:
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}"/>')

    def words(
        self, x: float, y: float, text: str, *, size: float = 12, anchor: str = "start", fill: str = INK, weight: str = "normal"
    ) -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"'
            f' font-weight="{weight}">{escape(text)}</text>'
        )

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str]]) -> None:
        for name, color in entries:
            self.box(x, y - 9, 12, 10, color)
            self.words(x + 17, y, name)
            x += 30 + 6.6 * len(name)

    def text(self) -> str:
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:.0f}" height="{self.height:.0f}"'
            f' viewBox="0 0 {self.width:.0f} {self.height:.0f}" font-family="system-ui, sans-serif">\n{body}\n</svg>\n'
        )


def nice(value: float) -> str:
    """Three digits, with k and M for thousands and millions."""
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ticks(most: float, about: int = 5) -> list[float]:
    """Round numbers from 0 to no less than `most`."""
    step = 10.0 ** len(str(int(most)))
    for part in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        if most / (step * part) <= about:
            step *= part
            break
    n = int(most / step) + 1
    return [step * i for i in range(n + 1)]
