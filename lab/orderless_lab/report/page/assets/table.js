// The table: a button in each heading sorts by it, best first; missing values stay at the end.

function showTable(result, problems) {
  const { columns, rows } = result.table;
  const table = byId("table");
  const body = element("tbody");
  for (const row of rows) {
    row.node = tableRow(result, row);
    body.append(row.node);
  }

  const headings = [];
  const heading = (text, unit, compare, best) => {
    const arrow = element("span", { class: "arrow", "aria-hidden": "true" });
    const button = element("button", { type: "button" }, text, element("span", { class: "unit" }, arrow, unit));
    const cell = element("th", { scope: "col" }, button);
    headings.push({ cell, arrow });
    button.addEventListener("click", () => {
      const now = cell.getAttribute("aria-sort");
      const opposite = best === "ascending" ? "descending" : "ascending";
      const wanted = now === best ? opposite : best;
      for (const other of headings) {
        other.cell.removeAttribute("aria-sort");
        other.arrow.textContent = "";
      }
      cell.setAttribute("aria-sort", wanted);
      arrow.textContent = wanted === "ascending" ? "▲" : "▼";
      const sorted = [...rows].sort((a, b) => compare(a, b, wanted === "ascending" ? 1 : -1));
      body.append(...sorted.map((row) => row.node));
      byId("sorted").textContent = `Sorted by ${text}, ${wanted}.`;
    });
    return cell;
  };

  const byName = (a, b, sign) => sign * labelOf(result, a).localeCompare(labelOf(result, b));
  const head = element("tr", {}, heading("method", "", byName, "ascending"));
  columns.forEach((column, place) => {
    const byValue = (a, b, sign) => {
      const [first, second] = [a.values[place], b.values[place]];
      if (first === null || second === null) return (first === null) - (second === null);
      return sign * (first - second);
    };
    head.append(heading(column.heading, column.unit, byValue, column.better === "low" ? "ascending" : "descending"));
  });
  fill(table, table.caption, element("thead", {}, head), body);
  terms(byId("columns"), columns.map((column) => [column.heading, column.explanation]));
  const remarks = [...problems, ...result.notes, ...(rows.some((row) => row.bound) ? ["Joint training sees all tasks at once, so it is not ranked."] : [])];
  fill(byId("notes"), ...remarks.map((note) => element("li", {}, note)));
}

function labelOf(result, row) {
  return result.methods[row.method].label;
}

function tableRow(result, row) {
  const { columns } = result.table;
  const name = element("th", { scope: "row" }, element("span", { class: "name" }, labelOf(result, row)));
  const honours = columns.filter((column, place) => column.honour && row.best[place]);
  const tags = honours.map((column) => element("span", { class: "tag" }, column.honour));
  if (row.died) tags.push(element("span", { class: "tag warn" }, `diverged in ${row.died} of ${row.cells} runs`));
  if (tags.length) name.append(element("br"), ...tags.flatMap((tag) => [tag, " "]));
  const node = element("tr", honours.length ? { class: "best" } : {}, name);
  node.dataset.method = row.method;
  row.texts.forEach((text, place) => {
    const cell = element("td", row.best[place] ? { class: "best" } : {}, text === "-" ? "–" : text.replace(/^-/, "−"));
    if (row.best[place]) cell.append(element("span", { class: "unseen" }, " (best)"));
    node.append(cell);
  });
  return node;
}
