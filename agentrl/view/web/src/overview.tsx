/** The run as a whole: what it is, how it went, every figure. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Chart, type Series } from "./chart";
import type { Evaluation, Run } from "./data";
import { count, interval, number, seconds, whole, words } from "./format";
import { LiveView } from "./live";

function columnOf(run: Run, name: string): Series | null {
  const { metrics } = run.index;
  const values = metrics[name];
  const steps = metrics["step"];
  if (!values || !steps || values.every((value) => value === null || value === undefined)) return null;
  return { steps: steps.map((step) => step ?? 0), values: values.map((value) => value ?? null) };
}

/** The mean reward of each step over its groups, with an interval over the groups. */
export function rewards(run: Run): Series {
  const { groups, trajectories } = run.index;
  const means = new Map<number, number[]>();
  groups.step.forEach((step, row) => {
    if (groups.state[row] !== "trained") return;
    const own: number[] = [];
    for (let at = run.firstOf[row] ?? 0; at < (run.firstOf[row + 1] ?? 0); at++) {
      const reward = trajectories.reward[at];
      if (reward !== null && reward !== undefined) own.push(reward);
    }
    if (!own.length) return;
    const mean = own.reduce((sum, value) => sum + value, 0) / own.length;
    means.set(step, [...(means.get(step) ?? []), mean]);
  });
  const steps = [...means.keys()].sort((one, other) => one - other);
  const found = steps.map((step) => interval(means.get(step) ?? []));
  // Intervals end where rewards do: at 0 and 1, or at the least and largest mean beyond them.
  const every = [...means.values()].flat();
  const bounds: [number, number] = [Math.min(0, ...every), Math.max(1, ...every)];
  return {
    steps,
    values: found.map((one) => one.mean),
    halves: found.map((one) => one.half),
    bounds,
  };
}

const HEADLINES: [string, string][] = [
  ["seconds/rollout", "Waiting for groups, s"],
  ["seconds/learn", "Training and loading, s"],
  ["tokens_per_s", "Trained tokens per second"],
  ["entropy", "Entropy, nats"],
  ["age/mean", "Age of trained tokens, versions"],
  ["lengths/context_mean", "Tokens per trajectory"],
];

export function Overview({ run }: { run: Run }) {
  const { index } = run;
  const reward = useMemo(() => rewards(run), [run]);
  const isPartial = index.leftOut.length > 0;
  const fallback = columnOf(run, "reward/mean");
  const facts = useMemo(() => factsOf(run), [run]);
  const [sought, setSought] = useState("");
  const families = useMemo(() => familiesOf(run, sought), [run, sought]);
  return (
    <main class="page overview">
      <header class="title">
        <h1>{index.run.name}</h1>
        <p class="muted">{index.run.env}</p>
      </header>
      {run.served && <LiveView />}
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {isPartial && (
        <p class="notice" role="note">
          Not on this page: {index.leftOut.join("; ")}.
        </p>
      )}
      {!index.run.hasTokenizer && (
        <p class="notice" role="note">
          The run's folder has no tokenizer, so tokens are shown as numbers.
        </p>
      )}
      {index.run.evaluation && <Scores evaluation={index.run.evaluation} />}
      {!index.run.evaluation && (
      <section class="headlines" aria-label="Main figures">
        {reward.steps.length > 0 ? (
          <Chart
            name="Reward"
            series={reward}
            height={356}
            note="Mean over the step's groups on this page; the band is a 95 % interval over groups"
          />
        ) : (
          fallback && <Chart name="Reward" series={fallback} height={356} />
        )}
        <div class="small-multiples">
          {HEADLINES.map(([name, title]) => {
            const series = columnOf(run, name);
            return series && <Chart key={name} name={title} series={series} note={name} height={96} />;
          })}
        </div>
      </section>
      )}
      {Object.keys(index.metrics).length > 0 && (
        <section aria-label="All figures">
          <div class="section-head">
            <h2>All figures</h2>
            <input
              type="search"
              placeholder="Filter figures"
              aria-label="Filter figures"
              value={sought}
              onInput={(event) => setSought(event.currentTarget.value)}
            />
          </div>
          {families.map(([family, names]) => (
            <details key={family} open={sought !== ""}>
              <summary>
                {family} <span class="muted">{names.length}</span>
              </summary>
              <div class="multiples">
                {names.map((name) => (
                  <InSight key={name} height={168}>
                    {() => {
                      const series = columnOf(run, name);
                      return series && <Chart name={name} series={series} />;
                    }}
                  </InSight>
                ))}
              </div>
            </details>
          ))}
        </section>
      )}
      <section aria-label="Config">
        <details>
          <summary>Config</summary>
          <pre class="text">{index.run.config}</pre>
        </details>
        {index.run.sessions && (
          <details>
            <summary>
              Started <span class="muted">{count(index.run.sessions.length, "time")}</span>
            </summary>
            <pre class="text">{JSON.stringify(index.run.sessions, null, 2)}</pre>
          </details>
        )}
      </section>
    </main>
  );
}

