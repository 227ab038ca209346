/** One trajectory: what was said, or its tokens; beside it, what came of it. */

import { useEffect, useMemo, useState } from "preact/hooks";
import type { Run, Story, Told } from "./data";
import { number, seconds, signed, whole, words } from "./format";
import { type Marks, Missing, useStory } from "./group";
import { useKeys } from "./keys";
import { tokensOf, turnTimes } from "./path";
import { go } from "./route";
import { Messages } from "./said";
import { type Colour, COLOURS, Legend, TokenFacts, Tokens } from "./tokens";
import { meanAdvantage } from "./tree";

export interface Look {
  isTokens: boolean;
  colour: Colour;
}

export function trainedAt(run: Run, row: number): number | null {
  const { groups } = run.index;
  return groups.state[row] === "trained" ? (groups.step[row] ?? 1) - 1 : null;
}

export function TrajectoryView(props: {
  run: Run;
  id: number;
  marks: Marks;
  look: Look;
  onLook: (look: Look) => void;
}) {
  const { run, id, marks, look, onLook } = props;
  const at = run.rowOfTrajectory.get(id);
  const row = at === undefined ? undefined : run.groupOf[at];
  const story = useStory(run, row);
  const told = story && story !== "reading" ? story.trajectories.find((one) => one.id === id) : undefined;
  const sibling = (by: number) => {
    if (at === undefined || row === undefined) return;
    const next = at + by;
    if (next < (run.firstOf[row] ?? 0) || next >= (run.firstOf[row + 1] ?? 0)) return;
    go({ view: "trajectory", trajectory: run.index.trajectories.id[next] ?? id });
  };
  const colour = (name: Colour) => onLook({ isTokens: true, colour: name });
  useKeys({
    j: () => sibling(1),
    k: () => sibling(-1),
    t: () => onLook({ ...look, isTokens: !look.isTokens }),
    s: () => colour("source"),
    e: () => colour("entropy"),
    a: () => colour("advantage"),
    r: () => colour("ratio"),
    v: () => colour("age"),
    m: () => marks.onMark(id),
    c: marks.onCompare,
  });
  if (at === undefined || row === undefined) return <Missing what={`trajectory ${id}`} />;
  const { groups } = run.index;
  return (
    <main class="page trajectory">
      <nav class="crumbs" aria-label="Where this is">
        <a href="#/groups">Groups</a> <span>step {groups.step[row]}</span>
        <a href={`#/group/${groups.id[row]}`}>group {groups.id[row]}</a>
        <span>trajectory {run.index.trajectories.sample[at]}</span>
        <span class="steps">
          <button class="quiet" onClick={() => sibling(-1)} disabled={at === run.firstOf[row]}>Previous</button>
          <button class="quiet" onClick={() => sibling(1)} disabled={at + 1 === run.firstOf[row + 1]}>Next</button>
          <button class="quiet" aria-pressed={marks.marked.includes(id)} onClick={() => marks.onMark(id)}>
            {marks.marked.includes(id) ? "Marked" : "Mark to compare"}
          </button>
        </span>
      </nav>
      {story === "reading" && <p class="muted" role="status">Reading…</p>}
      {story !== "reading" && !told && <p class="notice">What was said here is not on this page{groups.why[row] ? `: ${groups.why[row]}` : ""}.</p>}
      {story && story !== "reading" && told && (
        <Inside key={id} {...{ run, story, told, look, onLook }} row={row} />
      )}
    </main>
  );
}

