// A table of supportedModels (supported-models-data.js) with a field that filters it; works from a folder on disk.
"use strict";

(() => {
  const MOST = 50; // rows shown at first
  const place = document.getElementById("supported-models");
  const add = (parent, tag, text = "") => {
    const element = parent.appendChild(document.createElement(tag));
    element.textContent = text;
    return element;
  };

  const label = add(place, "label", "Filter by name, library or result: ");
  const input = add(label, "input");
  input.type = "search";
  input.placeholder = "for example: bert one by one";
  const count = add(place, "p");
  count.setAttribute("aria-live", "polite");
  const table = add(place, "table");
  const head = add(add(table, "thead"), "tr");
  for (const title of ["name", "clipped sum"]) add(head, "th", title);
  const body = add(table, "tbody");
  const more = add(place, "button", "Show all");
  more.className = "md-button";

  const rows = supportedModels.map((model) => ({
    model,
    text: [model.name, model.library, model.result, model.note].join(" ").toLowerCase(),
  }));

  function show(most) {
    const words = input.value.toLowerCase().split(/\s+/);
    const found = rows.filter((row) => words.every((word) => row.text.includes(word)));
    body.replaceChildren();
    for (const { model } of found.slice(0, most)) {
      const line = add(body, "tr");
      add(add(line, "td", model.name), "small", model.library);
      add(add(line, "td", model.result), "small", model.note);
    }
    const shown = Math.min(most, found.length);
    count.textContent = `${found.length} of ${rows.length}` + (shown < found.length ? `, the first ${shown} shown` : "");
    more.hidden = shown === found.length;
  }

  input.addEventListener("input", () => show(MOST));
  more.addEventListener("click", () => show(Infinity));
  show(MOST);
})();
