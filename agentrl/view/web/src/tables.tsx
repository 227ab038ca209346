/** The two tables: groups, and single trajectories. */

import { useEffect, useMemo, useState } from "preact/hooks";
import type { Run } from "./data";
import { type Filter, isAll, passing } from "./filter";
import { Filters } from "./filters";
import { count, number, seconds, signed, spread, whole, words } from "./format";
import { type Column, List, type Order, sorted } from "./list";
import { useKeys } from "./keys";
import { go } from "./route";

interface Shared {
  run: Run;
  filter: Filter;
  onFilter: (filter: Filter) => void;
}

/** Small vertical strokes, one per reward; where many are equal they grow. */
function Strip({ rewards, low, high }: { rewards: number[]; low: number; high: number }) {
  const piles = new Map<number, number>();
  for (const reward of rewards) {
    const place = Math.round(((reward - low) / Math.max(1e-9, high - low)) * 60);
    piles.set(place, (piles.get(place) ?? 0) + 1);
  }
  return (
    <svg class="strip" width="68" height="18" viewBox="0 0 68 18" aria-hidden="true">
      <line x1="2" x2="66" y1="16.5" y2="16.5" />
      {[...piles].map(([place, size]) => {
        const tall = 3 + (12 * size) / rewards.length;
        return <rect key={place} x={place + 2} y={16 - tall} width="4" height={tall} rx="1" />;
      })}
    </svg>
  );
}

function groupColumns(run: Run): Column[] {
  const { groups, trajectories, outcomes } = run.index;
  const own = <T,>(row: number, of: T[]) => of.slice(run.firstOf[row], run.firstOf[row + 1]);
  const rewards = groups.id.map((_, row) =>
    own(row, trajectories.reward).filter((one): one is number => one !== null),
  );
  const all = rewards.flat();
  let [low, high] = [Infinity, -Infinity];
  for (const one of all) {
    low = Math.min(low, one);
    high = Math.max(high, one);
  }
  const mean = (row: number) => {
    const values = rewards[row] ?? [];
    return values.length ? values.reduce((sum, one) => sum + one, 0) / values.length : null;
  };
  const tokens = (row: number) => own(row, trajectories.tokens).reduce((sum, one) => sum + one, 0);
  const ends = (row: number) => {
    const counts = new Map<string, number>();
    for (const end of own(row, trajectories.outcome)) {
      const name = outcomes[end] ?? "";
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    return [...counts].sort((one, other) => other[1] - one[1]);
  };
  return [
    { key: "step", name: "Step", isNumber: true, width: "48px", cell: (row) => groups.step[row], value: (row) => groups.step[row] ?? null },
    { key: "id", name: "Group", isNumber: true, width: "56px", cell: (row) => groups.id[row], value: (row) => groups.id[row] ?? null },
    {
      key: "task",
      name: "Task",
      width: "minmax(160px, 1fr)",
      cell: (row) => (
        <span class="clip" title={groups.prompt[row]}>
          {groups.prompt[row] || groups.task[row]}
        </span>
      ),
      value: (row) => groups.prompt[row] || (groups.task[row] ?? ""),
    },
    { key: "rewards", name: "Rewards", width: "84px", cell: (row) => <Strip rewards={rewards[row] ?? []} low={low} high={high} /> },
    { key: "mean", name: "Mean", isNumber: true, width: "72px", cell: (row) => number(mean(row)), value: mean },
    {
      key: "spread",
      name: "Spread",
      title: "Standard deviation of the rewards",
      isNumber: true,
      width: "76px",
      cell: (row) => number(spread(rewards[row] ?? [])),
      value: (row) => spread(rewards[row] ?? []),
    },
    {
      key: "tokens",
      name: "Tokens",
      title: "Sampled on all paths; shared ones count once for each",
      isNumber: true,
      width: "84px",
      cell: (row) => whole(tokens(row)),
      value: tokens,
    },
    {
      key: "outcome",
      name: "Outcome",
      width: "minmax(120px, 200px)",
      cell: (row) => (
        <span class="clip">
          {ends(row).map(([name, size], at) => (
            <span key={name} class={name.startsWith("failed") ? "bad" : ""}>
              {at > 0 && ", "}
              {size} {words(name)}
            </span>
          ))}
        </span>
      ),
    },
    { key: "state", name: "State", width: "88px", cell: (row) => groups.state[row], value: (row) => groups.state[row] ?? "" },
  ];
}

function trajectoryColumns(run: Run): Column[] {
  const { groups, trajectories, outcomes, tools } = run.index;
  const group = (row: number) => run.groupOf[row] ?? 0;
  const step = (row: number) => groups.step[group(row)] ?? null;
  return [
    { key: "step", name: "Step", isNumber: true, width: "48px", cell: step, value: step },
    { key: "group", name: "Group", isNumber: true, width: "56px", cell: (row) => groups.id[group(row)], value: (row) => groups.id[group(row)] ?? null },
    { key: "sample", name: "No.", title: "Place in its group", isNumber: true, width: "56px", cell: (row) => trajectories.sample[row], value: (row) => trajectories.sample[row] ?? null },
    {
      key: "said",
      name: "Said last",
      width: "minmax(140px, 1fr)",
      cell: (row) => (
        <span class="clip" title={trajectories.said[row]}>
          {trajectories.said[row] || <span class="muted">{groups.prompt[group(row)]}</span>}
        </span>
      ),
    },
    { key: "reward", name: "Reward", isNumber: true, width: "76px", cell: (row) => number(trajectories.reward[row]), value: (row) => trajectories.reward[row] ?? null },
    { key: "advantage", name: "Advantage", title: "Mean over its trained tokens", isNumber: true, width: "96px", cell: (row) => signed(trajectories.advantage[row]), value: (row) => trajectories.advantage[row] ?? null },
    {
      key: "outcome",
      name: "Outcome",
      width: "140px",
      cell: (row) => {
        const name = outcomes[trajectories.outcome[row] ?? 0] ?? "";
        return <span class={name.startsWith("failed") ? "bad" : ""}>{words(name)}</span>;
      },
      value: (row) => outcomes[trajectories.outcome[row] ?? 0] ?? "",
    },
    { key: "turns", name: "Turns", isNumber: true, width: "68px", cell: (row) => trajectories.turns[row], value: (row) => trajectories.turns[row] ?? null },
    { key: "tokens", name: "Tokens", isNumber: true, width: "80px", cell: (row) => whole(trajectories.tokens[row]), value: (row) => trajectories.tokens[row] ?? null },
    {
      key: "tools",
      name: "Tools",
      width: "minmax(80px, 140px)",
      cell: (row) => (
        <span class="clip">
          {(trajectories.tools[row] ?? []).map((tool) => tools[tool]).join(", ")}
          {(trajectories.errors[row] ?? 0) > 0 && <span class="bad"> {count(trajectories.errors[row] ?? 0, "error")}</span>}
        </span>
      ),
    },
    { key: "seconds", name: "Time", isNumber: true, width: "80px", cell: (row) => seconds(trajectories.seconds[row]), value: (row) => trajectories.seconds[row] ?? null },
  ];
}

function Table(
  props: Shared & {
    label: string;
    columns: Column[];
    rows: number[];
    found: string;
    start: Order | null;
    empty: string;
    onOpen: (row: number) => void;
  },
) {
  const [order, setOrder] = useState<Order | null>(props.start);
  const [current, setCurrent] = useState(-1);
  const rows = useMemo(() => sorted(props.rows, props.columns, order), [props.rows, props.columns, order]);
  useEffect(() => setCurrent(-1), [props.filter, order]);
  const move = (by: number) => setCurrent((at) => Math.max(0, Math.min(rows.length - 1, at + by)));
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    PageDown: () => move(15),
    PageUp: () => move(-15),
    Home: () => move(-rows.length),
    End: () => move(rows.length),
    Enter: () => {
      const row = rows[current];
      if (row !== undefined) props.onOpen(row);
    },
  });
  return (
    <main class="page table">
      <Filters run={props.run} filter={props.filter} onFilter={props.onFilter} found={props.found} />
      <List
        label={props.label}
        columns={props.columns}
        rows={rows}
        order={order}
        onOrder={setOrder}
        current={current}
        onCurrent={setCurrent}
        onOpen={props.onOpen}
        empty={props.empty}
      />
    </main>
  );
}

