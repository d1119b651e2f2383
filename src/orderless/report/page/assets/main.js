// Reads the data and shows one result; the choice at the top appears when there are several.

const data = JSON.parse(byId("data").textContent);

function showResult(result) {
  tooltip.hide();
  showHeading(result);
  showTable(result);
  showFindings(result);
  showTasks(result);
  showScatter(result);
  showMatrices(result);
  showWeights(result);
  showCurves(result);
  showDensity(result, data.problems);
  showClaims(result);
  showSettings(result, data.directory);
  const sections = [...document.querySelectorAll("section[data-title]")].filter((section) => !section.hidden);
  const links = sections.map((section) => element("li", {}, element("a", { href: `#${section.id}` }, section.dataset.title)));
  fill(byId("contents"), ...links);
}

const names = data.results.map((result, k) => [String(k), `${result.benchmark}, ${result.scenario}, ${result.preset}`]);
options(byId("result"), names, "0");
byId("choice").hidden = names.length < 2;
byId("result").onchange = (event) => showResult(data.results[event.target.value]);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") tooltip.hide();
});
showResult(data.results[0]);
