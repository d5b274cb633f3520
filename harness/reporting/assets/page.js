// Draws a page's pictures and its browser of users from the JSON beside it. Text goes in by textContent alone.
"use strict";
(() => {
  const data = (id) => JSON.parse(document.getElementById(id).textContent);
  const MOST_ROWS = 100;
  const NARROW = 520;
  const MARGINS = 80;
  const PAPER = 680; // pixels across a printed page

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  // Blocks of a user's card. What is there before the script runs was written by the template.

  const kinds = {
    Heading: ({ text }) => make("h3", { dir: "auto" }, text),
    Paragraph: ({ text }) => make("p", { dir: "auto" }, text),
    Verbatim: ({ text }) => make("pre", {}, text),
    Table: table,
    Quote: quote,
    Tags: tags,
    Chart: picture,
    Sketch: picture,
  };

  function shown([kind, block]) {
    return kinds[kind](block, kind);
  }

  function table({ columns, rows }) {
    const head = make("thead", {}, make("tr", {}, ...columns.map((cell) => make("th", { scope: "col" }, cell))));
    const cells = (row) => row.map((cell, at) => make(at ? "td" : "th", { dir: "auto" }, cell));
    const body = make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row))));
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" }, make("table", {}, head, body));
  }

  function quote({ label, text, open }) {
    const size = text.length > 200 ? ` (${text.length.toLocaleString("en")} characters)` : text ? "" : " (nothing)";
    const node = make("details", { class: "quote" }, make("summary", {}, label + size));
    node.open = open && text.length < 2000;
    node.append(make("pre", { dir: "auto" }, text));
    return node;
  }

  function tags({ label, tags }) {
    const node = make("p", { class: "tags" }, make("b", {}, `${label}: `));
    if (!tags.length) node.append("none");
    for (const [tag, kind] of tags) {
      const name = `tag ${kind.replaceAll(",", "").replaceAll(" ", "-")}`;
      node.append(make("span", { class: name }, make("bdi", {}, tag), " ", make("i", {}, kind)), " ");
    }
    return node;
  }

  // Pictures

  const colour = (at) => `var(--c${at % 8})`;

  function picture(block, kind) {
    const figure = make("figure", {}, make("figcaption", { dir: "auto" }, block.title));
    fill(figure, kind, block);
    return figure;
  }

  function fill(figure, kind, block) {
    const names = kind === "Sketch" ? Object.keys(block.places) : block.series.map((one) => one.name);
    const place = figure.appendChild(make("div", { class: "picture", role: "img", "aria-label": block.title }));
    if (names.length > 1) figure.append(legend(names));
    let drawn = 0;
    function draw(width) {
      if (width < 40 || Math.abs(width - drawn) < 4) return;
      drawn = width;
      const svg = kind === "Sketch" ? sketch(block, width) : charts[block.kind](block, width);
      svg.querySelector("style")?.remove(); // page.css says the same, and the policy allows no other style
      place.replaceChildren(svg);
    }
    const fit = () => draw(Math.floor(place.clientWidth));
    new ResizeObserver(fit).observe(place);
    return { draw, fit };
  }

  function legend(names) {
    const entry = (name, at) => make("li", {}, make("span", { class: `swatch s${at % 8}` }), name);
    return make("ul", { class: "legend" }, ...names.map(entry));
  }

  const charts = { curve, intervals, histogram, ribbon };

  // Every series' points as rows: x, value, low, high, name, at (its place among the series).
  function points(chart) {
    const scale = chart.percent ? 100 : 1;
    const times = (value) => (value == null ? null : value * scale);
    return chart.series.flatMap((one, at) =>
      one.values.map((value, i) => ({
        x: chart.x[i],
        end: chart.x[i + 1],
        value: times(value),
        low: times(one.low[i]),
        high: times(one.high[i]),
        name: one.name,
        at,
      })),
    );
  }

  const number = (value) => (value == null ? "undefined" : Number(value.toPrecision(4)).toString());

  function title(chart, row) {
    const bounds = row.low == null ? "" : ` [${number(row.low)}, ${number(row.high)}]`;
    const where = typeof row.x === "number" ? `${chart.x_label} ${number(row.x)}` : row.x;
    return `${row.name}, ${where}: ${number(row.value)}${bounds}`;
  }

  // Of hours every third, or sixth where there is little room; else as many numbers as Plot finds fit.
  function across(chart, width) {
    const shared = { label: chart.x_label, labelArrow: "none" };
    return chart.x_label === "hour" ? { ...shared, domain: [0, 24], ticks: d3.range(0, 25, width < NARROW ? 6 : 3) } : shared;
  }

  function plot(width, options) {
    const fontSize = width < NARROW ? "11px" : "12px";
    return Plot.plot({ className: "plot", width, marginTop: 26, marginRight: 12, style: { fontSize }, ...options });
  }

  function curve(chart, width) {
    const rows = points(chart).filter((row) => row.value != null);
    const bands = rows.filter((row) => row.low != null);
    const steps = [...new Set(chart.x)];
    return plot(width, {
      height: width < NARROW ? 240 : 300,
      marginLeft: 44,
      marginBottom: 38,
      x: { ...across(chart, width), ...(steps.length < 13 ? { ticks: steps } : {}), tickFormat: number },
      y: { label: chart.y_label, grid: true, nice: true, zero: true, labelArrow: "none" },
      marks: [
        Plot.areaY(bands, { x: "x", y1: "low", y2: "high", z: "name", fill: (row) => colour(row.at), fillOpacity: 0.16 }),
        Plot.lineY(rows, { x: "x", y: "value", z: "name", stroke: (row) => colour(row.at), strokeWidth: 2 }),
        Plot.dot(rows, { x: "x", y: "value", r: 2.5, fill: (row) => colour(row.at), title: (row) => title(chart, row) }),
      ],
    });
  }

  function intervals(chart, width) {
    const rows = points(chart).filter((row) => row.value != null);
    const most = chart.series.length;
    const wide = (text) => [...text].reduce((sum, character) => sum + (character > "\u2e80" ? 13 : 8), 0);
    const left = Math.min(Math.max(...chart.x.map(wide), 20) + 16, width * 0.42);
    const marks = chart.series.flatMap((_, at) => {
      const mine = rows.filter((row) => row.at === at);
      const bounded = mine.filter((row) => row.low != null);
      const dy = (at - (most - 1) / 2) * 11;
      return [
        Plot.ruleY(bounded, { x1: "low", x2: "high", y: "x", dy, stroke: colour(at), strokeWidth: 2.5 }),
        Plot.dot(mine, { x: "value", y: "x", dy, r: 4, fill: colour(at), title: (row) => title(chart, row) }),
      ];
    });
    const nothing = rows.some((row) => (row.low ?? row.value) < 0) ? [Plot.ruleX([0])] : []; // of differences
    return plot(width, {
      height: chart.x.length * (16 + 11 * most) + 60,
      marginLeft: left,
      marginBottom: 40,
      x: { label: chart.x_label, grid: true, nice: true, zero: chart.percent, labelArrow: "none" },
      y: { label: null, domain: chart.x },
      marks: [Plot.axisY({ tickSize: 0, textOverflow: "ellipsis", lineWidth: (left - 12) / 12 }), ...nothing, ...marks],
    });
  }

  function histogram(chart, width) {
    const most = chart.series.length;
    const edge = (row, at) => row.x + ((row.end - row.x) * at) / most;
    return plot(width, {
      height: width < NARROW ? 220 : 260,
      marginLeft: 48,
      marginBottom: 38,
      x: { label: chart.x_label, labelArrow: "none" },
      y: { label: chart.y_label, grid: true, nice: true, labelArrow: "none" },
      marks: [
        Plot.rectY(points(chart), {
          x1: (row) => edge(row, row.at),
          x2: (row) => edge(row, row.at + 1),
          y: "value",
          fill: (row) => colour(row.at),
          insetLeft: 0.5,
          insetRight: 0.5,
          title: (row) => `${row.name}, ${number(row.x)} to ${number(row.end)}: ${number(row.value)}`,
        }),
        Plot.ruleY([0]),
      ],
    });
  }

  function ribbon(chart, width) {
    const wide = chart.x.length > 1 ? chart.x[1] - chart.x[0] : 1;
    const rows = points(chart).filter((row) => row.value > 0);
    return plot(width, {
      height: chart.y_label ? (width < NARROW ? 200 : 240) : 120,
      marginLeft: chart.y_label ? 44 : 8,
      marginBottom: 38,
      x: across(chart, width),
      y: { label: chart.y_label || null, axis: chart.y_label ? "left" : null, labelArrow: "none", domain: [0, chart.percent ? 100 : 1] },
      marks: [
        Plot.rectY(rows, Plot.stackY({
          x1: "x",
          x2: (row) => row.x + wide,
          y: "value",
          z: "at",
          order: "at",
          fill: (row) => colour(row.at),
          shapeRendering: "crispEdges",
          title: (row) => title(chart, row),
        })),
      ],
    });
  }

  // Metres become kilometres from the western and southern edge.
  function sketch({ places, paths }, width) {
    const names = Object.keys(places);
    const all = [...Object.values(places).flat(), ...paths.flat()];
    const [west, south] = [0, 1].map((axis) => Math.min(...all.map((at) => at[axis])));
    const here = ([x, y]) => ({ x: (x - west) / 1000, y: (y - south) / 1000 });
    const dots = names.flatMap((name, at) => places[name].map((place) => ({ ...here(place), name, at })));
    const spots = [...dots, ...paths.flat().map(here)];
    const reach = ["x", "y"].map((axis) => Math.max(0.5, ...spots.map((at) => at[axis])));
    const tallest = paths.length ? 260 : 400;
    const scale = Math.min((width - MARGINS) / reach[0], tallest / reach[1]); // pixels a kilometre, the same both ways
    const [across, up] = reach.map((kilometres) => Math.max(120, kilometres * scale));
    const axis = (pixels) => ({ label: "km", labelArrow: "none", domain: [0, pixels / scale], ticks: pixels / 60 });
    return plot(Math.min(width, across + MARGINS), {
      height: up + MARGINS + 10,
      marginLeft: 44,
      marginBottom: 38,
      inset: 12,
      x: axis(across),
      y: axis(up),
      marks: [
        ...paths.map((path) => Plot.line(path.map(here), { x: "x", y: "y", stroke: "currentColor", strokeOpacity: 0.5 })),
        Plot.dot(dots, {
          x: "x",
          y: "y",
          r: (row) => (paths.length ? 5 : 3) + (names.length - row.at) * 0.7, // what is done at one place shows as rings
          fill: (row) => colour(row.at),
          title: (row) => row.name,
        }),
      ],
      r: { type: "identity" },
    });
  }

  // Tables that the template wrote: a click on a head sorts, numbers from the largest first, another click turns it.

  // The number at the beginning of a cell, also after a warning such as "INCOMPLETE: "; null for none.
  function numeric(text) {
    const found = /^(?:[A-Z]+: )?([-+]?\d[\d,]*(?:\.\d+)?)/.exec(text);
    return found ? Number(found[1].replaceAll(",", "")) : null;
  }

  function sortable(table) {
    const [body] = table.tBodies;
    const heads = [...table.tHead.rows[0].cells];
    const rows = [...body.rows];
    const cell = (row, at) => row.cells[at].textContent;
    const isText = (at) => at === 0 || rows.every((row) => numeric(cell(row, at)) === null);

    function sort(at) {
      const text = isText(at);
      const turned = heads[at].getAttribute("aria-sort") === (text ? "ascending" : "descending");
      const order = text === turned ? "descending" : "ascending";
      const sign = order === "ascending" ? 1 : -1;
      const none = (row) => (text ? !cell(row, at) : numeric(cell(row, at)) === null);
      const by = (a, b) =>
        text ? cell(a, at).localeCompare(cell(b, at)) : numeric(cell(a, at)) - numeric(cell(b, at));
      const sorted = [...rows].sort((a, b) => none(a) - none(b) || (none(a) ? 0 : sign * by(a, b)));
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

  for (const one of document.querySelectorAll("main > .scroll > table")) if (one.tBodies[0].rows.length > 2) sortable(one);

  const pictures = data("pictures");
  const figures = [...document.querySelectorAll("figure[data-picture]")];
  const drawings = figures.map((figure) => fill(figure, ...pictures[figure.dataset.picture]));
  window.addEventListener("beforeprint", () => drawings.forEach(({ draw }) => draw(PAPER)));
  window.addEventListener("afterprint", () => drawings.forEach(({ fit }) => fit()));

  // The browser of users

  function browse(section) {
    const listed = data("listed").map((row, at) => ({ row, at }));
    const cards = document.querySelectorAll("script.card");
    const [find, order, body] = ["input", "select", "tbody"].map((name) => section.querySelector(name));
    const [article, more] = ["article", ".more"].map((name) => section.querySelector(name));
    let most = MOST_ROWS;
    let picked = null;

    function pick(at) {
      picked = at;
      const blocks = JSON.parse(cards[at].textContent);
      article.replaceChildren(make("h3", { class: "who" }, make("bdi", {}, listed[at].row[0])), ...blocks.map(shown));
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