function Inside(props: {
  run: Run;
  story: Story;
  told: Told;
  row: number;
  look: Look;
  onLook: (look: Look) => void;
}) {
  const { run, story, told, row, look, onLook } = props;
  const tokens = useMemo(() => tokensOf(story, told, trainedAt(run, row)), [story, told]);
  const [place, setPlace] = useState(-1);
  useEffect(() => setPlace(-1), [told]);
  const move = (by: number) => {
    if (look.isTokens) setPlace((at) => Math.max(0, Math.min(tokens.length - 1, at + by)));
  };
  useKeys({ ArrowRight: () => move(1), ArrowLeft: () => move(-1) });
  return (
    <div class="split">
      <div class="main">
        <Switch look={look} onLook={onLook} />
        {look.isTokens ? (
          <>
            <Legend tokens={tokens} colour={look.colour} />
            <Tokens tokens={tokens} colour={look.colour} current={place} onCurrent={setPlace} />
          </>
        ) : (
          <Messages said={told.messages} story={story} />
        )}
        {told.error && <p class="notice bad">{told.error}</p>}
      </div>
      <aside>
        <Facts story={story} told={told} sampled={tokens.filter((token) => token.source === "sampled").length} context={tokens.length} />
        {look.isTokens ? (
          <section aria-label="Token">
            <h2>Token</h2>
            <TokenFacts token={tokens[place]} place={place} />
          </section>
        ) : (
          <Times story={story} told={told} />
        )}
      </aside>
    </div>
  );
}

export function Switch({ look, onLook }: { look: Look; onLook: (look: Look) => void }) {
  return (
    <div class="switch">
      <span role="group" aria-label="What is shown" class="segmented">
        <button aria-pressed={!look.isTokens} onClick={() => onLook({ ...look, isTokens: false })}>Conversation</button>
        <button aria-pressed={look.isTokens} onClick={() => onLook({ ...look, isTokens: true })}>Tokens</button>
      </span>
      {look.isTokens && (
        <span role="group" aria-label="Colour by" class="segmented">
          {COLOURS.map((name) => (
            <button key={name} aria-pressed={look.colour === name} onClick={() => onLook({ isTokens: true, colour: name })}>
              {name[0]?.toUpperCase() + name.slice(1)}
            </button>
          ))}
        </span>
      )}
    </div>
  );
}

export function Facts({ story, told, sampled, context }: { story: Story; told: Told; sampled: number; context: number }) {
  const parent = told.fork && story.trajectories.find((one) => one.id === told.fork?.parent);
  const facts: [string, preact.ComponentChild][] = [
    ["Outcome", <span class={told.outcome.startsWith("failed") ? "bad" : ""}>{words(told.outcome)}</span>],
    ["Reward", number(told.reward)],
    ...(story.answer ? [["Answer wanted", story.answer.slice(0, 80)] as [string, string]] : []),
    ...Object.entries(told.components).map(([name, value]): [string, string] => [words(name), number(value)]),
    ["Advantage", signed(meanAdvantage(told))],
    ["Sampled tokens", whole(sampled)],
    ["All tokens", whole(context)],
    ["Tool calls", whole(told.calls)],
    ["Time", seconds(told.seconds)],
  ];
  if (told.attempt > 0) facts.push(["Tries before", whole(told.attempt)]);
  if (parent) {
    facts.push([
      "Branch of",
      <a href={`#/trajectory/${parent.id}`}>trajectory {parent.sample}</a>,
    ], ["World copied by", told.fork?.strategy ?? ""]);
  }
  return (
    <section aria-label="What came of it">
      <h2>Outcome</h2>
      <dl class="pairs">
        {facts.map(([name, value]) => (
          <div key={name}><dt>{name}</dt><dd>{value}</dd></div>
        ))}
      </dl>
    </section>
  );
}

function Times({ story, told }: { story: Story; told: Told }) {
  const turns = useMemo(() => turnTimes(story, told), [story, told]);
  const most = Math.max(1e-9, ...turns.map((turn) => turn.policy + turn.world));
  if (!turns.length) return null;
  return (
    <section aria-label="Time per turn">
      <h2>Time per turn</h2>
      <ul class="legend"><li><i class="swatch sampled" />policy</li><li><i class="swatch tool" />environment</li></ul>
      <ol class="times">
        {turns.map((turn) => (
          <li key={turn.turn}>
            <span class="muted">{turn.turn}</span>
            <span class="bar" title={`policy ${seconds(turn.policy)}, environment ${seconds(turn.world)}`}>
              <i class="sampled" style={{ width: `${(100 * turn.policy) / most}%` }} />
              <i class="tool" style={{ width: `${(100 * turn.world) / most}%` }} />
            </span>
            <span>{seconds(turn.policy + turn.world)}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}
