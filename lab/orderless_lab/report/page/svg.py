"""Matplotlib figures as SVG elements of the page.

matplotlib sets a `style` attribute on every element, which the page's content security policy
forbids. It is converted to presentation attributes, and colours to variables of the style sheet,
which differ in dark mode. Unused ids are removed and coordinates rounded to one decimal. Elements
with a `gid` get the attributes that the page's script needs.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Attributes = Mapping[str, str]

COLOURS = {
    "#d55e00": "vermilion",
    "#e69f00": "orange",
    "#999999": "grey",
    "#000000": "black",
    "#0072b2": "blue",
    "#009e73": "green",
    "#cc79a7": "pink",
    "#56b4e9": "sky",
    "#7a5c00": "brown",
    "#8b2e5d": "plum",
    "#555555": "slate",
    "#ffffff": "paper",
    "#e5e5e5": "line",
}
SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
GEOMETRY, EXCESS = {"d", "x", "y", "transform"}, re.compile(r"(?<=\.\d)\d+")
INHERITED = ("fill", "fill-opacity", "stroke", "stroke-width", "data-method")
DROPPED = ("font-family", "font-weight", "font-style", "font")


def variable(colour: str) -> str:
    """The variable of the style sheet for a colour, or the colour if it has none."""
    name = COLOURS.get(colour.lower())
    return f"var(--{name})" if name else colour


def embedded(
    figure: Figure, root: Attributes, tags: Mapping[str, Sequence[Attributes]] | None = None
) -> str:
    """The figure as an `svg` element with the attributes `root`.

    `tags`: gid -> attributes of each of its shapes, in the order of drawing.
    """
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "orderless"}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    picture = ElementTree.fromstring(stream.getvalue())
    for part in [*picture.findall(f"{SVG}metadata"), *picture.findall(f"{SVG}defs[{SVG}style]")]:
        picture.remove(part)
    for gid, attributes in (tags or {}).items():
        for shape, more in zip(_shapes(picture, gid), attributes, strict=False):
            shape.attrib.update(more)
    for element in picture.iter():
        _cleaned(element, kept=element.tag in (f"{SVG}path", f"{SVG}clipPath"))
    for group in picture.iter(f"{SVG}g"):
        _hoisted(group)
    for name in ("width", "height", "version"):
        picture.attrib.pop(name, None)
    picture.attrib.update({"fill": variable("#000000"), **root})  # matplotlib leaves black out
    ElementTree.register_namespace("", SVG[1:-1])
    text = ElementTree.tostring(picture, encoding="us-ascii").decode()  # any name can be written
    return re.sub(r">\s+<", "><", text)


def _shapes(picture: ElementTree.Element, gid: str) -> list[ElementTree.Element]:
    """The shapes of a gid: every dot or mark; for other kinds the whole group."""
    group = picture.find(f".//{SVG}g[@id='{gid}']")
    if group is None:
        return []
    if gid.startswith(("dots", "mark")):
        defined = set(group.iterfind(f".//{SVG}defs//*"))
        drawn = [e for e in group.iter() if e.tag in (f"{SVG}use", f"{SVG}path")]
        return [element for element in drawn if element not in defined]
    return [group]


def _cleaned(element: ElementTree.Element, *, kept: bool) -> None:
    for declaration in element.attrib.pop("style", "").split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name and name not in DROPPED:
            element.set(name, variable(value))
    for name in GEOMETRY & element.attrib.keys():
        element.set(name, " ".join(EXCESS.sub("", element.attrib[name]).split()))
    if LINK in element.attrib:
        element.set("href", element.attrib.pop(LINK))
    if not kept:
        element.attrib.pop("id", None)


def _hoisted(group: ElementTree.Element) -> None:
    """Move attributes that all shapes share to their group."""
    shapes = list(group)
    if len(shapes) > 2 and all(shape.tag == f"{SVG}use" for shape in shapes):
        for name, value in list(shapes[0].attrib.items()):
            if name in INHERITED and all(shape.get(name) == value for shape in shapes):
                group.set(name, value)
                for shape in shapes:
                    del shape.attrib[name]
