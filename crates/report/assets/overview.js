"use strict";
// Shows the claims of one study, one verdict, one side.
(() => {
  const [study, verdict, whose] = ["of-study", "of-verdict", "of-whom"].map((id) => document.getElementById(id));
  const rows = [...document.querySelectorAll(".claims-table tbody tr")];
  const fits = (select, value) => select.value === "" || select.value === value;
  const filter = () => {
    let shown = 0;
    for (const row of rows) {
      row.hidden = !(fits(study, row.dataset.study) && fits(verdict, row.dataset.verdict) && fits(whose, row.dataset.whose));
      if (!row.hidden) shown += 1;
    }
    document.getElementById("shown").textContent = `${shown} of ${rows.length} claims`;
  };
  for (const select of [study, verdict, whose]) select.addEventListener("change", filter);
  study.closest(".choose").hidden = false;
  filter();
})();
