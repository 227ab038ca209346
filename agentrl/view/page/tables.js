/** The tables: groups, single trajectories, and the tasks that two runs have in common. */

import { ownOf, rewardsOf } from "./data.js";
import { h, s } from "./dom.js";
import { filterOf, passing, queryOf } from "./filter.js";
import { makeFilters } from "./filters.js";
import { count, mean, number, seconds, signed, spread, visible, whole, words } from "./format.js";
import { makeList } from "./list.js";
import { addressOf, go, note } from "./route.js";

/** Small vertical strokes, one per reward; where many are equal they grow. */
function strip(rewards, [low, high]) {
  const piles = new Map();
  for (const reward of rewards) {
    const place = Math.round(((reward - low) / Math.max(1e-9, high - low)) * 60);
    piles.set(place, (piles.get(place) ?? 0) + 1);
  }
  return s(
    "svg",
    { class: "strip", width: 68, height: 18, viewBox: "0 0 68 18", "aria-hidden": "true" },
    s("line", { x1: 2, x2: 66, y1: 16.5, y2: 16.5 }),
    [...piles].map(([place, size]) => {
      const tall = 3 + (12 * size) / rewards.length;
      return s("rect", { x: place + 2, y: 16 - tall, width: 4, height: tall, rx: 1 });
    }),
  );
}

function outcomeWords(name, size) {
  return h("span", { class: name.startsWith("failed") && "bad" }, size, size && " ", words(name));
}

function clip(text, title, ...more) {
  return h("span", { class: "clip", title: title && visible(title) }, text, more);
}

function groupColumns(run) {
  const { groups, trajectories, outcomes } = run.index;
  const ends = trajectories.reward.reduce(
    ([low, high], one) => (one === null ? [low, high] : [Math.min(low, one), Math.max(high, one)]),
    [Infinity, -Infinity],
  );
  const tokens = (row) => ownOf(run, row, trajectories.tokens).reduce((sum, one) => sum + one, 0);
  const outcomesOf = (row) => {
    const sizes = new Map();
    for (const end of ownOf(run, row, trajectories.outcome)) sizes.set(end, (sizes.get(end) ?? 0) + 1);
    return [...sizes].sort((one, other) => other[1] - one[1]).map(([end, size]) => [outcomes[end], size]);
  };
  const asked = (row) => groups.prompt[row] || groups.task[row];
  const value = (row) => mean(rewardsOf(run, row));
  return [
    { key: "step", name: "Step", isNumber: true, width: "48px", cell: (row) => groups.step[row], value: (row) => groups.step[row] },
    { key: "id", name: "Group", isNumber: true, width: "60px", cell: (row) => groups.id[row], value: (row) => groups.id[row] },
    { key: "task", name: "Task", width: "minmax(120px, 1fr)", cell: (row) => clip(visible(asked(row)), groups.prompt[row]), value: asked },
    { key: "rewards", name: "Rewards", width: "84px", isExtra: true, cell: (row) => strip(rewardsOf(run, row), ends) },
    { key: "mean", name: "Mean", isNumber: true, width: "64px", cell: (row) => number(value(row)), value },
    {
      key: "spread",
      name: "Spread",
      title: "Standard deviation of the rewards",
      isNumber: true,
      isExtra: true,
      width: "76px",
      cell: (row) => number(spread(rewardsOf(run, row))),
      value: (row) => spread(rewardsOf(run, row)),
    },
    {
      key: "tokens",
      name: "Tokens",
      title: "Sampled on all paths; shared ones count once for each",
      isNumber: true,
      isExtra: true,
      width: "84px",
      cell: (row) => whole(tokens(row)),
      value: tokens,
    },
    {
      key: "outcome",
      name: "Outcome",
      isExtra: true,
      width: "minmax(120px, 200px)",
      cell: (row) => clip(outcomesOf(row).map(([name, size], place) => [place > 0 && ", ", outcomeWords(name, size)])),
    },
    { key: "state", name: "State", isExtra: true, width: "88px", cell: (row) => groups.state[row], value: (row) => groups.state[row] },
  ];
}

