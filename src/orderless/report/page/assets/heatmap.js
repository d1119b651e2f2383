// Score matrices R: rows are moments of training, columns tasks by identity.

// Cividis looks the same to every kind of colour vision.
const CIVIDIS = [
  [0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115],
  [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56],
];

function cividis(share) {
  const place = Math.max(0, Math.min(1, share)) * (CIVIDIS.length - 1);
  const below = Math.min(Math.floor(place), CIVIDIS.length - 2);
  return CIVIDIS[below].map((from, k) => Math.round(from + (CIVIDIS[below + 1][k] - from) * (place - below)));
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
  const selects = [byId("method-left"), byId("method-right")];
  const entries = names.map((name) => [name, result.methods[name].label]);
  const second = names.includes("gd") && names[0] !== "gd" ? "gd" : names[names.length - 1];
  options(selects[0], entries, names[0]);
  options(selects[1], entries, second);

  // One scale for all methods and orders: the same colour always means the same score.
  let [low, high] = [Infinity, -Infinity];
  for (const orders of Object.values(result.matrices)) {
    for (const value of Object.values(orders).flat(2)) {
      if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
  }
  byId("matrix-low").textContent = score(result, low, 0);
  byId("matrix-high").textContent = score(result, high, 0);

  const charts = [byId("matrix-left"), byId("matrix-right")];
  charts.forEach((container, side) => {
    chart(container, (width) => {
      const index = indices[slider.value];
      fill(container, heatmap(result, selects[side].value, index, width, { low, high }));
    });
    selects[side].onchange = () => redraw(container);
  });
  slider.oninput = () => {
    const index = indices[slider.value];
    byId("order-name").textContent = `${index}: ${orderName(result, index)}`;
    slider.setAttribute("aria-valuetext", byId("order-name").textContent);
    charts.forEach(redraw);
  };
  slider.oninput();
}

function heatmap(result, method, index, width, { low, high }) {
  const matrix = result.matrices[method][index];
  const { label } = result.methods[method];
  if (!matrix) return element("p", { class: "lead" }, `${label} has not finished order ${index}.`);
  const order = result.orders[index];
  const letters = width < 420 ? 9 : 14;
  const columns = order.map((_, task) => shorten(taskName(result, task), letters));
  const first = matrix.length - order.length; // 1 where the untrained learner was asked, too
  const learned = order.map((task) => shorten(taskName(result, task), letters));
  const rows = first ? ["untrained", ...learned] : learned;
  const longest = (texts) => Math.max(...texts.map(textWidth));
  const left = 36 + longest(rows);
  const side = (width - left) / columns.length;
  const tall = Math.max(18, Math.min(40, side));
  const upright = longest(columns) > side - 4;
  const bottom = tall * rows.length;
  const names = upright ? longest(columns) + 10 : 18;
  const height = bottom + names + 30;
  const picture = drawing("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  const last = matrix[matrix.length - 1];
  const average = last.reduce((sum, value) => sum + value, 0) / last.length;
  picture.setAttribute("aria-label", `${label}, order ${orderName(result, index)}: average ${score(result, average)} after the last task`);

  matrix.forEach((values, row) => {
    picture.append(drawing("text", { x: left - 8, y: row * tall + tall / 2 + 4, "text-anchor": "end" }, rows[row]));
    values.forEach((value, task) => {
      const shade = value === null ? null : cividis((value - low) / (high - low || 1));
      const cell = drawing("rect", { x: left + task * side + 1, y: row * tall + 1, width: side - 2, height: tall - 2, rx: 2 });
      cell.setAttribute("fill", shade ? `rgb(${shade})` : "none");
      if (order[row - first] === task) cell.setAttribute("class", "ink");
      if (order[row - first] === task) cell.setAttribute("stroke-width", 2.5);
      picture.append(cell);
      if (shade && side >= 26 && tall >= 16) {
        const text = result.score === "accuracy" ? (100 * value).toFixed(0) : value.toFixed(side < 40 ? 1 : 2);
        const written = drawing("text", { x: left + (task + 0.5) * side, y: row * tall + tall / 2 + 4, "text-anchor": "middle" }, text);
        const light = 0.3 * shade[0] + 0.59 * shade[1] + 0.11 * shade[2] > 120;
        written.style.fill = light ? "#101418" : "#ffffff";
        picture.append(written);
      }
      const seen = row + 1 - first;
      const when = seen === 0 ? "untrained" : `after ${seen} of ${order.length} tasks, the last ${taskName(result, order[seen - 1])}`;
      const lines = [`${result.score} on ${taskName(result, task)}: ${score(result, value)}`, when];
      cell.addEventListener("pointermove", (event) => tooltip.show(lines, event.clientX, event.clientY));
    });
  });
  columns.forEach((name, task) => {
    const x = left + (task + 0.5) * side;
    const place = upright ? { transform: `translate(${x + 4} ${bottom + 8}) rotate(-90)`, "text-anchor": "end" } : { x, y: bottom + 18, "text-anchor": "middle" };
    picture.append(drawing("text", place, name));
  });
  picture.append(
    drawing("text", { class: "axis", x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "tested on task"),
    drawing("text", { class: "axis", transform: `translate(13 ${bottom / 2}) rotate(-90)`, "text-anchor": "middle" }, "after learning"),
  );
  picture.addEventListener("pointerleave", () => tooltip.hide());
  return picture;
}
