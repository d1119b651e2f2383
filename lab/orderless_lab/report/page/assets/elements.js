// Helpers that build the document. Text is only set as text nodes, so that no name becomes markup.

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

// Like terms, with each term and its text in one element.
function pairs(list, entries) {
  const items = entries.map(([term, text]) => element("div", {}, element("dt", {}, term), element("dd", {}, text)));
  return fill(list, ...items);
}

function options(select, entries, chosen) {
  fill(select, ...entries.map(([value, text]) => element("option", { value }, text)));
  select.value = chosen;
}

// One box for all charts. It is a status region, so that screen readers read it.
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
