// Score matrices R as tables: rows are moments of training, columns tasks by identity.

// Cividis is readable with colour vision deficiency.
const CIVIDIS = [
  [0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115],
  [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56],
];

function cividis(share) {
  const place = Math.max(0, Math.min(1, share)) * (CIVIDIS.length - 1);
  const below = Math.min(Math.floor(place), CIVIDIS.length - 2);
  return CIVIDIS[below].map((from, k) => Math.round(from + (CIVIDIS[below + 1][k] - from) * (place - below)));
}

function score(result, value, digits = 1) {
  if (value === null) return "–";
  return result.score !== "return" ? `${(100 * value).toFixed(digits)} %` : value.toFixed(2);
}

function showMatrices(result) {
  const names = Object.keys(result.matrices);
  byId("matrices").hidden = names.length === 0;
  if (names.length === 0) return;
  const indices = Object.keys(result.orders);
  const slider = byId("order");
  slider.max = indices.length - 1;
  slider.value = 0;
  slider.disabled = indices.length < 2;
  const entries = names.map((name) => [name, result.methods[name].label]);
  const [first, second] = result.pair;
  options(byId("method-left"), entries, first);
  options(byId("method-right"), entries, second);

  // One scale for all methods and orders: the same colour always means the same score.
  let [low, high] = [Infinity, -Infinity];
  for (const orders of Object.values(result.matrices)) {
    for (const value of Object.values(orders).flat(2)) {
      if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
  }
  byId("matrix-low").textContent = score(result, low, 0);
  byId("matrix-high").textContent = score(result, high, 0);

  const show = (side) => fill(byId(`matrix-${side}`), heatmap(result, byId(`method-${side}`).value, indices[slider.value], low, high));
  for (const side of ["left", "right"]) byId(`method-${side}`).onchange = () => show(side);
  slider.oninput = () => {
    const order = result.orders[indices[slider.value]];
    const name = `${indices[slider.value]}: ${order.map((task) => result.tasks[task]).join(" → ")}`;
    byId("order-name").textContent = name;
    slider.setAttribute("aria-valuetext", name);
    show("left");
    show("right");
  };
  slider.oninput();
}

function heatmap(result, method, index, low, high) {
  const matrix = result.matrices[method][index];
  const { label } = result.methods[method];
  if (!matrix) return element("p", { class: "lead" }, `${label} has not finished order ${index}.`);
  const order = result.orders[index];
  const first = matrix.length - order.length; // 1 where the untrained learner was asked, too
  const upright = order.length > 6 || result.tasks.some((name) => name.length > 8);
  const names = result.tasks.map((name) => element("th", { scope: "col" }, element("span", { class: "name" }, name)));
  const rows = matrix.map((values, row) => {
    const learned = order[row - first];
    const name = learned === undefined ? "untrained" : result.tasks[learned];
    const seen = row + 1 - first;
    const when = seen === 0 ? "untrained" : `after ${seen} of ${order.length} tasks, the last ${name}`;
    const cells = values.map((value, task) => {
      const tip = `${result.score} on ${result.tasks[task]}: ${score(result, value)}\n${when}`;
      const cell = element("td", { class: learned === task ? "learned" : "", "data-tip": tip });
      if (value === null) return cell;
      const shade = cividis((value - low) / (high - low || 1));
      const light = 0.3 * shade[0] + 0.59 * shade[1] + 0.11 * shade[2] > 120;
      cell.textContent = result.score !== "return" ? (100 * value).toFixed(0) : value.toFixed(2);
      cell.style.backgroundColor = `rgb(${shade})`;
      cell.style.color = light ? "#101418" : "#ffffff";
      return cell;
    });
    return element("tr", {}, element("th", { scope: "row" }, element("span", { class: "name" }, name)), ...cells);
  });
  const above = element("tr", {}, element("td"), element("th", { class: "axis", colspan: order.length }, "tested on task"));
  const head = element("tr", {}, element("th", { class: "axis" }, "after learning"), ...names);
  const caption = element("caption", { class: "unseen" }, `${label}: average ${score(result, mean(matrix[matrix.length - 1]))} after the last task`);
  const table = element("table", { class: upright ? "heat upright" : "heat" }, caption, element("thead", {}, above, head), element("tbody", {}, ...rows));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Scores of ${label}` }, table);
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
