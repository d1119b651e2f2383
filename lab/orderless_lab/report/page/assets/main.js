// Reads the data and shows one result; with several results, a menu at the top selects one.

const data = JSON.parse(byId("data").textContent);

let current; // the result that is shown

function showResult(number) {
  const result = (current = data.results[number]);
  tooltip.hide();
  showHeading(result);
  showTable(result, data.problems);
  showFindings(result);
  showTasks(result, number);
  showScatter(result, number);
  showMatrices(result);
  showSeries("weights", "weights-legend", result, number, { "weights-left": "ess", "weights-right": "largest" });
  showSeries("curves", "curves-legend", result, number, { "curves-chart": "curves" });
  const plasticity = ["return", "dormant", "effective_rank", "mean_abs_weight"].map((name) => `plasticity-${name}`);
  showSeries("plasticity", "plasticity-legend", result, number, Object.fromEntries(plasticity.map((name) => [name, name])));
  showDensity(result);
  showClaims(result);
  showSettings(result, data.directory);
  const sections = [...document.querySelectorAll("section[data-title]")].filter((section) => !section.hidden);
  const links = sections.map((section) => element("li", {}, element("a", { href: `#${section.id}` }, section.dataset.title)));
  fill(byId("contents"), ...links);
}

const names = data.results.map((result, k) => [String(k), `${result.benchmark}, ${result.scenario}, ${result.preset}`]);
options(byId("result"), names, "0");
byId("choice").hidden = names.length < 2;
byId("result").onchange = (event) => showResult(event.target.value);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") explain(null);
});
showResult(0);
