// The paper's figure 2: average against variance, a mark per method and a dot per order.

const VARIANCES = { order: "variance of the order alone", total: "variance of order and seed" };

function showScatter(result) {
  const container = byId("scatter");
  const places = scatterPlaces(result);
  byId("variance").hidden = places.length === 0;
  if (places.length === 0) return;
  byId("scatter-dots").hidden = !result.scatter.normalized;
  const prefix = result.scatter.normalized ? "normalized " : "";
  const kind = () => document.querySelector("input[name=variance]:checked").value;
  let picture, scales;

  function draw(width) {
    const height = Math.max(320, Math.min(460, width * 0.72));
    const box = { left: 72, right: width - 12, top: 12, bottom: height - 52 };
    scales = scatterScales(places, box);
    picture = drawing("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group" });
    const name = result.score === "accuracy" ? "average accuracy, %" : "average return";
    axes(picture, box, scales.x, scales.y, { x: name, y: "" });
    for (const place of places) {
      place.node = scatterNode(result, place);
      picture.append(place.node);
    }
    picture.addEventListener("pointermove", pointAtNearest);
    picture.addEventListener("pointerdown", pointAtNearest);
    picture.addEventListener("pointerleave", () => pointAt(null));
    picture.addEventListener("keydown", walk);
    picture.addEventListener("focusin", (event) => pointAt(places.find((place) => place.node === event.target)));
    picture.addEventListener("focusout", () => pointAt(null));
    fill(container, picture);
    arrange();
  }

  // Both choices share their axes, so the marks move and nothing else does.
  function arrange() {
    const name = prefix + VARIANCES[kind()];
    picture.querySelector(".name-y").textContent = name;
    picture.setAttribute("aria-label", `Average ${result.score} against ${name}`);
    for (const place of places) {
      place.x = scales.x.at(place.average);
      place.y = scales.y.at(place[kind()]);
      place.node.style.transform = `translate(${place.x}px, ${place.y}px)`;
    }
  }

  function describe(place) {
    const number = result.score === "accuracy" ? `${place.average.toFixed(1)} %` : place.average.toFixed(2);
    const variance = `${prefix}${kind() === "order" ? "order variance" : "total variance"} ${brief(place[kind()])}`;
    const { label } = result.methods[place.method];
    if (place.index === undefined) return [label, `average ${number}`, variance];
    const order = `order ${place.index}: ${orderName(result, place.index)}`;
    return [label, order, `average ${number}`, `its share of the ${variance}`];
  }

  function pointAt(chosen) {
    for (const place of places) place.node.classList.toggle("near", place === chosen);
    if (!chosen) return tooltip.hide();
    const corner = picture.getBoundingClientRect();
    tooltip.show(describe(chosen), corner.left + chosen.x, corner.top + chosen.y);
  }

  function pointAtNearest(event) {
    const corner = picture.getBoundingClientRect();
    const distance = (place) =>
      Math.hypot(corner.left + place.x - event.clientX, corner.top + place.y - event.clientY);
    const nearest = places.reduce((best, place) => (distance(place) < distance(best) ? place : best));
    pointAt(distance(nearest) < 26 ? nearest : null);
  }

  function walk(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const own = places.filter((place) => place.method === event.target.dataset.method);
    if (step === undefined || own.length < 2) return;
    event.preventDefault();
    const now = own.findIndex((place) => place.node.classList.contains("near"));
    pointAt(own[(now + step + own.length) % own.length]);
  }

  for (const radio of document.querySelectorAll("input[name=variance]")) radio.onchange = arrange;
  chart(container, draw);
  const names = result.scatter.points.map((point) => point.method);
  const sample = (method) => drawing("g", { class: method.filled ? "" : "hollow" }, markOf(method));
  legend(byId("scatter-legend"), names, result.methods, [container], sample);
}

// Every dot, then every mark, so that marks lie above; accuracies in percent.
function scatterPlaces(result) {
  const factor = result.score === "accuracy" ? 100 : 1;
  const { points } = result.scatter;
  const dots = points.flatMap(({ method, dots }) =>
    dots.map(([index, average, total, order]) => ({ method, index, average: factor * average, total, order })),
  );
  const marks = points.map(({ method, average, total, order }) => ({ method, average: factor * average, total, order }));
  return [...dots, ...marks];
}

function scatterScales(places, box) {
  const averages = places.map((place) => place.average);
  const [low, high] = [Math.min(...averages), Math.max(...averages)];
  const margin = (high - low) * 0.05 || 1;
  const ticks = box.right - box.left < 420 ? 4 : 7;
  const marks = places.filter((place) => place.index === undefined);
  const positive = marks.flatMap((place) => [place.total, place.order]).filter((value) => value > 1e-12);
  const threshold = 10 ** Math.floor(Math.log10(Math.min(...positive, 1)));
  const most = Math.max(...places.flatMap((place) => [place.total, place.order]), threshold);
  return {
    x: linearScale(low - margin, high + margin, box.left, box.right, ticks),
    y: symlogScale(threshold, most * 1.3, box.bottom - 12, box.top),
  };
}

function scatterNode(result, place) {
  const method = result.methods[place.method];
  if (place.index !== undefined) {
    return colour(drawing("circle", { class: "dot", r: 3.5, "data-method": place.method }), method);
  }
  const attributes = { class: method.filled ? "mark" : "mark hollow", tabindex: 0, role: "img" };
  const node = drawing("g", { ...attributes, "data-method": place.method, "aria-label": method.label }, markOf(method));
  return colour(node, method);
}
