// Tables of class "sortable": a heading sorts by its column; a second click turns the order round.
(() => {
  const key = (row, n) => {
    const text = row.cells[n].querySelector("[data-value]")?.dataset.value ?? row.cells[n].textContent;
    const number = Number(text.replaceAll(",", "").replace(/\s.*$/, ""));
    return text.trim() === "" || text === "missing" ? null : Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, n) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const each of heads) each.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows].map((row) => [key(row, n), row]);
        rows.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : up ? compare(a, b) : compare(b, a)));
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }
})();
