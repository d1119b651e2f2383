// What charts share: scales, axes, the marks of methods, legends.

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

function power(exponent) {
  if (exponent >= -2 && exponent <= 4) return String(10 ** exponent);
  const digits = Array.from(String(Math.abs(exponent)), (digit) => SUPERSCRIPTS[digit]);
  return `10${exponent < 0 ? "⁻" : ""}${digits.join("")}`;
}

function brief(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 && size < 1e9) return size < 1e6 ? `${Number((value / 1e3).toPrecision(3))}k` : `${Number((value / 1e6).toPrecision(3))}M`;
  return size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
}

// A scale maps a value to a pixel, and knows where its ticks are.
function linearScale(low, high, from, to, count = 5) {
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const rough = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) {
    ticks.push({ value: k * step, text: brief(Number((k * step).toPrecision(12))) });
  }
  return { ticks, at: (value) => from + ((value - low) / (high - low)) * (to - from) };
}

function powers(first, last, most = 6) {
  const stride = Math.max(1, Math.ceil((last - first) / most));
  const ticks = [];
  for (let k = first; k <= last; k += stride) ticks.push({ value: 10 ** k, text: power(k) });
  return ticks;
}

function logScale(low, high, from, to) {
  const [bottom, top] = [Math.log10(low), Math.max(Math.log10(high), Math.log10(low) + 0.3)];
  const ticks = powers(Math.ceil(bottom - 1e-9), Math.floor(top + 1e-9));
  if (top - bottom < 1.6) {
    for (const factor of [2, 5]) {
      for (let k = Math.floor(bottom); k <= top; k++) {
        const value = factor * 10 ** k;
        if (value >= low && value <= 10 ** top) ticks.push({ value, text: brief(value) });
      }
    }
  }
  const at = (value) => from + ((Math.log10(Math.max(value, low)) - bottom) / (top - bottom)) * (to - from);
  return { ticks, at };
}

// Logarithmic with a linear stretch at the bottom: a variance of exactly 0 has its place.
function symlogScale(threshold, high, from, to) {
  const stretch = 0.4;
  const inner = (value) =>
    value <= threshold ? (stretch * value) / threshold : stretch + Math.log10(value / threshold);
  const size = Math.max(inner(high), stretch + 0.3);
  const first = Math.round(Math.log10(threshold));
  const ticks = [{ value: 0, text: "0" }, ...powers(first, Math.floor(Math.log10(high) + 1e-9))];
  return { ticks, at: (value) => from + (inner(value) / size) * (to - from) };
}

// How wide a tick label will be.
const ruler = document.createElement("canvas").getContext("2d");
function textWidth(text) {
  ruler.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}

