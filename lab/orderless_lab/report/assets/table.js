// Sort a table by the column whose heading is pressed: numbers highest first, names from A.
for (const table of document.querySelectorAll("table.results")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.firstElementChild.addEventListener("click", () => {
      const down = heading.ariaSort ? heading.ariaSort === "ascending" : column > 0;
      for (const other of headings) other.ariaSort = null;
      heading.ariaSort = down ? "descending" : "ascending";
      const value = (row) => row.cells[column].dataset.value;
      const compare = (a, b) => {
        if (column === 0) return value(a).localeCompare(value(b));
        const [first, second] = [Number(value(a)), Number(value(b))];
        if (isNaN(first) || isNaN(second)) return (isNaN(first) - isNaN(second)) * (down ? -1 : 1);
        return first - second;
      };
      const rows = [...body.rows].sort((a, b) => (down ? compare(b, a) : compare(a, b)));
      body.append(...rows);
    });
  });
}
