// Of an audit: per task and learner the mean score, and how far the order moves it.

function showTasks(result) {
  byId("suffering").hidden = !result.suffering;
  if (!result.suffering) return;
  const container = byId("tasks-chart");
  const places = result.suffering;
  const names = Object.keys(result.methods);
  const low = Math.min(...places.map((place) => place.low.score));
  const high = Math.max(...places.map((place) => place.high.score));

  chart(container, (width) => {
    const texts = result.tasks.map((name) => shorten(name, width < 420 ? 9 : 18));
    const left = 40 + Math.max(...texts.map(textWidth));
    const band = 14 + 16 * names.length;
    const bottom = 8 + band * texts.length;
    const height = bottom + 52;
    const picture = drawing("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group" });
    picture.setAttribute("aria-label", "Accuracy on each task in its worst and its best order");
    const x = linearScale(100 * low - 1, 100 * high + 1, left, width - 12, width < 420 ? 4 : 7);
    const ticks = texts.map((text, task) => ({ value: task, text }));
    const y = { ticks, at: (task) => 8 + band * (task + 0.5) };
    axes(picture, { left, right: width - 12, top: 8, bottom }, x, y, { x: "accuracy after the last task, %", y: "task" });
    for (const place of places) {
      const row = names.indexOf(place.method) - (names.length - 1) / 2;
      picture.append(taskLine(result, place, x, y.at(place.task) + 16 * row, picture));
    }
    fill(container, picture);
  });
  const sample = (method) => drawing("g", { class: method.filled ? "" : "hollow" }, markOf(method));
  legend(byId("tasks-legend"), names, result.methods, [container], sample);
}

function taskLine(result, place, x, height, picture) {
  const method = result.methods[place.method];
  const said = (end, word) => `${word}: ${score(result, end.score)}, order ${end.order}: ${orderName(result, end.order)}`;
  const lines = [`${method.label}, ${taskName(result, place.task)}`, `mean ${score(result, place.mean)}`, said(place.low, "worst"), said(place.high, "best")];
  const at = (share) => x.at(100 * share);
  const node = drawing("g", { class: method.filled ? "mark" : "mark hollow", tabindex: 0, role: "img", "data-method": place.method, "data-task": place.task, "aria-label": lines.join("; ") });
  const mark = drawing("g", { transform: `translate(${at(place.mean)} ${height})` }, markOf(method, 5.5));
  node.append(
    drawing("line", { class: "range", x1: at(place.low.score), x2: at(place.high.score), y1: height, y2: height }),
    drawing("rect", { class: "target", x: at(place.low.score) - 8, y: height - 8, width: at(place.high.score) - at(place.low.score) + 16, height: 16 }),
    mark,
  );
  const show = () => {
    const corner = picture.getBoundingClientRect();
    tooltip.show(lines, corner.left + at(place.mean), corner.top + height);
  };
  node.addEventListener("pointerenter", show);
  node.addEventListener("focus", show);
  node.addEventListener("pointerleave", () => tooltip.hide());
  node.addEventListener("blur", () => tooltip.hide());
  return colour(node, method);
}
