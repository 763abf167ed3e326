// Draws the figures of the page: of each the traces of the group that the selectors name, and those of no group.
"use strict";

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const form = document.getElementById("choices");
const groups = read("groups");
const charts = [...document.querySelectorAll(".chart")].map((place) => ({ place, figure: read(place.dataset.figure) }));

// A stage whose groups do not differ in a key shows what it has, whatever is chosen for that key.
const values = {};
for (const { stage, group } of groups)
  for (const [key, value] of Object.entries(group)) ((values[stage] ??= {})[key] ??= new Set()).add(value);
const matches = ({ stage, group }, chosen) =>
  Object.entries(chosen).every(
    ([key, value]) => !(key in group) || group[key] === value || values[stage][key].size === 1);

function draw() {
  const chosen = form ? Object.fromEntries(new FormData(form)) : {};
  const drawn = charts.map(({ place, figure }) => {
    const shown = figure.data.filter(({ meta }) => !meta?.group || matches(meta, chosen));
    const layout = structuredClone(figure.layout);
    for (const { meta } of shown) if (meta?.range) layout[meta.axis].range = [...meta.range];
    const data = shown.map((trace) => ({ ...trace, visible: true }));
    return Plotly.react(place, data, layout, { responsive: true, displayModeBar: false });
  });
  const without = Object.keys(values).filter((stage) => !groups.some((g) => g.stage === stage && matches(g, chosen)));
  if (form)
    document.getElementById("unmatched").textContent =
      without.length ? `Nothing was measured with this choice for: ${without.join(", ")}` : "";
  return Promise.all(drawn);
}

form?.addEventListener("change", draw);
draw().then(() => (document.documentElement.dataset.drawn = "yes"));
