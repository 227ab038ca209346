/** A figure over steps: one line, where it is known an interval, and the value under the pointer. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { number } from "./format";

export interface Series {
  steps: number[];
  values: (number | null)[];
  halves?: (number | null)[];
  /** Where intervals end at the latest. */
  bounds?: [number, number];
}

const PAD = { left: 44, right: 10, top: 8, bottom: 20 };

export function Chart(props: {
  name: string;
  series: Series;
  height?: number;
  note?: string;
}) {
  const { name, series, height = 132, note } = props;
  const box = useRef<HTMLElement>(null);
  const [width, setWidth] = useState(320);
  useEffect(() => {
    const watching = new ResizeObserver(() => setWidth(box.current?.clientWidth || 320));
    if (box.current) watching.observe(box.current);
    return () => watching.disconnect();
  }, []);
  const [here, setHere] = useState<number | null>(null);
  const { steps, values, halves, bounds } = series;
  const drawn = useMemo(() => {
    const [least, largest] = bounds ?? [-Infinity, Infinity];
    const lows = values.map((value, at) =>
      value === null ? null : Math.max(least, value - (halves?.[at] ?? 0)),
    );
    const highs = values.map((value, at) =>
      value === null ? null : Math.min(largest, value + (halves?.[at] ?? 0)),
    );
    const known = [...lows, ...highs].filter((value): value is number => value !== null);
    const ticks = ticksOf(Math.min(...known), Math.max(...known));
    const low = ticks[0] ?? 0;
    const high = ticks[ticks.length - 1] ?? 1;
    const firstStep = steps[0] ?? 0;
    const lastStep = steps[steps.length - 1] ?? 1;
    const x = (step: number) =>
      PAD.left +
      ((step - firstStep) / Math.max(1, lastStep - firstStep)) * (width - PAD.left - PAD.right);
    const y = (value: number) =>
      height - PAD.bottom - ((value - low) / (high - low)) * (height - PAD.top - PAD.bottom);
    const places = values.flatMap((value, at) => (value === null ? [] : [at]));
    const point = (at: number, of: (number | null)[]) =>
      `${x(steps[at] ?? 0).toFixed(1)},${y(of[at] ?? 0).toFixed(1)}`;
    const line = places.map((at) => point(at, values)).join(" ");
    const sure = places.filter((at) => halves?.[at] !== null && halves?.[at] !== undefined);
    const band = [
      ...sure.map((at) => point(at, highs)),
      ...sure.reverse().map((at) => point(at, lows)),
    ].join(" ");
    return { ticks, x, y, line, band, isKnown: known.length > 0, firstStep, lastStep };
  }, [series, width, height]);

  if (!drawn.isKnown) {
    return (
      <figure class="chart">
        <figcaption>{name}</figcaption>
        <p class="muted">never a finite number</p>
      </figure>
    );
  }
  const last = values.reduce<number>((found, value, at) => (value === null ? found : at), 0);
  const place = here ?? last;
  const value = values[place] ?? null;
  const half = halves?.[place] ?? null;
  const seek = (clientX: number, box: DOMRect) => {
    const wanted = ((clientX - box.left) / box.width) * width;
    let best = 0;
    steps.forEach((step, at) => {
      if (Math.abs(drawn.x(step) - wanted) < Math.abs(drawn.x(steps[best] ?? 0) - wanted)) best = at;
    });
    setHere(best);
  };
  const keyed = (event: KeyboardEvent) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by) return;
    event.preventDefault();
    setHere(Math.min(steps.length - 1, Math.max(0, place + by)));
  };
  return (
    <figure class="chart" ref={box}>
      <figcaption>
        <span class="name" title={note}>
          {name}
        </span>
        <span class="value">
          {number(value)}
          {half !== null && <small> ± {number(half)}</small>}
          <small class="at"> step {steps[place]}</small>
        </span>
      </figcaption>
      <svg
        width={width}
        height={height}
        role="img"
        tabIndex={0}
        aria-label={`${name}: ${number(value)} at step ${steps[place]}`}
        onPointerMove={(event) => seek(event.clientX, event.currentTarget.getBoundingClientRect())}
        onPointerLeave={() => setHere(null)}
        onBlur={() => setHere(null)}
        onKeyDown={keyed}
      >
        {drawn.ticks.map((tick) => (
          <g key={tick}>
            <line class="grid" x1={PAD.left} x2={width - PAD.right} y1={drawn.y(tick)} y2={drawn.y(tick)} />
            <text class="tick" x={PAD.left - 6} y={drawn.y(tick) + 3.5} text-anchor="end">
              {label(tick)}
            </text>
          </g>
        ))}
        <text class="tick" x={PAD.left} y={height - 4}>
          {drawn.firstStep}
        </text>
        <text class="tick" x={width - PAD.right} y={height - 4} text-anchor="end">
          {drawn.lastStep}
        </text>
        {drawn.band && <polygon class="band" points={drawn.band} />}
        <polyline class="line" points={drawn.line} />
        {value !== null && (
          <>
            {here !== null && (
              <line
                class="cross"
                x1={drawn.x(steps[place] ?? 0)}
                x2={drawn.x(steps[place] ?? 0)}
                y1={PAD.top}
                y2={height - PAD.bottom}
              />
            )}
            <circle class="dot" cx={drawn.x(steps[place] ?? 0)} cy={drawn.y(value)} r={3} />
          </>
        )}
      </svg>
    </figure>
  );
}

/** Returns three to five round numbers that hold the range. */
export function ticksOf(low: number, high: number): number[] {
  if (low === high) {
    const by = Math.abs(low) || 1;
    [low, high] = [low === 0 ? 0 : low - by / 2, high + by / 2];
  }
  const raw = (high - low) / 3;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((by) => by * size).find((by) => by >= raw) ?? 10 * size;
  const first = Math.floor(low / step);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, at) => (first + at) * step);
}

function label(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e6 || (size !== 0 && size < 1e-3)) return value.toExponential(0).replace("-", "−");
  if (size >= 1e4) return `${+(value / 1000).toPrecision(3)}k`;
  return String(+value.toPrecision(4)).replace("-", "−");
}
