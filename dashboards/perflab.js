// Draws the figures of the page, and shows the group that the selectors name.
"use strict";

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const charts = [...document.querySelectorAll(".chart")];
const form = document.getElementById("choices");
const groups = read("groups");

// A stage whose groups do not differ in a key shows what it has, whatever is chosen for that key.
const differs = (stage, key) =>
  new Set(groups.filter((g) => g.stage === stage && key in g.group).map((g) => g.group[key])).size > 1;
const matches = (meta, chosen) =>
  Object.entries(chosen).every(
    ([key, value]) => !(key in meta.group) || meta.group[key] === value || !differs(meta.stage, key));

function show() {
  const chosen = Object.fromEntries(new FormData(form));
  for (const chart of charts) {
    const visible = [], layout = {};
    for (const trace of chart.data) {
      const shown = !trace.meta?.group || matches(trace.meta, chosen);
      visible.push(shown);
      if (shown && trace.meta?.range) layout[`${trace.meta.axis}.range`] = trace.meta.range;
    }
    Plotly.update(chart, { visible }, layout);
  }
  const stages = [...new Set(groups.map((g) => g.stage))];
  const without = stages.filter((stage) => !groups.some((g) => g.stage === stage && matches(g, chosen)));
  document.getElementById("unmatched").textContent =
    without.length ? `Nothing was measured with this choice for: ${without.join(", ")}` : "";
}

Promise.all(
  charts.map((chart) => {
    const figure = read(chart.dataset.figure);
    return Plotly.newPlot(chart, figure.data, figure.layout, { responsive: true, displayModeBar: false });
  })
).then(() => {
  if (form) {
    form.addEventListener("change", show);
    show();
  }
  document.documentElement.dataset.drawn = "yes";
});
