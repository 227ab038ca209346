/** A figure over steps: a line per run, where it is known an interval, and values at the pointer. */

import { fill, h, s, watchWidth } from "./dom.js";
import { endsOf, number } from "./format.js";

const PAD = { left: 44, right: 10, top: 8, bottom: 20 };

/**
 * Makes a figure of lines; a line is null or `{ steps, values, halves, bounds }`: half the widths
 * of intervals, and where those end at the latest. The second line is drawn in its own colour.
 */
export function makeChart({ name, lines, height = 132, note = "" }) {
  const known = lines.map((line) => line && finite(line));
  const values = h("span", { class: "value" });
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, h("span", { class: "name", title: note }, name), values));
  if (!known.some((line) => line?.low !== undefined)) {
    figure.append(h("p", { class: "muted" }, "never a finite number"));
    return figure;
  }
  const drawn = known.flatMap((line, place) => (line?.low === undefined ? [] : [{ ...line, place }]));
  const steps = [...new Set(drawn.flatMap((line) => line.steps))].sort((one, other) => one - other);
  const ticks = ticksOf(...endsOf(drawn.flatMap((line) => [line.low, line.high])));
  const [low, high] = [ticks[0], ticks[ticks.length - 1]];
  const [first, last] = [steps[0], steps[steps.length - 1]];
  const pointer = s("g");
  const svg = s("svg", {
    height,
    role: "img",
    tabindex: 0,
    onpointermove: (event) => seek(event.clientX - svg.getBoundingClientRect().left),
    onpointerleave: () => point(null),
    onblur: () => point(null),
    onkeydown: (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      point(Math.min(steps.length - 1, Math.max(0, (here ?? steps.length - 1) + by)));
    },
  });
  figure.append(svg);
  let [width, here] = [320, null];
  const x = (step) => PAD.left + ((step - first) / Math.max(1, last - first)) * (width - PAD.left - PAD.right);
  const y = (value) => height - PAD.bottom - ((value - low) / (high - low)) * (height - PAD.top - PAD.bottom);

  function seek(wanted) {
    let best = 0;
    steps.forEach((step, place) => {
      if (Math.abs(x(step) - wanted) < Math.abs(x(steps[best]) - wanted)) best = place;
    });
    point(best);
  }

  function point(place) {
    here = place;
    const step = steps[place ?? steps.length - 1];
    const told = drawn.map((line) => {
      const at = place === null ? line.last : line.steps.indexOf(step);
      return { line, value: at < 0 ? null : line.values[at], half: at < 0 ? null : line.halves?.[at], step: line.steps[at] ?? step };
    });
    fill(
      values,
      told.map(({ line, value, half }) => h("span", { class: `run-${line.place}` }, number(value), typeof half === "number" && h("small", {}, ` ± ${number(half)}`))),
      h("small", { class: "at" }, `step ${told.length === 1 ? told[0].step : step}`),
    );
    svg.setAttribute("aria-label", `${name}: ${told.map((one) => number(one.value)).join(" and ")} at step ${step}`);
    fill(
      pointer,
      place !== null && s("line", { class: "cross", x1: x(step), x2: x(step), y1: PAD.top, y2: height - PAD.bottom }),
      told.map(({ line, value, step: own }) => value !== null && s("circle", { class: `dot run-${line.place}`, cx: x(own), cy: y(value), r: 3 })),
    );
  }

  function draw() {
    svg.setAttribute("width", width);
    fill(
      svg,
      ticks.map((tick) => [
        s("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: y(tick), y2: y(tick) }),
        s("text", { class: "tick", x: PAD.left - 6, y: y(tick) + 3.5, "text-anchor": "end" }, label(tick)),
      ]),
      s("text", { class: "tick", x: PAD.left, y: height - 4 }, String(first)),
      s("text", { class: "tick", x: width - PAD.right, y: height - 4, "text-anchor": "end" }, String(last)),
      drawn.map((line) => {
        const known = [...line.values.keys()].filter((place) => line.values[place] !== null);
        const places = thinned(known, line.values, (place) => x(line.steps[place]));
        const path = (of, own) => own.map((place) => `${x(line.steps[place]).toFixed(1)},${y(of[place]).toFixed(1)}`);
        const sure = places.filter((place) => typeof line.halves?.[place] === "number");
        const band = [...path(line.highs, sure), ...path(line.lows, [...sure].reverse())].join(" ");
        return [
          band && s("polygon", { class: `band run-${line.place}`, points: band }),
          s("polyline", { class: `line run-${line.place}`, points: path(line.values, places).join(" ") }),
        ];
      }),
      pointer,
    );
    point(here);
  }

  draw();
  watchWidth(figure, (found) => {
    width = found;
    draw();
  });
  return figure;
}

/** Returns a line with the ends of its intervals, and the least and largest of them. */
function finite(line) {
  const [least, largest] = line.bounds ?? [-Infinity, Infinity];
  const ends = (sign, limit) => line.values.map((value, place) => (value === null ? null : limit(value + sign * (line.halves?.[place] ?? 0))));
  const lows = ends(-1, (value) => Math.max(least, value));
  const highs = ends(1, (value) => Math.min(largest, value));
  const known = [...lows, ...highs].filter((value) => value !== null);
  const last = line.values.findLastIndex((value) => value !== null);
  if (!known.length) return line;
  const [low, high] = endsOf(known);
  return { ...line, lows, highs, last, low, high };
}

/** Returns of the places in each column of pixels those where the line enters, turns and leaves. */
export function thinned(places, values, x) {
  const kept = [];
  let column = [];
  const close = () => {
    let [low, high] = [column[0], column[0]];
    for (const place of column) {
      if (values[place] < values[low]) low = place;
      if (values[place] > values[high]) high = place;
    }
    kept.push(...[...new Set([column[0], low, high, column[column.length - 1]])].sort((one, other) => one - other));
  };
  for (const place of places) {
    if (column.length && Math.floor(x(place)) !== Math.floor(x(column[0]))) {
      close();
      column = [];
    }
    column.push(place);
  }
  if (column.length) close();
  return kept;
}

/** Returns three to five round numbers that hold the range. */
export function ticksOf(low, high) {
  if (low === high) {
    const by = Math.abs(low) || 1;
    [low, high] = [low === 0 ? 0 : low - by / 2, high + by / 2];
  }
  const raw = (high - low) / 3;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((by) => by * size).find((by) => by >= raw) ?? 10 * size;
  const first = Math.floor(low / step);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, place) => (first + place) * step);
}

function label(value) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size !== 0 && size < 1e-3)) return value.toExponential(0).replace("-", "−");
  if (size >= 1e4) return `${+(value / 1000).toPrecision(3)}k`;
  return String(+value.toPrecision(4)).replace("-", "−");
}
