// Quantities over training: a line per method with a band from the lowest run to the highest.

function showWeights(result) {
  const [effective, largest] = result.weights;
  byId("weights").hidden = !effective && !largest;
  const charts = [];
  for (const [id, data, kind] of [["weights-left", effective, "log"], ["weights-right", largest, "share"]]) {
    if (data) charts.push(seriesChart(byId(id), result, data, kind));
    else fill(byId(id));
  }
  const names = Object.keys(result.methods).filter((name) => [effective, largest].some((data) => data && name in data.lines));
  seriesLegend(byId("weights-legend"), names, result, charts);
}

function showCurves(result) {
  byId("curves").hidden = !result.curves;
  if (!result.curves) return;
  const container = seriesChart(byId("curves-chart"), result, result.curves, "linear");
  const names = Object.keys(result.methods).filter((name) => name in result.curves.lines);
  seriesLegend(byId("curves-legend"), names, result, [container]);
}

function seriesLegend(list, names, result, charts) {
  const sample = (method) => drawing("g", { class: `line dash-${method.dash}` }, drawing("path", { class: "mean", d: "M-14 0H14" }));
  legend(list, names, result.methods, charts, sample);
}

function seriesScale(data, kind, from, to) {
  if (kind === "share") return linearScale(0, 1, from, to, 5);
  const values = Object.values(data.lines).flatMap((line) => [...line.low, ...line.high]).filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  // an effective sample size is never below 1
  return kind === "log" ? logScale(1, high, from, to) : linearScale(low, high, from, to);
}

function seriesChart(container, result, data, kind) {
  const { steps } = data;
  chart(container, (width) => {
    const height = Math.max(240, Math.min(320, width * 0.62));
    const box = { left: 58, right: width - 12, top: 12, bottom: height - 52 };
    const x = linearScale(steps[0], steps[steps.length - 1], box.left, box.right, width < 420 ? 4 : 5);
    const y = seriesScale(data, kind, box.bottom, box.top);
    const picture = drawing("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0 });
    picture.setAttribute("aria-label", `${data.title} against training step; arrow keys read the values`);
    axes(picture, box, x, y, { x: "training step", y: data.title });
    for (const [name, line] of Object.entries(data.lines)) {
      const method = result.methods[name];
      const group = drawing("g", { class: `line dash-${method.dash}`, "data-method": name });
      group.append(
        drawing("path", { class: "band", d: bandPath(steps, line, x, y) }),
        drawing("path", { class: "mean", d: linePath(steps, line.mean, x, y) }),
      );
      picture.append(colour(group, method));
    }
    const cross = drawing("line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" });
    picture.append(cross);
    fill(container, picture);
    readValues(picture, result, data, x, box, cross);
  });
  return container;
}

function linePath(steps, values, x, y) {
  let pen = "M";
  let path = "";
  values.forEach((value, k) => {
    if (value !== null) path += `${pen}${x.at(steps[k]).toFixed(1)} ${y.at(value).toFixed(1)}`;
    pen = value === null ? "M" : "L";
  });
  return path;
}

function bandPath(steps, line, x, y) {
  const known = steps.map((_, k) => k).filter((k) => line.low[k] !== null);
  if (known.length === 0) return "";
  const corner = (values) => (k) => `${x.at(steps[k]).toFixed(1)} ${y.at(values[k]).toFixed(1)}`;
  return `M${[...known.map(corner(line.high)), ...known.reverse().map(corner(line.low))].join("L")}Z`;
}

// A line across the chart names all values at one step, by pointer or by arrow keys.
function readValues(picture, result, data, x, box, cross) {
  const last = data.steps.length - 1;
  let now = -1;
  const read = (k, clientY) => {
    now = Math.max(0, Math.min(last, k));
    const at = x.at(data.steps[now]);
    cross.setAttribute("x1", at);
    cross.setAttribute("x2", at);
    cross.setAttribute("visibility", "visible");
    const lines = Object.entries(data.lines)
      .filter(([, line]) => line.mean[now] !== null)
      .sort(([, one], [, other]) => other.mean[now] - one.mean[now])
      .map(([name, line]) => `${result.methods[name].label}: ${brief(line.mean[now])}`);
    const corner = picture.getBoundingClientRect();
    tooltip.show([`${data.title}, step ${Math.round(data.steps[now])}`, ...lines], corner.left + at, clientY ?? corner.top + box.top);
  };
  const leave = () => {
    now = -1;
    cross.setAttribute("visibility", "hidden");
    tooltip.hide();
  };
  const follow = (event) => {
    const share = (event.clientX - picture.getBoundingClientRect().left - box.left) / (box.right - box.left);
    read(Math.round(share * last), event.clientY);
  };
  picture.addEventListener("pointermove", follow);
  picture.addEventListener("pointerdown", follow);
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("blur", leave);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 2, ArrowLeft: -2, Home: -last, End: last }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    read(now < 0 && step > 0 && step < last ? 0 : now + step);
  });
}
