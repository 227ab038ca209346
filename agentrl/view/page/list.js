/** A table of any length: only the rows in sight are in the page.
 *
 * A column is `{ key, name, title, width, isNumber, isExtra, cell(row), value(row) }`: numbers stand
 * right, `value` is what to sort by (null goes last), and an extra one has no place on a narrow page.
 */

import { fill, h } from "./dom.js";

const ROW = 36;
const SPARE = 12;
const narrow = matchMedia("(max-width: 700px)");

/** Returns rows in an order such as `-reward`, the largest first, or as they were for "". */
export function sorted(rows, columns, order) {
  const value = columns.find((column) => column.key === order.replace("-", ""))?.value;
  if (!value) return rows;
  const sign = order.startsWith("-") ? -1 : 1;
  const values = new Map(rows.map((row) => [row, value(row)]));
  return [...rows].sort((one, other) => {
    const [left, right] = [values.get(one), values.get(other)];
    if (left === right) return one - other;
    if (left === null) return 1;
    if (right === null) return -1;
    return left < right ? -sign : sign;
  });
}

/** Makes a table; `show(columns, rows, order)` fills it. */
export function makeList({ label, onOrder, onOpen, empty }) {
  let [columns, rows, order, current] = [[], [], "", -1];
  const head = h("div", { class: "list-head", role: "row" });
  const none = h("p", { class: "empty" });
  const body = h("div", { class: "list-body" });
  const node = h("div", { class: "list", role: "grid", "aria-label": label, tabindex: 0, onscroll: draw }, head, none, body);
  new ResizeObserver(draw).observe(node);
  narrow.addEventListener("change", drawAll);

  function shown() {
    return narrow.matches ? columns.filter((column) => !column.isExtra) : columns;
  }

  function turn(column) {
    const down = column.isNumber ? "-" : "";
    const up = column.isNumber ? "" : "-";
    const was = order.replace("-", "") === column.key ? order : null;
    onOrder(was === null ? down + column.key : was === down + column.key ? up + column.key : "");
  }

  function drawAll() {
    node.setAttribute("aria-rowcount", rows.length + 1);
    node.style.setProperty("--columns", shown().map((column) => column.width).join(" "));
    fill(
      head,
      shown().map((column) => {
        const isOwn = order.replace("-", "") === column.key;
        const isDown = order.startsWith("-");
        const arrow = isOwn && h("i", { "aria-hidden": "true" }, isDown ? "↓" : "↑");
        return h(
          "span",
          { role: "columnheader", class: column.isNumber && "right", title: column.title, "aria-sort": isOwn && (isDown ? "descending" : "ascending") },
          column.value ? h("button", { class: "plain", onclick: () => turn(column) }, column.name, arrow) : column.name,
        );
      }),
    );
    none.textContent = rows.length ? "" : empty;
    none.hidden = rows.length > 0;
    body.style.height = `${rows.length * ROW}px`;
    draw();
  }

  function draw() {
    const first = Math.max(0, Math.floor(node.scrollTop / ROW) - SPARE);
    const last = Math.min(rows.length, Math.ceil((node.scrollTop + (node.clientHeight || 600)) / ROW) + SPARE);
    const drawn = [];
    for (let place = first; place < last; place++) {
      const row = rows[place];
      drawn.push(
        h(
          "div",
          {
            id: `row-${place}`,
            role: "row",
            "aria-rowindex": place + 2,
            "aria-selected": String(place === current),
            class: "list-row",
            style: { transform: `translateY(${place * ROW}px)` },
            onclick: () => onOpen(row),
          },
          shown().map((column) => h("span", { role: "gridcell", class: column.isNumber && "right" }, column.cell(row))),
        ),
      );
    }
    fill(body, drawn);
  }

  function move(by) {
    current = Math.max(0, Math.min(rows.length - 1, current + by));
    node.setAttribute("aria-activedescendant", `row-${current}`);
    const top = current * ROW;
    if (top < node.scrollTop) node.scrollTop = top;
    else if (top + 2 * ROW > node.scrollTop + node.clientHeight) node.scrollTop = top + 2 * ROW - node.clientHeight;
    draw();
  }

  return {
    node,
    show(newColumns, newRows, newOrder, keepsPlace = false) {
      [columns, rows, order] = [newColumns, sorted(newRows, newColumns, newOrder), newOrder];
      if (!keepsPlace) {
        current = -1;
        node.removeAttribute("aria-activedescendant");
      }
      drawAll();
    },
    keys: {
      j: () => move(1),
      k: () => move(-1),
      ArrowDown: () => move(1),
      ArrowUp: () => move(-1),
      PageDown: () => move(15),
      PageUp: () => move(-15),
      Home: () => move(-rows.length),
      End: () => move(rows.length),
      Enter: () => rows[current] !== undefined && onOpen(rows[current]),
    },
  };
}
