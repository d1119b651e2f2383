// The parts in words: heading, claims, findings, settings and command.

function duration(seconds) {
  if (seconds < 90) return `${seconds.toFixed(0)} s`;
  return seconds < 5400 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function plain(value) {
  if (value === null) return "none";
  return typeof value === "string" ? value : JSON.stringify(value);
}

function showHeading(result) {
  byId("title").textContent = result.benchmark;
  byId("subtitle").textContent = result.subtitle;
  byId("headline").textContent = result.headline;
  byId("headline").hidden = result.headline === "";
  document.title = `${result.benchmark}, ${result.subtitle} · orderless report`;
  const seeds = Math.max(...result.table.rows.map((row) => row.cells));
  const entries = [
    ["methods", String(Object.keys(result.methods).length)],
    ["tasks", String(result.tasks.length)],
    ["orders", String(Object.keys(result.orders).length)],
    ["runs per method", String(seeds)],
    ["computing time", duration(result.duration)],
  ];
  pairs(byId("figures"), entries);
  const word = result.score;
  for (const node of document.querySelectorAll(".score-name")) {
    node.textContent = node.closest("h2") ? word[0].toUpperCase() + word.slice(1) : word;
  }
}

const VERDICTS = { true: ["✓ holds", "holds"], false: ["✗ does not hold", "fails"] };

function showClaims(result) {
  const decided = result.claims.filter((claim) => claim.holds in VERDICTS);
  const open = result.claims.filter((claim) => !(claim.holds in VERDICTS));
  byId("claims").hidden = result.claims.length === 0;
  byId("claims-rule").hidden = decided.length === 0;
  fill(byId("claims-decided"), ...decided.map(claimItem));
  const rest = byId("claims-open");
  rest.hidden = open.length === 0;
  rest.querySelector("summary").textContent = `${open.length} of ${result.claims.length} claims these runs cannot decide`;
  fill(rest.querySelector("ul"), ...open.map(claimItem));
}

function claimItem(claim) {
  const [text, kind] = VERDICTS[claim.holds] ?? ["? not decidable", "open"];
  const paper = claim.paper ? ` Paper: ${claim.paper}.` : "";
  return element(
    "li",
    {},
    element("p", { class: `verdict ${kind}` }, text),
    element("p", {}, `${claim.claim} (${claim.measure})`),
    element("p", { class: "evidence" }, claim.evidence + paper),
  );
}

// The verdicts of an audit on each learner, with their explanations.
function showFindings(result) {
  byId("findings").hidden = result.findings.length === 0;
  byId("ranked").hidden = result.findings.length > 0; // an audit begins with the learner audited
  const items = result.findings.map(({ method, verdict, kind, sentences }) => {
    const [claim, ...more] = sentences.map((text) => element("p", {}, text));
    for (const evidence of more) evidence.className = "evidence";
    return element("li", { "data-method": method }, element("p", { class: `verdict ${kind}` }, verdict), claim, ...more);
  });
  fill(byId("findings-list"), ...items);
}

function showSettings(result, directory) {
  byId("command").textContent = result.command ?? "The command was not recorded.";
  const versions = Object.entries(result.versions).map((pair) => pair.join(" "));
  const environment = [
    ["directory", directory],
    ["device", result.device ?? "not recorded"],
    ["versions", versions.join(", ") || "not recorded"],
    ["cells", `${result.cells}, ${duration(result.duration)} of computing`],
  ];
  terms(byId("environment"), environment);
  const shared = Object.entries(result.settings).map(([name, value]) => [name, plain(value)]);
  pairs(byId("settings-shared").querySelector("dl"), shared);
  byId("settings-shared").hidden = shared.length === 0;
  const own = Object.entries(result.own_settings).map(([name, settings]) => {
    const texts = Object.entries(settings).map(([key, value]) => `${key} ${plain(value)}`);
    return [result.methods[name].label, texts.join(", ")];
  });
  terms(byId("settings-own").querySelector("dl"), own);
  byId("settings-own").hidden = own.length === 0;
}