/** Draws its child when it comes near. */
function InSight(props: { height: number; children: () => preact.ComponentChild }) {
  const box = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState(false);
  useEffect(() => {
    const watching = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && setSeen(true),
      { rootMargin: "300px" },
    );
    if (box.current) watching.observe(box.current);
    return () => watching.disconnect();
  }, []);
  return (
    <div ref={box} style={{ minHeight: `${props.height}px` }}>
      {seen && props.children()}
    </div>
  );
}

/** Scores of an evaluation: all tasks first, then family by family. */
function Scores({ evaluation }: { evaluation: Evaluation }) {
  const rows = [["all tasks", evaluation.overall] as const, ...Object.entries(evaluation.families)];
  return (
    <section aria-label="Scores">
      <table class="scores">
        <thead>
          <tr>
            <th scope="col">Held-out tasks</th>
            <th scope="col">pass@1</th>
            <th scope="col">{whole(100 * evaluation.confidence)} % interval</th>
            <th scope="col">Mean reward</th>
            <th scope="col">Tasks</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([family, scores]) => {
            const [pass, reward] = [scores["pass@1"], scores["reward"]];
            return (
              <tr key={family}>
                <th scope="row">{family}</th>
                <td>{pass ? number(pass.mean, 3) : "unknown"}</td>
                <td>{pass ? `${number(pass.low, 3)} to ${number(pass.high, 3)}` : "every trajectory failed"}</td>
                <td>{reward ? number(reward.mean, 3) : "unknown"}</td>
                <td>{whole(pass?.tasks ?? 0)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}

function factsOf(run: Run): [string, string][] {
  const { groups, trajectories, outcomes, metrics } = run.index;
  const steps = metrics["step"]?.length ?? new Set(groups.step).size;
  const ends = new Map<string, number>();
  for (const outcome of trajectories.outcome) {
    const name = outcomes[outcome] ?? "";
    ends.set(name, (ends.get(name) ?? 0) + 1);
  }
  const failed = [...ends].filter(([name]) => name.startsWith("failed"));
  const failures = failed.reduce((sum, [, value]) => sum + value, 0);
  const times = (metrics["time"] ?? []).filter((time): time is number => time !== null);
  const took = times.length > 1 ? (times[times.length - 1] ?? 0) - (times[0] ?? 0) : null;
  const summary = run.index.run.summary;
  const facts: [string, string][] = [
    ...(run.index.run.evaluation
      ? [["Tasks", whole(groups.id.length)] as [string, string]]
      : [
          [
            "Steps",
            run.index.run.steps === null
              ? whole(steps)
              : `${whole(steps)} of ${whole(run.index.run.steps)}`,
          ] as [string, string],
          ["Groups", whole(groups.id.length)] as [string, string],
        ]),
    ["Trajectories", whole(trajectories.id.length)],
    [
      "Failed",
      failures === 0
        ? "none"
        : failed.map(([name, value]) => `${whole(value)} ${words(name.replace("failed_", ""))}`).join(", "),
    ],
  ];
  if (took !== null) facts.push(["First to last step", seconds(took)]);
  for (const when of ["before", "after"]) {
    const found = summary?.[when] as Record<string, unknown> | undefined;
    const pass = found?.["pass@1"];
    if (typeof pass !== "number") continue;
    const bounds = Object.entries(found ?? {}).find(([name]) => /^ci\d/.test(name))?.[1];
    const [low, high] = Array.isArray(bounds) ? (bounds as number[]) : [];
    const between = low === undefined ? "" : ` (${number(low, 2)} to ${number(high, 2)})`;
    facts.push([`Held-out pass@1 ${when}`, `${number(pass, 2)}${between}`]);
  }
  return facts;
}

function familiesOf(run: Run, sought: string): [string, string[]][] {
  const families = new Map<string, string[]>();
  for (const name of Object.keys(run.index.metrics).sort()) {
    if (name === "step" || name === "time" || !name.includes(sought.trim())) continue;
    if (!columnOf(run, name)) continue;
    const family = name.includes("/") ? name.slice(0, name.indexOf("/")) : "loop";
    families.set(family, [...(families.get(family) ?? []), name]);
  }
  return [...families].sort(([one], [other]) => one.localeCompare(other));
}
