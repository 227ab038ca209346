/** Two trajectories side by side; what they begin with in common is marked. */

import { useMemo } from "preact/hooks";
import type { Run, Said, Story, Told } from "./data";
import { count, number } from "./format";
import { type Marks, Missing, useStory } from "./group";
import { useKeys } from "./keys";
import { commonTokens, type Token, tokensOf } from "./path";
import { Messages } from "./said";
import { Legend, TokenFacts, Tokens } from "./tokens";
import { Facts, type Look, Switch, trainedAt } from "./trajectory";
import { useState } from "preact/hooks";

function sameMessages(one: Said[], other: Said[]): number {
  const key = ({ role, text, calls, pictures }: Said) => JSON.stringify([role, text, calls, pictures]);
  let same = 0;
  while (same < one.length && same < other.length) {
    const [left, right] = [one[same], other[same]];
    if (!left || !right || key(left) !== key(right)) break;
    same++;
  }
  return same;
}

export function Compare(props: {
  run: Run;
  one: number;
  other: number;
  marks: Marks;
  look: Look;
  onLook: (look: Look) => void;
}) {
  const { run, look, onLook } = props;
  const rows = [props.one, props.other].map((id) => {
    const at = run.rowOfTrajectory.get(id);
    return at === undefined ? undefined : run.groupOf[at];
  });
  const left = useStory(run, rows[0]);
  const right = useStory(run, rows[1]);
  useKeys({ t: () => onLook({ ...look, isTokens: !look.isTokens }) });
  if (rows[0] === undefined || rows[1] === undefined) {
    return <Missing what={`trajectory ${rows[0] === undefined ? props.one : props.other}`} />;
  }
  if (left === "reading" || right === "reading") {
    return <main class="page"><p class="muted" role="status">Reading…</p></main>;
  }
  const first = left?.trajectories.find((one) => one.id === props.one);
  const second = right?.trajectories.find((one) => one.id === props.other);
  if (!left || !right || !first || !second) return <Missing what="record of both" />;
  return (
    <Both
      run={run}
      sides={[
        { story: left, told: first, row: rows[0] },
        { story: right, told: second, row: rows[1] },
      ]}
      look={look}
      onLook={onLook}
    />
  );
}

interface Side {
  story: Story;
  told: Told;
  row: number;
}

function Both({ run, sides, look, onLook }: { run: Run; sides: [Side, Side]; look: Look; onLook: (look: Look) => void }) {
  const tokens = useMemo(
    () => sides.map((side) => tokensOf(side.story, side.told, trainedAt(run, side.row))) as [Token[], Token[]],
    [sides[0].told, sides[1].told],
  );
  const [here, setHere] = useState<[number, number]>([0, -1]);
  const sameTokens = commonTokens(tokens[0], tokens[1]);
  const same = sameMessages(sides[0].told.messages, sides[1].told.messages);
  return (
    <main class="page compare">
      <nav class="crumbs" aria-label="Where this is">
        <a href="#/groups">Groups</a>
        <span>comparison</span>
        <span class="muted">
          {count(sameTokens, "token")} and {count(same, "message")} in common
        </span>
      </nav>
      <Switch look={look} onLook={onLook} />
      {look.isTokens && <Legend tokens={[...tokens[0], ...tokens[1]]} colour={look.colour} />}
      <div class="sides">
        {sides.map((side, at) => {
          const own = tokens[at as 0 | 1];
          return (
            <section key={side.told.id} aria-label={at ? "Second" : "First"}>
              <h2>
                <a href={`#/trajectory/${side.told.id}`}>
                  group {side.story.id}, trajectory {side.told.sample}
                </a>
                <span class="muted"> reward {number(side.told.reward)}</span>
              </h2>
              {look.isTokens ? (
                <>
                  <Tokens
                    tokens={own}
                    colour={look.colour}
                    same={sameTokens}
                    current={here[0] === at ? here[1] : -1}
                    onCurrent={(place) => setHere([at, place])}
                  />
                  {here[0] === at && here[1] >= 0 && <TokenFacts token={own[here[1]]} place={here[1]} />}
                </>
              ) : (
                <Messages said={side.told.messages} story={side.story} same={same} />
              )}
              <Facts
                story={side.story}
                told={side.told}
                sampled={own.filter((token) => token.source === "sampled").length}
                context={own.length}
              />
            </section>
          );
        })}
      </div>
    </main>
  );
}