// Grid lines, tick labels and the names of both axes.
function axes(picture, box, x, y, names) {
  const { left, right, top, bottom } = box;
  for (const tick of y.ticks) {
    const at = y.at(tick.value);
    picture.append(
      drawing("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }),
      drawing("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, tick.text),
    );
  }
  for (const tick of x.ticks) {
    const at = x.at(tick.value);
    picture.append(
      drawing("line", { class: "grid", x1: at, x2: at, y1: top, y2: bottom }),
      drawing("text", { x: at, y: bottom + 18, "text-anchor": "middle" }, tick.text),
    );
  }
  const middle = (top + bottom) / 2;
  picture.append(
    drawing("text", { class: "axis", x: (left + right) / 2, y: bottom + 40, "text-anchor": "middle" }, names.x),
    drawing("text", { class: "axis name-y", transform: `translate(13 ${middle}) rotate(-90)`, "text-anchor": "middle" }, names.y),
  );
}

// ---------------------------------------------------------------------- methods

// Colours come by their value on white; the style sheet has a twin of each for dark mode.
const COLOURS = {
  "#D55E00": "vermilion", "#E69F00": "orange", "#999999": "grey", "#000000": "black",
  "#0072B2": "blue", "#009E73": "green", "#CC79A7": "pink", "#56B4E9": "sky", "#7A5C00": "brown",
};

function colour(node, method) {
  node.style.setProperty("--method", `var(--${COLOURS[method.colour] || "slate"})`);
  return node;
}

function polygon(corners, turn, size, inner = 1) {
  const count = inner === 1 ? corners : 2 * corners;
  const points = Array.from({ length: count }, (_, k) => {
    const radius = size * (k % 2 ? inner : 1);
    const angle = (2 * Math.PI * k) / count + turn - Math.PI / 2;
    return `${(radius * Math.cos(angle)).toFixed(2)} ${(radius * Math.sin(angle)).toFixed(2)}`;
  });
  return `M${points.join("L")}Z`;
}

function plus(size, turn) {
  const [a, b] = [size, size * 0.36];
  const corners = [[-b, -a], [b, -a], [b, -b], [a, -b], [a, b], [b, b], [b, a], [-b, a], [-b, b], [-a, b], [-a, -b], [-b, -b]];
  const [sine, cosine] = [Math.sin(turn), Math.cos(turn)];
  const points = corners.map(([x, y]) => `${(x * cosine - y * sine).toFixed(2)} ${(x * sine + y * cosine).toFixed(2)}`);
  return `M${points.join("L")}Z`;
}

// The same shapes as in figure2.png, by their matplotlib names.
const SHAPES = {
  "*": (s) => polygon(5, 0, s * 1.45, 0.42),
  o: (s) => `M${-s} 0A${s} ${s} 0 1 0 ${s} 0A${s} ${s} 0 1 0 ${-s} 0Z`,
  s: (s) => polygon(4, Math.PI / 4, s * 1.25),
  D: (s) => polygon(4, 0, s * 1.25),
  d: (s) => `M0 ${-1.3 * s}L${0.75 * s} 0L0 ${1.3 * s}L${-0.75 * s} 0Z`,
  "^": (s) => polygon(3, 0, s * 1.25),
  v: (s) => polygon(3, Math.PI, s * 1.25),
  "<": (s) => polygon(3, -Math.PI / 2, s * 1.25),
  ">": (s) => polygon(3, Math.PI / 2, s * 1.25),
  h: (s) => polygon(6, 0, s * 1.1),
  H: (s) => polygon(6, Math.PI / 6, s * 1.1),
  p: (s) => polygon(5, 0, s * 1.15),
  8: (s) => polygon(8, Math.PI / 8, s * 1.1),
  P: (s) => plus(s * 1.1, 0),
  X: (s) => plus(s * 1.15, Math.PI / 4),
};

function markOf(method, size = 8) {
  const shape = SHAPES[method.marker] || SHAPES.o;
  return drawing("path", { d: shape(method.small ? size * 0.7 : size) });
}

// Choosing a method in the legend fades the others in every chart that it belongs to.
function legend(list, names, methods, containers, sample) {
  let pinned = null;
  const show = (name) => {
    for (const container of containers) {
      container.classList.toggle("faded", name !== null);
      for (const node of container.querySelectorAll("[data-method]")) {
        node.classList.toggle("chosen", node.dataset.method === name);
      }
    }
  };
  const items = names.map((name) => {
    const icon = drawing("svg", { width: 28, height: 20, viewBox: "-14 -10 28 20", "aria-hidden": "true" }, sample(methods[name]));
    const button = element("button", { type: "button", "aria-pressed": "false" }, icon, element("span", { class: "name" }, methods[name].label));
    colour(button, methods[name]);
    button.addEventListener("click", () => {
      pinned = pinned === name ? null : name;
      for (const other of list.querySelectorAll("button")) {
        other.setAttribute("aria-pressed", String(other === button && pinned !== null));
      }
      show(pinned);
    });
    button.addEventListener("pointerenter", () => show(name));
    button.addEventListener("pointerleave", () => show(pinned));
    return element("li", {}, button);
  });
  fill(list, ...items);
  show(null);
}

function score(result, value, digits = 1) {
  if (value === null || value === undefined) return "–";
  return result.score === "accuracy" ? `${(100 * value).toFixed(digits)} %` : value.toFixed(2);
}

function orderName(result, index) {
  return result.orders[index].map((task) => taskName(result, task)).join(" → ");
}

function taskName(result, task) {
  return result.tasks[task] ?? `task ${task}`;
}