const NOTHING = "Nothing here passes the filter.";
const NO_STORE = "The run has recorded no groups yet, or keeps no store.";

export function Groups({ run, filter, onFilter }: Shared) {
  const columns = useMemo(() => groupColumns(run), [run]);
  const rows = useMemo(() => {
    if (isAll(filter)) return [...run.index.groups.id.keys()];
    return [...new Set(passing(run, filter).map((row) => run.groupOf[row] ?? 0))];
  }, [run, filter]);
  const total = run.index.groups.id.length;
  const found = rows.length === total ? count(total, "group") : `${whole(rows.length)} of ${count(total, "group")}`;
  return (
    <Table
      {...{ run, filter, onFilter, columns, rows, found }}
      label="Groups"
      start={null}
      empty={total ? NOTHING : NO_STORE}
      onOpen={(row) => go({ view: "group", group: run.index.groups.id[row] ?? 0 })}
    />
  );
}

export function Trajectories({ run, filter, onFilter }: Shared) {
  const columns = useMemo(() => trajectoryColumns(run), [run]);
  const rows = useMemo(() => passing(run, filter), [run, filter]);
  const total = run.index.trajectories.id.length;
  const name = (size: number) => count(size, "trajectory", "trajectories");
  const found = rows.length === total ? name(total) : `${whole(rows.length)} of ${name(total)}`;
  return (
    <Table
      {...{ run, filter, onFilter, columns, rows, found }}
      label="Trajectories"
      start={null}
      empty={total ? NOTHING : NO_STORE}
      onOpen={(row) => go({ view: "trajectory", trajectory: run.index.trajectories.id[row] ?? 0 })}
    />
  );
}
