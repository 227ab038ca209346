/** How a served run stands: its pace, where its time goes, and who holds it up. */

import { useEffect, useState } from "preact/hooks";
import { type Live, servedLive } from "./data";
import { count, number, seconds, whole } from "./format";
import { addressOf } from "./route";

const LOOK_MS = 2000;

export function LiveView() {
  const [live, setLive] = useState<Live | null>(null);
  useEffect(() => {
    let isOver = false;
    let timer = 0;
    const look = async () => {
      try {
        const found = await servedLive();
        if (!isOver) setLive(found);
      } catch {
        // The bar says that the server is gone; the last look stays.
      }
      if (!isOver) timer = setTimeout(look, LOOK_MS);
    };
    void look();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, []);
  if (!live) return null;
  return (
    <section class="standing" aria-label="How the run stands">
      <dl class="facts">
        {factsOf(live).map(([name, value, note]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd class={name === "Failures" && live.ended > 0 && note !== "" ? "bad" : undefined}>
              {value}
              {note !== "" && <small> {note}</small>}
            </dd>
          </div>
        ))}
      </dl>
      <div class="uses">
        {live.learning !== null && (
          <Use
            name="The loop"
            parts={[
              ["trains", live.learning],
              ["waits for groups", 1 - live.learning],
            ]}
          />
        )}
        {live.shares && (
          <Use
            name="Trajectories"
            parts={[
              ["policy", live.shares.policy],
              ["environment", live.shares.world],
              ["waiting and the rest", live.shares.other],
            ]}
          />
        )}
      </div>
      {live.slowest.length > 0 && <Slowest live={live} />}
    </section>
  );
}

function factsOf(live: Live): [string, string, string][] {
  const of = live.steps === null ? "" : ` of ${whole(live.steps)}`;
  const left = live.leftS === null || live.leftS === 0 ? "" : `about ${seconds(live.leftS)} to go`;
  const facts: [string, string, string][] = [["Run", `${live.phase}, step ${whole(live.step)}${of}`, left]];
  const reward = live.reward;
  if (reward) {
    const between =
      reward.low === null ? "" : `${number(reward.low, 2)} to ${number(reward.high, 2)}, `;
    const over = `${between}${count(reward.groups, "group")}, step ${reward.step}`;
    facts.push(["Reward", number(reward.mean), over]);
  }
  if (live.stepS !== null) {
    const tokens = live.tokensPerS === null ? "" : `${whole(Math.round(live.tokensPerS))} trained tokens a second`;
    facts.push(["Pace", `${seconds(live.stepS)} a step`, tokens]);
  }
  if (live.age) {
    const most = live.age.max === null ? "" : `at most ${whole(live.age.max)}`;
    facts.push(["Staleness", `${number(live.age.mean, 2)} ${live.age.mean === 1 ? "version" : "versions"}`, most]);
  }
  const failures = Object.entries(live.failures);
  const failed = failures.reduce((sum, [, times]) => sum + times, 0);
  const kinds = failures.map(([kind, times]) => `${whole(times)} ${kind}`).join(", ");
  facts.push(["Failures", failed === 0 ? "none" : `${whole(failed)} of ${whole(live.ended)}`, kinds]);
  return facts;
}

/** Shares of a whole, as one bar with its parts named below. */
function Use({ name, parts }: { name: string; parts: [string, number][] }) {
  const said = parts.map(([what, share]) => `${what} ${Math.round(share * 100)} %`).join(", ");
  return (
    <figure class="use">
      <figcaption>{name}</figcaption>
      <div class="bar-of" role="img" aria-label={`${name}: ${said}`}>
        {parts.map(([what, share], at) => (
          <span key={what} class={`part-${at}`} style={{ width: `${Math.max(0, share) * 100}%` }} />
        ))}
      </div>
      <ul>
        {parts.map(([what, share], at) => (
          <li key={what}>
            <i class={`part-${at}`} /> {what} <b>{Math.round(share * 100)} %</b>
          </li>
        ))}
      </ul>
    </figure>
  );
}

function Slowest({ live }: { live: Live }) {
  const what = live.phase === "running" ? "under way" : "left open";
  const more = live.flying - live.slowest.length;
  return (
    <details open={live.stuck > 0 || live.phase === "running"}>
      <summary>
        {count(live.flying, "trajectory", "trajectories")} {what}
        {live.stuck > 0 && <span class="bad"> {whole(live.stuck)} stuck</span>}
        <span class="muted">those that have not moved for longest first{more > 0 && `, ${whole(more)} more`}</span>
      </summary>
      <div class="slowest-box" tabIndex={0} role="group" aria-label="Slowest trajectories">
        <table class="slowest">
          <thead>
            <tr>
              <th scope="col">Group</th>
              <th scope="col">Task</th>
              <th scope="col" class="right">Turns</th>
              <th scope="col" class="right">Used</th>
              <th scope="col" class="right">Quiet</th>
            </tr>
          </thead>
          <tbody>
            {live.slowest.map((one) => (
              <tr key={`${one.group}/${one.sample}`}>
                <td>
                  <a href={addressOf({ view: "group", group: one.group })}>
                    {one.group}, no. {one.sample}
                  </a>
                </td>
                <td class="clip">{one.task}</td>
                <td class="right">{whole(one.turns)}</td>
                <td class="right">{seconds(one.usedS)}</td>
                <td class={one.isStuck ? "right bad" : "right"}>
                  {one.quietS === null ? "" : seconds(one.quietS)}
                  {one.isStuck && " stuck"}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}
