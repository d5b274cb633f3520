// Sorts tables, and browses the users of a page. Each user's card is markup that the page's maker has escaped as all
// else, kept as inert text, since a browser has no room for the elements of very many users: a pick parses one.
"use strict";
(() => {
  const MOST_ROWS = 100;

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  // The number of a cell: its value, or what its text begins with, also after a warning such as "INCOMPLETE: ".
  function numeric(cell) {
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    const found = /^(?:[A-Z]+: )?([-+]?\d[\d,]*(?:\.\d+)?)/.exec(cell.textContent);
    return found ? Number(found[1].replaceAll(",", "")) : null;
  }

  // A click on a head sorts, numbers from the largest first; another click turns the order.
  function sortable(table) {
    const [body] = table.tBodies;
    const heads = [...table.tHead.rows[0].cells];
    const rows = [...body.rows];
    const isText = (at) => at === 0 || rows.every((row) => numeric(row.cells[at]) === null);

    function sort(at) {
      const text = isText(at);
      const turned = heads[at].getAttribute("aria-sort") === (text ? "ascending" : "descending");
      const order = text === turned ? "descending" : "ascending";
      const sign = order === "ascending" ? 1 : -1;
      const value = (row) => (text ? row.cells[at].textContent || null : numeric(row.cells[at]));
      const by = (a, b) => (text ? a.localeCompare(b) : a - b);
      const none = (row) => value(row) === null;
      const sorted = [...rows].sort((a, b) => none(a) - none(b) || (none(a) ? 0 : sign * by(value(a), value(b))));
      for (const head of heads) head.removeAttribute("aria-sort");
      heads[at].setAttribute("aria-sort", order);
      body.append(...sorted);
    }

    heads.forEach((head, at) => {
      const button = make("button", { type: "button", class: "sort" }, ...head.childNodes);
      button.addEventListener("click", () => sort(at));
      head.append(button);
    });
  }

  for (const table of document.querySelectorAll("main .scroll > table")) {
    if (table.tBodies[0].rows.length > 2 && !table.tHead.querySelector("a")) sortable(table);
  }

  // Paper has no lids: what is folded is printed, too.
  const folded = [...document.querySelectorAll("details.folded:not([open])")];
  window.addEventListener("beforeprint", () => folded.forEach((section) => (section.wasOpen = section.open, section.open = true)));
  window.addEventListener("afterprint", () => folded.forEach((section) => (section.open = section.wasOpen)));

  function browse(section) {
    const cards = [...document.querySelectorAll("script.card")];
    const listed = cards.map((card, at) => ({ row: JSON.parse(card.dataset.line), at }));
    const [find, order, body] = ["input", "select", "tbody"].map((name) => section.querySelector(name));
    const [article, more] = ["article", ".more"].map((name) => section.querySelector(name));
    let most = MOST_ROWS;
    let picked = null;

    function pick(at) {
      picked = at;
      const who = make("h3", { class: "who" }, make("bdi", {}, listed[at].row[0]));
      const parsed = new DOMParser().parseFromString(cards[at].textContent, "text/html");
      article.replaceChildren(who, ...parsed.body.childNodes);
      for (const line of body.rows) line.classList.toggle("picked", Number(line.dataset.at) === at);
      if (article.getBoundingClientRect().top > window.innerHeight * 0.6) article.scrollIntoView();
    }

    function compare(a, b) {
      const column = Number(order.value);
      const [x, y] = [a.row[column], b.row[column]];
      const [p, q] = [Number.parseFloat(x), Number.parseFloat(y)];
      if (!Number.isNaN(p) && !Number.isNaN(q)) return q - p || a.at - b.at;
      return x < y ? -1 : x > y ? 1 : a.at - b.at;
    }

    function line({ row, at }) {
      const button = make("button", { type: "button" }, make("bdi", {}, row[0]));
      const cells = row.slice(1).map((cell) => make("td", {}, cell));
      const node = make("tr", { "data-at": at }, make("th", { scope: "row" }, button), ...cells);
      node.classList.toggle("picked", at === picked);
      node.addEventListener("click", () => pick(at));
      return node;
    }

    function list() {
      const wanted = find.value.trim().toLowerCase();
      const found = listed.filter(({ row }) => row[0].toLowerCase().includes(wanted));
      if (order.value !== "0") found.sort(compare);
      body.replaceChildren(...found.slice(0, most).map(line));
      more.textContent = `${Math.min(most, found.length)} of ${found.length} shown. `;
      if (found.length > most) {
        const button = more.appendChild(make("button", { type: "button" }, "Show more"));
        button.addEventListener("click", () => { most += MOST_ROWS; list(); });
      }
    }

    find.addEventListener("input", () => { most = MOST_ROWS; list(); });
    order.addEventListener("input", list);
    section.hidden = false;
    list();
  }

  const section = document.getElementById("browser");
  if (section) browse(section);
})();
