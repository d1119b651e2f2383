"""The charts of the page, each drawn at two widths so that text is readable on a phone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .. import charts
from ..charts import Series, Spot, Style, Variance
from .svg import Attributes, embedded

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def icon(style: Style) -> str:
    """The outline of a method's mark, as the path of an SVG."""
    try:
        from matplotlib.markers import MarkerStyle
    except ImportError:  # the page has no charts then
        return ""
    marker = MarkerStyle(style.marker)
    outline = marker.get_path().transformed(marker.get_transform())
    polygons = [np.asarray(polygon) for polygon in outline.to_polygons()]
    size = 10 if style.small else 14
    corners = [[f"{size * x:.1f} {-size * y:.1f}" for x, y in polygon] for polygon in polygons]
    return "".join(f"M{'L'.join(polygon)}Z" for polygon in corners)


def scatter_charts(
    spots: Sequence[Spot], styles: dict[str, Style], score: str, *, normalized: bool
) -> dict[str, str]:
    """Average against variance, of the order alone and in total, on the same axes."""
    returns = score == "return"
    prefix, factor = "normalized " if normalized else "", 1.0 if returns else 100.0
    everything = [*spots, *(dot for spot in spots for dot in spot.dots)]
    variances = [value for each in spots for value in (each.total, each.order)]
    middles = [factor * each.average for each in everything]
    margin = 0.05 * (max(middles) - min(middles)) or 1.0
    top = max(value for each in everything for value in (each.total, each.order))

    def picture(kind: Variance, whole: str) -> dict[str, str]:
        name = f"{prefix}variance of {whole}"

        def tip(each: Spot, what: str) -> str:
            average = f"{each.average:.2f}" if returns else f"{100 * each.average:.1f} %"
            return f"average {average}\n{what} {getattr(each, kind):.2g}"

        def draw(axes: Axes) -> None:
            charts.scatter(axes, spots, styles, kind, factor, size=1.9)
            charts.variance_scale(axes, variances)
            axes.set_xlim(min(middles) - margin, max(middles) + margin)
            axes.set_ylim(top=1.3 * top or 1.0)
            axes.set_xlabel(f"average {score}{'' if returns else ', %'}")
            axes.set_ylabel(name)

        tags: dict[str, Sequence[Attributes]] = {}
        for place, spot in enumerate(spots):
            whose, style = {"data-method": spot.name}, styles[spot.name]
            share = "its share of the variance"
            tags[f"dots-{place}"] = [
                whose | {"class": "dot", "data-order": dot.name, "data-tip": tip(dot, share)}
                for dot in spot.dots
            ]
            told = f"{style.label}\n{tip(spot, f'{prefix}{kind} variance')}"
            shape = {"class": "mark" if style.filled else "mark hollow"}
            tags[f"mark-{place}"] = [_focusable(told) | whose | shape]
        role = {"role": "group", "aria-label": f"Average score against {name}"}
        return _both(f"scatter-{kind}", draw, role, tags, lambda width: max(320, 0.66 * width))

    return picture("order", "the order alone") | picture("total", "order and seed")


def series_chart(key: str, data: Series, styles: dict[str, Style]) -> dict[str, str]:
    """A line per method, from which the page's script reads the values at a step."""
    over = {"step": "training step", "place": "place in the order"}[data.unit]

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import EngFormatter

        charts.draw_series(axes, data, styles)
        axes.set_xlim(data.steps[0], data.steps[-1] if data.steps[-1] > data.steps[0] else None)
        if data.scale == "log":  # an effective sample size is never below 1
            highest = max(np.nanmax(band.high, initial=1.0) for band in data.lines.values())
            axes.set_ylim(1, 1.2 * highest)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}" if highest < 10 else "")
        elif data.scale == "share":
            axes.set_ylim(0, 1)
        axes.set_xlabel(over)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(True, color=charts.GRID, linewidth=0.6)

    tags: dict[str, Sequence[Attributes]] = {}
    for place, name in enumerate(data.lines):
        for part in ("line", "band"):
            tags[f"{part}-{place}"] = [{"class": part, "data-method": name}]
    told = f"{data.title} against {over}; arrow keys read the values"
    role = {"role": "img", "tabindex": "0", "aria-label": told}
    return _both(key, draw, role, tags, lambda width: max(300, 0.62 * width), wide=480)


def _focusable(tip: str) -> dict[str, str]:
    spoken = tip.replace("\n", "; ")
    return {"tabindex": "0", "role": "img", "aria-label": spoken, "data-tip": tip}


def _both(
    key: str,
    draw: Callable[[Axes], None],
    root: Attributes,
    tags: Mapping[str, Sequence[Attributes]],
    height: Callable[[int], float],
    *,
    wide: int = 700,
    left: int = 66,
) -> dict[str, str]:
    """The chart for wide and narrow screens; `height` computes its height from its width."""
    found = {}
    for size, width in {"wide": wide, "narrow": 340}.items():
        tall = height(width)
        figure = charts.new_figure(width / 72, tall / 72, layout=None)
        box = left / width, 48 / tall, (width - left - 14) / width, (tall - 60) / tall
        axes = figure.add_axes(box)
        draw(axes)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set(gid=f"axis-{label is axes.yaxis.label:d}", fontsize=12.5)
        axes.tick_params(which="both", labelsize=11.5, length=0)
        if size == "narrow":
            axes.locator_params(axis="x", nbins=4)
        axes.spines[["left", "bottom"]].set_visible(False)
        names = {"axis-0": [{"class": "axis"}], "axis-1": [{"class": "axis"}]}
        where = {"data-left": str(left), "data-right": f"{width - 14}"}
        where |= {"data-top": "12", "data-bottom": f"{tall - 48:.0f}"}
        found[f"{key}-{size}"] = embedded(figure, {**root, **where}, {**tags, **names})
    return found
