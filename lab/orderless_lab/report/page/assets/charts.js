// Places the charts, which are drawn at two widths, and adds tooltips, legends and cross-hairs.

const narrow = matchMedia("(max-width: 48rem)");
const placed = new Map(); // container -> function that fills it again

function chart(container, number, name, prepare = () => {}) {
  const place = () => {
    const template = byId(`chart-${number}-${name}-${narrow.matches ? "narrow" : "wide"}`);
    fill(container, ...(template ? [template.content.cloneNode(true)] : []));
    if (template) prepare(container.firstChild);
    return template !== null;
  };
  placed.set(container, place);
  return place();
}
narrow.addEventListener("change", () => placed.forEach((place) => place()));

function explain(node) {
  for (const other of document.querySelectorAll(".near")) other.classList.remove("near");
  if (!node) return tooltip.hide();
  node.classList.add("near");
  const { left, top, width, height } = node.getBoundingClientRect();
  tooltip.show([...ofOrder(node), ...node.dataset.tip.split("\n")], left + width / 2, top + height / 2);
}

// The first lines of a dot's tooltip: its method, and its order with the names of the tasks.
function ofOrder(node) {
  const { order } = node.dataset;
  if (order === undefined) return [];
  const { method } = node.closest("[data-method]").dataset;
  const names = current.orders[order].map((task) => current.tasks[task]);
  return [current.methods[method].label, `order ${order}: ${names.join(" → ")}`];
}

for (const kind of ["pointerover", "focusin"]) {
  document.addEventListener(kind, (event) => {
    const node = event.target.closest("[data-tip]");
    if (node || document.querySelector(".near")) explain(node);
  });
}

// A legend; choosing a method fades the others in all its charts.
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
    const look = methods[name];
    const icon = drawing("svg", { width: 28, height: 20, viewBox: "-14 -10 28 20", "aria-hidden": "true" }, sample(look));
    const button = element("button", { type: "button", "aria-pressed": "false" }, icon, element("span", { class: "name" }, look.label));
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

function markSample({ colour, icon, filled }) {
  const paint = filled ? { fill: colour } : { fill: "var(--paper)", stroke: colour, "stroke-width": 2 };
  return drawing("path", { d: icon, ...paint });
}

function lineSample({ colour, dashes }) {
  return drawing("path", { d: "M-14 0H14", stroke: colour, "stroke-width": 2, "stroke-dasharray": dashes });
}

function showScatter(result, number) {
  const container = byId("scatter");
  const place = () => chart(container, number, `scatter-${document.querySelector("input[name=variance]:checked").value}`);
  const drawn = place();
  byId("variance").hidden = !drawn;
  byId("scatter-dots").hidden = !result.dots;
  for (const radio of document.querySelectorAll("input[name=variance]")) radio.onchange = place;
  container.onkeydown = walk;
  legend(byId("scatter-legend"), Object.keys(result.methods), result.methods, [container], markSample);
}

// On a mark, the arrow keys move through its orders.
function walk(event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const { method } = event.target.dataset;
  const own = [...event.currentTarget.querySelectorAll(".dot")].filter((dot) => dot.closest("[data-method]").dataset.method === method);
  if (step === undefined || own.length === 0) return;
  event.preventDefault();
  const now = own.findIndex((dot) => dot.classList.contains("near"));
  explain(own[now < 0 && step < 0 ? own.length - 1 : (now + step + own.length) % own.length]);
}

function showTasks(result, number) {
  const container = byId("tasks-chart");
  byId("suffering").hidden = !chart(container, number, "tasks");
  legend(byId("tasks-legend"), Object.keys(result.methods), result.methods, [container], markSample);
}

function showSeries(section, list, result, number, places) {
  const shown = Object.entries(places).filter(([id, name]) => chart(byId(id), number, name, (picture) => readable(picture, result, result.values[name])));
  byId(section).hidden = shown.length === 0;
  const names = Object.keys(result.methods).filter((method) => shown.some(([, name]) => method in result.values[name].lines));
  legend(byId(list), names, result.methods, shown.map(([id]) => byId(id)), lineSample);
}

function brief(value) {
  const size = Math.abs(value);
  return value === 0 || (size >= 1e-3 && size < 1e5) ? String(Number(value.toPrecision(3))) : value.toExponential(1);
}

// A vertical line and a tooltip show all values at one step, chosen by pointer or arrow keys.
function readable(picture, result, { title, steps, lines, unit }) {
  const last = steps.length - 1;
  const stride = last < 20 ? 1 : 2;
  const [left, right, top, bottom] = ["left", "right", "top", "bottom"].map((side) => Number(picture.dataset[side]));
  const cross = drawing("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" });
  picture.append(cross);
  let now = -1;
  const scale = () => picture.getBoundingClientRect().width / picture.viewBox.baseVal.width;
  const read = (k, clientY) => {
    now = Math.max(0, Math.min(last, k));
    const at = left + (now / last) * (right - left);
    cross.setAttribute("x1", at);
    cross.setAttribute("x2", at);
    cross.setAttribute("visibility", "visible");
    const texts = Object.entries(lines)
      .filter(([, means]) => means[now] !== null)
      .sort(([, one], [, other]) => other[now] - one[now])
      .map(([name, means]) => `${result.methods[name].label}: ${brief(means[now])}`);
    const corner = picture.getBoundingClientRect();
    tooltip.show([`${title}, ${unit} ${Math.round(steps[now])}`, ...texts], corner.left + at * scale(), clientY ?? corner.top + top);
  };
  const leave = () => {
    now = -1;
    cross.setAttribute("visibility", "hidden");
    tooltip.hide();
  };
  const follow = (event) => {
    const at = (event.clientX - picture.getBoundingClientRect().left) / scale();
    read(Math.round(((at - left) / (right - left)) * last), event.clientY);
  };
  picture.addEventListener("pointermove", follow);
  picture.addEventListener("pointerdown", follow);
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("blur", leave);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: stride, ArrowLeft: -stride, Home: -last, End: last }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    read(now < 0 && step < last ? 0 : Math.max(now, 0) + step);
  });
}
