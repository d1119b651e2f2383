// The paper's figure 1 as an animation; a density is an image with one byte per pixel.

const SIZE = 64;
const MARGIN = 0.12; // of the unit square that holds all particles
const SECONDS_PER_SNAPSHOT = 1.4;

function showDensity(result) {
  const runs = Object.entries(result.density);
  byId("density").hidden = runs.length === 0;
  if (runs.length === 0) return;
  const [slider, play, select, canvas] = ["frame", "play", "run", "canvas"].map((name) => byId(`density-${name}`));
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let frames, moment, started = null;

  const show = (place) => {
    moment = place;
    const at = Math.floor(place + 1e-9);
    const share = calm.matches ? 0 : place - at;
    const { step, stage, ess, largest, places } = frames[at];
    paint(canvas, frames[at], frames[Math.min(at + 1, frames.length - 1)], share);
    const facts = [
      ["training step", String(step)],
      ["moment", stage],
      ["effective sample size", `${ess.toFixed(1)} of ${places.length}`],
      ["largest weight", largest.toFixed(2)],
    ];
    pairs(byId("density-facts"), facts);
    canvas.setAttribute("aria-label", `Density of particles: ${facts.map((fact) => fact.join(" ")).join(", ")}`);
    slider.value = at;
    slider.setAttribute("aria-valuetext", `step ${step}, ${stage}`);
  };
  const stop = () => {
    started = null;
    play.textContent = "Play";
  };
  const advance = (now) => {
    if (started === null) return;
    started.begun ??= now;
    const end = frames.length - 1;
    const place = Math.min(end, started.from + (now - started.begun) / 1000 / SECONDS_PER_SNAPSHOT);
    show(place);
    if (place >= end) stop();
    else requestAnimationFrame(advance);
  };
  play.onclick = () => {
    if (started !== null) return stop();
    started = { from: moment >= frames.length - 1 ? 0 : moment };
    play.textContent = "Pause";
    requestAnimationFrame(advance);
  };
  slider.oninput = () => {
    stop();
    show(Number(slider.value));
  };
  select.onchange = () => {
    stop();
    frames = runs[select.value][1];
    for (const frame of frames) frame.bytes ??= Uint8Array.from(atob(frame.density), (letter) => letter.charCodeAt(0));
    slider.max = frames.length - 1;
    show(frames.length - 1); // the last snapshot: in the first all weights are equal
  };
  options(select, runs.map(([label], k) => [String(k), label]), "0");
  byId("density-choice").hidden = runs.length < 2;
  select.onchange();
}

// Draws two snapshots, interpolated by share.
function paint(canvas, before, after, share) {
  const mix = (from, to) => from + (to - from) * share;
  const pixels = new ImageData(SIZE, SIZE);
  before.bytes.forEach((byte, k) => pixels.data.set([...cividis(mix(byte, after.bytes[k]) / 255), 255], 4 * k));
  const small = new OffscreenCanvas(SIZE, SIZE);
  small.getContext("2d").putImageData(pixels, 0, 0);
  const context = canvas.getContext("2d");
  const size = Math.round(Math.max(200, canvas.clientWidth) * Math.min(2, devicePixelRatio));
  if (canvas.width !== size) canvas.width = canvas.height = size;
  context.drawImage(small, 0, 0, size, size);
  context.fillStyle = "rgba(255, 255, 255, 0.45)";
  const unit = (value) => (value + MARGIN) / (1 + 2 * MARGIN);
  before.places.forEach(([x, y], i) => {
    const [toX, toY] = after.places[i];
    context.beginPath();
    context.arc(unit(mix(x, toX)) * size, (1 - unit(mix(y, toY))) * size, size / 240, 0, 2 * Math.PI);
    context.fill();
  });
}
