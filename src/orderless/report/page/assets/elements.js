// Building the document. Text enters through textContent alone, so no name can become markup.

const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function drawing(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function fill(parent, ...children) {
  parent.replaceChildren(...children);
  return parent;
}

function terms(list, pairs) {
  const items = pairs.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]);
  return fill(list, ...items);
}

// As terms, but each term stands together with its text.
function pairs(list, entries) {
  const items = entries.map(([term, text]) => element("div", {}, element("dt", {}, term), element("dd", {}, text)));
  return fill(list, ...items);
}

function options(select, entries, chosen) {
  fill(select, ...entries.map(([value, text]) => element("option", { value }, text)));
  select.value = chosen;
}

function shorten(text, length) {
  const letters = Array.from(text);
  return letters.length > length ? letters.slice(0, length - 1).join("") + "…" : text;
}

// One box for all charts. It is a status region, so a screen reader says what it shows.
const tooltip = {
  show(lines, x, y) {
    const box = byId("tooltip");
    fill(box, ...lines.map((line) => element("p", {}, line)));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
    const top = y + 14 + height > innerHeight ? y - 14 - height : y + 14;
    box.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, top)}px)`;
  },
  hide() {
    byId("tooltip").hidden = true;
  },
};

// Charts are drawn in real pixels, so that text keeps its size on a phone, and drawn anew when
// their box changes its width.
const drawn = new Map();
const observer = new ResizeObserver((entries) => {
  requestAnimationFrame(() => {
    for (const { target } of entries) {
      const chart = drawn.get(target);
      if (chart && chart.width !== target.clientWidth) redraw(target);
    }
  });
});

function redraw(container) {
  const chart = drawn.get(container);
  chart.width = container.clientWidth;
  if (chart.width > 0) chart.draw(chart.width);
}

function chart(container, draw) {
  drawn.set(container, { draw, width: 0 });
  observer.observe(container);
  redraw(container);
}