function trajectoryColumns(run) {
  const { groups, trajectories, outcomes, tools } = run.index;
  const group = (row) => run.groupOf[row];
  const figure = (key, name, width, more = {}) => ({
    key,
    name,
    width,
    isNumber: true,
    isExtra: true,
    cell: (row) => number(trajectories[key][row]),
    value: (row) => trajectories[key][row],
    ...more,
  });
  return [
    figure("step", "Step", "48px", { isExtra: false, cell: (row) => groups.step[group(row)], value: (row) => groups.step[group(row)] }),
    figure("group", "Group", "60px", { cell: (row) => groups.id[group(row)], value: (row) => groups.id[group(row)] }),
    figure("sample", "No.", "48px", { title: "Place in its group" }),
    {
      key: "said",
      name: "Said last",
      width: "minmax(120px, 1fr)",
      cell: (row) => {
        const said = trajectories.said[row];
        return clip(said ? visible(said) : h("span", { class: "muted" }, visible(groups.prompt[group(row)])), said);
      },
    },
    figure("reward", "Reward", "68px", { isExtra: false }),
    figure("advantage", "Advantage", "92px", { title: "Mean over its trained tokens", cell: (row) => signed(trajectories.advantage[row]) }),
    figure("entropy", "Entropy", "76px", { title: "Mean over its sampled tokens, in nats" }),
    {
      key: "outcome",
      name: "Outcome",
      width: "minmax(80px, 140px)",
      cell: (row) => outcomeWords(outcomes[trajectories.outcome[row]]),
      value: (row) => outcomes[trajectories.outcome[row]],
    },
    figure("turns", "Turns", "60px"),
    figure("tokens", "Tokens", "72px"),
    {
      key: "tools",
      name: "Tools",
      isExtra: true,
      width: "minmax(80px, 140px)",
      cell: (row) => {
        const errors = trajectories.errors[row];
        return clip(visible(trajectories.tools[row].map((tool) => tools[tool]).join(", ")), "", errors > 0 && h("span", { class: "bad" }, ` ${count(errors, "error")}`));
      },
    },
    figure("seconds", "Time", "76px", { cell: (row) => seconds(trajectories.seconds[row]) }),
  ];
}

const NOTHING = "Nothing here passes the filter.";
const NO_STORE = "The run has recorded no groups yet, or keeps no store.";

const KINDS = {
  groups: {
    label: "Groups",
    columnsOf: groupColumns,
    names: ["group"],
    total: (run) => run.index.groups.id.length,
    rowsOf: (run, filter, said) =>
      Object.keys(queryOf(filter)).length
        ? [...new Set(passing(run, filter, said).map((row) => run.groupOf[row]))]
        : [...run.index.groups.id.keys()],
    open: (run, row) => addressOf("group", [[run.number, run.index.groups.id[row]]]),
  },
  trajectories: {
    label: "Trajectories",
    columnsOf: trajectoryColumns,
    names: ["trajectory", "trajectories"],
    total: (run) => run.index.trajectories.id.length,
    rowsOf: passing,
    open: (run, row) => addressOf("trajectory", [[run.number, run.index.trajectories.id[row]]]),
  },
};

/** Makes the table of a run's groups or trajectories. The address follows filter and order. */
export function makeTable({ runs, place, onAddress }) {
  const kind = KINDS[place.view];
  const filter = filterOf(place.query);
  let said = null;
  let order = place.query.get("sort") ?? "";
  let run = runs[place.run];
  let columns = kind.columnsOf(run);
  const filters = makeFilters({
    filter,
    onFilter: (_, found) => {
      said = found;
      show();
    },
  });
  const list = makeList({
    label: kind.label,
    empty: kind.total(run) ? NOTHING : NO_STORE,
    onOrder: (chosen) => {
      order = chosen;
      show();
    },
    onOpen: (row) => go(kind.open(run, row)),
  });

  function show(keepsPlace = false) {
    const query = { ...queryOf(filter), ...(order && { sort: order }), ...(run.number && { run: run.number }) };
    note(addressOf(place.view, [], query));
    onAddress(query);
    const rows = kind.rowsOf(run, filter, said);
    const total = count(kind.total(run), ...kind.names);
    filters.say(rows.length === kind.total(run) ? total : `${whole(rows.length)} of ${total}`);
    list.show(columns, rows, order, keepsPlace);
  }

  show();
  filters.show(run, true);
  return {
    node: h("main", { class: "page table" }, filters.node, list.node),
    keys: list.keys,
    update(newRuns) {
      run = newRuns[place.run];
      columns = kind.columnsOf(run);
      filters.show(run, false);
      show(true);
    },
  };
}

