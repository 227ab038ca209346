/** A table of any length: only the rows in sight are in the page. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Column {
  key: string;
  name: string;
  title?: string;
  /** Numbers stand right. */
  isNumber?: boolean;
  width: string;
  cell: (row: number) => ComponentChildren;
  /** What to sort by; null goes last. */
  value?: (row: number) => number | string | null;
}

export interface Order {
  key: string;
  down: boolean;
}

const ROW = 36;
const SPARE = 12;

export function sorted(rows: number[], columns: Column[], order: Order | null): number[] {
  const value = columns.find((column) => column.key === order?.key)?.value;
  if (!order || !value) return rows;
  const sign = order.down ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [left, right] = [value(one), value(other)];
    if (left === right) return one - other;
    if (left === null) return 1;
    if (right === null) return -1;
    return left < right ? -sign : sign;
  });
}

export function List(props: {
  label: string;
  columns: Column[];
  rows: number[];
  order: Order | null;
  onOrder: (order: Order | null) => void;
  onOpen: (row: number) => void;
  current: number;
  onCurrent: (place: number) => void;
  empty: string;
}) {
  const { columns, rows, order, current } = props;
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const grid = columns.map((column) => column.width).join(" ");

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const see = () => setView({ top: element.scrollTop, height: element.clientHeight });
    see();
    const watching = new ResizeObserver(see);
    watching.observe(element);
    return () => watching.disconnect();
  }, []);

  useEffect(() => {
    const element = box.current;
    if (!element || current < 0) return;
    const top = current * ROW;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + 2 * ROW > element.scrollTop + element.clientHeight) {
      element.scrollTop = top + 2 * ROW - element.clientHeight;
    }
  }, [current]);

  const first = Math.max(0, Math.floor(view.top / ROW) - SPARE);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW) + SPARE);
  const turn = (column: Column) => {
    if (!column.value) return;
    if (order?.key !== column.key) props.onOrder({ key: column.key, down: !!column.isNumber });
    else if (order.down === !!column.isNumber) props.onOrder({ key: column.key, down: !order.down });
    else props.onOrder(null);
  };
  return (
    <div
      class="list"
      ref={box}
      role="grid"
      aria-label={props.label}
      aria-rowcount={rows.length + 1}
      tabIndex={0}
      aria-activedescendant={current >= 0 ? `row-${current}` : undefined}
      onScroll={(event) => {
        const { scrollTop, clientHeight } = event.currentTarget;
        setView({ top: scrollTop, height: clientHeight });
      }}
    >
      <div class="list-head" role="row" style={{ gridTemplateColumns: grid }}>
        {columns.map((column) => (
          <span
            key={column.key}
            role="columnheader"
            class={column.isNumber ? "right" : ""}
            aria-sort={
              order?.key !== column.key ? undefined : order.down ? "descending" : "ascending"
            }
            title={column.title}
          >
            {column.value ? (
              <button class="plain" onClick={() => turn(column)}>
                {column.name}
                {order?.key === column.key && <i aria-hidden="true">{order.down ? "↓" : "↑"}</i>}
              </button>
            ) : (
              column.name
            )}
          </span>
        ))}
      </div>
      {rows.length === 0 && <p class="empty">{props.empty}</p>}
      <div style={{ height: `${rows.length * ROW}px`, position: "relative" }}>
        {rows.slice(first, last).map((row, offset) => {
          const place = first + offset;
          return (
            <div
              key={row}
              id={`row-${place}`}
              role="row"
              aria-rowindex={place + 2}
              aria-selected={place === current}
              class="list-row"
              style={{ gridTemplateColumns: grid, transform: `translateY(${place * ROW}px)` }}
              onClick={() => {
                props.onCurrent(place);
                props.onOpen(row);
              }}
            >
              {columns.map((column) => (
                <span key={column.key} role="gridcell" class={column.isNumber ? "right" : ""}>
                  {column.cell(row)}
                </span>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}
