// The paper's figure 1 in motion: sum_i w_i N(x; y_i, h^2 I) on a canvas.

const GRID = 120;
const MARGIN = 0.12; // of the unit square that holds all particles
const BANDWIDTH = 1 / 22;
const SECONDS_PER_SNAPSHOT = 1.4;

function showDensity(result, problems) {
  const section = byId("density");
  section.hidden = result.density.length === 0 && problems.length === 0;
  fill(byId("density-problems"), ...problems.map((text) => element("li", {}, text)));
  section.querySelector(".density").hidden = result.density.length === 0;
  if (result.density.length === 0) return;

  const slider = byId("density-frame");
  const play = byId("density-play");
  const select = byId("density-run");
  const canvas = byId("density-canvas");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let run, moment, started = null;

  const show = (place) => {
    moment = place;
    const frame = between(run, calm.matches ? Math.floor(place) : place);
    paint(canvas, frame);
    const at = Math.floor(place + 1e-9);
    const last = run.moments && run.moments[at];
    const stage = !run.moments ? "–" : last === null ? "before training" : `after ${taskName(result, last)}`;
    const squares = frame.weights.reduce((sum, weight) => sum + weight * weight, 0);
    const facts = [
      ["training step", String(Math.round(frame.step))],
      ["moment", stage],
      ["effective sample size", `${(1 / squares).toFixed(1)} of ${frame.weights.length}`],
      ["largest weight", Math.max(...frame.weights).toFixed(2)],
    ];
    pairs(byId("density-facts"), facts);
    canvas.setAttribute("aria-label", `Density of particles: ${facts.map((fact) => fact.join(" ")).join(", ")}`);
    slider.value = at;
    slider.setAttribute("aria-valuetext", `step ${run.steps[at]}, ${stage}`);
  };

  const stop = () => {
    started = null;
    play.textContent = "Play";
  };

  const advance = (now) => {
    if (started === null) return;
    started.begun ??= now;
    const end = run.steps.length - 1;
    const place = Math.min(end, started.from + (now - started.begun) / 1000 / SECONDS_PER_SNAPSHOT);
    show(place);
    if (place >= end) stop();
    else requestAnimationFrame(advance);
  };

  play.onclick = () => {
    if (started !== null) return stop();
    started = { from: moment >= run.steps.length - 1 ? 0 : moment };
    play.textContent = "Pause";
    requestAnimationFrame(advance);
  };
  slider.oninput = () => {
    stop();
    show(Number(slider.value));
  };
  select.onchange = () => {
    stop();
    run = result.density[select.value];
    slider.max = run.steps.length - 1;
    show(0);
  };
  options(select, result.density.map((each, k) => [String(k), each.label]), "0");
  byId("density-choice").hidden = result.density.length < 2;
  select.onchange();
}

function between(run, place) {
  const below = Math.min(Math.floor(place), run.steps.length - 1);
  const above = Math.min(below + 1, run.steps.length - 1);
  const share = place - below;
  const mix = (from, to) => from + (to - from) * share;
  return {
    step: mix(run.steps[below], run.steps[above]),
    weights: run.weights[below].map((weight, i) => mix(weight, run.weights[above][i])),
    places: run.places[below].map(([x, y], i) => [mix(x, run.places[above][i][0]), mix(y, run.places[above][i][1])]),
  };
}

function paint(canvas, { places, weights }) {
  const width = 1 + 2 * MARGIN;
  const unit = (value) => (value + MARGIN) / width;
  const values = new Float64Array(GRID * GRID);
  // A Gaussian in two dimensions is a product of two in one: exp is called 2 GRID times each.
  places.forEach(([x, y], i) => {
    const bell = (centre) => Float64Array.from({ length: GRID }, (_, k) => Math.exp(-0.5 * (((k + 0.5) / GRID - unit(centre)) * width / BANDWIDTH) ** 2));
    const [across, upward] = [bell(x), bell(y)];
    for (let row = 0; row < GRID; row++) {
      const factor = weights[i] * upward[GRID - 1 - row];
      if (factor < 1e-7) continue;
      for (let column = 0; column < GRID; column++) values[row * GRID + column] += factor * across[column];
    }
  });
  const peak = values.reduce((most, value) => Math.max(most, value), 1e-12);
  const small = new OffscreenCanvas(GRID, GRID);
  const pixels = new ImageData(GRID, GRID);
  values.forEach((value, k) => pixels.data.set([...cividis(value / peak), 255], 4 * k));
  small.getContext("2d").putImageData(pixels, 0, 0);
  const context = canvas.getContext("2d");
  const size = Math.round(Math.max(200, canvas.clientWidth) * Math.min(2, devicePixelRatio));
  if (canvas.width !== size) canvas.width = canvas.height = size;
  context.imageSmoothingEnabled = true;
  context.drawImage(small, 0, 0, size, size);
  context.fillStyle = "rgba(255, 255, 255, 0.45)";
  for (const [x, y] of places) {
    context.beginPath();
    context.arc(unit(x) * size, (1 - unit(y)) * size, size / 240, 0, 2 * Math.PI);
    context.fill();
  }
}
