// What moves is fetched again every two seconds and put in place; rows are walked by keys. Pages are read without this.
"use strict";
(() => {
  const EVERY = 2000;
  const rows = () => [...document.querySelectorAll("main tbody th a")];

  async function refresh() {
    const live = [...document.querySelectorAll("[data-live]")];
    if (!live.length || location.protocol === "file:") return;
    if (!document.hidden) {
      try {
        const answer = await fetch(location.href, { credentials: "same-origin" });
        if (answer.ok) replace(live, new DOMParser().parseFromString(await answer.text(), "text/html"));
      } catch {
        document.title = `(no connection) ${document.title.replace(/^\(no connection\) /, "")}`;
      }
    }
    setTimeout(refresh, EVERY);
  }

  // Texts that the reader has opened stay open, chosen runs stay chosen, and the row keeps its focus.
  function replace(live, made) {
    document.title = made.title;
    document.querySelector("h1").textContent = made.querySelector("h1").textContent;
    for (const old of live) {
      const fresh = made.getElementById(old.id);
      if (!fresh || old.dataset.source === fresh.innerHTML) {
        if (fresh && !fresh.hasAttribute("data-live")) old.removeAttribute("data-live");
        continue;
      }
      const source = fresh.innerHTML;
      const at = rows().indexOf(document.activeElement);
      const checked = new Set([...old.querySelectorAll("input:checked")].map((box) => box.value));
      const open = new Set([...old.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent));
      for (const box of fresh.querySelectorAll("input[type=checkbox]")) box.checked = checked.has(box.value);
      for (const summary of fresh.querySelectorAll("details > summary")) {
        if (open.has(summary.textContent)) summary.parentElement.open = true;
      }
      const node = document.importNode(fresh, true);
      node.dataset.source = source;
      old.replaceWith(node);
      if (at >= 0) rows()[at]?.focus();
    }
  }

  function step(by) {
    const every = rows();
    if (!every.length) return;
    const at = every.indexOf(document.activeElement);
    every[at < 0 ? (by > 0 ? 0 : every.length - 1) : Math.min(every.length - 1, Math.max(0, at + by))].focus();
  }

  const follow = (rel) => document.querySelector(`a[rel=${rel}]`)?.click();
  const keys = {
    j: () => step(1),
    k: () => step(-1),
    ArrowDown: () => rows().includes(document.activeElement) && step(1),
    ArrowUp: () => rows().includes(document.activeElement) && step(-1),
    n: () => follow("next"),
    p: () => follow("prev"),
    u: () => (document.querySelector("a[rel=up]") ?? [...document.querySelectorAll(".path a")].at(-1))?.click(),
    "/": () => document.querySelector("input[type=search]")?.focus(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const act = keys[event.key];
    if (!act) return;
    if (act() !== false) event.preventDefault();
  });

  for (const node of document.querySelectorAll("[data-live]")) node.dataset.source = node.innerHTML;
  setTimeout(refresh, EVERY);
})();