/** Returns the groups of two runs with one task, in order: pairs of rows, -1 where there is none. */
export function matchTasks([one, other]) {
  const waiting = new Map();
  other.index.groups.task.forEach((task, row) => {
    if (waiting.has(task)) waiting.get(task).push(row);
    else waiting.set(task, [row]);
  });
  const pairs = one.index.groups.task.map((task, row) => [row, waiting.get(task)?.shift() ?? -1]);
  return [...pairs, ...[...waiting.values()].flat().map((row) => [-1, row])];
}

/** Makes the table of the tasks that two runs have in common. */
export function makeTasks({ runs, place, onAddress }) {
  let [one, other] = runs;
  let order = place.query.get("sort") ?? "";
  let pairs = matchTasks(runs);
  const isBoth = ([left, right]) => left >= 0 && right >= 0;
  const rewardOf = (run, row) => mean(rewardsOf(run, row));
  const gain = (pair) => {
    const [before, after] = [rewardOf(one, pairs[pair][0]), rewardOf(other, pairs[pair][1])];
    return before === null || after === null ? null : after - before;
  };
  const nameOf = (run) => h("span", { class: `clip run-${run.number}` }, visible(run.index.run.name));
  const stepOf = (run) => h("span", { class: `run-${run.number}` }, "Step");
  const asked = (pair) => one.index.groups.prompt[pairs[pair][0]] || one.index.groups.task[pairs[pair][0]];
  const figure = (key, name, width, value, cell = (pair) => number(value(pair))) => ({ key, name, width, isNumber: true, value, cell });
  const columnsOf = () => [
    { key: "task", name: "Task", width: "minmax(120px, 1fr)", cell: (pair) => clip(visible(asked(pair)), asked(pair)), value: asked },
    { ...figure("step", stepOf(one), "56px", (pair) => one.index.groups.step[pairs[pair][0]]), isExtra: true, title: "In the first run" },
    { ...figure("step2", stepOf(other), "56px", (pair) => other.index.groups.step[pairs[pair][1]]), isExtra: true, title: "In the second run" },
    { ...figure("first", nameOf(one), "minmax(60px, 120px)", (pair) => rewardOf(one, pairs[pair][0])), title: "Mean reward" },
    { ...figure("second", nameOf(other), "minmax(60px, 120px)", (pair) => rewardOf(other, pairs[pair][1])), title: "Mean reward" },
    figure("gain", "Gain", "72px", gain, (pair) => signed(gain(pair))),
  ];
  const found = h("span", { class: "found", role: "status" });
  const search = h("input", {
    id: "search",
    type: "search",
    class: "wide",
    placeholder: "Task or prompt",
    "aria-label": "Search",
    value: place.query.get("q") ?? "",
    oninput: () => show(),
  });
  const list = makeList({
    label: "Tasks",
    empty: "Nothing here is in both runs and passes the filter.",
    onOrder: (chosen) => {
      order = chosen;
      show();
    },
    onOpen: (pair) => go(addressOf("task", [[0, one.index.groups.id[pairs[pair][0]]], [1, other.index.groups.id[pairs[pair][1]]]])),
  });

  function show(keepsPlace = false) {
    const query = { ...(search.value && { q: search.value }), ...(order && { sort: order }) };
    note(addressOf("tasks", [], query));
    onAddress(query);
    const wanted = search.value.trim().toLowerCase();
    const shared = [...pairs.keys()].filter((pair) => isBoth(pairs[pair]));
    const rows = shared.filter((pair) => `${asked(pair)}\n${one.index.groups.task[pairs[pair][0]]}`.toLowerCase().includes(wanted));
    const alone = [0, 1].map((run) => pairs.filter((pair) => !isBoth(pair) && pair[run] >= 0).length);
    const size = rows.length === shared.length ? count(shared.length, "group") : `${whole(rows.length)} of ${count(shared.length, "group")}`;
    found.textContent = `${size} of the same task; ${whole(alone[0])} only in the first run, ${whole(alone[1])} only in the second`;
    list.show(columnsOf(), rows, order, keepsPlace);
  }

  show();
  return {
    node: h("main", { class: "page table" }, h("div", { class: "filters", role: "search" }, search, found), list.node),
    keys: list.keys,
    update(newRuns) {
      [one, other] = newRuns;
      pairs = matchTasks(newRuns);
      show(true);
    },
  };
}
